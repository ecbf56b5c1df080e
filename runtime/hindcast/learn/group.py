"""The learners of one training. Here the one that is alone; `ranks.Ranks` is several processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from hindcast.pipeline.executors import Executor
from hindcast.pipeline.shard import WHOLE_BATCH, Shard


class PeerLost(Exception):
    """Another learner is gone, and with it what all do together. Who started the group starts it again."""


class Group:
    """A learner alone: it has every batch whole, and nobody to agree with.

    Attributes:
        share: the part of each batch that is this learner's.
    """

    shard: Shard = WHOLE_BATCH

    @property
    def is_leader(self) -> bool:
        """Whether this learner decides, evaluates and writes; the others follow."""
        return self.shard.rank == 0

    def share_executor(self, executor: Executor) -> Executor:
        """The executor, so that all learners together read only once."""
        return executor

    def weighted_sum(self, tensors: Sequence[Tensor], weight: float | Tensor = 1.0) -> None:
        """Replace tensors by their sum over the learners: their mean, where all weights make 1.

        Args:
            tensors: on the learners' device; of the same shapes in all of them.
            weight: of this learner's; a scalar, where it is on the device.
        """

    def gather(self, part: Tensor, count: int) -> Tensor:
        """`[count, ...]` what all learners have a part of, `[own, ...]` of floats, in order of rank."""
        found = part.new_zeros(count, *part.shape[1:])
        found[self.shard.slice_of(count)] = part
        self.weighted_sum([found])
        return found

    def agree(self, check: Callable[[], None]) -> None:
        """Called before every update: `check`, whose `Interrupted` reaches all learners at the same update.

        Raises:
            Interrupted: the first learner was asked to stop.
        """
        check()

    def broadcast(self, what: Any) -> None:
        """As the first learner, tell the others what all do next; JSON."""
