"""`Share`: which part of each global batch is one learner's."""

from __future__ import annotations

from typing import NamedTuple


class Share(NamedTuple):
    """The part of learner number `rank` of `size` learners.

    The learners' parts are adjacent, in order of rank, and differ by at most one item.
    """

    rank: int
    size: int

    def of(self, count: int) -> slice:
        """The part's places among `count` items."""
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)


WHOLE = Share(0, 1)
"""Of a learner alone."""
