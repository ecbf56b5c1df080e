"""The metrics of `results.jsonl` as arrays, for the report's plots and tables.

Each line of the file is one iteration: nested dicts under RLlib's names
(`evaluation/env_runners/episode_return_mean`, `learners/default_policy/total_loss`, `timers/update_s`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hindcast.evaluate.verdict import compared_behaviour

F64 = NDArray[np.float64]
Result = Mapping[str, Any]

TIMERS = {
    "update_s": "updates",
    "data_wait_s": "waiting for data",
    "evaluation_wait_s": "waiting for evaluation",
    "sample_s": "playing episodes",
    "evaluation_s": "evaluation",
}
UNTIMED_LABEL = "everything else"
SAMPLED_STEPS_KEY = "num_env_steps_sampled_lifetime"
TRAINED_STEPS_KEY = "num_env_steps_trained_lifetime"


def lookup(result: Result, *names: str) -> float | None:
    """Return the number at a nested key; None if it is missing, not a number, or not finite."""
    value: Any = result
    for name in names:
        if not isinstance(value, Mapping) or name not in value:
            return None
        value = value[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not np.isfinite(value):
        return None
    return float(value)


@dataclass(frozen=True)
class Line:
    """One metric over the run: values `y` `[n]` at the iterations, timesteps or updates `x` `[n]`; n may be 0."""

    x: F64
    y: F64


@dataclass(frozen=True)
class ReturnCurve:
    """Returns of episodes over the run.

    Attributes:
        x: `[n]` training iteration, or timesteps, after which the policy was evaluated.
        mean: `[n]` mean return.
        low: `[n]` lowest return; equal to the mean if it was not recorded.
        high: `[n]` highest return; equal to the mean if it was not recorded.
        episodes: number of episodes per point; 0 if unknown or varying.
    """

    x: F64
    mean: F64
    low: F64
    high: F64
    episodes: int

    @property
    def best_index(self) -> int:
        """Index of the highest mean."""
        return int(self.mean.argmax())


@dataclass(frozen=True)
class EstimateCurve(ReturnCurve):
    """An estimate of the policy's return on held-out episodes, over the run.

    `low` and `high` are the bounds of the estimate's interval; without an interval they equal `mean`.

    Attributes:
        name: name of the estimate.
        behaviour: mean discounted return of the held-out episodes, which the recorded policy played.
        verdict: the latest verdict, in one sentence.
    """

    name: str
    behaviour: float
    verdict: str


@dataclass(frozen=True)
class Curves:
    """All curves of one run."""

    results: Sequence[Result]

    @cached_property
    def evaluation(self) -> ReturnCurve | None:
        """Evaluation returns over training iterations; None without evaluations."""
        # An evaluation in parallel to training is in the result of a later iteration than the one after which its
        # weights were taken. The result of a user's evaluation function may lack that iteration.
        return _make_return_curve(
            (
                lookup(evaluation, "training_iteration") or lookup(result, "training_iteration") or 0.0,
                evaluation,
            )
            for result in self.results
            if isinstance(evaluation := result.get("evaluation"), Mapping)
        )

    @cached_property
    def evaluation_by_timesteps(self) -> ReturnCurve | None:
        """Evaluation returns over the timesteps that an online algorithm had sampled; None without evaluations."""
        return _make_return_curve(
            (timesteps, evaluation)
            for result in self.results
            if isinstance(evaluation := result.get("evaluation"), Mapping)
            and (timesteps := lookup(result, SAMPLED_STEPS_KEY)) is not None
        )

    @cached_property
    def sampling_return(self) -> Line:
        """Mean return of the episodes that an online algorithm learned from, over timesteps sampled."""
        return make_line(self.results, "env_runners", "episode_return_mean", x_key=SAMPLED_STEPS_KEY)

    @cached_property
    def estimate(self) -> EstimateCurve | None:
        """The estimate that decides the latest verdict, else the first one; None if none was ever computed."""
        evaluations = [
            evaluation
            for result in self.results
            if (evaluation := _offline_evaluation(result)).get("estimates")
        ]
        if not evaluations:
            return None
        last = evaluations[-1]
        # The estimate that decides the verdict, so that curve, numbers and verdict agree.
        name = last["verdict"]["estimate"] or next(iter(last["estimates"]))
        # By iteration, because several results may contain the same evaluation.
        rows = {
            evaluation["training_iteration"]: (
                value,
                *(evaluation["estimates"][name]["interval"] or (value, value)),
            )
            for evaluation in evaluations
            if (value := lookup(evaluation, "estimates", name, "value")) is not None
        }
        if not rows:
            return None
        x = np.array(sorted(rows), np.float64)
        mean, low, high = np.array([rows[iteration] for iteration in sorted(rows)], np.float64).T
        behaviour = lookup(compared_behaviour(last, name), "value") or 0.0
        verdict = last["verdict"]["sentence"]
        return EstimateCurve(x, mean, low, high, last["episodes"], name, behaviour, verdict)

    @cached_property
    def validation(self) -> Line:
        """Loss on held-out timesteps, over training iterations."""
        return make_line([_offline_evaluation(result) for result in self.results], "validation_loss")

    @cached_property
    def learner_metrics(self) -> dict[str, Line]:
        """Every metric of the default policy's learner over training iterations, by name."""
        names = {name for result in self.results for name in _learner_metrics(result)}
        lines = {name: make_line(self.results, "learners", "default_policy", name) for name in names}
        return {name: line for name, line in lines.items() if len(line.y)}

    @cached_property
    def losses(self) -> dict[str, Line]:
        """The loss terms, the total first; if terms have equal lines, only the first of them."""
        names = sorted(
            (name for name in self.learner_metrics if "loss" in name),
            key=lambda name: (name != "total_loss", name),
        )
        lines: dict[str, Line] = {}
        for name in names:
            line = self.learner_metrics[name]
            if not any(
                len(line.y) == len(other.y) and np.allclose(line.y, other.y) for other in lines.values()
            ):
                lines[name] = line
        return lines

    @cached_property
    def gradient_norm(self) -> Line | None:
        """Norm of the gradients before clipping; None if it was not recorded."""
        return next((line for name, line in self.learner_metrics.items() if name.startswith("grad")), None)

    @property
    def mean_q(self) -> Line | None:
        """The critics' mean value of the recorded actions; None for an algorithm without critics."""
        return self.learner_metrics.get("mean_q")

    @cached_property
    def initial_value(self) -> Line:
        """The critics' mean value of the policy's actions in the initial states of held-out episodes."""
        return make_line(
            [_offline_evaluation(result) for result in self.results], "signals", "critic_initial_value"
        )

    @cached_property
    def speed(self) -> Line:
        """Timesteps trained (or sampled) per second over training iterations."""
        return make_line(self.results, "timesteps_per_s")

    def last(self, *names: str) -> float | None:
        """Return the latest value of the metric at a nested key, or None if no result has one."""
        values = (lookup(result, *names) for result in reversed(self.results))
        return next((value for value in values if value is not None), None)

    @property
    def iterations(self) -> int:
        """Number of the last iteration; 0 if there is none."""
        return int(self.last("training_iteration") or 0)

    @property
    def timesteps(self) -> float | None:
        """Timesteps that an online algorithm sampled in the whole run, or on which an offline algorithm was trained."""
        return self.last(SAMPLED_STEPS_KEY) or self.last(TRAINED_STEPS_KEY)

    @property
    def seconds(self) -> float | None:
        """Wall time of the run: `time_total_s`, or the sum of the timers if that is larger."""
        total = max(self.last("time_total_s") or 0.0, sum(self._timed_seconds.values()))
        return total or None

    @property
    def bottleneck(self) -> str:
        """The latest sentence of `describe_bottleneck`; "" if there is none."""
        sentences = (result.get("timers", {}).get("bottleneck", "") for result in reversed(self.results))
        return next(filter(None, sentences), "")

    @property
    def timeline(self) -> dict[str, list[float]]:
        """The latest `Timeline.busy_threads` of the learner that waited longest; empty if no stage was ever busy."""
        for result in reversed(self.results):
            timelines = result.get("timers", {}).get("timeline", [])
            if busy_timelines := [timeline for timeline in timelines if timeline.keys() - {"seconds"}]:
                return max(busy_timelines, key=lambda timeline: sum(timeline.get("wait", [])))
        return {}

    @cached_property
    def seconds_by_activity(self) -> dict[str, float]:
        """Seconds by activity in the order of `TIMERS`; then, as `UNTIMED_LABEL`, those that no timer measured."""
        seconds_by_activity = dict(self._timed_seconds)
        untimed_seconds = (self.seconds or 0.0) - sum(seconds_by_activity.values())
        if seconds_by_activity and untimed_seconds > 0:
            seconds_by_activity[UNTIMED_LABEL] = untimed_seconds
        return seconds_by_activity

    @cached_property
    def _timed_seconds(self) -> dict[str, float]:
        """Seconds by activity, without activities that took none."""
        sums = {
            label: sum(lookup(result, "timers", timer) or 0.0 for result in self.results)
            for timer, label in TIMERS.items()
        }
        return {label: seconds for label, seconds in sums.items() if seconds > 0}


def _offline_evaluation(result: Result) -> Result:
    """Return the offline evaluation of a result; empty if it has none."""
    # A user's evaluation function may return a number under this name.
    evaluation = result.get("evaluation")
    offline = evaluation.get("offline") if isinstance(evaluation, Mapping) else None
    return offline if isinstance(offline, Mapping) else {}


def _learner_metrics(result: Result) -> Mapping[str, Any]:
    metrics = result.get("learners", {}).get("default_policy", {})
    return metrics if isinstance(metrics, Mapping) else {}


def make_line(results: Sequence[Result], *names: str, x_key: str = "training_iteration") -> Line:
    """Return the metric at a nested key over the metric `x_key`, from the results that have both."""
    points = [
        (x, y)
        for result in results
        if (x := lookup(result, x_key)) is not None and (y := lookup(result, *names)) is not None
    ]
    array = np.array(points, np.float64).reshape(-1, 2)
    return Line(array[:, 0], array[:, 1])


def _make_return_curve(points: Iterable[tuple[float, Result]]) -> ReturnCurve | None:
    """Return the curve of (x, evaluation) pairs; the last evaluation counts for each x. None without a mean return."""
    rows = {}
    episode_counts = set()
    for x, evaluation in points:
        mean = lookup(evaluation, "env_runners", "episode_return_mean")
        if mean is None:
            continue
        low = lookup(evaluation, "env_runners", "episode_return_min")
        high = lookup(evaluation, "env_runners", "episode_return_max")
        rows[x] = (x, mean, mean if low is None else low, mean if high is None else high)
        episode_counts.add(lookup(evaluation, "env_runners", "num_episodes"))
    if not rows:
        return None
    x, mean, low, high = np.array([rows[key] for key in sorted(rows)], np.float64).T
    num_episodes = episode_counts.pop() if len(episode_counts) == 1 else None
    return ReturnCurve(x, mean, low, high, int(num_episodes or 0))
