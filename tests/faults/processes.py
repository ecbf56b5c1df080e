"""Scripts in separate processes, which tests start, listen to and kill."""

from __future__ import annotations

import ctypes
import os
import select
import signal
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from hindcast.api import OfflineRecording, OfflineTraining
from support import descendants
from warm_python import WarmPython

_FAULTS = Path(__file__).parent


class Script:
    """A script of this folder in another process.

    Args:
        name: file name of the script.
        arguments: command-line arguments of the script.

    Attributes:
        warm: starts the processes; set by a fixture.
        lines: the lines that were read so far.
        process: the process.
    """

    warm: ClassVar[WarmPython]

    def __init__(self, name: str, *arguments: object) -> None:
        paths = [str(_FAULTS.parent), str(_FAULTS.parent / "learn"), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        self.lines: list[str] = []
        self.process = self.warm.start([str(_FAULTS / name), *map(str, arguments)], environment)

    def listen(self, beginning: str, times: int = 1) -> bool:
        """Read lines until `times` of them start with `beginning`; return False if the process ends first."""
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            times -= line.startswith(beginning)
            if not times:
                return True
        return False

    def finish(self) -> str:
        """Wait until the process ends, and return its whole output."""
        if not self.process.stdout.closed:
            self.listen("\0")  # no line starts so, and all lines are read
            self.process.wait()
            self.process.stdout.close()
        return "\n".join(self.lines)

    def finish_successfully(self) -> str:
        """Wait until the process ends, check that its run has succeeded, and return its whole output."""
        output = self.finish()
        assert "outcome Succeeded" in output, output
        return output

    def finish_with_storage_error(self, *words: object) -> None:
        """Wait until the process ends, and check that it names an error of the storage, with these words."""
        output = self.finish()
        assert "error StorageError" in output, output
        assert [word for word in map(str, words) if word not in output] == [], output
        assert "Traceback" not in output, output

    def kill(self) -> None:
        """Kill the process; its children may outlive it by a moment."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()

    def interrupt(self) -> None:
        """Send the signal of Ctrl-C."""
        self.process.send_signal(signal.SIGINT)

    def descendants(self) -> list[int]:
        """Return the ids of the processes that the script has started, directly or not."""
        return descendants(self.process.pid)


class Driver(Script):
    """A process that executes a resource.

    Args:
        resource: the resource.
        folder: folder for the resource's YAML file.
        kill_at: when the process kills itself: a point in the output folder (kill_points.py), or a moment and the
            number of the moment's occurrence (moments.py). None and nothing stand for never.
    """

    def __init__(self, resource: OfflineRecording | OfflineTraining, folder: Path, *kill_at: object) -> None:
        points = (point for point in kill_at if point is not None)
        super().__init__("driver.py", write_resource(resource, folder), *points)


class Learner(Script):
    """A process that is one of two learners of a training, and may kill itself at a moment.

    Args:
        resource: the training.
        folder: folder for the training's YAML file and for the file through which the learners find each other.
        rank: 0 or 1.
        kill_at: a moment and the number of the moment's occurrence (moments.py); nothing for never.
    """

    def __init__(self, resource: OfflineTraining, folder: Path, rank: int, *kill_at: object) -> None:
        store = folder / "store"
        super().__init__("driver.py", "--learner", rank, 2, store, write_resource(resource, folder), *kill_at)


def write_resource(resource: OfflineRecording | OfflineTraining, folder: Path) -> Path:
    """Write the resource to a file in the folder, and return its path."""
    file = folder / "resource.yaml"  # JSON is YAML
    file.write_text(resource.model_dump_json(by_alias=True, exclude_none=True, exclude_unset=True))
    return file


def adopt_orphans(should_adopt: bool) -> None:
    """Make this process adopt the children of its killed children, as a session manager does, or stop doing so."""
    ctypes.CDLL(None).prctl(36, int(should_adopt), 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def end_orphans(descendants_before: list[int]) -> None:
    """Kill and reap the descendants of this process that are not among `descendants_before`."""
    for process in descendants(os.getpid()):
        if process not in descendants_before:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(process, 0)


def wait_for_end(process: int, timeout_seconds: float = 60.0) -> bool:
    """Wait until a process, which need not be a child, ends; return False if it has not ended by the timeout."""
    try:
        descriptor = os.pidfd_open(process)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], timeout_seconds)[0])
    finally:
        os.close(descriptor)
