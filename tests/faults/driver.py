"""Carries out one resource in a process of its own, for tests that kill it.

    python driver.py RESOURCE.yaml [KILL_POINT | MOMENT CALL]

KILL_POINT is one of kill_points.py in the output folder, MOMENT one of moments.py and CALL how often it is come to.
Prints a line when it begins, at every progress and at the end.
"""

from __future__ import annotations

import sys

from kill_points import die_at
from moments import die

from hindcast.api import OfflineRecording, load_resources
from hindcast.errors import UserError
from hindcast.pipeline.offline_data import Input
from hindcast.report.events import Outcome, Progress
from hindcast.run.interruption import interruptible
from hindcast.run.recording import RecordingRun
from hindcast.run.training import TrainingRun


class Spoken:
    """A reporter that prints."""

    def progress(self, progress: Progress) -> None:
        print("progress", progress.stage, progress.done, flush=True)

    def note(self, resource: str, message: str) -> None:
        print("note", message, flush=True)

    def finished(self, outcome: Outcome) -> None:
        print("outcome", outcome.state, flush=True)


def main() -> int:
    loaded = load_resources(sys.argv[1])[0].resource
    kill_at = sys.argv[2] if len(sys.argv) == 3 else None
    if len(sys.argv) > 3:
        die(sys.argv[2], int(sys.argv[3]))
    reporter = Spoken()
    print("begun", flush=True)
    try:
        with interruptible() as interruption:
            if isinstance(loaded, OfflineRecording):
                die_at(kill_at, loaded.spec.output.path)
                outcome = RecordingRun(loaded, reporter, interruption).carry_out()
            else:
                die_at(kill_at, loaded.spec.checkpoint.path)
                inputs = [Input(str(source.path), source.weight) for source in loaded.spec.input]
                outcome = TrainingRun(loaded, inputs, reporter, interruption).carry_out()
    except UserError as error:
        print(f"error {type(error).__name__}: {error}", flush=True)
        return error.exit_code
    reporter.finished(outcome)
    return 0


if __name__ == "__main__":
    sys.exit(main())
