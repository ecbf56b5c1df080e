"""What a policy is worth, by recorded episodes alone: estimates with intervals, and a verdict."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from hindcast import formatting
from hindcast.datasets.dataset import Dataset
from hindcast.episodes.columns import Columns
from hindcast.errors import DataError
from hindcast.evaluate.behaviour_clone import Calibration, Clone, CloneFit
from hindcast.evaluate.estimators import (
    DOUBLY_ROBUST_ESTIMATES,
    F64,
    RATIO_ESTIMATES,
    Evidence,
    continuation_values,
    effective_episodes,
    estimates,
    jackknife_contributions,
    mean_contributions,
    missing_weight_margins,
)
from hindcast.evaluate.fitted_q import CrossFitResult, Fit, cross_fit
from hindcast.evaluate.intervals import Interval, jackknife_interval, percentiles, resamples, student_interval
from hindcast.evaluate.recorded_episodes import load_window, map_steps
from hindcast.evaluate.target_policy import Batch, TargetPolicy, actions_equal
from hindcast.evaluate.verdict import Verdict, no_verdict, verdict_from_model, verdict_from_resamples
from hindcast.learn.algorithm import Critic
from hindcast.learn.batches import actions_of
from hindcast.models.policy import Policy
from hindcast.pipeline.window import WindowData

Check = Callable[[str, int, int], None]
"""Called with what is fitted, how far, and of how much; what it raises ends the evaluation."""

MAX_CALIBRATION_ERROR: Final = 0.1
"""Calibration error of a clone over which its ratios are not to be trusted."""

NO_MODEL_IF_RECURRENT: Final = (
    "the policy has a recurrent state, and a model's values are of observations alone"
)
NO_CLONE_IF_RECURRENT: Final = (
    "the data have no action_logp, and for a policy with a recurrent state the behaviour is not cloned, since it may "
    "have a state too; record log-probabilities"
)

MIN_EFFECTIVE_EPISODES: Final = 10.0
"""Effective episodes below which ratios say nothing."""

_SAMPLES: Final = 8
"""Of the policy's actions in an initial state, where they cannot be listed."""


@dataclass(frozen=True)
class OfflineOptions:
    """How a policy is judged.

    Attributes:
        gamma: discount of all estimates, and of the behaviour's return that they are compared with.
        explore: the policy samples its actions; False takes its mode.
        clip: most that one step's ratio counts; None for as it is. Clipped ratios vary less and are biased.
        level: of intervals.
        resamples: of the episodes, for intervals.
        seed: of resamples and fits.
        ratios: False for no importance sampling, and no clone of the behaviour: `dm` alone is left.
        fit: of the model; None for no model, and no `dm`, `dr`, `wdr`.
        clone: of the behaviour, where its log-probabilities were not recorded.
    """

    gamma: float = 0.99
    explore: bool = False
    clip: float | None = None
    level: float = 0.9
    resamples: int = 1000
    seed: int = 0
    ratios: bool = True
    fit: Fit | None = field(default_factory=Fit)
    clone: CloneFit = field(default_factory=CloneFit)


@dataclass(frozen=True)
class Estimate:
    """One estimate of the policy's discounted return.

    Attributes:
        value: the estimate.
        interval: Student's, by leaving out one episode at a time (`intervals.jackknife`), and wider by
            `estimators.not_played`. Of `dm`, by its model's members, and wider by the most that the model misses. None
            where the estimate rests on one episode.
        bootstrap: percentiles of the estimate over resamples of the episodes; None of `dm`, and where some resamples
            say nothing. It is too narrow where a few episodes have most of the weight.
    """

    value: float
    interval: Interval | None
    bootstrap: Interval | None = None


@dataclass(frozen=True)
class OfflineReport:
    """What recorded episodes say of a policy.

    Attributes:
        episodes, timesteps: recorded.
        behaviour: mean discounted return of the policy that played.
        estimates: name -> estimate; see `estimators`.
        refused: name of an estimate -> why it is not there.
        calibration: of the behaviour's clone; None where its log-probabilities were recorded, or are not needed.
        effective_episodes: see `estimators.effective_episodes`; None without ratios.
        signals: cheap metrics by name: `action_agreement` (discrete actions), `imitation_loss` (not of policies that
            sample without a density, such as FQL's), `td_error` (root mean square), `mean_q`, `max_q`;
            `critic_initial_value`, `critic_mean_q`, `critic_max_q` of the critics that the policy was trained with,
            where they are given.
        verdict: in one sentence.
    """

    episodes: int
    timesteps: int
    behaviour: Estimate
    estimates: dict[str, Estimate]
    refused: dict[str, str]
    calibration: Calibration | None
    effective_episodes: float | None
    signals: dict[str, float]
    verdict: Verdict

    def to_json(self) -> dict[str, Any]:
        """As results and `--json` have it."""
        return asdict(self)


def evaluate_offline(
    policy: Policy,
    dataset: Dataset,
    name: str,
    options: OfflineOptions | None = None,
    check: Check = lambda *_: None,
) -> OfflineReport:
    """Judge a policy by episodes that another one played.

    Args:
        policy: of one with a recurrent state ratios alone can be estimated, from recorded log-probabilities.
        dataset: in memory as a whole.
        name: of the data, in messages.
        options: the defaults if None.
        check: see `Check`.

    Raises:
        DataError: fewer than two episodes, a column that is missing, or data that do not fit the policy's spaces.
    """
    return OfflineEvaluator(policy, dataset, name, options).evaluate(policy, check)


class OfflineEvaluator:
    """Recorded episodes that judge policies of one kind: those of a training, one after the other.

    Args:
        policy: one of them, whose spaces and preprocessing all have.
        dataset: in memory as a whole.
        name: of the data, in messages.
        options: the defaults if None.

    Raises:
        DataError: as of `evaluate_offline`.
    """

    def __init__(
        self, policy: Policy, dataset: Dataset, name: str, options: OfflineOptions | None = None
    ) -> None:
        if dataset.num_episodes < 2:
            raise DataError(
                f"{name} holds one episode: estimates need at least two, and hundreds to be meaningful."
            )
        self._options = options or OfflineOptions()
        self._window = load_window(dataset, policy, self._options.gamma, name)
        self._behaved: tuple[Tensor, Calibration | None] | None = None

    def evaluate(
        self, policy: Policy, check: Check = lambda *_: None, critic: Critic | None = None
    ) -> OfflineReport:
        """What the episodes say of a policy; the same policy gives the same report.

        Args:
            policy: as it acts.
            check: see `Check`.
            critic: of the algorithm that trains it, on the CPU, for signals.
        """
        target = TargetPolicy(policy, self._options.explore)
        has_ratios = not ratio_problem(target, self._options, Columns.ACTION_LOGP in self._window.columns)
        if has_ratios and self._behaved is None:
            self._behaved = self._behaviour(policy, check)
        behaved = self._behaved if has_ratios else None
        window = target.with_recurrent_outputs(self._window) if target.is_stateful else self._window
        return _Case(target, window, behaved, self._options, check, critic).report()

    def _behaviour(self, policy: Policy, check: Check) -> tuple[Tensor, Calibration | None]:
        """`[S]` log-probabilities of what was recorded: as recorded, else those of a clone, with its calibration."""
        window, fit = self._window, self._options.clone
        if Columns.ACTION_LOGP in window.columns:
            return window.columns[Columns.ACTION_LOGP].double(), None
        clone = Clone(
            policy, window, fit, self._options.seed, lambda done: check("behaviour", done, 2 * fit.updates)
        )
        return map_steps(window, clone.logp), clone.calibration


def ratio_problem(target: TargetPolicy, options: OfflineOptions, is_logp_recorded: bool) -> str:
    """Why no data could give ratios of the policy's probabilities to the behaviour's; empty where they can.

    Args:
        target: the policy, as it acts.
        options: as of `Judge`.
        recorded: whether the data have log-probabilities.
    """
    if not options.ratios:
        return "ratios were not asked for"
    if not target.policy.has_logp(target.explore):
        return f"the policy's actions have no density{_hint(target)}"
    if target.is_stateful and not is_logp_recorded:
        return NO_CLONE_IF_RECURRENT
    return ""


def _hint(target: TargetPolicy) -> str:
    samples = target.module.action_head.is_stochastic and not target.explore
    return "; evaluate it with sampled actions (explore)" if samples else ""


@dataclass(eq=False)
class _Case:
    """A policy, recorded episodes, and what follows from them.

    Attributes:
        behaved: log-probabilities of what was recorded, see `Judge`; None where there are no ratios.
    """

    target: TargetPolicy
    window: WindowData
    behaved: tuple[Tensor, Calibration | None] | None
    options: OfflineOptions
    check: Check
    critic: Critic | None

    def report(self) -> OfflineReport:
        shown = {name: self._estimate(name) for name in self._found}
        behaviour = shown.pop("behaviour")
        return OfflineReport(
            episodes=len(self._all.length),
            timesteps=len(self._all.rewards),
            behaviour=behaviour,
            estimates=shown,
            refused=self._refused,
            calibration=None if self.behaved is None else self.behaved[1],
            effective_episodes=self._effective,
            signals=self._signals(),
            verdict=self._verdict(),
        )

    @cached_property
    def _all(self) -> Evidence:
        """All that is known, ratios that may be refused among it."""
        window, log_ratio = self.window, None
        if self.behaved is not None:
            log_ratio = np.asarray((map_steps(window, self.target.logp) - self.behaved[0]).numpy())
        return Evidence(
            length=np.asarray(window.length.numpy()),
            rewards=np.asarray(window.columns[Columns.REWARDS].numpy(), dtype=np.float64),
            gamma=self.options.gamma,
            log_ratio=log_ratio,
            values=self._model and self._model.values,
            clip=self.options.clip,
        )

    @cached_property
    def _model(self) -> CrossFitResult | None:
        fit = self.options.fit
        if fit is None or self.target.is_stateful:
            return None

        def check(done: int) -> None:
            self.check("model", done, 2 * fit.updates)

        return cross_fit(self.target, self.window, fit, self.options.seed, check)

    @cached_property
    def _counts(self) -> F64:
        """`[1 + R, N]` resamples of the episodes."""
        return resamples(len(self._all.length), self.options.resamples, self.options.seed)

    @cached_property
    def _effective(self) -> float | None:
        evidence = self._all
        if evidence.log_ratio is None:
            return None
        return effective_episodes(evidence.weights[evidence.last_step])

    @cached_property
    def _refused(self) -> dict[str, str]:
        by_ratios: dict[str, str] = dict.fromkeys(
            (*RATIO_ESTIMATES, *DOUBLY_ROBUST_ESTIMATES), self._why_no_ratios
        )
        no_model = "no model was asked for" if self.options.fit is None else NO_MODEL_IF_RECURRENT
        without_model = dict.fromkeys(("dm", *DOUBLY_ROBUST_ESTIMATES), no_model)
        return (by_ratios if self._why_no_ratios else {}) | (
            without_model if self._all.values is None else {}
        )

    @cached_property
    def _why_no_ratios(self) -> str:
        """Empty where there are."""
        recorded = Columns.ACTION_LOGP in self.window.columns
        if why := ratio_problem(self.target, self.options, recorded):
            return why
        assert self._effective is not None
        if self._effective >= MIN_EFFECTIVE_EPISODES:
            return ""
        episodes = len(self._all.length)
        unlike = "; the policy rarely does what the behaviour did" + _hint(self.target)
        return (
            f"{formatting.plural(episodes, 'episode')} weigh as much as {formatting.significant(self._effective)} "
            f"equally weighted ones, and {MIN_EFFECTIVE_EPISODES:.0f} are needed"
            f"{unlike if self._effective < episodes / 2 else ''}"
        )

    @cached_property
    def _usable(self) -> Evidence:
        """Without ratios, where they are refused."""
        return replace(self._all, log_ratio=None) if self._why_no_ratios else self._all

    @cached_property
    def _found(self) -> dict[str, F64]:
        """Name -> `[1 + R]`."""
        return estimates(self._usable, self._counts)

    @cached_property
    def _contributions(self) -> dict[str, F64]:
        """Name -> `[N]`."""
        return jackknife_contributions(self._usable)

    @cached_property
    def _not_played(self) -> dict[str, float]:
        return missing_weight_margins(self._usable)

    def _estimate(self, name: str) -> Estimate:
        values, level = self._found[name], self.options.level
        value = float(values[0])
        if name == "dm":
            assert self.options.fit is not None
            assert self._model is not None
            freedom = 2 * (self.options.fit.members - 1)
            return Estimate(
                value, student_interval(value, self._model.spread, level, freedom, self._most_missed)
            )
        beyond = self._not_played.get(name, 0.0)
        interval = jackknife_interval(value, self._contributions[name], level, beyond)
        return Estimate(value, interval, percentiles(values[1:], level))

    @cached_property
    def _misses(self) -> tuple[float, F64]:
        """What the model's first values lack on average, by what the recorded rewards say: 0 of one that is right.

        Weighted by ratios where there are any, else as if the policy did what was recorded. And `[N]` the
        contributions of the episodes to it, see `left_out`.
        """
        found, contributions = self._found, self._contributions
        if "wdr" in found:
            return float(found["wdr"][0] - found["dm"][0]), contributions["wdr"] - contributions["dm"]
        of_episodes = self._all.sum_by_episode(self._all.discounts * self._all.td_error)
        return float(of_episodes.mean()), mean_contributions(of_episodes)

    @property
    def _most_missed(self) -> float:
        """The same at the far end of its interval; as it is where that rests on one episode."""
        missed, contributions = self._misses
        return max(map(abs, jackknife_interval(missed, contributions, self.options.level) or (missed,)))

    def _verdict(self) -> Verdict:
        """By ratios and model where there are both, else by ratios, else by the model."""
        found, counts = self._found, self._counts
        by = next((name for name in ("wdr", "pdwis", "dm") if name in found), None)
        if by is None:
            return no_verdict(self._why_no_ratios)
        beyond = 0.0 if by == "pdwis" else counts @ continuation_values(self._all) / counts.sum(1)
        gains = found[by] - found["behaviour"] - beyond
        if by == "dm":
            assert self._model is not None
            spread = math.hypot(self._model.spread, found["behaviour"][1:].std(), self._misses[0])
            return verdict_from_model(float(gains[0]), spread, by, self._why_no_ratios)
        return verdict_from_resamples(gains[1:], found["behaviour"][1:], by, self._effective or 0.0)

    def _signals(self) -> dict[str, float]:
        found: dict[str, float] = {}
        head = self.target.module.action_head
        if head.is_discrete:
            found["action_agreement"] = self._mean(self._agrees)
        if head.is_stochastic or not head.noise_size:
            found["imitation_loss"] = self._mean(self._imitates)
        if self._all.values is not None:
            found["td_error"] = float(np.sqrt(np.square(self._all.td_error).mean()))
            found["mean_q"] = float(self._all.values.q.mean())
            found["max_q"] = float(self._all.values.q.max())
        return found if self.critic is None else found | self._critic_signals(self.critic)

    @torch.no_grad()
    def _critic_signals(self, critic: Critic) -> dict[str, float]:
        starts = self.window.gather(torch.from_numpy(self._all.first_step))
        generator = torch.Generator().manual_seed(self.options.seed)
        actions, weights = self.target.weighted_actions(starts, _SAMPLES, generator)
        taken = map_steps(self.window, critic)
        return {
            "critic_initial_value": float((critic(starts, actions) * weights).sum(0).mean()),
            "critic_mean_q": float(taken.mean()),
            "critic_max_q": float(taken.max()),
        }

    def _mean(self, compute: Callable[[Batch], Tensor]) -> float:
        return float(map_steps(self.window, compute).double().mean())

    def _agrees(self, batch: Batch) -> Tensor:
        return actions_equal(self.target.distribution(batch).mode(), actions_of(batch)).double()

    def _imitates(self, batch: Batch) -> Tensor:
        return self.target.distribution(batch).imitation_loss(actions_of(batch)).detach()
