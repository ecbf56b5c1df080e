"""The gate of a run: its sequential test, fed from a log, with its state in the run folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson
import torch

from hindcast.api import OfflineTraining, validate_resource
from hindcast.api.evaluation import GateSpec
from hindcast.datasets.dataset import Dataset
from hindcast.datasets.hooks import NO_HOOKS, Hooks
from hindcast.datasets.prepare.opening import open_data
from hindcast.episodes.columns import Columns
from hindcast.errors import DataError, OutputConflict, SpecError
from hindcast.evaluate.estimators import Evidence
from hindcast.evaluate.gate import GateTest
from hindcast.evaluate.intervals import F64
from hindcast.evaluate.offline import logp_problem
from hindcast.evaluate.recorded_episodes import has_logp, load_window, map_steps
from hindcast.evaluate.target_policy import TargetPolicy
from hindcast.formatting import plural, significant
from hindcast.models.policy import Policy
from hindcast.run.checkpoint_evaluation import (
    enclosing_runs,
    find_gamma,
    find_trained_episodes,
    load_policy,
)
from hindcast.run.evaluation.trained_episodes import digest_episodes, exclude_trained_episodes
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
    """

    policy: str
    num_new: int
    num_unfinished: int
    spec: GateSpec
    test: GateTest

    @property
    def sentence(self) -> str:
        """The decision in words."""
        margin = f" by more than {significant(self.spec.by)}" if self.spec.by else ""
        omission = f"{self.num_unfinished:,} unfinished and left out; " if self.num_unfinished else ""
        claim = _DECISIONS[self.test.decision][1] + (margin if self.test.decision == "promoted" else "")
        return (
            f"{self.test.decision}: {claim} after {plural(self.test.episodes, 'episode')} "
            f"(evidence {significant(self.test.evidence)} of {significant(1 / self.test.error)}; {self.num_new:,} new; "
            f"{omission}{'sampled' if self.spec.explore else 'greedy'} actions)"
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

    Two episodes are the same if their ids, numbers of timesteps and returns are.
    The state is written once, at the end: after a kill, the next look adds the same episodes.

    Args:
        path: see `evaluate_checkpoint`; in the folder of a run with `evaluation.gate`.
        data: paths of the log.
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
    bounds = spec.returns
    # The candidates share the error probability, so each gate has an equal part of it.
    test = GateTest(spec.by, spec.error / spec.candidates, bounds.low, bounds.high)
    counted_digests: set[int] = set()
    if file.exists():
        state = orjson.loads(file.read_bytes())
        if state["policy"] != policy.digest:
            raise OutputConflict(
                "was opened for another policy, and what it has counted holds for that one only",
                path=str(file),
                remedy="name its checkpoint, or train another revision, which has a gate of its own",
            )
        test, counted_digests = GateTest.from_json(state["test"]), set(state["episodes"])
    dataset: Dataset = open_data(list(data), hooks=hooks)
    if not has_logp(dataset):
        raise DataError(
            f"has no {Columns.ACTION_LOGP}, the log-probabilities of the recorded actions: a gate is not decided by a "
            "clone, because its errors are not bounded",
            path=name,
            remedy="record them",
        )
    if (record := find_trained_episodes(resolve(path))) is None:
        hooks.note(
            f"{name}: it is not known which episodes trained this policy, so these may be counted. The gate's error "
            "holds only for a log without them."
        )
    else:
        dataset, _ = exclude_trained_episodes(record, dataset, name, min_episodes=0)
    table = dataset.episode_table()
    is_finished = table.terminated | table.truncated
    digests = digest_episodes(dataset)
    new_episodes = [
        index for index in np.flatnonzero(is_finished).tolist() if digests[index] not in counted_digests
    ]
    num_before = test.episodes
    if new_episodes and test.decision == "undecided":
        new_data = dataset.select(np.array(new_episodes))
        for weight, return_ in _weigh(policy, new_data, spec, find_gamma(resolve(path)), name):
            test.add(float(weight), float(return_))
        counted_digests |= {digests[index] for index in new_episodes}
        state = {"policy": policy.digest, "test": test.to_json(), "episodes": sorted(counted_digests)}
        file.write_bytes(orjson.dumps(state))
    return GateResult(policy.digest, test.episodes - num_before, int((~is_finished).sum()), spec, test)


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


def _weigh(policy: Policy, dataset: Dataset, spec: GateSpec, gamma: float, name: str) -> F64:
    """Return weight and discounted return of each episode, `[N, 2]`.

    Raises:
        SpecError: the policy's actions have no density.
        DataError: a log-probability cannot be used, or a return is beyond the gate's bounds.
    """
    target = TargetPolicy(policy, spec.explore)
    if not policy.has_logp(spec.explore):
        raise SpecError(
            "the policy's actions have no density",
            field="spec.evaluation.gate.explore",
            remedy="set explore: true to test it with sampled actions",
        )
    window = load_window(dataset, policy, gamma, name)
    window = target.with_recurrent_outputs(window) if target.is_stateful else window
    with torch.no_grad():
        log_ratio = map_steps(window, target.logp) - window.columns[Columns.ACTION_LOGP].double()
    evidence = Evidence(
        length=np.asarray(window.length.numpy()),
        rewards=np.asarray(window.columns[Columns.REWARDS].numpy(), dtype=np.float64),
        gamma=gamma,
        log_ratio=np.asarray(log_ratio.numpy()),
    )
    if problem := logp_problem(evidence):
        raise DataError(problem, path=name)
    returns = evidence.sum_by_episode(evidence.discounts * evidence.rewards)
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
    with np.errstate(over="ignore"):  # the test limits weights
        return np.stack([evidence.weights[evidence.last_step], returns], 1)
