"""`hindcast run --ray ADDRESS`: execute resources on an existing Ray cluster, without the operator."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import ray

from hindcast.api import LoadedResource, OfflineTraining
from hindcast.cluster.learners import train
from hindcast.cluster.mailbox import Mailbox
from hindcast.cluster.outcome import classify
from hindcast.cluster.pools import RayPlacement
from hindcast.errors import SpecError, WorkerLost
from hindcast.ray_session import QUIET_OPTIONS, join_cluster
from hindcast.report.events import Outcome, Reporter
from hindcast.run.execute import execute, prepare_inputs
from hindcast.run.inputs import Input, make_sources
from hindcast.run.interruption import Interruption
from hindcast.run.training.trainer import Networks

_POLL_SECONDS: Final = 0.5


def execute_on_ray(items: Sequence[LoadedResource], reporter: Reporter, address: str) -> list[Outcome]:
    """Execute the resources as `hindcast.run.execute.execute`, with all processes but this one on a Ray cluster.

    Raises:
        SpecError: no cluster answers at the address.
        WorkerLost: processes of the cluster keep dying.
        UserError: see `execute`.
    """
    folder = Path.cwd()

    def enter_folder() -> None:
        """Let a worker read the resources' relative paths as this process does."""
        os.chdir(folder)

    try:
        # The hook reaches all processes, tasks and data workers included. In a program that has called ray.init itself,
        # only the actors of `RayWorkers` enter the folder.
        join_cluster(address, runtime_env={"worker_process_setup_hook": enter_folder}, **QUIET_OPTIONS)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise SpecError(f"--ray {address}: {' '.join(str(error).split())}") from error
    try:
        return execute(items, reporter, RayPlacement(), _train)
    except ray.exceptions.RayError as error:
        outcome = classify(error)
        if outcome.reason == "InternalError":
            raise
        raise WorkerLost(outcome.message) from error
    finally:
        ray.shutdown()


def _train(
    resource: OfflineTraining,
    inputs: Sequence[Input],
    reporter: Reporter,
    interruption: Interruption,
    networks: Networks | None = None,  # noqa: ARG001  (each learner builds its own)
) -> tuple[Outcome, Sequence[Input]]:
    """Train on the cluster; this process only reports."""
    placement = RayPlacement()
    # Checked first: Ray would let the first learner or the data workers wait for GPUs without end.
    placement.check_gpus(resource.spec.learners, resource.spec.pipeline.data_workers)
    inputs = prepare_inputs(resource, inputs, reporter, interruption, placement.options("learner", 1))
    mailbox = Mailbox.open()
    with _forward_mail(mailbox, reporter, interruption):
        return train(resource, make_sources(inputs), mailbox, placement, interruption.check), inputs


@contextlib.contextmanager
def _forward_mail(mailbox: Mailbox, reporter: Reporter, interruption: Interruption) -> Iterator[None]:
    """Pass reports of the learners on to `reporter`, and a stop request to the learners."""
    is_over = threading.Event()

    def forward() -> None:
        is_last = False
        while not is_last:
            is_last = is_over.wait(_POLL_SECONDS)
            with contextlib.suppress(ray.exceptions.RayError):  # the training's own error says more
                mail = mailbox.take(_POLL_SECONDS)
                for resource, message in mail.notes:
                    reporter.note(resource, message)
                if mail.progress is not None:
                    reporter.progress(mail.progress)
            if interruption.is_requested:
                mailbox.request_stop()

    thread = threading.Thread(target=forward, name="hindcast-mail", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
