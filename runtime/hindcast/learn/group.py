"""`Group`: the learners of one training, here a single one; `ranks.Ranks` is a group of several processes."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from typing import Any, Final

from torch import Tensor

from hindcast.errors import WorkerLost
from hindcast.pipeline.executors import Executor
from hindcast.pipeline.shard import WHOLE_BATCH, Shard

_PEER_LOST_MESSAGE: Final = (
    "a learner's process was lost, perhaps because memory ran out: run the command again to resume."
)


class PeerLost(WorkerLost):
    """Another learner of the group was lost. On a cluster, the process that started the group restarts all of it."""

    def __init__(self, what: str = _PEER_LOST_MESSAGE) -> None:
        super().__init__(what)


class Group:
    """A group of one learner, which trains on whole batches.

    Attributes:
        shard: the part of each batch that this learner trains on.
        reduce_seconds: seconds of `all_reduce` so far, with the wait for the slowest learner; 0 on GPUs, which
            exchange gradients while the process goes on.
    """

    shard: Shard = WHOLE_BATCH
    reduce_seconds = 0.0

    @property
    def is_leader(self) -> bool:
        """True for the learner of rank 0, which decides, evaluates and writes; the others follow it."""
        return self.shard.rank == 0

    def share_executor(self, executor: Executor) -> Executor:
        """Return an executor with which all learners share one pool of data workers."""
        return executor

    def all_reduce(self, tensors: Sequence[Tensor], weight: float | Tensor = 1.0) -> None:
        """Replace tensors in place by their weighted sum over the learners: their mean if the weights sum to 1.

        In a group of one the tensors stay as they are, since its weight is 1.

        Args:
            tensors: on the learner's device, of the same shapes in all learners.
            weight: this learner's weight: a number, or a scalar on the device.
        """

    def gather(self, shard_values: Tensor, count: int) -> Tensor:
        """Concatenate the shards of all learners in order of rank; all of them must call it.

        Args:
            shard_values: this learner's shard, float `[length of the shard, ...]`.
            count: length of all shards together.

        Returns:
            `[count, ...]`.
        """
        values = shard_values.new_zeros(count, *shard_values.shape[1:])
        values[self.shard.slice_of(count)] = shard_values
        self.all_reduce([values])
        return values

    def gather_values(self, value: Any) -> list[Any]:
        """Return the values of all learners in order of rank; all of them must call it."""
        return [value]

    def count_on_this_machine(self) -> int:
        """Return the number of learners that share this machine's (or pod's) memory; all must call it."""
        return self.gather_values(platform.node()).count(platform.node())

    def agree(self, check: Callable[[], None]) -> None:
        """Run `check` before an update, so that its `Interrupted` reaches all learners at the same update.

        Raises:
            Interrupted: the leader was asked to stop.
        """
        check()

    def broadcast(self, value: Any) -> None:
        """Send a JSON value, such as the next command, from the leader to the other learners."""
