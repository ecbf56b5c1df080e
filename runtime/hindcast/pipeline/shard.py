"""`Shard`: the items of each global batch that one learner trains on."""

from __future__ import annotations

from typing import NamedTuple


class Shard(NamedTuple):
    """The items of a global batch that learner `rank` of `size` learners trains on.

    The learners' shards are adjacent, in order of rank, and differ in size by at most one item.

    Attributes:
        rank: index of the learner, from 0.
        size: number of learners, which is the number of shards.
    """

    rank: int
    size: int

    def slice_of(self, count: int) -> slice:
        """Return the shard's indices among the `count` items of a global batch."""
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)


WHOLE_BATCH = Shard(0, 1)
"""The shard of a single learner."""
