"""`Ranks`: the learners of one training in several processes, over torch.distributed."""

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
from hindcast.pipeline.relay import FollowerExecutor, LeaderExecutor, find_relay, open_relay
from hindcast.pipeline.shard import Shard

_AGREE_EVERY_S = 0.25
_MOST_UPDATES_BETWEEN = 256
_PATIENCE = timedelta(days=7)
"""How long the others wait while the first learner evaluates. Lost learners are found by who started the group."""


class Ranks(Group):
    """Learners of one training. torch.distributed must be initialised (with gloo, for what is agreed on).

    Args:
        device: where gradients are: NCCL carries them between GPUs, gloo between CPUs.
    """

    def __init__(self, device: torch.device) -> None:
        self.shard = Shard(dist.get_rank(), dist.get_world_size())
        self._words = dist.new_group(backend="gloo", timeout=_PATIENCE)
        self._gradients = dist.new_group(backend="nccl" if device.type == "cuda" else "gloo")
        self._until_next = 0
        self._between = 0
        self._agreed_at = time.monotonic()

    def share_executor(self, executor: Executor) -> Executor:
        """See `Group.shared`: the others receive from the first what its data workers read."""
        if not isinstance(executor, DataWorkers):
            return executor
        if self.is_leader:
            relay, name = open_relay(self.shard.size - 1)
            self._from_first(name)
            return LeaderExecutor(executor, relay)
        return FollowerExecutor(find_relay(self._from_first(None)))

    def weighted_sum(self, tensors: Sequence[Tensor], weight: float | Tensor = 1.0) -> None:
        """See `Group.weighted_sum`: one sum over all tensors of a dtype, laid end to end."""
        for dtype in sorted({tensor.dtype for tensor in tensors}, key=str):
            same = [tensor for tensor in tensors if tensor.dtype == dtype]
            flat = torch.cat([tensor.detach().reshape(-1) for tensor in same]).mul_(weight)
            with _peers():
                dist.all_reduce(flat, group=self._gradients)
            parts = flat.split([tensor.numel() for tensor in same])
            with torch.no_grad():
                for tensor, part in zip(same, parts, strict=True):
                    tensor.copy_(part.view_as(tensor))

    def agree(self, check: Callable[[], None]) -> None:
        """See `Group.agree`. The first learner says with each answer after how many updates it says it again."""
        if self._until_next:
            self._until_next -= 1
            return
        interrupted: Interrupted | None = None
        if self.is_leader:
            try:
                check()
            except Interrupted as error:
                interrupted = error
            self._between = self._updates_until_next()
        answer = torch.tensor([interrupted is not None, self._between])
        with _peers():
            dist.broadcast(answer, src=0, group=self._words)
        stop, self._until_next = answer.tolist()
        if stop:
            raise interrupted or Interrupted("the first learner was asked to stop")

    def broadcast(self, what: Any) -> None:
        """See `Group.broadcast`; the others `receive` it. Of the others' own trainers nothing is sent."""
        if self.is_leader:
            self._from_first(what)

    def receive(self) -> Any:
        """As one of the others, wait for what the first one broadcasts."""
        return self._from_first(None)

    def _from_first(self, what: Any) -> Any:
        words = [what]
        with _peers():
            dist.broadcast_object_list(words, src=0, group=self._words)
        return words[0]

    def _updates_until_next(self) -> int:
        now = time.monotonic()
        seconds, self._agreed_at = now - self._agreed_at, now
        fitting = int((self._between + 1) * _AGREE_EVERY_S / max(seconds, 1e-6))
        return min(fitting, 2 * self._between + 1, _MOST_UPDATES_BETWEEN)


@contextlib.contextmanager
def _peers() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise PeerLost(str(error)) from error
