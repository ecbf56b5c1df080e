"""The gate of a run: its sequential test, fed from a log, with its state in the run folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson
import torch
from numpy.typing import NDArray

from hindcast.api import OfflineTraining, validate_resource
from hindcast.api.evaluation import GateSpec
from hindcast.datasets.dataset import Dataset
from hindcast.datasets.hooks import NO_HOOKS, Hooks
from hindcast.episodes.columns import Columns
from hindcast.errors import DataError, OutputConflict, SpecError
from hindcast.evaluate.action_comparison import compare_actions
from hindcast.evaluate.estimators import Evidence
from hindcast.evaluate.gate import GateTest
from hindcast.evaluate.intervals import F64
from hindcast.evaluate.offline import logp_problem
from hindcast.evaluate.recorded_episodes import has_logp, load_window, map_steps
from hindcast.evaluate.target_policy import TargetPolicy
from hindcast.formatting import acting, plural, significant
from hindcast.pipeline.window import WindowData
from hindcast.report.gate_page import GATE_PAGE_FILE, write_gate_page
from hindcast.run.checkpoint_evaluation import (
    enclosing_runs,
    find_gamma,
    find_trained_episodes,
    load_policy,
    open_like_inputs,
    refuse_missing_times,
)
from hindcast.run.evaluation.trained_episodes import EpisodeKeys, describe_episodes, find_trained
from hindcast.storage.location import Location, resolve

GATE_FILE: Final = "gate.json"
_DECISIONS: Final = {
    "promoted": ("True", "the policy is better than the recorded policy"),
    "kept": ("False", "the recorded policy is kept"),
    "undecided": ("Unknown", "undecided"),
}
"""Decision -> status of the condition `Promoted`, and the decision in words."""


@dataclass(frozen=True)
class GateResult:
    """The state of a gate after a look.

    Attributes:
        policy: digest of the tested policy.
        num_new: number of episodes that this look added.
        num_unfinished: number of the log's episodes that neither terminated nor were truncated; they are not added.
        spec: conditions of the gate.
        test: the test.
        looks: time, new_episodes, episodes, evidence, decision and the episodes' digests of each look that added
            episodes.
        page: path of the page; None before the first episode.
    """

    policy: str
    num_new: int
    num_unfinished: int
    spec: GateSpec
    test: GateTest
    looks: Sequence[Mapping[str, Any]]
    page: str | None

    @property
    def sentence(self) -> str:
        """The decision in words."""
        margin = f" by more than {significant(self.spec.by)}" if self.spec.by else ""
        omission = f"{self.num_unfinished:,} unfinished and left out; " if self.num_unfinished else ""
        claim = _DECISIONS[self.test.decision][1] + (margin if self.test.decision == "promoted" else "")
        return (
            f"{self.test.decision}: {claim} after {plural(self.test.episodes, 'episode')} "
            f"(evidence {significant(self.test.evidence)} of {significant(1 / self.test.error)}; {self.num_new:,} new; "
            f"{omission}{acting(self.spec.explore)})"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the result as `--json` contains it, with the condition that a status would carry."""
        return {
            "decision": self.test.decision,
            "episodes": self.test.episodes,
            "new_episodes": self.num_new,
            "unfinished_episodes": self.num_unfinished,
            "evidence": self.test.evidence,
            "threshold": 1 / self.test.error,
            "policy": self.policy,
            "explore": self.spec.explore,
            "looks": [
                {name: value for name, value in look.items() if name != "digests"} for look in self.looks
            ],
            "page": self.page,
            "condition": {
                "type": "Promoted",
                "status": _DECISIONS[self.test.decision][0],
                "reason": self.test.decision.capitalize(),
                "message": self.sentence,
            },
        }


def look(
    path: str | Path, data: Sequence[str], *, module_class: str | None = None, hooks: Hooks = NO_HOOKS
) -> GateResult:
    """Add the new finished episodes of a log to the gate of a run, and return its state.

    Two episodes are the same if their ids, numbers of timesteps, returns and first observations are. The state is
    written once, at the end: after a kill, the next look adds the same episodes.

    Args:
        path: see `evaluate_checkpoint`; in the folder of a run with `evaluation.gate`.
        data: paths of the log, which is read like the run's inputs (see `open_like_inputs`).
        module_class: the policy's `model.moduleClass`, if it has one.
        hooks: receive the progress of preparing the log, and a note if it is not known which episodes trained the
            policy.

    Raises:
        SpecError: there is no gate, or the policy's actions have no density.
        OutputConflict: the gate was opened for another policy.
        DataError: the log has no usable log-probabilities, or a return beyond the gate's bounds.
    """
    folder, spec = _find_gate(resolve(path))
    policy, _ = load_policy(path, module_class)
    file, name = folder.child(GATE_FILE), ", ".join(data)
    test = _new_test(spec)
    looks: list[dict[str, Any]] = []
    counted_digests: set[int] = set()
    if file.exists():
        state = orjson.loads(file.read_bytes())
        if state["policy"] != policy.digest:
            raise OutputConflict(
                "was opened for another policy, and the episodes that it has counted are evidence about that one only",
                path=str(file),
                remedy="name its checkpoint, or train another revision, which has a gate of its own",
            )
        test, looks = GateTest.from_json(state["test"]), state["looks"]
        counted_digests = {digest for look in looks for digest in look["digests"]}
    dataset = _open_log(path, data, name, hooks)
    episodes = describe_episodes(dataset)
    is_untrained = _find_untrained(path, episodes, name, hooks)
    digests = episodes.digests()
    new_episodes = [
        index
        for index in np.flatnonzero(episodes.is_finished & is_untrained).tolist()
        if digests[index] not in counted_digests
    ]
    num_unfinished = int((~episodes.is_finished & is_untrained).sum())
    page = folder.child(GATE_PAGE_FILE)
    if not new_episodes or test.decision != "undecided":
        return GateResult(
            policy.digest, 0, num_unfinished, spec, test, looks, str(page) if page.exists() else None
        )
    target = TargetPolicy(policy, spec.explore)
    new_data = dataset.select(np.array(new_episodes))
    gamma = find_gamma(resolve(path))
    window = _load(target, new_data, gamma, name)
    weights_and_returns = _weigh(target, window, gamma, name)
    _refuse_out_of_bounds(weights_and_returns[:, 1], spec, new_data, name)
    time = datetime.now(UTC).isoformat(timespec="seconds")
    looks.append(_add_look(test, weights_and_returns, [digests[index] for index in new_episodes], time))
    state = {"policy": policy.digest, "test": test.to_json(), "looks": looks}
    file.write_bytes(orjson.dumps(state))
    result = GateResult(policy.digest, looks[-1]["new_episodes"], num_unfinished, spec, test, looks, None)
    actions = compare_actions(target, window)
    return replace(result, page=write_gate_page(page, result.to_json(), actions, run=str(folder), data=name))


def replay(
    path: str | Path, dataset: Dataset, name: str, module_class: str | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Repeat all looks of a run's gate on the episodes that they added.

    Args:
        path: the run folder, or a checkpoint in it.
        dataset: data with these episodes.
        name: name of the data in messages.
        module_class: the policy's `model.moduleClass`, if it has one.

    Returns:
        The gate's state as it is stored, and as recomputed from the data, with the stored times of looks.

    Raises:
        DataError: an episode is missing.
    """
    folder, spec = _find_gate(resolve(path))
    state = orjson.loads(folder.child(GATE_FILE).read_bytes())
    order = [digest for look in state["looks"] for digest in look["digests"]]
    digests = describe_episodes(dataset).digests()
    index_by_digest = {digest: index for index, digest in enumerate(digests)}
    # An episode that was counted twice must be in the data twice.
    if num_missing := (Counter(order) - Counter(digests)).total():
        raise DataError(
            f"lacks {num_missing:,} of {plural(len(order), 'episode')} that the gate has counted, unchanged",
            path=name,
            remedy="name the gate's log too (--data)",
        )
    # Each episode is weighed once, however many looks counted it.
    episodes = np.unique([index_by_digest[digest] for digest in order])
    policy, gamma = load_policy(path, module_class)[0], find_gamma(resolve(path))
    target = TargetPolicy(policy, spec.explore)
    rows = _weigh(target, _load(target, dataset.select(episodes), gamma, name), gamma, name)
    test, looks = _new_test(spec), []
    for stored_look in state["looks"]:
        indices = [index_by_digest[digest] for digest in stored_look["digests"]]
        looks.append(
            _add_look(
                test, rows[np.searchsorted(episodes, indices)], stored_look["digests"], stored_look["time"]
            )
        )
    return state, {"policy": policy.digest, "test": test.to_json(), "looks": looks}


def _new_test(spec: GateSpec) -> GateTest:
    # The candidates share the error probability, so each gate has an equal part of it.
    return GateTest(spec.by, spec.error / spec.candidates, spec.returns.low, spec.returns.high)


def _add_look(test: GateTest, rows: F64, digests: list[int], time: str) -> dict[str, Any]:
    """Add weights and returns `[N, 2]` of new episodes to a test, and return the record of the look."""
    num_before = test.episodes
    test.add(*rows.T)
    return {
        "time": time,
        "new_episodes": test.episodes - num_before,
        "episodes": test.episodes,
        "evidence": test.evidence,
        "decision": test.decision,
        "digests": digests,
    }


def _find_gate(location: Location) -> tuple[Location, GateSpec]:
    """Return the folder and the gate of the run that contains a location."""
    for folder, document in enclosing_runs(location):
        resource = validate_resource(document)
        evaluation = resource.spec.evaluation if isinstance(resource, OfflineTraining) else None
        if evaluation is not None and evaluation.gate is not None:
            return folder, evaluation.gate
    raise SpecError(
        "is not in the folder of a run with evaluation.gate",
        path=str(location),
        remedy="add evaluation: {gate: {returns: {low: …, high: …}}} to the training, and raise spec.revision",
    )


def _open_log(path: str | Path, data: Sequence[str], name: str, hooks: Hooks) -> Dataset:
    """Open the log of a gate; arguments: see `look`."""
    dataset = open_like_inputs(data, resolve(path), hooks)
    refuse_missing_times(dataset, resolve(path), name)
    if not has_logp(dataset):
        raise DataError(
            f"has no {Columns.ACTION_LOGP}, the log-probabilities of the recorded actions: a gate does not estimate "
            "them by a clone of the recorded policy, because the clone's errors have no bound",
            path=name,
            remedy="record them",
        )
    return dataset


def _find_untrained(path: str | Path, episodes: EpisodeKeys, name: str, hooks: Hooks) -> NDArray[np.bool_]:
    """Return a mask `[N]` of the episodes that did not train the policy: all, with a note, if that is not known."""
    record = find_trained_episodes(resolve(path))
    if record is not None:
        return ~find_trained(record, episodes)
    hooks.note(
        f"{name}: it is not known which episodes trained this policy, so these may be counted. The gate's error "
        "holds only for a log without them."
    )
    return np.ones_like(episodes.is_finished)


def _load(target: TargetPolicy, dataset: Dataset, gamma: float, name: str) -> WindowData:
    """Load the episodes, with the policy's outputs if it is recurrent."""
    if not target.policy.has_logp(target.explore):
        raise SpecError(
            "the policy's actions have no density",
            field="spec.evaluation.gate.explore",
            remedy="set explore: true to test it with sampled actions",
        )
    return target.with_recurrent_outputs(load_window(dataset, target.policy, gamma, name))


def _weigh(target: TargetPolicy, window: WindowData, gamma: float, name: str) -> F64:
    """Return weight and discounted return of each episode, `[N, 2]`."""
    with torch.no_grad():
        log_ratio = map_steps(window, target.logp) - window.columns[Columns.ACTION_LOGP].double()
    evidence = Evidence.from_window(window, gamma, log_ratio=np.asarray(log_ratio.numpy()))
    if problem := logp_problem(evidence):
        raise DataError(problem, path=name)
    returns = evidence.sum_by_episode(evidence.discounts * evidence.rewards)
    with np.errstate(over="ignore"):  # the test limits weights
        return np.stack([evidence.weights[evidence.last_step], returns], 1)


def _refuse_out_of_bounds(returns: F64, spec: GateSpec, dataset: Dataset, name: str) -> None:
    """Raise DataError if the discounted return of an episode is beyond the gate's bounds."""
    out_of_bounds = np.flatnonzero((returns < spec.returns.low) | (returns > spec.returns.high))
    if len(out_of_bounds):
        raise DataError(
            f"has the discounted return {significant(returns[out_of_bounds[0]])}, outside of "
            f"spec.evaluation.gate.returns, {spec.returns.low:g} to {spec.returns.high:g}, within which the gate's "
            "error holds",
            path=name,
            episode=dataset.episode_table().eps_id[out_of_bounds[0]],
            remedy="widen them in another revision of the training",
        )
