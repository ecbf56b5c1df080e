"""Execute one resource in a separate process, for tests that kill it.

    python driver.py RESOURCE.yaml [KILL_POINT | MOMENT CALL]
    python driver.py --learner RANK WORLD_SIZE STORE RESOURCE.yaml [MOMENT CALL]

KILL_POINT is a file operation in the output folder (kill_points.py); MOMENT is a name in moments.py, and CALL the
number of its occurrence. The script prints a line at the start, for every progress report and at the end. The second
form runs one of several learners of a training, over gloo; STORE is the file through which they find each other.
"""

from __future__ import annotations

import contextlib
import sys

from kill_points import arrange_kill_at_point
from moments import arrange_kill_at_moment

from hindcast.api import OfflineRecording, load_resources
from hindcast.datasets.opening import open_dataset
from hindcast.errors import UserError
from hindcast.learn.group import Group
from hindcast.learn.ranks import Ranks
from hindcast.pipeline.offline_data import Source
from hindcast.report.events import Outcome, Progress
from hindcast.run.interruption import catch_signals
from hindcast.run.placement import LOCAL
from hindcast.run.recording.recording_run import RecordingRun
from hindcast.run.training import training_run
from hindcast.run.training.learner_group import follow_first_learner


class PrintingReporter:
    """A reporter that prints its calls."""

    def progress(self, progress: Progress) -> None:
        print("progress", progress.stage, progress.done, flush=True)

    def note(self, resource: str, message: str) -> None:
        print("note", message, flush=True)

    def finished(self, outcome: Outcome) -> None:
        print("outcome", outcome.state, flush=True)


def main(arguments: list[str]) -> int:
    if arguments[0] == "--learner":
        group: Group = join_ranks(*arguments[1:4])
        arguments = arguments[4:]
    else:
        group = Group()
    resource = load_resources(arguments[0])[0].resource
    kill_point = arguments[1] if len(arguments) == 2 else None
    if len(arguments) > 2:
        arrange_kill_at_moment(arguments[1], int(arguments[2]))
    reporter = PrintingReporter()
    print("begun", flush=True)
    try:
        with catch_signals() as interruption:
            if isinstance(resource, OfflineRecording):
                arrange_kill_at_point(kill_point, resource.spec.output.path)
                outcome = RecordingRun(resource, reporter, interruption).execute()
            else:
                arrange_kill_at_point(kill_point, resource.spec.checkpoint.path)
                data = [
                    Source(str(source.path), open_dataset(str(source.path)), source.weight or 1.0)
                    for source in resource.spec.recorded_inputs
                ]
                if isinstance(group, Ranks):
                    if not group.is_leader:
                        follow_first_learner(resource, data, LOCAL, group)
                        return 0
                    training_run.start_learners = lambda *_: contextlib.nullcontext(group)
                outcome = training_run.TrainingRun(resource, data, reporter, interruption).execute()
                group.broadcast(["end"])
    except UserError as error:
        print(f"error {type(error).__name__}: {error}", flush=True)
        return error.exit_code
    reporter.finished(outcome)
    return 0


def join_ranks(rank: str, world_size: str, store: str) -> Ranks:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=int(rank), world_size=int(world_size))
    return Ranks(torch.device("cpu"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
