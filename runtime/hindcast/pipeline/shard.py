"""`Share`: which part of each global batch is one learner's."""

from __future__ import annotations

from typing import NamedTuple


class Shard(NamedTuple):
    """The part of learner number `rank` of `size` learners.

    The learners' parts are adjacent, in order of rank, and differ by at most one item.
    """

    rank: int
    size: int

    def slice_of(self, count: int) -> slice:
        """The part's places among `count` items."""
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)


WHOLE_BATCH = Shard(0, 1)
"""Of a learner alone."""
