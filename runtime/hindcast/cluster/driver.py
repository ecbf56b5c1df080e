"""The driver of an attempt: runs on the head, starts the task in its pool, supervises it, and reports.

It reserves no CPU in Ray, does not import torch, and accesses storage only from a separate thread.
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
from hindcast.cluster.draining import DrainMonitor
from hindcast.cluster.log import DriverLog, capture_output, make_redactor
from hindcast.cluster.mailbox import Mailbox
from hindcast.cluster.memory import explain_by_memory
from hindcast.cluster.outcome import DEFECT_EXIT_CODE, EXIT_CODES, FinishedRun, classify, make_outcome
from hindcast.cluster.pools import Pools
from hindcast.cluster.reporting import ReportSender, heartbeat, send_outcome
from hindcast.cluster.storage_monitor import StorageMonitor
from hindcast.errors import SpecError, WorkerLost
from hindcast.ray_session import join_cluster
from hindcast.report.progress import ProgressLines
from hindcast.run.claim import title
from hindcast.run.interruption import Interruption, catch_signals

SUPERSEDED_EXIT_CODE: Final = 1
"""Exit code of a superseded driver."""

_POLL_SECONDS: Final = 1.0
_MAIL_TIMEOUT_SECONDS: Final = 5.0
_MAX_RETRIES: Final = 3
"""Number of times that the task resumes after its own pod was lost."""
_SIGTERM_GRACE_SECONDS: Final = 1.5
"""Time to wait for the task after SIGTERM; Ray kills a driver three seconds after it."""
_DRAIN_GRACE_SECONDS: Final = 22.0
"""Time to wait for the task after the head begins to drain. Ray ends the head's processes 30 seconds after it, and the
outcome and the log are sent before that."""
_OUTCOME_TIMEOUT_SECONDS: Final = 300.0
_STORAGE_TIMEOUT_SECONDS: Final = 20.0

_RAY_VARIABLES: Final = {
    "RAY_task_oom_retries": "3",  # by default Ray restarts a task that runs out of memory without a limit
    "RAY_SCHEDULER_EVENTS": "0",  # not printed, because the operator reports what pods wait for
}

Connect = Callable[[], None]
"""Connects this process to Ray."""


def drive(folder: Path, channel: Channel, connect: Connect, has_pool_labels: bool = True) -> int:
    """Execute the attempt in a folder; return the exit code.

    Args:
        folder: contains `resource.yaml` and `attempt.json`.
        channel: connection to the operator.
        connect: connects this process to Ray.
        has_pool_labels: Ray's nodes have labels that name their pools.
    """
    with capture_output(DriverLog(make_redactor())) as log, heartbeat(ReportSender(channel)) as sender:
        try:
            resource, attempt = read_attempt(folder)
        except SpecError as error:
            return _deliver_outcome(sender, classify(error))
        monitor = StorageMonitor(resource, attempt, log, sender)
        driver = Driver(resource, Pools(attempt, has_pool_labels), sender, monitor)
        outcome = driver.run(connect)
        if outcome is None:
            print("this attempt was superseded by another one, or the resource was deleted: exiting.")
            monitor.abandon()
            return SUPERSEDED_EXIT_CODE
        print(f"{outcome.state} ({outcome.reason}): {outcome.message}")
        if outcome.reason == "Terminated":  # Ray kills the driver soon: the report matters more than the log
            code = _deliver_outcome(sender, outcome)
            monitor.stop(_STORAGE_TIMEOUT_SECONDS)
            return code
        monitor.stop(_STORAGE_TIMEOUT_SECONDS)
        return _deliver_outcome(sender, outcome)


def read_attempt(folder: Path) -> tuple[OfflineRecording | OfflineTraining, Attempt]:
    """Read the resource and the attempt, which the operator wrote to `resource.yaml` and `attempt.json`.

    Raises:
        SpecError: a file is missing or invalid for this version.
    """
    items = load_resources(folder / RESOURCE_KEY)
    file = folder / ATTEMPT_KEY
    try:
        return items[0].resource, Attempt.model_validate(json.loads(file.read_bytes()))
    except (OSError, ValueError) as error:
        reason = f"{error.error_count()} invalid fields" if isinstance(error, ValidationError) else error
        raise SpecError(
            f"{file} cannot be read ({reason}): use an operator and a runtime image of the same version."
        ) from error


def connect_to_ray() -> None:
    """Join the Ray cluster of this head.

    Raises:
        SpecError: the cluster runs another version of Ray or Python.
        WorkerLost: the cluster does not answer.
    """
    for name, value in _RAY_VARIABLES.items():
        os.environ.setdefault(name, value)
    try:
        join_cluster(logging_level=logging.ERROR)
    except ConnectionError as error:
        raise WorkerLost(f"the driver could not connect to Ray on the head: {error}") from error
    except RuntimeError as error:
        # Without the first letter, which may be upper or lower case: Ray does not promise its wording.
        if "ersion mismatch" not in str(error):
            raise
        raise SpecError(
            f"the driver and the cluster run different versions of Ray or Python: {error}; use "
            "one image for all pods, and set spec.cluster.rayVersion to its version.",
            field="spec.cluster.image",
            mentions=("spec.cluster.rayVersion",),
        ) from error


@dataclass
class Driver:
    """Starts the task of one attempt in its pool and waits for its end.

    Args:
        resource: the resource to execute.
        pools: pools of the attempt.
        sender: sends reports to the operator.
        monitor: observes the run folder.
    """

    resource: OfflineRecording | OfflineTraining
    pools: Pools
    sender: ReportSender
    monitor: StorageMonitor
    _progress_lines: ProgressLines = field(default_factory=ProgressLines, init=False)

    def run(self, connect: Connect) -> AttemptOutcome | None:
        """Execute the attempt and return its outcome, or None if it was superseded."""
        print(f"{title(self.resource)}: starting {self.pools.attempt.ray_job_name}")
        try:
            connect()
            with catch_signals() as interruption:
                return self._supervise(interruption)
        except Exception as error:
            outcome = classify(error)
            if outcome.reason == "InternalError":
                traceback.print_exc()
            return explain_by_memory(outcome)

    def _supervise(self, interruption: Interruption) -> AttemptOutcome | None:
        """Run the task and return the outcome, or None if the attempt was superseded.

        If a learner's node shuts down, the task is stopped at its next safe point, which writes a checkpoint, and
        starts again on other nodes. If the head's node shuts down, the attempt ends that way.
        """
        mailbox = Mailbox.open()
        task_ref = self._start(mailbox)
        is_stop_sent, deadline = False, math.inf
        drain_monitor = DrainMonitor()
        while True:
            finished_refs, _ = ray.wait([task_ref], timeout=_POLL_SECONDS)
            # After the wait, to include the last mail of a task that has just ended.
            self._handle_mail(mailbox)
            if self.sender.is_superseded or self.monitor.is_superseded:
                ray.cancel(task_ref, force=True)
                return None
            draining_pools = drain_monitor.find_draining_pools()
            if interruption.is_requested:
                deadline = min(deadline, time.monotonic() + _SIGTERM_GRACE_SECONDS)
            if "head" in draining_pools:
                deadline = min(deadline, time.monotonic() + _DRAIN_GRACE_SECONDS)
            is_ending = self.sender.is_checkpoint_requested or deadline < math.inf
            if not is_stop_sent and (is_ending or "learner" in draining_pools):
                is_stop_sent = True
                print(f"{title(self.resource)}: stopping at the next safe point")
                mailbox.request_stop()
            result = ray.get(task_ref) if finished_refs else None
            if isinstance(result, AttemptOutcome) and result.reason == "Suspended" and not is_ending:
                message = "the node of a learner shuts down; the training continues on other nodes"
                print(f"{title(self.resource)}: {message}")
                self.sender.set_note(message)
                mailbox.withdraw_stop_request()
                task_ref, is_stop_sent = self._start(mailbox), False
            elif finished_refs or time.monotonic() > deadline:
                return self._determine_outcome(result)

    def _start(self, mailbox: Mailbox) -> Any:
        """Start the task in its pool and return the reference of its result."""
        pool: Pool = "runner" if isinstance(self.resource, OfflineRecording) else "learner"
        options = self.pools.options(pool)
        task = ray.remote(_execute).options(max_retries=_MAX_RETRIES, name=title(self.resource), **options)
        return task.remote(self.resource, mailbox, self.pools)

    def _handle_mail(self, mailbox: Mailbox) -> None:
        """Report and print the task's messages since the last call; do nothing if the mailbox does not answer."""
        try:
            mail = mailbox.take(_MAIL_TIMEOUT_SECONDS)
        except ray.exceptions.GetTimeoutError:
            return
        if mail.num_pulses:
            self.sender.mark_progress()
        for resource, message in mail.notes:
            print(f"{resource}: {message}")
            self.sender.set_note(message)
        if mail.progress is not None:
            self.sender.set_progress(mail.progress)
            line = self._progress_lines.next_line(mail.progress)
            if line is not None:
                print(line)

    def _determine_outcome(self, result: FinishedRun | AttemptOutcome | None) -> AttemptOutcome:
        """Return the outcome of the attempt from the task's result, which is None if the task has not ended.

        A task that stopped because the driver was terminated, not because the operator requested it, counts as lost.
        """
        if isinstance(result, FinishedRun):
            if result.output is not None:
                self.sender.set_output(result.output)
            if result.checkpoint is not None:
                self.sender.set_checkpoint(result.checkpoint)
            had_finished = result.outcome.state == "AlreadyFinished"
            return make_outcome(
                "Succeeded", "AlreadyFinished" if had_finished else "Succeeded", result.outcome.message
            )
        if result is not None and result.reason != "Suspended":
            return explain_by_memory(result)
        if result is not None and self.sender.is_checkpoint_requested:
            return make_outcome(
                "Suspended",
                "Suspended",
                "stopped at a safe point as requested; the next attempt resumes from there.",
            )
        return make_outcome("Lost", "Terminated", "the driver was terminated by its node or by Ray.")


def _execute(
    resource: OfflineRecording | OfflineTraining, mailbox: Mailbox, pools: Pools
) -> FinishedRun | AttemptOutcome:
    """Execute the resource in a Ray task; see `hindcast.cluster.task.execute`."""
    from hindcast.cluster.task import execute  # imports torch, which the driver must not

    return execute(resource, mailbox, pools)


def _deliver_outcome(sender: ReportSender, outcome: AttemptOutcome) -> int:
    """Report the outcome to the operator and return the driver's exit code."""
    if not send_outcome(sender, outcome, _OUTCOME_TIMEOUT_SECONDS):
        print(
            "the outcome could not be reported: the API server did not answer, or no longer accepts reports."
        )
    return EXIT_CODES.get(outcome.reason, DEFECT_EXIT_CODE)
