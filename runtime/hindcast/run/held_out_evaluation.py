"""Episodes that judge a training's policy and are never trained on."""

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
from hindcast.api.evaluation import OfflineEvaluationSpec
from hindcast.api.pipeline import PipelineSpec
from hindcast.datasets.content import contents_of
from hindcast.datasets.dataset import Dataset
from hindcast.datasets.merging import OnConflict, merge
from hindcast.datasets.prepare.opening import differing_leaves, open_data
from hindcast.episodes.columns import Columns
from hindcast.errors import SpecError
from hindcast.evaluate.estimators import DOUBLY_ROBUST_ESTIMATES, RATIO_ESTIMATES
from hindcast.evaluate.fitted_q import Fit
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
from hindcast.learn.algorithm import Algorithm, window_targets
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

_SPEC: Final = "spec.evaluation.offline"
_LOOK_EVERY: Final = 200

_MOST_COMPARED: Final = 100
"""Episodes of the same id that are read to see whether they are the same."""
Progress = Callable[[str, int, int], None]
"""Receives what is fitted, how far, and of how much."""


def split_episodes(
    sources: Sequence[Source], offline: OfflineEvaluationSpec, field: Literal["heldOut", "setAside"]
) -> tuple[list[Source], list[Dataset]]:
    """The sources without the share of episodes that a field of `offline` names, and the share of each source.

    An episode in the share of one source is trained on in none: those of the others with its id are left out.

    Raises:
        SpecError: a source would have no episode left, or none in its share.
    """
    fraction, what, way_out = {
        "heldOut": (offline.held_out, "held out", f"change the share, or name other data in {_SPEC}.input"),
        "setAside": (offline.set_aside, "set aside", "change the share"),
    }[field]
    assert fraction is not None
    split = [source.dataset.split(fraction, offline.held_out_seed or 0) for source in sources]
    shares: list[Dataset] = [share for _, share in split]
    taken = {eps_id for share in shares for eps_id in _places(share)} if len(shares) > 1 else set()
    rests: list[Source] = []
    for source, (others, share) in zip(sources, split, strict=True):
        rest = _without(others, taken)
        if not share.num_episodes or not rest.num_episodes:
            is_rest = field == "heldOut" and offline.set_aside is not None
            left = f" left after {_SPEC}.setAside, {offline.set_aside:g}" if is_rest else ""
            raise SpecError(
                f"{_SPEC}.{field} is {fraction:g}, and {source.name} has "
                f"{plural(source.dataset.num_episodes, 'episode')}{left}: "
                f"{share.num_episodes:,} would be {what} and {rest.num_episodes:,} trained on; {way_out}."
            )
        rests.append(source._replace(dataset=rest))
    return rests, shares


def _without(dataset: Dataset, taken: Collection[str]) -> Dataset:
    """The episodes whose ids are not taken."""
    kept = [eps_id not in taken for eps_id in dataset.episode_table().eps_id.tolist()] if taken else []
    return dataset if all(kept) else dataset.select(np.flatnonzero(kept))


def _places(dataset: Dataset) -> dict[str, int]:
    """Each episode by its id; of several with one id, the last."""
    return {eps_id: episode for episode, eps_id in enumerate(dataset.episode_table().eps_id.tolist())}


def select_set_aside(sources: Sequence[Source], offline: OfflineEvaluationSpec) -> Dataset:
    """The episodes of `offline.set_aside`, as one dataset."""
    return merge_datasets(split_episodes(sources, offline, "setAside")[1], "Rename")


def merge_datasets(shares: Sequence[Dataset], on_conflict: OnConflict = "Refuse") -> Dataset:
    """Several datasets as one, see `merge`, without the leaves that only some have; a single one as it is."""
    if len(shares) == 1:
        return shares[0]
    left_out = differing_leaves(shares)
    return merge([share.without(left_out) for share in shares] if left_out else shares, on_conflict)


def open_evaluation_data(offline: OfflineEvaluationSpec, sources: Sequence[Source]) -> Dataset:
    """The data of `offline.input`.

    Raises:
        SpecError: they are trained on.
        DataError: they cannot be opened.
    """
    assert offline.input is not None
    found = open_data(list(offline.input))
    places = _places(found)
    for source in sources:
        if (eps_id := _in_both(found, places, source.dataset)) is not None:
            raise SpecError(
                f"{_SPEC}.input is {', '.join(offline.input)}, of which episode {eps_id} is trained on: give "
                f"{_SPEC}.heldOut in its place, which holds out episodes."
            )
    return found


def _in_both(one: Dataset, first: Mapping[str, int], other: Dataset) -> str | None:
    """The id of an episode that both hold, in the leaves that both have; of many with common ids, some are compared.

    Args:
        first: the `_places` of `one`.
    """
    second = _places(other)
    ids = [eps_id for eps_id in first if eps_id in second][:_MOST_COMPARED]
    leaves = sorted(one.spec.leaves.keys() & other.spec.leaves.keys())
    held = contents_of(one, [first[eps_id] for eps_id in ids], leaves)
    there = contents_of(other, [second[eps_id] for eps_id in ids], leaves)
    return next((eps_id for eps_id in ids if held[first[eps_id]] == there[second[eps_id]]), None)


def notes_on_evaluation(judged: Result) -> dict[str, str]:
    """What the user should know of an offline evaluation, by what it is about: each is worth one note in a run."""
    notes = {name: f"{name} cannot be computed: {why}" for name, why in judged.get("refused", {}).items()}
    calibration = judged.get("calibration")
    if calibration is not None and calibration["error"] > MAX_CALIBRATION_ERROR:
        notes["calibration"] = (
            f"the data have no {Columns.ACTION_LOGP}, and the clone of the behaviour does not fit well (calibration "
            f"error {calibration['error']:.2f}), so its ratios are misleading: record log-probabilities, or ask for dm "
            "alone"
        )
    return notes


class HeldOutEvaluator:
    """Judges a training's policy by episodes that it is not trained on.

    Args:
        resource: has `evaluation.offline`.
        algorithm: the resource's, its losses not compiled.
        field: of `evaluation.offline`, which the episodes come from; for messages.

    Raises:
        SpecError: an estimate that is asked for can never be computed.
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
        self._name = f"{_SPEC}.{field}"
        self._judge: OfflineEvaluator | None = None
        self._weighted = needs.sampling == "prioritized"
        self._check()
        self._data = self._opened(resource.spec.pipeline, needs)

    def due(self, iteration: int, at_end: bool = False) -> bool:
        """Whether the weights after this iteration are to be judged, in the course of the training or at its end."""
        return is_due(self._spec.interval, iteration, at_end)

    def evaluate(self, iteration: int, progress: Progress = lambda *_: None) -> Result:
        """What the held-out episodes say of the weights as they are, for results; the same each time.

        `validation_loss` and `metrics` are the algorithm's own over all timesteps, `estimated_return` is the value of
        the first estimate, None where it cannot be computed of this policy; the rest is `OfflineReport.to_json`.

        Raises:
            DataError: the data are not as they should be.
            UserCodeError: the algorithm's own code raised.
        """
        with torch_threads(choose_num_threads(self._learner.nets, self._data.timesteps_per_batch)):
            found = validation_metrics(self._algorithm, self._learner, self._batches(), self._seed)
        metrics = {name: value if math.isfinite(value) else None for name, value in found.items()}
        judged = self._judged(progress)
        return {
            ITERATION: iteration,
            "validation_loss": metrics.get(TOTAL_LOSS),
            "metrics": metrics,
            "episodes": self._dataset.num_episodes,
            "timesteps": self._dataset.num_steps,
            **({} if judged is None else self._said(judged)),
        }

    def close(self) -> None:
        self._data.close()

    def _check(self) -> None:
        asked, explore = self._spec.estimates, self._spec.explore
        if not asked:
            return
        if self._dataset.num_episodes < 2:
            raise SpecError(
                f"{self._name} gives one episode: estimates need at least two, and hundreds to be meaningful."
            )
        by_ratios = [name for name in asked if name != "dm"]
        if by_ratios and not self._policy.has_logp(explore):
            way_out = (
                "set explore: true to evaluate it with sampled actions"
                if not explore and self._policy.has_logp(explore=True)
                else "dm needs no densities"
            )
            raise SpecError(
                f"{_SPEC}.estimates has {', '.join(by_ratios)}, and the policy's actions have no density, so they "
                f"can never be computed: {way_out}."
            )
        if by_ratios and self._dataset.num_episodes < MIN_EFFECTIVE_EPISODES:
            raise SpecError(
                f"{self._name} gives {self._dataset.num_episodes} episodes, and {', '.join(by_ratios)} cannot be "
                f"computed from fewer than {MIN_EFFECTIVE_EPISODES:.0f}: use more episodes, or dm alone."
            )
        if self._policy.module.is_stateful():
            self._check_of_state(by_ratios)

    def _check_of_state(self, by_ratios: Sequence[str]) -> None:
        by_model = [name for name in self._spec.estimates if name in ("dm", *DOUBLY_ROBUST_ESTIMATES)]
        if by_model:
            raise SpecError(
                f"{_SPEC}.estimates has {', '.join(by_model)}, which can never be computed: "
                f"{NO_MODEL_IF_RECURRENT}; ask for "
                f"{', '.join(RATIO_ESTIMATES)}."
            )
        if by_ratios and not has_logp(self._dataset):
            raise SpecError(
                f"{_SPEC}.estimates has {', '.join(by_ratios)}, which can never be computed: {NO_CLONE_IF_RECURRENT}."
            )

    def _opened(self, pipeline: PipelineSpec, needs: Needs) -> OfflineData:
        learner, policy = self._learner, self._policy
        timesteps = self._algorithm.options.train_batch_size_per_learner
        residency = "Streaming" if pipeline.residency == "Streaming" else "Auto"
        data = OfflineData(
            [Source(self._name, self._dataset)],
            replace(needs, sampling="epochs"),
            pipeline=pipeline.model_copy(update={"sampling": "Epochs", "residency": residency}),
            batch_size=max(1, timesteps // needs.timesteps_per_item),
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
        """All items once, as the learner is given them."""
        data = self._data
        start, left = data.state(), data.epoch_size
        while left:
            count = min(data.batch_size, left)
            batch = data.take(count)
            ones = torch.ones(count, device=self._learner.device)
            yield batch | {Columns.WEIGHTS: ones} if self._weighted else batch
            left -= count
        data.seek(start)

    def _judged(self, progress: Progress) -> OfflineReport | None:
        """None of one episode, of which nothing can be said but the loss."""
        if self._dataset.num_episodes < 2:
            return None

        def check(what: str, done: int, total: int) -> None:
            if done % _LOOK_EVERY == 0:
                progress(what, done, total)

        policy = Policy.from_files(self._policy.to_files())  # on the CPU, and in evaluation mode
        critic = self._algorithm.critic(copy.deepcopy(self._learner.nets).cpu().eval())
        with torch_threads(1):
            if self._judge is None:
                self._judge = OfflineEvaluator(policy, self._dataset, self._name, self._options())
            return self._judge.evaluate(policy, check, critic)

    def _options(self) -> OfflineOptions:
        spec = self._spec
        gamma = (
            getattr(self._algorithm.options, "gamma", OfflineOptions.gamma)
            if spec.gamma is None
            else spec.gamma
        )
        return OfflineOptions(
            gamma=float(gamma),
            explore=spec.explore,
            clip=spec.clip,
            seed=self._seed,
            ratios=any(name in (*RATIO_ESTIMATES, *DOUBLY_ROBUST_ESTIMATES) for name in spec.estimates),
            fit=Fit(updates=spec.model_updates)
            if {"dm", *DOUBLY_ROBUST_ESTIMATES}.intersection(spec.estimates)
            else None,
        )

    def _said(self, report: OfflineReport) -> dict[str, Any]:
        found, asked = report.to_json(), self._spec.estimates
        if not asked:
            return {"signals": found["signals"]}
        for part in ("estimates", "refused"):
            found[part] = {name: found[part][name] for name in asked if name in found[part]}
        first = found["estimates"].get(asked[0])
        return {"estimated_return": None if first is None else first["value"], **found}
