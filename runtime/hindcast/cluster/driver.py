"""The driver of an attempt: it runs on the head, starts the work in the pools, monitors it, and reports.

It needs no CPU of Ray's, imports no torch, and touches storage only from a separate thread.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import ray
from pydantic import ValidationError

from hindcast.api import OfflineRecording, OfflineTraining, load_resources
from hindcast.api.attempt import ATTEMPT_KEY, RESOURCE_KEY, Attempt, AttemptOutcome, Pool
from hindcast.cluster.channel import Channel
from hindcast.cluster.log import DriverLog, capture_output, make_redactor
from hindcast.cluster.mailbox import Mailbox
from hindcast.cluster.memory import explain_by_memory
from hindcast.cluster.outcome import EXIT_CODES, FinishedRun, classify, make_outcome
from hindcast.cluster.pools import Pools
from hindcast.cluster.reporting import ReportSender, heartbeat, send_outcome
from hindcast.cluster.storage_monitor import StorageMonitor
from hindcast.errors import SpecError
from hindcast.ray_session import join_cluster
from hindcast.run.claim import title
from hindcast.run.interruption import Interruption, catch_signals
from hindcast.run.progress import ProgressLines

SUPERSEDED_EXIT_CODE: Final = 1
"""Exit code of a superseded driver."""

_LOOK_S: Final = 1.0
_ANSWER_S: Final = 5.0
_RETRIES: Final = 3
"""Times that the work resumes after its own pod was lost."""
_SIGTERM_S: Final = 1.5
"""Ray kills a driver three seconds after SIGTERM."""
_PATIENCE_S: Final = 300.0
_STORAGE_S: Final = 20.0

_RAY_OPTIONS: Final = {
    "RAY_task_oom_retries": "3",  # by default Ray restarts a task that runs out of memory forever
    "RAY_SCHEDULER_EVENTS": "0",  # the operator reports what the pods wait for
}

Connect = Callable[[], None]


def drive(folder: Path, channel: Channel, connect: Connect, has_pool_labels: bool = True) -> int:
    """Carry out the attempt in a folder; the exit code.

    Args:
        folder: has `resource.yaml` and `attempt.json`.
        connect: connects this process to Ray.
        labelled: Ray's nodes have labels that name their pools.
    """
    with capture_output(DriverLog(make_redactor())) as log, heartbeat(ReportSender(channel)) as reporting:
        try:
            resource, attempt = read_attempt(folder)
        except SpecError as error:
            return _end(reporting, classify(error))
        keeper = StorageMonitor(resource, attempt, log, reporting)
        driver = Driver(resource, Pools(attempt, has_pool_labels), reporting, keeper)
        outcome = driver.run(connect)
        if outcome is None:
            print("superseded by another attempt, or the resource is gone: exiting.")
            keeper.abandon()
            return SUPERSEDED_EXIT_CODE
        print(f"{outcome.state} ({outcome.reason}): {outcome.message}")
        if outcome.reason == "Terminated":  # there is time for one thing at most
            code = _end(reporting, outcome)
            keeper.end(_STORAGE_S)
            return code
        keeper.end(_STORAGE_S)
        return _end(reporting, outcome)


def read_attempt(folder: Path) -> tuple[OfflineRecording | OfflineTraining, Attempt]:
    """The resource and the attempt that the operator passed in.

    Raises:
        SpecError: a file is missing or not valid here.
    """
    loaded = load_resources(folder / RESOURCE_KEY)
    file = folder / ATTEMPT_KEY
    try:
        return loaded[0].resource, Attempt.model_validate(json.loads(file.read_bytes()))
    except (OSError, ValueError) as error:
        reason = f"{error.error_count()} wrong fields" if isinstance(error, ValidationError) else error
        raise SpecError(
            f"{file} cannot be read ({reason}): are the operator and the runtime image of the same version?"
        ) from error


def connect_to_ray() -> None:
    """Join the cluster whose head this process runs on.

    Raises:
        SpecError: it runs another version of Ray or Python.
    """
    for name, value in _RAY_OPTIONS.items():
        os.environ.setdefault(name, value)
    try:
        join_cluster(logging_level=logging.ERROR)
    except RuntimeError as error:
        if "ersion mismatch" not in str(error):
            raise
        raise SpecError(
            f"spec.cluster.image: the driver and the cluster run different versions of Ray or Python: {error}; use "
            "one image for all pods, and set spec.cluster.rayVersion to its version."
        ) from error


@dataclass
class Driver:
    """Starts the work of one attempt in its pools and waits for its end."""

    resource: OfflineRecording | OfflineTraining
    pools: Pools
    sender: ReportSender
    monitor: StorageMonitor
    _lines: ProgressLines = field(default_factory=ProgressLines, init=False)

    def run(self, connect: Connect) -> AttemptOutcome | None:
        """How the attempt ended; None if it was superseded."""
        print(f"{title(self.resource)}: starting {self.pools.attempt.ray_job_name}")
        try:
            connect()
            with catch_signals() as signal:
                return self._supervise(signal)
        except Exception as error:
            outcome = classify(error)
            if outcome.reason == "InternalError":
                traceback.print_exc()
            return explain_by_memory(outcome)

    def _supervise(self, signal: Interruption) -> AttemptOutcome | None:
        mailbox = Mailbox.open(self.pools.options("head"))
        work = self._start(mailbox)
        asked, terminated_at = False, math.inf
        while True:
            ended, _ = ray.wait([work], timeout=_LOOK_S)
            self._take_mail(mailbox)
            if self.sender.is_superseded or self.monitor.is_superseded:
                ray.cancel(work, force=True)
                return None
            if signal.is_requested:
                terminated_at = min(terminated_at, time.monotonic())
            if not asked and (self.sender.is_checkpoint_requested or signal.is_requested):
                asked = True
                print(f"{title(self.resource)}: stopping at the next safe point")
                mailbox.request_stop()
            is_late = time.monotonic() - terminated_at > _SIGTERM_S
            if ended or is_late:
                return self._outcome(ray.get(work) if ended else None)

    def _start(self, mailbox: Mailbox) -> Any:
        pool: Pool = "runner" if isinstance(self.resource, OfflineRecording) else "learner"
        options = self.pools.options(pool)
        task = ray.remote(_carry_out).options(max_retries=_RETRIES, name=title(self.resource), **options)
        return task.remote(self.resource, mailbox, self.pools)

    def _take_mail(self, mailbox: Mailbox) -> None:
        try:
            mail = mailbox.take(_ANSWER_S)
        except ray.exceptions.GetTimeoutError:
            return
        if mail.pulses:
            self.sender.mark_progress()
        for resource, message in mail.notes:
            print(f"{resource}: {message}")
            self.sender.note(message)
        if mail.progress is not None:
            self.sender.progress(mail.progress)
            line = self._lines.line(mail.progress)
            if line is not None:
                print(line)

    def _outcome(self, ended: FinishedRun | AttemptOutcome | None) -> AttemptOutcome:
        """The outcome of the work, given who asked it to end; `ended` is None if it has not ended."""
        if isinstance(ended, FinishedRun):
            if ended.output is not None:
                self.sender.output(ended.output)
            is_old = ended.outcome.state == "AlreadyFinished"
            return make_outcome(
                "Succeeded", "AlreadyFinished" if is_old else "Succeeded", ended.outcome.message
            )
        if ended is not None and ended.reason != "Suspended":
            return explain_by_memory(ended)
        if ended is not None and self.sender.is_checkpoint_requested:
            return make_outcome(
                "Suspended",
                "Suspended",
                "stopped at a safe point as requested; it resumes from there.",
            )
        return make_outcome(
            "Lost", "Terminated", "the driver was terminated (SIGTERM) by its node or by Ray."
        )


def _carry_out(
    resource: OfflineRecording | OfflineTraining, mailbox: Mailbox, pools: Pools
) -> FinishedRun | AttemptOutcome:
    from hindcast.cluster.task import execute  # brings torch along, which the driver does without

    return execute(resource, mailbox, pools)


def _end(reporting: ReportSender, outcome: AttemptOutcome) -> int:
    if not send_outcome(reporting, outcome, _PATIENCE_S):
        print(
            "the outcome could not be reported: the API server did not answer, or no longer accepts reports."
        )
    return EXIT_CODES[outcome.reason]
