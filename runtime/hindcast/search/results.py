"""What a search found."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from hindcast import formatting
from hindcast.api import OfflineTraining
from hindcast.evaluate.intervals import Interval
from hindcast.search.space import Setting
from hindcast.search.trials import LOSS, title


@dataclass(frozen=True)
class Run:
    """One training of a trial.

    Attributes:
        seed: of the training.
        folder: its run folder.
        figure: the metric at its best checkpoint; None where it failed, or the metric could not be computed.
        interval: of that value, 90 %; None of a loss.
        verdict: on that checkpoint, in one sentence; None without estimates.
        behaviour: the recorded policy's return on the same episodes; None without estimates.
        checkpoint: path of that checkpoint.
        updates: made when it was saved.
        seconds: of training.
        error: why there is no value.
    """

    seed: int
    folder: str
    figure: float | None = None
    interval: Interval | None = None
    verdict: str | None = None
    behaviour: float | None = None
    checkpoint: str | None = None
    updates: int | None = None
    seconds: float | None = None
    error: str | None = None


@dataclass(frozen=True)
class Trial:
    """One of the settings.

    Attributes:
        number: from 1.
        setting: path below `spec` -> value.
        runs: one for each seed.
    """

    number: int
    setting: Setting
    runs: tuple[Run, ...]

    @property
    def figure(self) -> float | None:
        """Mean over the seeds; None unless every run has a value."""
        values = [run.figure for run in self.runs if run.figure is not None]
        return sum(values) / len(values) if values and len(values) == len(self.runs) else None

    @property
    def title(self) -> str:
        """`trial 3 (config.lr=0.001)`."""
        return title(self.number, self.setting)


@dataclass(frozen=True)
class Confirmation:
    """What episodes that no trial has seen say of the winner.

    Attributes:
        figure: the same metric as the trials'; None where it could not be computed.
        interval, verdict, behaviour: as of `Run`.
        episodes: how many.
    """

    figure: float | None
    interval: Interval | None
    verdict: str | None
    behaviour: float | None
    episodes: int


@dataclass(frozen=True)
class Search:
    """A search that is finished.

    Attributes:
        folder: where it is stored.
        by: the metric that the trials are compared by: an estimate's name, or `validationLoss`.
        trials: best first; those without a value last.
        training: of the best run; None where no trial has a value.
        confirmed: of the best run's checkpoint; None where no episodes were set aside.
        report: path of the HTML report.
    """

    folder: str
    by: str
    trials: tuple[Trial, ...]
    training: OfflineTraining | None
    confirmation: Confirmation | None
    report: str

    @property
    def best(self) -> Trial | None:
        """The trial with the best mean over its seeds, the earlier one of equals; None where none has a value."""
        return self.trials[0] if self.trials[0].figure is not None else None

    @cached_property
    def run(self) -> Run | None:
        """The best run of the best trial, whose checkpoint the search chooses."""
        return None if self.best is None else best_run(self.best, self.by)

    @property
    def sentence(self) -> str:
        """The result for people."""
        best, run = self.best, self.run
        if best is None or run is None:
            errors = (run.error for trial in self.trials for run in trial.runs if run.error is not None)
            return f"no trial has a {self.by} from all its seeds: {next(errors)}"
        several = len(best.runs) > 1
        of = formatting.plural(len(self.trials), "trial")
        chosen = (
            f"chosen: {best.title}: {self.by} {with_interval(best.figure, None if several else run.interval)}"
        )
        chosen += f", mean of {len(best.runs)} seeds, the best of {of}" if several else f", the best of {of}"
        if several:
            chosen += f"; its policy is that of seed {run.seed}"
        return chosen if self.confirmation is None else f"{chosen}; {self._last(self.confirmation)}"

    def _last(self, confirmed: Confirmation) -> str:
        episodes = formatting.plural(confirmed.episodes, "episode")
        said = f"on {episodes} that no trial has seen: {with_interval(confirmed.figure, confirmed.interval)}"
        if confirmed.behaviour is not None:
            said += f" (behaviour: {formatting.significant(confirmed.behaviour)})"
        return said if confirmed.verdict is None else f"{said}; {confirmed.verdict}"

    def to_json(self) -> dict[str, Any]:
        """As `search.json` and `--json` have it."""
        run, best = self.run, self.best
        chosen = None if run is None or best is None else {"trial": best.number, **asdict(run)}
        return {
            "by": self.by,
            "best": chosen,
            "confirmed": None if self.confirmation is None else asdict(self.confirmation),
            "sentence": self.sentence,
            "trials": [trial_json(trial) for trial in self.trials],
            "folder": self.folder,
            "report": self.report,
        }


def trial_json(trial: Trial) -> dict[str, Any]:
    """A row of `search.json`."""
    return {**asdict(trial), "figure": trial.figure}


def best_first(trials: list[Trial], by: str) -> list[Trial]:
    """By their metric; those without a value last, equals in order."""
    return sorted(trials, key=lambda trial: (trial.figure is None, _cost(trial.figure, by)))


def best_run(trial: Trial, by: str) -> Run:
    """The run with the best value."""
    return min(trial.runs, key=lambda run: _cost(run.figure, by))


def _cost(value: float | None, by: str) -> float:
    """The less the better: a loss, or an estimate's negative."""
    return (1 if by == LOSS else -1) * (value or 0.0)


def with_interval(value: float | None, interval: Interval | None) -> str:
    """`195 [180, 210]`."""
    if value is None:
        return "none"
    if interval is None:
        return formatting.significant(value)
    low, high = map(formatting.significant, interval)
    return f"{formatting.significant(value)} [{low}, {high}]"
