"""Start the learners of a training: this process is the first one, and its placement starts the others."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, as_completed, wait
from datetime import timedelta
from typing import Any, Final, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from hindcast.api import OfflineTraining
from hindcast.errors import Interrupted, OutOfMemory, SpecError, UserError, catch_user_error
from hindcast.learn.checkpoint import find_checkpoint
from hindcast.learn.group import Group, PeerLost
from hindcast.learn.ranks import Ranks
from hindcast.memory import count_oom_kills
from hindcast.pipeline.offline_data import Source
from hindcast.run.placement import Placement, choose_learner_device
from hindcast.run.training.offline_trainer import make_offline_trainer

_POLL_SECONDS: Final = 0.05
_CAUSE_SECONDS: Final = 10.0
"""Maximum time from the loss of a connection until its cause is known."""
_GRACE_SECONDS: Final = 1.0
"""Time for the other learners to end by themselves once one has ended: it may have lost the one that failed."""
_CONNECT_TIMEOUT: Final = timedelta(minutes=30)


class LearnerTask(NamedTuple):
    """Arguments of all learners of a training."""

    resource: OfflineTraining
    sources: Sequence[Source]
    placement: Placement


@contextlib.contextmanager
def start_learners(
    resource: OfflineTraining,
    sources: Sequence[Source],
    placement: Placement,
    check: Callable[[], None] = lambda: None,
) -> Iterator[Group]:
    """Start the other learners, which follow this process in the block and end with it.

    Args:
        check: called until all learners have started; an exception from it ends the start.

    Yields:
        The group, of this process alone if the placement has one learner. If a learner fails or is killed, the next
        operation of the group raises its `UserError`, or `PeerLost`.

    Raises:
        SpecError: this process already trains with several learners.
    """
    refuse_repeated_kills(placement)
    spec = resource.spec.learners
    size, _ = placement.num_learners(spec)
    if size == 1:
        yield Group()
        return
    device, _ = choose_learner_device(spec, placement.is_one_machine, rank=0)
    if dist.is_initialized():
        raise SpecError("another training of this process has several learners: stop it first.")
    # Port 0 lets the kernel choose a free one.
    store = TCPStore(placement.address, 0, size, is_master=True, wait_for_workers=False)
    workers = placement.start_learners(size - 1, spec, LearnerTask(resource, sources, placement))
    try:
        futures = [
            workers.submit(_follow, rank, size, placement.address, store.port) for rank in range(1, size)
        ]
        while store.add("connected", 0) < size - 1:
            check()
            if any(future.done() for future in futures):
                raise _find_cause(futures) or PeerLost
            time.sleep(_POLL_SECONDS)
        group = _connect(store, 0, size, device)
        group.find_cause = lambda: _find_cause(futures)
        is_over = threading.Event()

        def end_after_loss() -> None:
            """End all learners once one of them has ended: this process may wait for it in an operation."""
            wait(futures, return_when=FIRST_COMPLETED)
            wait(futures, timeout=_GRACE_SECONDS)
            if not is_over.is_set():
                workers.close()
                group.abort()
                # With a cause, the first learner is only busy: its next operation raises the cause.
                if not is_over.wait(_CAUSE_SECONDS) and _find_cause(futures) is None:
                    placement.abandon()

        threading.Thread(target=end_after_loss, name="hindcast-learners", daemon=True).start()
        try:
            yield group
        finally:
            is_over.set()
        # In a thread with a time limit: after an interrupted iteration the others may be in another collective
        # operation, and the broadcast would never return.
        end_thread = threading.Thread(target=_end, args=(group, futures), name="hindcast-end", daemon=True)
        end_thread.start()
        end_thread.join(_CAUSE_SECONDS)
    finally:
        workers.close()
        if dist.is_initialized():
            dist.destroy_process_group()


def _end(group: Ranks, futures: Sequence[Future[Any]]) -> None:
    """Let the other learners end by themselves, which closes their environments."""
    with contextlib.suppress(UserError):
        group.broadcast(["end"])
        wait(futures)


def refuse_repeated_kills(placement: Placement) -> None:
    """Refuse to start a learner in a pod whose memory ran out under an earlier learner of this attempt.

    Raises:
        OutOfMemory: a learner was killed here.
    """
    # Ray does not report the kernel's kills; the container's counter does.
    if placement.is_restart and count_oom_kills():
        raise OutOfMemory(
            "a learner ran out of memory and was killed: raise spec.learners.memory",
            mentions=("spec.learners.memory",),
        )


def _follow(task: LearnerTask, rank: int, size: int, host: str, port: int) -> UserError | None:
    """Train as the learner `rank` of `size`; return the error that ended it, or None at the training's end."""

    def follow() -> None:
        refuse_repeated_kills(task.placement)
        store = TCPStore(host, port, size, is_master=False)
        # Before this learner reports itself connected, because it raises if the GPU is missing.
        device = choose_learner_device(task.resource.spec.learners, task.placement.is_one_machine, rank)[0]
        store.add("connected", 1)
        try:
            follow_first_learner(*task, _connect(store, rank, size, device))
        finally:
            dist.destroy_process_group()

    return catch_user_error(follow)


def _connect(store: TCPStore, rank: int, size: int, device: torch.device) -> Ranks:
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=_CONNECT_TIMEOUT)
    return Ranks(device)


def _find_cause(futures: Sequence[Future[Any]]) -> Exception | None:
    """Return the error that explains why learners were lost, first of all a user's; None if they were killed."""
    from loky.process_executor import ShutdownExecutorError

    errors = []
    with contextlib.suppress(TimeoutError):
        for future in as_completed(futures, timeout=_CAUSE_SECONDS):
            error = future.exception() or future.result()
            if isinstance(error, UserError) and not isinstance(error, PeerLost):
                return error
            errors.append(error)
    # Learners that were killed or that lost another one do not explain it.
    effects = (PeerLost, BrokenExecutor, ShutdownExecutorError)
    return next(
        (error for error in errors if isinstance(error, Exception) and not isinstance(error, effects)), None
    )


def follow_first_learner(
    resource: OfflineTraining, sources: Sequence[Source], placement: Placement, group: Ranks
) -> None:
    """Execute the operations that the first learner broadcasts, until the training ends.

    Raises:
        PeerLost: another learner ended before the training did.
        UserError: the resource, the data or the user's code are invalid.
    """
    # First ["open", initial_num_learners] from `make_offline_trainer`, or ["end"] if the training has already finished.
    message = group.receive()
    if message == ["end"]:
        return
    _, num_learners = message
    trainer = make_offline_trainer(resource, sources, placement, group, initial_num_learners=num_learners)
    # Then, from the first learner's `Trainer`, ["begin"] or ["load", path of the checkpoint], and many ["iterate"];
    # ["share"] before those after which its networks were changed by hand.
    while (message := group.receive()) != ["end"]:
        if message[0] == "begin":
            trainer.begin()
        elif message[0] == "load":
            trainer.load(find_checkpoint(message[1]))
        elif message[0] == "share":
            trainer.share_state()
        else:
            # After an interruption the first learner writes the checkpoint and ends the group.
            with contextlib.suppress(Interrupted):
                trainer.iterate()
    trainer.close()
