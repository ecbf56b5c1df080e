"""Audit bundles: everything that a decision on a policy rests on, in a folder that can be checked from the data."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import numpy as np
import orjson
from pydantic import BaseModel, ConfigDict, Field, Strict, TypeAdapter, ValidationError

from hindcast.api import OfflineTraining, validate_resource
from hindcast.datasets.content import compute_episode_checksums
from hindcast.datasets.dataset import Dataset
from hindcast.datasets.hooks import NO_HOOKS, Hooks
from hindcast.episodes.columns import Columns, root
from hindcast.errors import DataError, OutputConflict, SpecError
from hindcast.evaluate.fitted_q import FittedQOptions
from hindcast.evaluate.offline import OfflineOptions, OfflineReport
from hindcast.formatting import plural
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
from hindcast.run.evaluation.trained_episodes import TRAINED_EPISODES_FILE, read_trained_episodes
from hindcast.run.gate import GATE_FILE, replay
from hindcast.storage.local_files import TEMPORARY_NAME
from hindcast.storage.location import Location, resolve
from hindcast.version import __version__, package_versions

T = TypeVar("T")

AUDIT_FILE: Final = "audit.json"
FORMAT_VERSION: Final = 1
_EPISODES_FILE: Final = "episodes.json"
_MODULE_FOLDER: Final = "module"
_SPEC_FILE: Final = "spec.json"
_RUN_FILES: Final = (_SPEC_FILE, TRAINED_EPISODES_FILE, GATE_FILE)
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
_INTERVAL_TOLERANCE: Final = 0.02
"""Maximum difference of a recomputed number, as a share of its interval's width: other machines round differently."""
_RELATIVE_TOLERANCE: Final = 0.05
_ABSOLUTE_TOLERANCE: Final = 0.005
"""Maximum difference of a recomputed number without an interval: this share of the number, plus this constant."""

_NUMBER: Final = re.compile(r"[+-]?[0-9](?:[0-9.,]*[0-9])?(?:e[+-]?[0-9]+)?(?: %)?")


class _Strict(BaseModel):
    """A part of `audit.json`, in which unknown fields and values of other types are errors."""

    model_config = ConfigDict(extra="forbid", strict=True)


class _AuditData(_Strict):
    paths: list[str]
    leaves: list[str]
    trained_episodes_left_out: int | None = Field(alias="trainedEpisodesLeftOut")


class _AuditOptions(_Strict):
    gamma: float
    explore: bool
    clip: float | None
    seed: int
    model_updates: int = Field(alias="modelUpdates")


class _AuditDocument(_Strict):
    """The content of `audit.json`.

    Attributes:
        checksums: digests of the other fields' values by path, see `_leaf_values`.
    """

    format_version: int = Field(alias="formatVersion")
    created: datetime
    versions: dict[str, str]
    policy: str
    module_class: str | None = Field(alias="moduleClass")
    data: _AuditData
    options: _AuditOptions
    report: OfflineReport
    decision: str
    files: dict[str, str]
    checksums: dict[str, str]


class _GateLook(_Strict):
    time: str
    new_episodes: int
    episodes: int
    evidence: float
    decision: str
    digests: list[int]


class _GateState(_Strict):
    """The content of `GATE_FILE`, with the types that `replay` requires; the recomputed state shows what is wrong."""

    policy: str
    test: dict[str, Any]
    looks: list[_GateLook]


class _RunSpec(BaseModel):
    """The field of `_SPEC_FILE` that an evaluation reads."""

    spec: dict[str, Any]


_DOCUMENT: Final = TypeAdapter(_AuditDocument)
_EPISODES: Final = TypeAdapter(Annotated[list[Annotated[str, Strict()]], Field(min_length=1)])
_GATE: Final = TypeAdapter(_GateState)
_RUN_SPEC: Final = TypeAdapter(_RunSpec)


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
            "is not in the folder of a training's run, from which a bundle takes the resource and the split",
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
    leaves = _checked_leaves(judges.dataset)
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
    # As stored: the checksums are those of JSON's values.
    document["checksums"] = _leaf_checksums(orjson.loads(orjson.dumps(document)))
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
    document = _read_document(bundle)
    checks = [_check_files(bundle, document)]
    _check_run_files(bundle)
    # In the bundle as in a run folder, an evaluation finds the resource and the split above the policy's folder.
    module = str(bundle.child(_MODULE_FOLDER))
    policy, _ = load_policy(module, document["moduleClass"])
    _require(policy.digest == document["policy"], bundle, "the policy is not the one that was judged")
    checks.append(f"the policy is {policy.digest[:16]}, as judged")
    everything = open_like_inputs(data, resolve(module), hooks)
    judges = open_judging_data(module, everything, hooks, dataset_name=name)
    dataset = _select_judging_episodes(bundle, document, judges.dataset, name)
    checks.append(
        f"{plural(dataset.num_episodes, 'episode')} that judged the policy are in {name}, unchanged"
    )
    if bundle.child(TRAINED_EPISODES_FILE).exists():
        checks.append("none of them trained the policy")
    options = document["options"]
    updates = options["modelUpdates"]
    evaluation = evaluate_checkpoint_offline(
        module,
        judges._replace(dataset=dataset),
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
    # The sentence that was computed here: its numbers may differ from the stored ones by rounding.
    decision = evaluation.report.verdict.sentence
    return AuditResult(str(bundle), _digest(bundle.child(AUDIT_FILE)), decision, tuple(checks))


def _read_document(bundle: Location) -> dict[str, Any]:
    """Return the content of `audit.json`.

    Raises:
        DataError: it is not as it was written.
    """
    content = bundle.child(AUDIT_FILE).read_bytes()
    try:
        document = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise _bundle_error(bundle, f"{AUDIT_FILE} is not JSON ({error})") from None
    version = document.get("formatVersion") if isinstance(document, dict) else None
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise DataError(
            "was written by a newer version of Hindcast", path=str(bundle), remedy="upgrade Hindcast"
        )
    _read_part(bundle, AUDIT_FILE, _DOCUMENT)
    expected = document.pop("checksums")
    checksums = _leaf_checksums(document)
    for path in sorted(expected.keys() | checksums.keys()):
        _require(
            expected.get(path) == checksums.get(path),
            bundle,
            f"{path} in {AUDIT_FILE} was changed after the bundle was written",
        )
    # A field that occurs twice would be read in one way here and in another way elsewhere.
    canonical = orjson.dumps({**document, "checksums": expected}, option=orjson.OPT_INDENT_2)
    _require(content == canonical, bundle, f"{AUDIT_FILE} was written by another program")
    return dict(document)


def _read_part(bundle: Location, file: str, adapter: TypeAdapter[T]) -> T:
    """Return the content of a JSON file of a bundle.

    Raises:
        DataError: it has other fields, or values of other types.
    """
    try:
        return adapter.validate_json(bundle.child(file).read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        place = f"{'.'.join(map(str, first['loc']))} in {file}" if first["loc"] else file
        raise _bundle_error(bundle, f"{place}: {first['msg']}") from None


def _leaf_checksums(document: Mapping[str, Any]) -> dict[str, str]:
    """Return the digest of each of `_leaf_values`, by path."""
    return {
        path: hashlib.sha256(orjson.dumps([path, value])).hexdigest()[:16]
        for path, value in _leaf_values(document)
    }


def _leaf_values(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield path and value of each leaf of a JSON value: text, number, boolean, null, or an empty object or list."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from _leaf_values(item, f"{path}.{key}" if path else str(key))
    if not isinstance(value, dict | list) or not value:
        yield path, value


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


def _checked_leaves(dataset: Dataset) -> list[str]:
    """Return the leaves over which episodes have checksums."""
    return sorted(leaf for leaf in dataset.spec.leaves if root(leaf) in _COLUMNS)


def _episode_checksums(dataset: Dataset, leaves: Sequence[str]) -> list[str]:
    """Return the checksums of all episodes, in their order."""
    checksums = compute_episode_checksums(dataset, range(dataset.num_episodes), leaves)
    return [checksums[index] for index in range(dataset.num_episodes)]


def _require(holds: bool, bundle: Location, problem: str) -> None:
    if not holds:
        raise _bundle_error(bundle, problem)


def _bundle_error(bundle: Location, problem: str, remedy: str = "do not rely on this bundle") -> DataError:
    return DataError(f"does not hold: {problem}", path=str(bundle), remedy=remedy)


def _check_files(bundle: Location, document: Mapping[str, Any]) -> str:
    files = document["files"]
    # The bundle may come from anybody: nothing outside of it is read.
    _require(files.keys() <= set(_BUNDLE_FILES), bundle, "it lists files that no bundle has")
    for file, digest in files.items():
        location = bundle.child(file)
        _require(location.exists(), bundle, f"{file} is missing")
        _require(_digest(location) == digest, bundle, f"{file} was changed after the bundle was written")
    # No others either: an evaluation would read a `spec.json` beside the policy.
    for file in sorted(entry.relative_path for entry in bundle.files(recursive=True)):
        if file not in files and file != AUDIT_FILE:
            raise _bundle_error(
                bundle,
                f"{file} was added after the bundle was written",
                "move it out of the folder, where signatures and notes belong too, and verify again",
            )
    _require(_EPISODES_FILE in files, bundle, f"{_EPISODES_FILE} is missing")
    return f"{plural(len(files), 'file')} have their checksums"


def _check_run_files(bundle: Location) -> None:
    """Check that the resource and the record of trained episodes can be read; only the data can show that they hold."""
    resource = _read_part(bundle, _SPEC_FILE, _RUN_SPEC).spec
    try:
        _require(
            isinstance(validate_resource(resource), OfflineTraining),
            bundle,
            f"{_SPEC_FILE} is not of a training",
        )
    except SpecError as error:
        raise _bundle_error(bundle, f"{_SPEC_FILE}: {replace(error.problems[0], remedy='')}") from None
    record = bundle.child(TRAINED_EPISODES_FILE)
    if record.exists():
        try:
            num_trained = len(read_trained_episodes(record))
        except DataError as error:
            raise _bundle_error(bundle, f"{TRAINED_EPISODES_FILE} {error.problems[0].what}") from None
        _require(num_trained > 0, bundle, f"{TRAINED_EPISODES_FILE} names no episode")


def _select_judging_episodes(
    bundle: Location, document: Mapping[str, Any], dataset: Dataset, name: str
) -> Dataset:
    """Return those episodes of the data on which the policy of the bundle was judged."""
    expected = _read_part(bundle, _EPISODES_FILE, _EPISODES)
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
    report = orjson.loads(orjson.dumps(evaluation.report.to_json()))
    for path, stored, recomputed in _differences(document["report"], report, "report"):
        raise _bundle_error(bundle, f"{path} is {stored!r}, but {recomputed!r} by the data")
    _require(
        document["decision"] == document["report"]["verdict"]["sentence"],
        bundle,
        f"the decision is {document['decision']!r}, but {report['verdict']['sentence']!r} by the data",
    )
    return f"{plural(len(report['estimates']), 'estimate')} and the verdict follow from the data"


def _differences(
    stored: Any, recomputed: Any, path: str, width: float | None = None
) -> Iterator[tuple[str, Any, Any]]:
    """Yield path, stored and recomputed value of each part of a report that differs by more than rounding.

    Args:
        stored: value in the bundle.
        recomputed: value from the data.
        path: path of the value, for messages.
        width: width of the interval that the value belongs to; None without one.
    """
    if isinstance(stored, dict) and isinstance(recomputed, dict):
        if interval := recomputed.get("interval"):
            width = float(np.ptp(interval))
        for key in sorted(stored.keys() | recomputed.keys()):
            # A probability is not in the interval's units.
            key_width = None if key == "probability" else width
            yield from _differences(stored.get(key), recomputed.get(key), f"{path}.{key}", key_width)
    elif isinstance(stored, list) and isinstance(recomputed, list):
        for index, items in enumerate(zip_longest(stored, recomputed)):
            yield from _differences(*items, f"{path}.{index}", width)
    elif isinstance(stored, float) and isinstance(recomputed, float):
        if abs(stored - recomputed) > _tolerance(recomputed, width):
            yield path, stored, recomputed
    elif isinstance(stored, str) and isinstance(recomputed, str):
        if not _are_alike(stored, recomputed, width):
            yield path, stored, recomputed
    elif stored != recomputed or type(stored) is not type(recomputed):
        yield path, stored, recomputed


def _are_alike(stored: str, recomputed: str, width: float | None) -> bool:
    """Return True if two sentences have the same words, and numbers that differ by no more than rounding."""
    numbers, recomputed_numbers = _NUMBER.findall(stored), _NUMBER.findall(recomputed)
    return _NUMBER.sub("#", stored) == _NUMBER.sub("#", recomputed) and all(
        # Sentences show three digits, which adds a rounding error of half a percent at most.
        abs(_to_float(number) - _to_float(other))
        <= _tolerance(_to_float(other), None if other.endswith("%") else width)
        + 0.005 * abs(_to_float(other))
        for number, other in zip(numbers, recomputed_numbers, strict=True)
    )


def _tolerance(number: float, width: float | None) -> float:
    """Return the maximum difference of a recomputed number; see `_differences` for the width."""
    if width is None:
        return _RELATIVE_TOLERANCE * abs(number) + _ABSOLUTE_TOLERANCE
    return _INTERVAL_TOLERANCE * width + 1e-6 * abs(number)


def _to_float(number: str) -> float:
    return float(number.removesuffix(" %").replace(",", ""))


def _check_gate(bundle: Location, dataset: Dataset, name: str, module_class: str | None) -> str:
    gate = _read_part(bundle, GATE_FILE, _GATE)
    _require(any(look.digests for look in gate.looks), bundle, f"{GATE_FILE} counts no episode")
    stored, recomputed = replay(str(bundle.child(_MODULE_FOLDER)), dataset, name, module_class)
    for path, stored_value, value in _differences(stored, recomputed, GATE_FILE):
        raise _bundle_error(bundle, f"{path} is {stored_value!r}, but {value!r} by the data")
    test = recomputed["test"]
    return (
        f"the gate's looks at {plural(test['episodes'], 'episode')} lead to the decision {test['decision']}"
    )
