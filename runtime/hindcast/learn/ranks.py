"""`Ranks`: the learners of one training in several processes, connected by torch.distributed."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from hindcast.errors import Interrupted
from hindcast.learn.group import Group, PeerLost
from hindcast.pipeline.data_workers import DataWorkers
from hindcast.pipeline.executors import Executor
from hindcast.pipeline.shard import Shard

_CHECK_INTERVAL_SECONDS = 0.25
"""Approximate time between two checks in `Ranks.agree`: each costs a broadcast."""
_MAX_UPDATES_BETWEEN_CHECKS = 256
"""Bound on how long a stop waits if updates suddenly become slower."""
_CONTROL_TIMEOUT = timedelta(days=7)
"""Maximum time that the other learners wait while the leader evaluates. Lost learners need no timeout: the process that
started the group detects them."""


class Ranks(Group):
    """A group of learners in several processes, as seen by one of them. torch.distributed must be initialised.

    Args:
        device: device of the gradients, which NCCL sums between GPUs and gloo between CPUs.

    Attributes:
        find_cause: returns the error of another learner that explains why it was lost; None if it was killed.
    """

    def __init__(self, device: torch.device) -> None:
        if device.type == "cuda":
            torch.cuda.set_device(device)
        self.find_cause: Callable[[], Exception | None] = lambda: None
        self.shard = Shard(dist.get_rank(), dist.get_world_size())
        self._control_group = dist.new_group(backend="gloo", timeout=_CONTROL_TIMEOUT)
        self._gradient_group = dist.new_group(backend="nccl" if device.type == "cuda" else "gloo")
        self._num_updates_until_check = 0
        self._num_updates_between_checks = 0
        self._last_check_time = time.monotonic()

    def abort(self) -> None:
        """End operations between GPUs that wait for a lost learner; those between CPUs end by themselves."""
        if dist.get_backend(self._gradient_group) == "nccl":
            self._gradient_group.abort()

    def share_executor(self, executor: Executor) -> Executor:
        """See `Group.share_executor`: all learners ask the workers of the leader's pool."""
        if not isinstance(executor, DataWorkers):
            return executor
        if self.is_leader:
            self._broadcast_object(executor.open_pool())
            return executor
        return executor.join(self._broadcast_object(None))

    def all_reduce(self, tensors: Sequence[Tensor], weight: float | Tensor = 1.0) -> None:
        """See `Group.all_reduce`: one reduction over all tensors of a dtype, concatenated."""
        start_time = time.monotonic()
        # Sorted: all learners must reduce the dtypes in the same order.
        for dtype in sorted({tensor.dtype for tensor in tensors}, key=str):
            group_tensors = [tensor for tensor in tensors if tensor.dtype == dtype]
            flat_tensor = torch.cat([tensor.detach().reshape(-1) for tensor in group_tensors]).mul_(weight)
            with self._raising_peer_lost():
                dist.all_reduce(flat_tensor, group=self._gradient_group)
            totals = flat_tensor.split([tensor.numel() for tensor in group_tensors])
            with torch.no_grad():
                for tensor, total in zip(group_tensors, totals, strict=True):
                    tensor.copy_(total.view_as(tensor))
        if dist.get_backend(self._gradient_group) == "gloo":
            self.reduce_seconds += time.monotonic() - start_time

    def gather_values(self, value: Any) -> list[Any]:
        """See `Group.gather_values`."""
        values = [None] * self.shard.size
        with self._raising_peer_lost():
            dist.all_gather_object(values, value, group=self._control_group)
        return values

    def agree(self, check: Callable[[], None]) -> None:
        """See `Group.agree`. Only some calls check.

        In these the leader broadcasts whether to stop, and how many calls return without a check after that.
        """
        if self._num_updates_until_check:
            self._num_updates_until_check -= 1
            return
        interruption: Interrupted | None = None
        if self.is_leader:
            try:
                check()
            except Interrupted as error:
                interruption = error
            self._num_updates_between_checks = self._choose_num_updates_between_checks()
        answer = torch.tensor([interruption is not None, self._num_updates_between_checks])
        with self._raising_peer_lost():
            dist.broadcast(answer, src=0, group=self._control_group)
        stop, self._num_updates_until_check = answer.tolist()
        if stop:
            raise interruption or Interrupted("the first learner was asked to stop")

    def broadcast(self, value: Any) -> None:
        """See `Group.broadcast`; the other learners `receive` the value. Calls of other learners send nothing."""
        if self.is_leader:
            self._broadcast_object(value)

    def receive(self) -> Any:
        """Wait for the value that the leader broadcasts."""
        return self._broadcast_object(None)

    @contextlib.contextmanager
    def _raising_peer_lost(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # torch.distributed's only sign of a lost peer
            raise self.find_cause() or PeerLost from error

    def _broadcast_object(self, value: Any) -> Any:
        objects = [value]
        with self._raising_peer_lost():
            dist.broadcast_object_list(objects, src=0, group=self._control_group)
        return objects[0]

    def _choose_num_updates_between_checks(self) -> int:
        now = time.monotonic()
        seconds, self._last_check_time = now - self._last_check_time, now
        # At most 2·n + 1 after n, because one short measurement may overestimate the speed.
        num_updates = int(
            (self._num_updates_between_checks + 1) * _CHECK_INTERVAL_SECONDS / max(seconds, 1e-6)
        )
        return min(num_updates, 2 * self._num_updates_between_checks + 1, _MAX_UPDATES_BETWEEN_CHECKS)
