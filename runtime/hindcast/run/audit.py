"""Audit bundles: everything that a decision on a policy rests on, in a folder that can be checked from the data."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson

from hindcast.datasets.content import compute_episode_checksums
from hindcast.datasets.dataset import Dataset
from hindcast.datasets.hooks import NO_HOOKS, Hooks
from hindcast.episodes.columns import Columns, root
from hindcast.errors import DataError, OutputConflict, SpecError
from hindcast.evaluate.fitted_q import FittedQOptions
from hindcast.evaluate.offline import OfflineOptions
from hindcast.formatting import plural, significant
from hindcast.models import policy_files
from hindcast.report.verdict_page import VERDICT_FILE, Judgement, write_verdict_page
from hindcast.run.checkpoint_evaluation import (
    OfflineEvaluation,
    evaluate_checkpoint_offline,
    find_run_folder,
    load_policy,
    open_judging_data,
    open_like_inputs,
)
from hindcast.run.evaluation.trained_episodes import TRAINED_EPISODES_FILE
from hindcast.run.gate import GATE_FILE, replay
from hindcast.storage.local_files import TEMPORARY_NAME
from hindcast.storage.location import Location, resolve
from hindcast.version import __version__, package_versions

AUDIT_FILE: Final = "audit.json"
FORMAT_VERSION: Final = 1
_EPISODES_FILE: Final = "episodes.json"
_MODULE_FOLDER: Final = "module"
_RUN_FILES: Final = ("spec.json", TRAINED_EPISODES_FILE, GATE_FILE)
"""Files of the run folder that a bundle has too, so that it is evaluated as a run folder."""
_BUNDLE_FILES: Final = (
    *(f"{_MODULE_FOLDER}/{file}" for file in policy_files.FILE_NAMES),
    _EPISODES_FILE,
    VERDICT_FILE,
    *_RUN_FILES,
)
"""Files that a bundle may have besides `AUDIT_FILE`, which is written last."""
_COLUMNS: Final = frozenset(
    {Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.ACTION_LOGP, Columns.DELTA_T}
)
"""Columns that an evaluation reads, over which episodes have checksums."""
_TOLERANCE: Final = 0.02
"""Maximum difference of a repeated estimate, as a share of its interval's width: other machines round differently."""

_NUMBER: Final = re.compile(r"[<>+-]?[0-9][0-9.,e-]*")


@dataclass(frozen=True)
class AuditResult:
    """A bundle that was written or checked.

    Attributes:
        folder: the bundle.
        digest: sha256 of `audit.json`, which has the checksums of all other files: to be kept elsewhere, or signed.
        decision: the verdict in one sentence.
        checks: what was checked, one sentence each; empty after writing.
    """

    folder: str
    digest: str
    decision: str
    checks: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the result as `--json` contains it."""
        return asdict(self)


def create_audit(
    path: str | Path,
    folder: str | Path,
    data: Sequence[str],
    *,
    options: OfflineOptions,
    gamma: float | None = None,
    module_class: str | None = None,
    hooks: Hooks = NO_HOOKS,
) -> AuditResult:
    """Evaluate a checkpoint on recorded episodes, and write a bundle of all that the decision rests on.

    Args:
        path: see `evaluate_checkpoint_offline`; in the folder of a training's run.
        folder: a new or empty folder, or one in which an earlier call was interrupted.
        data: paths of recorded data.
        options: options of the evaluation.
        gamma: see `evaluate_checkpoint_offline`.
        module_class: the policy's `model.moduleClass`, if it has one.
        hooks: receive the progress of preparing and fitting.

    Raises:
        SpecError: the checkpoint is not in the folder of a training's run.
        OutputConflict: the folder has other files, or a finished bundle, or is the run's.
    """
    target, run_folder = resolve(folder), find_run_folder(path)
    if run_folder is None:
        raise SpecError(
            "is not in the folder of a training's run, of which a bundle has the resource and the split",
            path=str(path),
            remedy="name a checkpoint in its run folder",
        )
    if str(run_folder) == str(target):
        raise OutputConflict("is the run's folder", path=str(target), remedy="name another folder")
    policy, _ = load_policy(path, module_class)
    _clear(target)
    judges = open_judging_data(path, data, hooks)
    result = evaluate_checkpoint_offline(
        path, judges, module_class=module_class, gamma=gamma, options=options, hooks=hooks
    )
    report = result.report.to_json()
    judgement = Judgement(
        report, result.actions, str(run_folder), judges.name, result.gamma, judges.num_trained
    )
    policy.save(target.child(_MODULE_FOLDER))
    for file in _RUN_FILES:
        if run_folder.child(file).exists():
            target.child(file).write_bytes(run_folder.child(file).read_bytes())
    leaves = _leaves(judges.dataset)
    checksums = _episode_checksums(judges.dataset, leaves)
    target.child(_EPISODES_FILE).write_bytes(orjson.dumps(checksums))
    write_verdict_page(target.child(VERDICT_FILE), judgement, str(run_folder))
    document = {
        "formatVersion": FORMAT_VERSION,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {"hindcast": __version__, **package_versions()},
        "policy": policy.digest,
        "moduleClass": module_class,
        "data": {"paths": list(data), "leaves": leaves, "trainedEpisodesLeftOut": judges.num_trained},
        "options": {
            "gamma": result.gamma,
            "explore": options.explore,
            "clip": options.clip,
            "seed": options.seed,
            "modelUpdates": 0 if options.fit is None else options.fit.updates,
        },
        "report": report,
        "decision": result.report.verdict.sentence,
        "files": {file: _digest(target.child(file)) for file in _bundle_files(target)},
    }
    target.child(AUDIT_FILE).write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))
    return AuditResult(str(target), _digest(target.child(AUDIT_FILE)), result.report.verdict.sentence)


def verify_audit(folder: str | Path, data: Sequence[str], *, hooks: Hooks = NO_HOOKS) -> AuditResult:
    """Check a bundle against the data: files, policy, episodes, split, estimates, verdict, and the gate's history.

    Args:
        folder: the bundle.
        data: paths of data with at least the episodes that judged the policy and that the gate has counted.
        hooks: receive the progress of preparing and fitting.

    Raises:
        DataError: there is no bundle, or something in it does not agree with the data.
    """
    bundle, name = resolve(folder), ", ".join(data)
    if not bundle.child(AUDIT_FILE).exists():
        raise DataError(
            f"has no {AUDIT_FILE}", path=str(bundle), remedy="name a folder of hindcast audit create"
        )
    document = orjson.loads(bundle.child(AUDIT_FILE).read_bytes())
    if document["formatVersion"] > FORMAT_VERSION:
        raise DataError(
            "was written by a newer version of Hindcast", path=str(bundle), remedy="upgrade Hindcast"
        )
    checks = [_check_files(bundle, document)]
    # In the bundle as in a run folder, an evaluation finds the resource and the split above the policy's folder.
    module = str(bundle.child(_MODULE_FOLDER))
    policy, _ = load_policy(module, document["moduleClass"])
    _require(policy.digest == document["policy"], bundle, "the policy is not the one that was judged")
    checks.append(f"the policy is {policy.digest[:16]}, as judged")
    everything = open_like_inputs(data, resolve(module), hooks)
    judges = open_judging_data(module, everything, hooks)
    dataset = _find_judges(bundle, document, judges.dataset, name)
    checks.append(
        f"{plural(dataset.num_episodes, 'episode')} that judged the policy are in {name}, unchanged"
    )
    if bundle.child(TRAINED_EPISODES_FILE).exists():
        checks.append("none of them trained the policy")
    options = document["options"]
    updates = options["modelUpdates"]
    evaluation = evaluate_checkpoint_offline(
        module,
        judges._replace(dataset=dataset, name=name),
        module_class=document["moduleClass"],
        gamma=options["gamma"],
        options=OfflineOptions(
            explore=options["explore"],
            clip=options["clip"],
            seed=options["seed"],
            fit=FittedQOptions(updates=updates) if updates else None,
        ),
        hooks=hooks,
    )
    checks.append(_check_report(bundle, document, evaluation))
    if bundle.child(GATE_FILE).exists():
        checks.append(_check_gate(bundle, everything, name, document["moduleClass"]))
    # Numbers may be rounded differently here: the sentence is the one that the data give.
    decision = evaluation.report.verdict.sentence
    return AuditResult(str(bundle), _digest(bundle.child(AUDIT_FILE)), decision, tuple(checks))


def _clear(target: Location) -> None:
    """Delete what an interrupted call left in the folder of a bundle: it has no `AUDIT_FILE` yet.

    Raises:
        OutputConflict: the folder has other files, or a finished bundle.
    """
    files = list(target.files(recursive=True)) if target.exists() else []
    if any(
        entry.relative_path not in _BUNDLE_FILES and not TEMPORARY_NAME.match(entry.location.name)
        for entry in files
    ):
        raise OutputConflict("is not empty", path=str(target), remedy="name another folder")
    for entry in files:
        entry.location.delete()


def _bundle_files(bundle: Location) -> list[str]:
    """Return the paths of the bundle's files, without `AUDIT_FILE`."""
    return [file for file in _BUNDLE_FILES if bundle.child(file).exists()]


def _digest(file: Location) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _leaves(dataset: Dataset) -> list[str]:
    return sorted(leaf for leaf in dataset.spec.leaves if root(leaf) in _COLUMNS)


def _episode_checksums(dataset: Dataset, leaves: Sequence[str]) -> list[str]:
    """Return the checksums of all episodes, in their order."""
    checksums = compute_episode_checksums(dataset, range(dataset.num_episodes), leaves)
    return [checksums[index] for index in range(dataset.num_episodes)]


def _require(holds: bool, bundle: Location, problem: str) -> None:
    if not holds:
        raise DataError(f"does not hold: {problem}", path=str(bundle), remedy="do not rely on this bundle")


def _check_files(bundle: Location, document: Mapping[str, Any]) -> str:
    files = document["files"]
    # The bundle may come from anybody: nothing outside of it is read.
    _require(files.keys() <= set(_BUNDLE_FILES), bundle, "it lists files that no bundle has")
    for file, digest in files.items():
        location = bundle.child(file)
        _require(location.exists(), bundle, f"{file} is missing")
        _require(_digest(location) == digest, bundle, f"{file} was changed after the bundle was written")
    for file in _bundle_files(bundle):
        _require(file in files, bundle, f"{file} was added after the bundle was written")
    return f"{plural(len(files), 'file')} have their checksums"


def _find_judges(bundle: Location, document: Mapping[str, Any], dataset: Dataset, name: str) -> Dataset:
    """Return the episodes of the data that judged the policy."""
    expected = orjson.loads(bundle.child(_EPISODES_FILE).read_bytes())
    leaves = document["data"]["leaves"]
    _require(
        set(leaves) <= dataset.spec.leaves.keys(), bundle, f"{name} lacks columns that judged the policy"
    )
    index_by_checksum = {
        checksum: index for index, checksum in enumerate(_episode_checksums(dataset, leaves))
    }
    num_missing = sum(checksum not in index_by_checksum for checksum in expected)
    _require(
        not num_missing,
        bundle,
        f"{num_missing:,} of {plural(len(expected), 'episode')} that judged the policy are not in {name}, or were "
        "changed, or trained it",
    )
    return dataset.select(np.unique([index_by_checksum[checksum] for checksum in expected]))


def _check_report(bundle: Location, document: Mapping[str, Any], evaluation: OfflineEvaluation) -> str:
    expected, report = document["report"], evaluation.report.to_json()
    stored, repeated = _name_estimates(expected), _name_estimates(report)
    _require(stored.keys() == repeated.keys(), bundle, "other estimates can be computed from the data")
    for name, estimate in stored.items():
        stored_numbers, numbers = _numbers(estimate), _numbers(repeated[name])
        # A bundle may have a number where the data give none, such as in an interval.
        _require(len(stored_numbers) == len(numbers), bundle, f"{name} has other numbers by the data")
        for stored_number, number in zip(stored_numbers, numbers, strict=True):
            _require(
                abs(stored_number - number) <= _TOLERANCE * np.ptp(numbers) + 1e-6 * abs(number),
                bundle,
                f"{name} is {significant(stored_number)}, but {significant(number)} by the data",
            )
    verdicts = expected["verdict"], report["verdict"]
    answers = [verdict["answer"] for verdict in verdicts]
    _require(
        answers[0] == answers[1], bundle, f"the verdict is {answers[0]!r}, but {answers[1]!r} by the data"
    )
    words = [_NUMBER.sub("", verdict["sentence"]) for verdict in verdicts]
    _require(
        words[0] == words[1] and document["decision"] == expected["verdict"]["sentence"],
        bundle,
        f"the decision is {document['decision']!r}, but {verdicts[1]['sentence']!r} by the data",
    )
    return f"{plural(len(stored), 'estimate')} and the verdict follow from the data"


def _name_estimates(report: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return all estimates of a report by the names that problems state, those that the report lacks left out."""
    verdict, estimates = report["verdict"], dict(report["estimates"])
    estimates["recorded policy"] = report["behaviour"]
    estimates["recorded policy, continued"] = report["behaviour_continued"]
    estimates["the difference"] = {"value": verdict["difference"], "interval": verdict["interval"]}
    return {name: estimate for name, estimate in estimates.items() if estimate}


def _numbers(estimate: Mapping[str, Any]) -> list[float]:
    value = [] if estimate["value"] is None else [estimate["value"]]
    return [*value, *(estimate["interval"] or ())]


def _check_gate(bundle: Location, dataset: Dataset, name: str, module_class: str | None) -> str:
    stored, repeated = replay(str(bundle.child(_MODULE_FOLDER)), dataset, name, module_class)
    agrees = (stored.episodes, stored.decision) == (repeated.episodes, repeated.decision)
    agrees = agrees and np.allclose(stored.log_capital, repeated.log_capital, rtol=1e-4, atol=1e-6)
    _require(
        bool(agrees), bundle, f"the gate's decision is {stored.decision}, but {repeated.decision} by the data"
    )
    return f"the gate's looks at {plural(stored.episodes, 'episode')} lead to the decision {stored.decision}"
