"""Events of a run: progress, notes, outcomes.

The console, JSON output and (on a cluster) the heartbeat are `Reporter`s; the run does not know which.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

State = Literal["Succeeded", "AlreadyFinished", "Interrupted"]


@dataclass(frozen=True)
class Progress:
    """Progress of one stage of one resource.

    Attributes:
        resource: `Kind/name`.
        stage: name of the stage, such as "Training the expert", "Recording", "Preparing the data" or "Training".
        done: amount done, in `unit`.
        total: amount at which the stage ends; None if only a stop criterion on a metric ends it.
        unit: unit of the amounts, such as "episodes", "timesteps", "iterations" or "updates".
        metrics: numbers to show with the progress: `return`, `loss`, `timesteps_per_s`, `timesteps`, `episodes`…
        verdict: verdict of the latest offline evaluation, in one sentence.
        saved_amount: what a recording keeps if it is killed now: iterations in the expert's checkpoint, then timesteps
            of committed ranges. None for other runs.
    """

    resource: str
    stage: str
    done: float
    total: float | None
    unit: str
    metrics: Mapping[str, float] = field(default_factory=dict)
    verdict: str | None = None
    saved_amount: int | None = None


@dataclass(frozen=True)
class Outcome:
    """The outcome of a resource's run.

    Attributes:
        resource: `Kind/name`.
        state: Succeeded, AlreadyFinished (nothing was done), Interrupted (checkpointed, can be resumed).
        message: one sentence for people: the result, where it is, how to resume.
        folder: dataset or run folder.
        report: path of the HTML report, None if none was written.
        metrics: final numbers by name (`episode_return_mean`, `episodes`, `timesteps`, `seconds`…); for a training also
            `checkpoint`, the path of the latest checkpoint, and `best`, a description of the best one with its `path`.
    """

    resource: str
    state: State
    message: str
    folder: str
    report: str | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)


class Reporter:
    """A receiver of a run's events, in order, from one thread; a subclass overrides the events that it uses."""

    def progress(self, progress: Progress) -> None:
        """Receive the progress of a stage."""

    def note(self, resource: str, message: str) -> None:
        """Receive a note for the user: a clamp, a resume, a location."""

    def finished(self, outcome: Outcome) -> None:
        """Receive the outcome of a resource that ended without an error."""


class DistinctNotes(Reporter):
    """A reporter that forwards each note only once, because several trainings on the same data have equal notes.

    Args:
        reporter: receives the events; None drops all events.
    """

    def __init__(self, reporter: Reporter | None) -> None:
        self._reporter = reporter or Reporter()
        self._noted_messages: set[str] = set()

    def progress(self, progress: Progress) -> None:
        self._reporter.progress(progress)

    def note(self, resource: str, message: str) -> None:
        if message not in self._noted_messages:
            self._noted_messages.add(message)
            self._reporter.note(resource, message)

    def finished(self, outcome: Outcome) -> None:
        self._reporter.finished(outcome)
