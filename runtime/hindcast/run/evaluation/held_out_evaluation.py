"""Evaluation of a training's policy on held-out episodes, which are never trained on."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, Literal

import numpy as np
import torch

from hindcast.api import OfflineTraining
from hindcast.api.evaluation import (
    DOUBLY_ROBUST_ESTIMATES,
    MODEL_ESTIMATES,
    RATIO_ESTIMATES,
    OfflineEvaluationSpec,
)
from hindcast.api.pipeline import PipelineSpec
from hindcast.datasets.content import compute_episode_checksums
from hindcast.datasets.dataset import Dataset
from hindcast.datasets.merging import OnConflict, merge
from hindcast.datasets.prepare.opening import find_differing_leaves, open_data
from hindcast.episodes.columns import Columns
from hindcast.errors import MissingDataError, SpecError
from hindcast.evaluate.action_comparison import ActionComparison
from hindcast.evaluate.fitted_q import FittedQOptions
from hindcast.evaluate.offline import (
    MAX_CALIBRATION_ERROR,
    MIN_EFFECTIVE_EPISODES,
    NO_CLONE_IF_RECURRENT,
    NO_MODEL_IF_RECURRENT,
    OfflineEvaluator,
    OfflineOptions,
    OfflineReport,
)
from hindcast.evaluate.recorded_episodes import has_logp
from hindcast.formatting import plural
from hindcast.learn.algorithm import Algorithm, Critic, window_targets
from hindcast.learn.learner import Learner
from hindcast.learn.metrics import TOTAL_LOSS
from hindcast.learn.validation import validation_metrics
from hindcast.models.policy import Policy
from hindcast.pipeline.needs import Needs
from hindcast.pipeline.offline_data import OfflineData, Source
from hindcast.pipeline.targets import Targets
from hindcast.pipeline.window import Batch
from hindcast.report.results import ITERATION, Result
from hindcast.run.stop_criteria import is_due
from hindcast.threads import choose_num_threads, torch_threads

_FIELD: Final = "spec.evaluation.offline"
_UPDATES_PER_PROGRESS_REPORT: Final = 200
_MAX_COMPARED_EPISODES: Final = 100
"""Maximum number of episodes with equal ids whose content is compared."""
FitProgress = Callable[[str, int, int], None]
"""Called with (name of the model that is fitted, finished updates, total updates)."""


def split_episodes(
    sources: Sequence[Source], offline: OfflineEvaluationSpec, field: Literal["heldOut", "setAside"]
) -> tuple[list[Source], list[Dataset]]:
    """Split each source into training episodes and the fraction that a field of `offline` reserves.

    An episode that one source reserves is not trained on in any source: episodes with its id are removed from all.

    Returns:
        The sources without reserved episodes, and the reserved episodes of each source.

    Raises:
        SpecError: a source would have no episode to train on, or none to reserve.
    """
    fraction, verb, remedy = {
        "heldOut": (
            offline.held_out,
            "held out",
            f"change the fraction, or name other data in {_FIELD}.input",
        ),
        "setAside": (offline.set_aside, "set aside", "change the fraction"),
    }[field]
    assert fraction is not None
    splits = [source.dataset.split(fraction, offline.held_out_seed or 0) for source in sources]
    reserved_datasets: list[Dataset] = [reserved for _, reserved in splits]
    # The split of a single source already keeps episodes with the same id together.
    reserved_ids = (
        {eps_id for reserved in reserved_datasets for eps_id in _index_by_id(reserved)}
        if len(reserved_datasets) > 1
        else set()
    )
    remaining_sources: list[Source] = []
    for source, (unreserved, reserved) in zip(sources, splits, strict=True):
        remaining = _exclude_episodes(unreserved, reserved_ids)
        if not reserved.num_episodes or not remaining.num_episodes:
            is_after_set_aside = field == "heldOut" and offline.set_aside is not None
            context = f" left after {_FIELD}.setAside, {offline.set_aside:g}" if is_after_set_aside else ""
            raise SpecError(
                f"is {fraction:g}, and {source.name} has "
                f"{plural(source.dataset.num_episodes, 'episode')}{context}: "
                f"{reserved.num_episodes:,} would be {verb} and {remaining.num_episodes:,} trained on; {remedy}.",
                field=f"{_FIELD}.{field}",
                mentions=(f"{_FIELD}.input", f"{_FIELD}.setAside"),
            )
        remaining_sources.append(source._replace(dataset=remaining))
    return remaining_sources, reserved_datasets


def _exclude_episodes(dataset: Dataset, excluded_ids: Collection[str]) -> Dataset:
    """Return the dataset without the episodes of these ids; the same dataset if it has none of them."""
    if not excluded_ids:
        return dataset
    keep_mask = [eps_id not in excluded_ids for eps_id in dataset.episode_table().eps_id.tolist()]
    return dataset if all(keep_mask) else dataset.select(np.flatnonzero(keep_mask))


def _index_by_id(dataset: Dataset) -> dict[str, int]:
    """Return episode id -> index; if several episodes have the same id, the index of the last one."""
    return {eps_id: episode for episode, eps_id in enumerate(dataset.episode_table().eps_id.tolist())}


def select_set_aside(sources: Sequence[Source], offline: OfflineEvaluationSpec) -> Dataset:
    """Return the episodes that `offline.set_aside` reserves, as one dataset."""
    return merge_datasets(split_episodes(sources, offline, "setAside")[1], "Rename")


def merge_datasets(datasets: Sequence[Dataset], on_conflict: OnConflict = "Refuse") -> Dataset:
    """Merge datasets (see `merge`) without the leaves that only some of them have; return a single one unchanged."""
    if len(datasets) == 1:
        return datasets[0]
    differing = find_differing_leaves(datasets)
    return merge([dataset.without(differing) for dataset in datasets] if differing else datasets, on_conflict)


def open_evaluation_data(offline: OfflineEvaluationSpec, sources: Sequence[Source]) -> Dataset:
    """Open the data of `offline.input`, and check that they are not among the training data in `sources`.

    Raises:
        SpecError: an episode is also in the training data.
        DataError: the data cannot be opened.
    """
    assert offline.input is not None
    try:
        dataset = open_data(list(offline.input))
    except MissingDataError as error:
        error.locate(f"{_FIELD}.input")
        raise
    timed_source = next((source for source in sources if Columns.DELTA_T in source.dataset.spec.leaves), None)
    if timed_source is not None and Columns.DELTA_T not in dataset.spec.leaves:
        raise SpecError(
            f"is {', '.join(offline.input)}, which has no times of rows, unlike {timed_source.name}. Use "
            f"{_FIELD}.heldOut instead, or convert the data with their times.",
            field=f"{_FIELD}.input",
            mentions=(f"{_FIELD}.heldOut",),
        )
    index_by_id = _index_by_id(dataset)
    for source in sources:
        if (eps_id := _find_common_episode(dataset, index_by_id, source.dataset)) is not None:
            raise SpecError(
                f"is {', '.join(offline.input)}: episode {eps_id} is also in the training data. Use "
                f"{_FIELD}.heldOut instead, which holds episodes out.",
                field=f"{_FIELD}.input",
                mentions=(f"{_FIELD}.heldOut",),
            )
    return dataset


def _find_common_episode(
    dataset: Dataset, index_by_id: Mapping[str, int], other_dataset: Dataset
) -> str | None:
    """Return the id of an episode that both datasets contain, or None.

    Compares the leaves that both have, in at most `_MAX_COMPARED_EPISODES` episodes with common ids.

    Args:
        index_by_id: `_index_by_id` of `dataset`.
    """
    other_index_by_id = _index_by_id(other_dataset)
    ids = [eps_id for eps_id in index_by_id if eps_id in other_index_by_id][:_MAX_COMPARED_EPISODES]
    leaves = sorted(dataset.spec.leaves.keys() & other_dataset.spec.leaves.keys())
    contents = compute_episode_checksums(dataset, [index_by_id[eps_id] for eps_id in ids], leaves)
    other_contents = compute_episode_checksums(
        other_dataset, [other_index_by_id[eps_id] for eps_id in ids], leaves
    )
    return next(
        (
            eps_id
            for eps_id in ids
            if contents[index_by_id[eps_id]] == other_contents[other_index_by_id[eps_id]]
        ),
        None,
    )


def notes_on_evaluation(evaluation: Result) -> dict[str, str]:
    """Return topic -> note for the user on an offline evaluation. A run reports each topic once."""
    notes = {
        name: f"{name} cannot be computed: {reason}"
        for name, reason in evaluation.get("not_estimated", {}).items()
    }
    calibration = evaluation.get("calibration")
    if calibration is not None and calibration["error"] > MAX_CALIBRATION_ERROR:
        notes["calibration"] = (
            f"the data have no {Columns.ACTION_LOGP}, and the clone of the recorded policy fits badly (calibration "
            f"error {calibration['error']:.2f}), so ratios are misleading: record log-probabilities, or request dm "
            "alone"
        )
    return notes


class HeldOutEvaluator:
    """Evaluates a training's policy on episodes that it is not trained on.

    Args:
        resource: a training with `evaluation.offline`.
        dataset: the held-out episodes.
        algorithm: the resource's algorithm, with losses that are not compiled.
        needs: data that the algorithm needs.
        learner: learner of the training; provides networks and device.
        policy: policy to evaluate, with its current weights.
        field: field of `evaluation.offline` that defines the episodes, for messages.

    Raises:
        SpecError: a requested estimate can never be computed.
        DataError: the data do not fit the policy's spaces, or lack a column.
    """

    def __init__(
        self,
        resource: OfflineTraining,
        dataset: Dataset,
        *,
        algorithm: Algorithm,
        needs: Needs,
        learner: Learner,
        policy: Policy,
        field: str = "heldOut",
    ) -> None:
        assert resource.spec.offline is not None
        self._spec = resource.spec.offline
        self._seed = resource.spec.seed
        self._dataset, self._algorithm, self._learner, self._policy = dataset, algorithm, learner, policy
        self._field_path = f"{_FIELD}.{field}"
        self._evaluator: OfflineEvaluator | None = None
        self._needs_importance_weights = needs.sampling == "prioritized"
        self._check_estimates()
        self._data = self._open_data(resource.spec.pipeline, needs)

    def is_due(self, iteration: int, at_end: bool = False) -> bool:
        """Return True if the weights after this iteration should be evaluated, during the training or at its end."""
        return is_due(self._spec.interval, iteration, at_end)

    def evaluate(self, iteration: int, progress: FitProgress = lambda *_: None) -> Result:
        """Evaluate the current weights on the held-out episodes. The result is deterministic.

        In the result, `validation_loss` and `metrics` are the algorithm's own loss and metrics over all timesteps (None
        if NaN or infinite), and `estimated_return` is the value of the first estimate (None if it cannot be computed
        for this policy). All estimates and diagnostics are as in `OfflineReport.to_json`.

        Args:
            iteration: number of finished iterations, for the result.
            progress: called while models are fitted.

        Raises:
            DataError: the data are invalid.
            UserCodeError: the algorithm's own code raised an exception.
        """
        with torch_threads(choose_num_threads(self._learner.nets, self._data.timesteps_per_batch)):
            validation = validation_metrics(self._algorithm, self._learner, self._batches(), self._seed)
        metrics = {name: value if math.isfinite(value) else None for name, value in validation.items()}
        report = self._estimate(progress)
        return {
            ITERATION: iteration,
            "validation_loss": metrics.get(TOTAL_LOSS),
            "metrics": metrics,
            "episodes": self._dataset.num_episodes,
            "timesteps": self._dataset.num_steps,
            "gamma": self._gamma,
            **({} if report is None else self._select_estimates(report)),
        }

    def compare_actions(self) -> ActionComparison | None:
        """Compare the current policy's actions with the recorded ones; None before the first `evaluate`."""
        policy = Policy.from_files(self._policy.to_files())
        return None if self._evaluator is None else self._evaluator.compare_actions(policy)

    def close(self) -> None:
        self._data.close()

    def _check_estimates(self) -> None:
        """Refuse estimates that can never be computed for this policy and these episodes."""
        estimates, explore = self._spec.estimates, self._spec.explore
        if not estimates:
            return
        if self._dataset.num_episodes < 2:
            raise SpecError(
                "provides one episode: estimates need at least two, and hundreds to be meaningful.",
                field=self._field_path,
            )
        estimates_with_ratios = [name for name in estimates if name != "dm"]
        if estimates_with_ratios and not self._policy.has_logp(explore):
            remedy = (
                "set explore: true to evaluate it with sampled actions"
                if not explore and self._policy.has_logp(explore=True)
                else "request dm alone, which needs no densities"
            )
            raise SpecError(
                f"has {', '.join(estimates_with_ratios)}, which can never be computed, because the policy's actions "
                f"have no density: {remedy}.",
                field=f"{_FIELD}.estimates",
            )
        if estimates_with_ratios and self._dataset.num_episodes < MIN_EFFECTIVE_EPISODES:
            raise SpecError(
                f"provides {self._dataset.num_episodes} episodes, but {', '.join(estimates_with_ratios)} cannot "
                f"be computed from fewer than {MIN_EFFECTIVE_EPISODES:.0f}: use more episodes, or dm alone.",
                field=self._field_path,
            )
        if self._policy.module.is_stateful():
            self._check_recurrent_estimates(estimates_with_ratios)

    def _check_recurrent_estimates(self, estimates_with_ratios: Sequence[str]) -> None:
        model_estimates = [name for name in self._spec.estimates if name in MODEL_ESTIMATES]
        if model_estimates:
            raise SpecError(
                f"has {', '.join(model_estimates)}, which can never be computed: "
                f"{NO_MODEL_IF_RECURRENT}; use {', '.join(RATIO_ESTIMATES)}.",
                field=f"{_FIELD}.estimates",
            )
        if estimates_with_ratios and not has_logp(self._dataset):
            raise SpecError(
                f"has {', '.join(estimates_with_ratios)}, which can never be computed: {NO_CLONE_IF_RECURRENT}.",
                field=f"{_FIELD}.estimates",
            )

    def _open_data(self, pipeline: PipelineSpec, needs: Needs) -> OfflineData:
        learner, policy = self._learner, self._policy
        timesteps_per_batch = self._algorithm.options.train_batch_size_per_learner
        # Resident is for the training data; held-out data stay on the device only if they fit.
        residency = "Streaming" if pipeline.residency == "Streaming" else "Auto"
        data = OfflineData(
            [Source(self._field_path, self._dataset)],
            replace(needs, sampling="epochs"),  # each item exactly once, whatever sampling the training uses
            pipeline=pipeline.model_copy(update={"sampling": "Epochs", "residency": residency}),
            batch_size=max(1, needs.num_items(timesteps_per_batch)),
            seed=self._seed,
            device=learner.device,
            preprocessing=policy.preprocessing,
            observation_space=policy.observation_space,
            action_space=policy.action_space,
        )
        data.targets = Targets(
            compute=partial(window_targets, self._algorithm, learner.nets), updates=lambda: learner.updates
        )
        return data

    def _batches(self) -> Iterator[Batch]:
        """Yield batches that together contain each item once, in the learner's format; then return to the start."""
        data = self._data
        start_state, num_remaining = data.state(), data.epoch_size
        while num_remaining:
            count = min(data.batch_size, num_remaining)
            batch = data.take(count)
            # A loss on prioritised samples expects importance weights; here each item is used once, so all are 1.
            ones = torch.ones(count, device=self._learner.device)
            yield batch | {Columns.WEIGHTS: ones} if self._needs_importance_weights else batch
            num_remaining -= count
        data.seek(start_state)  # the next evaluation sees the same batches

    def _estimate(self, progress: FitProgress) -> OfflineReport | None:
        """Estimate the policy's return; None for a single episode, for which only the loss is defined."""
        if self._dataset.num_episodes < 2:
            return None

        def report_progress(stage: str, done: int, total: int) -> None:
            if done % _UPDATES_PER_PROGRESS_REPORT == 0:
                progress(stage, done, total)

        # Copies on the CPU, in evaluation mode; the learner's networks stay as they are.
        policy = Policy.from_files(self._policy.to_files())
        critic = None
        if not policy.module.is_stateful():  # a recurrent critic is no function of the observation
            critic = self._algorithm.critic(copy.deepcopy(self._learner.nets).cpu().eval())
        reward_scale = policy.preprocessing.reward_scale
        if critic is not None and reward_scale is not None:
            critic = _scale_critic(critic, 1.0 / reward_scale.factor) if reward_scale.is_linear else None
        with torch_threads(1):
            if self._evaluator is None:
                self._evaluator = OfflineEvaluator(
                    policy, self._dataset, self._field_path, self._make_options()
                )
            return self._evaluator.evaluate(policy, report_progress, critic)

    @property
    def _gamma(self) -> float:
        if self._spec.gamma is not None:
            return self._spec.gamma
        return float(getattr(self._algorithm.options, "gamma", OfflineOptions.gamma))

    def _make_options(self) -> OfflineOptions:
        spec = self._spec
        return OfflineOptions(
            gamma=self._gamma,
            explore=spec.explore,
            clip=spec.clip,
            seed=self._seed,
            estimates=tuple(spec.estimates),
            ratios=any(name in (*RATIO_ESTIMATES, *DOUBLY_ROBUST_ESTIMATES) for name in spec.estimates),
            fit=FittedQOptions(updates=spec.model_updates)
            if set(MODEL_ESTIMATES).intersection(spec.estimates)
            else None,
        )

    def _select_estimates(self, report: OfflineReport) -> dict[str, Any]:
        """Return the report as JSON with the requested estimates only; only `signals` if none are requested."""
        document, estimates = report.to_json(), self._spec.estimates
        if not estimates:
            return {"signals": document["signals"]}
        for section in ("estimates", "not_estimated"):
            document[section] = {
                name: document[section][name] for name in estimates if name in document[section]
            }
        first_estimate = document["estimates"].get(estimates[0])
        return {"estimated_return": None if first_estimate is None else first_estimate["value"], **document}


def _scale_critic(critic: Critic, factor: float) -> Critic:
    """Return a critic whose values are those of `critic` times `factor`."""
    return lambda batch, actions=None: critic(batch, actions) * factor
