"""The result of a search: trials, their runs, the winner and its confirmation."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from hindcast import formatting
from hindcast.api import OfflineTraining
from hindcast.evaluate.intervals import Interval
from hindcast.search.space import Setting
from hindcast.search.trials import LOSS_METRIC, trial_title


@dataclass(frozen=True)
class Run:
    """One training of a trial.

    Attributes:
        seed: seed of the training.
        folder: run folder of the training.
        value: the metric's value at `checkpoint`; None if the run failed or the value is not a finite number.
        interval: 90 % interval of the value; None for a loss.
        verdict: verdict on the checkpoint in one sentence; None without estimates.
        behaviour: the recorded policy's return on the same episodes; None without estimates.
        checkpoint: path of the checkpoint that has the value: the best by an estimate, the last by a loss.
        updates: number of updates at this checkpoint.
        seconds: duration of the training.
        error: reason why there is no value; None if there is one.
    """

    seed: int
    folder: str
    value: float | None = None
    interval: Interval | None = None
    verdict: str | None = None
    behaviour: float | None = None
    checkpoint: str | None = None
    updates: int | None = None
    seconds: float | None = None
    error: str | None = None


@dataclass(frozen=True)
class Trial:
    """The runs of one setting.

    Attributes:
        number: number of the trial, from 1.
        setting: path below `spec` -> value.
        runs: one run per seed.
    """

    number: int
    setting: Setting
    runs: tuple[Run, ...]

    @property
    def value(self) -> float | None:
        """Mean value over the seeds; None unless every run has a value."""
        # A mean over fewer seeds could not be compared with the means of other trials.
        values = [run.value for run in self.runs if run.value is not None]
        return sum(values) / len(values) if values and len(values) == len(self.runs) else None

    @property
    def title(self) -> str:
        """Name of the trial in messages: `trial 3 (config.lr=0.001)`."""
        return trial_title(self.number, self.setting)


@dataclass(frozen=True)
class Confirmation:
    """The evaluation of the winner on episodes that no trial has seen.

    Attributes:
        value: value of the search's metric; None if it is undefined.
        interval, verdict, behaviour: see `Run`.
        episodes: number of episodes.
    """

    value: float | None
    interval: Interval | None
    verdict: str | None
    behaviour: float | None
    episodes: int


@dataclass(frozen=True)
class Search:
    """A finished search.

    Attributes:
        folder: folder of the search.
        metric: metric by which the trials are compared: the name of an estimate, or `validationLoss`.
        trials: the trials, best first; trials without a value last.
        training: resource of the best run; None if no trial has a value.
        confirmation: evaluation of the best run's checkpoint; None if no episodes were set aside.
        report: path of the HTML report.
    """

    folder: str
    metric: str
    trials: tuple[Trial, ...]
    training: OfflineTraining | None
    confirmation: Confirmation | None
    report: str

    @property
    def best(self) -> Trial | None:
        """The trial with the best mean over its seeds, the earlier trial if equal; None if no trial has a value."""
        return self.trials[0] if self.trials[0].value is not None else None

    @cached_property
    def run(self) -> Run | None:
        """The best run of the best trial; its checkpoint is the search's choice."""
        return None if self.best is None else choose_best_run(self.best, self.metric)

    @property
    def sentence(self) -> str:
        """The result in one sentence."""
        best, run = self.best, self.run
        if best is None or run is None:
            errors = (run.error for trial in self.trials for run in trial.runs if run.error is not None)
            return f"no trial has a {self.metric} for all its seeds: {next(errors)}"
        has_several_seeds = len(best.runs) > 1
        trials = formatting.plural(len(self.trials), "trial")
        value = format_with_interval(best.value, None if has_several_seeds else run.interval)
        text = f"chosen: {best.title}: {self.metric} {value}"
        text += f", mean of {len(best.runs)} seeds" if has_several_seeds else ""
        text += f", the best of {trials}"
        if has_several_seeds:
            text += f"; its policy is that of seed {run.seed}"
        return text if self.confirmation is None else f"{text}; {self._confirmation_text(self.confirmation)}"

    def _confirmation_text(self, confirmation: Confirmation) -> str:
        episodes = formatting.plural(confirmation.episodes, "episode")
        value = format_with_interval(confirmation.value, confirmation.interval)
        text = f"on {episodes} that no trial has seen: {value}"
        if confirmation.behaviour is not None:
            text += f" (recorded policy: {formatting.significant(confirmation.behaviour)})"
        return text if confirmation.verdict is None else f"{text}; {confirmation.verdict}"

    def to_json(self) -> dict[str, Any]:
        """Return the search as `search.json` and `--json` contain it."""
        run, best = self.run, self.best
        best_json = None if run is None or best is None else {"trial": best.number, **asdict(run)}
        return {
            "metric": self.metric,
            "best": best_json,
            "confirmation": None if self.confirmation is None else asdict(self.confirmation),
            "sentence": self.sentence,
            "trials": [trial_json(trial) for trial in self.trials],
            "folder": self.folder,
            "report": self.report,
        }


def trial_json(trial: Trial) -> dict[str, Any]:
    """Return a trial as `search.json` contains it."""
    return {**asdict(trial), "value": trial.value}


def rank_trials(trials: list[Trial], metric: str) -> list[Trial]:
    """Sort trials by their value: best first, trials without a value last, equal values in the order of `trials`."""
    return sorted(trials, key=lambda trial: (trial.value is None, _cost(trial.value, metric)))


def choose_best_run(trial: Trial, metric: str) -> Run:
    """Return the run with the best value; every run must have a value."""
    return min(trial.runs, key=lambda run: _cost(run.value, metric))


def _cost(value: float | None, metric: str) -> float:
    """Return the value to minimise: a loss, or the negative of an estimate; 0 without a value."""
    return (1 if metric == LOSS_METRIC else -1) * (value or 0.0)


def format_with_interval(value: float | None, interval: Interval | None) -> str:
    """Format a value with its interval: `195 [180, 210]`."""
    if value is None:
        return "none"
    if interval is None:
        return formatting.significant(value)
    low, high = map(formatting.significant, interval)
    return f"{formatting.significant(value)} [{low}, {high}]"
