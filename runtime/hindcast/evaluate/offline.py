"""Evaluate a policy on recorded episodes alone: estimates with intervals, and a verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, Final, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from hindcast import formatting
from hindcast.api.evaluation import DOUBLY_ROBUST_ESTIMATES, MODEL_ESTIMATES, RATIO_ESTIMATES
from hindcast.datasets.dataset import Dataset
from hindcast.episodes.columns import Columns
from hindcast.errors import DataError
from hindcast.evaluate.action_comparison import ActionComparison, compare_actions
from hindcast.evaluate.behaviour_clone import Calibration, Clone, CloneOptions
from hindcast.evaluate.estimators import (
    Evidence,
    compute_estimates,
    continuation_values,
    effective_episodes,
    jackknife_contributions,
    mean_contributions,
    mean_ratio,
    missing_weight_margins,
    model_variances,
)
from hindcast.evaluate.fitted_q import CrossFitResult, FittedQOptions, cross_fit
from hindcast.evaluate.intervals import (
    F64,
    Interval,
    Variance,
    jackknife_interval,
    percentile_interval,
    resample_counts,
    student_interval,
)
from hindcast.evaluate.recorded_episodes import load_window, map_steps
from hindcast.evaluate.target_policy import Batch, TargetPolicy, actions_equal
from hindcast.evaluate.verdict import (
    MIN_RECORDED_ACTIONS,
    Difference,
    Verdict,
    difference_to_recorded,
    find_under_recorded,
    make_verdict,
    no_verdict,
)
from hindcast.learn.algorithm import Critic
from hindcast.learn.batches import actions_of
from hindcast.models.policy import Policy
from hindcast.pipeline.window import WindowData

Check = Callable[[str, int, int], None]
"""Called with the name of the model that is being fitted ("behaviour" or "model"), the number of its updates so far
and its maximum number of updates; an exception from it ends the evaluation."""

MAX_CALIBRATION_ERROR: Final = 0.1
"""Calibration error of a clone above which its ratios are unreliable."""

NO_MODEL_REQUESTED: Final = "no model was requested"

NO_MODEL_IF_RECURRENT: Final = (
    "the policy has a recurrent state, but a model's values depend on observations alone"
)
NO_CLONE_IF_RECURRENT: Final = (
    "the data have no action_logp, and the recorded policy is not cloned, because it may be recurrent like the "
    "evaluated one; record log-probabilities"
)

MIN_EFFECTIVE_EPISODES: Final = 10.0
"""Effective episodes below which estimates by ratios are refused."""

_VERDICT_ORDER: Final = ("wdr", "dr", "pdwis", "wis", "pdis", "is", "dm")
"""Estimates by which a verdict is given, the best first."""

_MAX_RATIO_ERROR: Final = 0.1
_MAX_RATIO_STANDARD_ERRORS: Final = 5.0
"""Distance of the mean ratio from its expectation, absolute and in standard errors, beyond which ratios are refused."""

_MAX_DRIFT: Final = 0.1
"""Change of a model's initial value in the second half of its updates, as a share of it, above which the model has not
converged, unless the change is within the spread of the ensemble."""

_NUM_ACTION_SAMPLES: Final = 8
"""Number of actions to sample from the policy in an initial state, if its actions cannot be enumerated."""


@dataclass(frozen=True)
class OfflineOptions:
    """Options of an offline evaluation.

    Attributes:
        gamma: discount factor of all estimates, and of the behaviour's return with which they are compared.
        explore: True if the policy samples its actions, False if it takes their mode.
        clip: upper bound of one step's ratio; None for no bound. Clipped ratios vary less and are biased.
        level: confidence level of intervals.
        resamples: number of resamples of the episodes, for intervals.
        seed: seed of resamples and fits.
        ratios: False for no importance sampling and no clone of the behaviour, which leaves only `dm`.
        estimates: estimates that may decide the verdict; empty for the best available one.
        fit: options of the model; None for no model, which leaves out `dm`, `dr` and `wdr`.
        clone: options of the behaviour's clone, used if log-probabilities were not recorded.
    """

    gamma: float = 0.99
    explore: bool = False
    clip: float | None = None
    level: float = 0.9
    resamples: int = 1000
    seed: int = 0
    ratios: bool = True
    estimates: tuple[str, ...] = ()
    fit: FittedQOptions | None = field(default_factory=FittedQOptions)
    clone: CloneOptions = field(default_factory=CloneOptions)


@dataclass(frozen=True)
class Estimate:
    """One estimate of the policy's discounted return, or the behaviour's discounted return as recorded.

    Attributes:
        value: the estimate.
        interval: `intervals.jackknife_interval` with `estimators.model_variances`, widened by
            `estimators.missing_weight_margins`. For `dm`, Student's interval over the model's members, widened by the
            model's maximum error. None if one episode has all the weight or, for `dm`, if the model has a single
            member.
        bootstrap: percentiles of the estimate over resamples of the episodes; None for `dm`, and if the estimate is
            undefined for some resamples. The bootstrap is too narrow if a few episodes have most of the weight.
    """

    value: float
    interval: Interval | None
    bootstrap: Interval | None = None


@dataclass(frozen=True)
class OfflineReport:
    """The result of an offline evaluation.

    Attributes:
        episodes, timesteps: size of the recorded data.
        explore: True if the policy samples its actions, False if it takes their mode.
        is_timed: True if steps have durations, so that returns are discounted per unit of time.
        behaviour: mean discounted return of the recorded policy, as recorded.
        behaviour_continued: `behaviour` plus, for episodes that were cut off, the model's value of the evaluated policy
            in their final observation, which `dm`, `dr` and `wdr` include too; None without a model or without such
            episodes.
        under_recorded: action -> number of times that it was recorded; only the actions of `find_under_recorded`
            (Discrete spaces).
        estimates: name -> estimate; see `estimators`.
        not_estimated: name of a missing estimate -> reason.
        calibration: calibration of the behaviour's clone; None without a clone.
        effective_episodes: see `estimators.effective_episodes`; None without ratios.
        signals: cheap metrics by name: `action_agreement` (discrete actions), `imitation_loss` (not for policies that
            sample without a density, such as FQL's); with a model, `td_error` (root mean square), `mean_q`, `max_q`;
            with a critic, `critic_initial_value`, `critic_mean_q`, `critic_max_q`.
        verdict: comparison of the policy with the behaviour.
    """

    episodes: int
    timesteps: int
    explore: bool
    is_timed: bool
    behaviour: Estimate
    behaviour_continued: Estimate | None
    under_recorded: dict[str, int]
    estimates: dict[str, Estimate]
    not_estimated: dict[str, str]
    calibration: Calibration | None
    effective_episodes: float | None
    signals: dict[str, float]
    verdict: Verdict

    def to_json(self) -> dict[str, Any]:
        """Return the report as results and `--json` contain it."""
        return asdict(self)


def evaluate_offline(
    policy: Policy,
    dataset: Dataset,
    name: str,
    options: OfflineOptions | None = None,
    check: Check = lambda *_: None,
) -> OfflineReport:
    """Evaluate a policy on episodes that another policy played.

    Args:
        policy: policy to evaluate. A recurrent policy gets estimates by ratios only, from recorded log-probabilities.
        dataset: recorded episodes; they are loaded into memory as a whole.
        name: name of the data in messages.
        options: None for the defaults.
        check: see `Check`.

    Raises:
        DataError: the data have fewer than two episodes, lack a column or do not fit the policy's spaces.
    """
    return OfflineEvaluator(policy, dataset, name, options).evaluate(policy, check)


class _Behaviour(NamedTuple):
    """The recorded policy in the recorded steps.

    Attributes:
        logp: `[S]` log-probabilities (float64) of the recorded actions.
        calibration: calibration of the clone that computed them; None if they were recorded.
    """

    logp: Tensor
    calibration: Calibration | None


class OfflineEvaluator:
    """Evaluates policies with the same spaces and preprocessing, such as those of a training, on recorded episodes.

    Args:
        policy: one of the policies; it provides spaces and preprocessing.
        dataset: recorded episodes; they are loaded into memory as a whole.
        name: name of the data in messages.
        options: None for the defaults.

    Raises:
        DataError: see `evaluate_offline`.
    """

    def __init__(
        self, policy: Policy, dataset: Dataset, name: str, options: OfflineOptions | None = None
    ) -> None:
        if dataset.num_episodes < 2:
            raise DataError(
                f"{name} contains {formatting.plural(dataset.num_episodes, 'episode')}: estimates need at least two, "
                "and hundreds to be meaningful."
            )
        self._options = options or OfflineOptions()
        self._window = load_window(dataset, policy, self._options.gamma, name)
        self._behaviour: _Behaviour | None = None

    def evaluate(
        self, policy: Policy, check: Check = lambda *_: None, critic: Critic | None = None
    ) -> OfflineReport:
        """Evaluate a policy; the same policy gives the same report.

        The first call that needs a clone of the behaviour fits it; later calls use the same clone.

        Args:
            policy: policy to evaluate.
            check: see `Check`.
            critic: critic of the algorithm that trains the policy, on the CPU, for signals.
        """
        target = TargetPolicy(policy, self._options.explore)
        has_ratios = not ratio_problem(target, self._options, Columns.ACTION_LOGP in self._window.columns)
        if has_ratios and self._behaviour is None:
            self._behaviour = self._find_behaviour(policy, check)  # once for all policies: a clone takes long
        behaviour = self._behaviour if has_ratios else None
        window = target.with_recurrent_outputs(self._window)
        return _Evaluation(target, window, behaviour, self._options, check, critic).report()

    def compare_actions(self, policy: Policy) -> ActionComparison:
        """Compare the actions of a policy with the recorded ones; see `action_comparison`."""
        target = TargetPolicy(policy, self._options.explore)
        window = target.with_recurrent_outputs(self._window)
        return compare_actions(target, window, self._options.seed)

    def _find_behaviour(self, policy: Policy, check: Check) -> _Behaviour:
        """Return the recorded log-probabilities, or those of a clone, which is fitted here."""
        window, clone_options = self._window, self._options.clone
        if Columns.ACTION_LOGP in window.columns:
            return _Behaviour(window.columns[Columns.ACTION_LOGP].double(), None)
        clone = Clone(
            policy,
            window,
            clone_options,
            self._options.seed,
            lambda num_done: check("behaviour", num_done, 2 * clone_options.updates),
        )
        return _Behaviour(map_steps(window, clone.logp), clone.calibration)


def ratio_problem(target: TargetPolicy, options: OfflineOptions, is_logp_recorded: bool) -> str:
    """Explain why importance ratios of the policy are impossible; empty if they are possible.

    Args:
        target: the policy to evaluate.
        options: options of the evaluation.
        is_logp_recorded: True if the data contain log-probabilities.
    """
    if not options.ratios:
        return "importance ratios were not requested"
    if not target.policy.has_logp(target.explore):
        return f"the policy's actions have no density{_explore_hint(target)}"
    if target.is_stateful and not is_logp_recorded:
        return NO_CLONE_IF_RECURRENT
    return ""


def logp_problem(evidence: Evidence) -> str:
    """Explain why the recorded log-probabilities cannot be those of the recorded actions; empty if they can."""
    mean, error = mean_ratio(evidence)
    # A mean below 1 may also come from actions that were never recorded, for which intervals have a margin.
    if mean - 1 <= max(_MAX_RATIO_ERROR, _MAX_RATIO_STANDARD_ERRORS * error):
        return ""
    return (
        f"the importance ratios of single steps have the mean {formatting.significant(mean)}, expected 1: action_logp "
        "is not the log-probability of the recorded actions, or it is in other units than the actions"
    )


def _explore_hint(target: TargetPolicy) -> str:
    """Return the advice to sample actions, if the policy could sample but is evaluated greedily; else empty."""
    samples = target.module.action_head.is_stochastic and not target.explore
    return "; evaluate it with sampled actions (explore)" if samples else ""


@dataclass(eq=False)
class _Evaluation:
    """One policy evaluated on recorded episodes; each quantity is computed on first use.

    Attributes:
        target: the policy.
        window: the episodes, with the policy's outputs if it is recurrent.
        behaviour: the recorded policy; None without ratios.
        options: options of the evaluation.
        check: see `Check`.
        critic: critic for signals; None without one.
    """

    target: TargetPolicy
    window: WindowData
    behaviour: _Behaviour | None
    options: OfflineOptions
    check: Check
    critic: Critic | None

    def report(self) -> OfflineReport:
        """Compute the report."""
        named_estimates = {name: self._estimate(name) for name in self._resampled_estimates}
        behaviour = named_estimates.pop("behaviour")
        return OfflineReport(
            episodes=len(self._evidence.length),
            timesteps=len(self._evidence.rewards),
            explore=self.options.explore,
            is_timed=Columns.DELTA_T in self.window.columns,
            behaviour=behaviour,
            behaviour_continued=self._behaviour_continued(),
            under_recorded=self._under_recorded,
            estimates=named_estimates,
            not_estimated=self._refusals,
            calibration=None if self.behaviour is None else self.behaviour.calibration,
            effective_episodes=self._effective_episodes,
            signals=self._signals(),
            verdict=self._verdict(),
        )

    @cached_property
    def _evidence(self) -> Evidence:
        """The evidence, with ratios even if there are too few effective episodes to use them."""
        window, log_ratio = self.window, None
        if self.behaviour is not None:
            log_ratio = np.asarray((map_steps(window, self.target.logp) - self.behaviour.logp).numpy())
        return Evidence.from_window(
            window,
            self.options.gamma,
            log_ratio=log_ratio,
            values=None if self._model is None else self._model.values,
            clip=self.options.clip,
        )

    @cached_property
    def _model(self) -> CrossFitResult | None:
        """The fitted models' values of the episodes; None without a model."""
        fit = self.options.fit
        if fit is None or self.target.is_stateful:
            return None

        def check(num_done: int) -> None:
            self.check("model", num_done, 2 * fit.updates)

        return cross_fit(self.target, self.window, fit, self.options.seed, check)

    @cached_property
    def _resample_counts(self) -> F64:
        """Resamples of the episodes `[1 + R, N]`."""
        return resample_counts(len(self._evidence.length), self.options.resamples, self.options.seed)

    @cached_property
    def _effective_episodes(self) -> float | None:
        evidence = self._evidence
        if evidence.log_ratio is None:
            return None
        return effective_episodes(evidence.weights[evidence.last_step])

    @cached_property
    def _refusals(self) -> dict[str, str]:
        """Name of each refused estimate -> reason; for dr and wdr, which need ratios and a model, first the model's."""
        ratio_reasons: dict[str, str] = dict.fromkeys(
            (*RATIO_ESTIMATES, *DOUBLY_ROBUST_ESTIMATES), self._ratio_refusal
        )
        model_problem = NO_MODEL_REQUESTED if self.options.fit is None else NO_MODEL_IF_RECURRENT
        model_reasons = dict.fromkeys(MODEL_ESTIMATES, model_problem)
        return (ratio_reasons if self._ratio_refusal else {}) | (
            model_reasons if self._evidence.values is None else {}
        )

    @cached_property
    def _ratio_refusal(self) -> str:
        """Reason why ratios are refused; empty if they are used."""
        is_logp_recorded = Columns.ACTION_LOGP in self.window.columns
        if problem := ratio_problem(self.target, self.options, is_logp_recorded):
            return problem
        if not self._is_cloned and (problem := logp_problem(self._evidence)):
            return problem
        assert self._effective_episodes is not None
        if self._effective_episodes >= MIN_EFFECTIVE_EPISODES:
            return ""
        episodes = len(self._evidence.length)
        overlap = (
            f"{formatting.plural(episodes, 'episode')} are worth {formatting.significant(self._effective_episodes)} "
            f"({MIN_EFFECTIVE_EPISODES:.0f} needed)"
        )
        if self._effective_episodes >= episodes / 2:
            return f"too few episodes: {overlap}"
        cause = "because the policy rarely takes the recorded action" + _explore_hint(self.target)
        return f"too little overlap: {overlap}, {cause}"

    @property
    def _is_cloned(self) -> bool:
        """True if the ratios' denominators are a clone's probabilities."""
        return self.behaviour is not None and self.behaviour.calibration is not None

    @cached_property
    def _usable_evidence(self) -> Evidence:
        """The evidence, without ratios if they are refused."""
        return replace(self._evidence, log_ratio=None) if self._ratio_refusal else self._evidence

    @cached_property
    def _resampled_estimates(self) -> dict[str, F64]:
        """Estimates by name: `[1 + R]`, of the episodes as they are and of each resample."""
        return compute_estimates(self._usable_evidence, self._resample_counts)

    @cached_property
    def _contributions(self) -> dict[str, F64]:
        """Contributions of the episodes to each estimate by name: `[N]`."""
        return jackknife_contributions(self._usable_evidence)

    @cached_property
    def _margins(self) -> dict[str, float]:
        return missing_weight_margins(self._usable_evidence)

    def _estimate(self, name: str) -> Estimate:
        values, level = self._resampled_estimates[name], self.options.level
        value = float(values[0])
        if name == "dm":
            assert self.options.fit is not None
            assert self._model is not None
            degrees_of_freedom = 2 * (self.options.fit.members - 1)
            return Estimate(
                value,
                student_interval(value, self._model.spread, level, degrees_of_freedom, self._max_model_error),
            )
        margin = self._margins.get(name, 0.0)
        variances = self._model_variances(name, is_continued=False)
        interval = jackknife_interval(value, self._contributions[name], level, margin, variances)
        return Estimate(value, interval, percentile_interval(values[1:], level))

    def _model_variances(self, name: str, *, is_continued: bool) -> list[Variance]:
        """Return `estimators.model_variances`; none for an estimate without a model."""
        if name not in DOUBLY_ROBUST_ESTIMATES:
            return []
        assert self._model is not None
        members, has_first_model = self._model.members, self._model.has_first_model
        return model_variances(
            self._usable_evidence, name, members, has_first_model, is_continued=is_continued
        )

    @cached_property
    def _model_error(self) -> tuple[float, F64]:
        """Mean error of the model's initial values, and the episodes' contributions `[N]` to it.

        The error is the discounted sum of an episode's TD errors: weighted by ratios if there are any, else as if the
        policy took the recorded actions.
        """
        samples, contributions = self._resampled_estimates, self._contributions
        if "wdr" in samples:
            return float(samples["wdr"][0] - samples["dm"][0]), contributions["wdr"] - contributions["dm"]
        episode_errors = self._evidence.sum_by_episode(self._evidence.discounts * self._evidence.td_error)
        return float(episode_errors.mean()), mean_contributions(episode_errors)

    @property
    def _max_model_error(self) -> float:
        """Largest absolute error within the interval of the model's error."""
        error, contributions = self._model_error
        # There is no interval if one episode has all the weight.
        return max(map(abs, jackknife_interval(error, contributions, self.options.level) or (error,)))

    @cached_property
    def _continuation(self) -> F64:
        return continuation_values(self._evidence)

    def _behaviour_continued(self) -> Estimate | None:
        """Return the recorded policy's return, with the model's values of what followed cut-off episodes, if any."""
        if not self._continuation.any():
            return None
        value = float(self._resampled_estimates["behaviour"][0] + self._continuation.mean())
        contributions = self._contributions["behaviour"] + mean_contributions(self._continuation)
        return Estimate(value, jackknife_interval(value, contributions, self.options.level))

    @cached_property
    def _under_recorded(self) -> dict[str, int]:
        space = self.target.module.action_space
        if not isinstance(space, gym.spaces.Discrete):
            return {}
        num_expected = map_steps(self.window, self.target.action_probs).sum(0).numpy()
        actions = self.window.columns[Columns.ACTIONS].long().flatten().numpy() - int(space.start)
        num_recorded = np.bincount(actions, minlength=int(space.n))
        is_rare = find_under_recorded(num_recorded, num_expected, len(self._evidence.length))
        return {
            str(action + int(space.start)): int(num_recorded[action])
            for action in np.flatnonzero(is_rare).tolist()
        }

    def _verdict(self) -> Verdict:
        """Compare with the recorded policy, by the best of the requested estimates that can decide."""
        if self._under_recorded:
            counts = ", ".join(f"{action} ({count})" for action, count in self._under_recorded.items())
            return no_verdict(
                f"the policy takes actions that were recorded fewer than {MIN_RECORDED_ACTIONS} times: {counts}"
            )
        problems: list[str] = []
        for name in _VERDICT_ORDER:
            if name not in (self.options.estimates or _VERDICT_ORDER):
                continue
            if problem := self._refusals.get(name) or self._verdict_problem(name):
                problems.append(problem)
            else:
                return self._verdict_by(name)
        # That no model was requested is the reason only if there is no other: the user knows it.
        reasons = [problem for problem in problems if problem != NO_MODEL_REQUESTED] or problems
        return no_verdict(reasons[0])

    def _verdict_problem(self, name: str) -> str:
        """Explain why an estimate cannot decide; empty if it can."""
        uses_model = name in MODEL_ESTIMATES
        if self._is_cloned and not uses_model:
            return (
                "the recorded policy's log-probabilities are missing, and a clone of it decides nothing alone: record "
                "action_logp, or evaluate with a model (dr, wdr)"
            )
        if name != "dm" and self.behaviour is not None and self.behaviour.calibration is not None:
            error = self.behaviour.calibration.error
            if error > MAX_CALIBRATION_ERROR:
                return f"the clone of the recorded policy fits badly (calibration error {error:.2f})"
        if uses_model and self._model is not None:
            value = abs(float(self._resampled_estimates["dm"][0]))
            if self._model.drift > max(_MAX_DRIFT * value, self._model.spread):
                return (
                    f"the model has not converged: its value changed by {formatting.significant(self._model.drift)} "
                    "in the second half of its updates; raise modelUpdates"
                )
        return ""

    def _verdict_by(self, name: str) -> Verdict:
        arguments = (self._usable_evidence, name, self._resampled_estimates, self._contributions)
        remarks = [formatting.acting(self.options.explore)]
        difference: Difference | None
        if name == "dm":
            assert self._model is not None
            assert self.options.fit is not None
            value, recorded_contributions = difference_to_recorded(*arguments)
            recorded_error = np.sqrt(np.square(recorded_contributions).sum())
            error = float(np.hypot(self._model.spread, recorded_error))
            if not error > 0:
                return no_verdict(
                    "the spread of the model's value is unknown: the model has a single member, or all data are equal"
                )
            freedom = 2 * (self.options.fit.members - 1)
            difference = Difference(value, error, freedom, self._max_model_error)
            remarks.append(f"by the model alone: {self._ratio_refusal}" if self._ratio_refusal else "")
        else:
            assert self._effective_episodes is not None
            difference = Difference.by_ratios(*arguments, self._model_variances(name, is_continued=True))
            remarks.append(formatting.plural(round(self._effective_episodes), "effective episode"))
        if self._is_cloned and not self._ratio_refusal:
            remarks.append("provisional, as the recorded policy was cloned")
        return make_verdict(difference, name, self.options.level, *remarks)

    def _signals(self) -> dict[str, float]:
        signals: dict[str, float] = {}
        head = self.target.module.action_head
        if head.is_discrete:
            signals["action_agreement"] = self._mean_over_steps(self._action_agreement)
        # A head that samples without a density has no loss of imitation.
        if head.is_stochastic or not head.noise_size:
            signals["imitation_loss"] = self._mean_over_steps(self._imitation_loss)
        if self._evidence.values is not None:
            signals["td_error"] = float(np.sqrt(np.square(self._evidence.td_error).mean()))
            signals["mean_q"] = float(self._evidence.values.q.mean())
            signals["max_q"] = float(self._evidence.values.q.max())
        return signals if self.critic is None else signals | self._critic_signals(self.critic)

    @torch.no_grad()
    def _critic_signals(self, critic: Critic) -> dict[str, float]:
        starts = self.window.gather(torch.from_numpy(self._evidence.first_step))
        generator = torch.Generator().manual_seed(self.options.seed)
        actions, weights = self.target.weighted_actions(starts, _NUM_ACTION_SAMPLES, generator)
        q = map_steps(self.window, critic)
        return {
            "critic_initial_value": float((critic(starts, actions) * weights).sum(0).mean()),
            "critic_mean_q": float(q.mean()),
            "critic_max_q": float(q.max()),
        }

    def _mean_over_steps(self, compute: Callable[[Batch], Tensor]) -> float:
        return float(map_steps(self.window, compute).double().mean())

    def _action_agreement(self, batch: Batch) -> Tensor:
        return actions_equal(self.target.distribution(batch).mode(), actions_of(batch)).double()

    def _imitation_loss(self, batch: Batch) -> Tensor:
        return self.target.distribution(batch).imitation_loss(actions_of(batch)).detach()
