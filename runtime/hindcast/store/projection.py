"""A dataset with fewer columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from hindcast.episodes.block import Block
from hindcast.episodes.columns import root
from hindcast.errors import DataError
from hindcast.store.manifest import digest_of
from hindcast.store.selection import Selectable
from hindcast.store.units import Unit

if TYPE_CHECKING:
    from hindcast.store.dataset import Dataset


class Projection(Selectable):
    """A `Dataset` (see there) of some columns of another; the others are not read.

    Args:
        base: the other.
        columns: names of columns (`obs` means all its leaves) or of leaves.

    Raises:
        DataError: a column that the other does not have.
    """

    def __init__(self, base: Dataset, columns: Sequence[str]) -> None:
        leaves = {
            name: leaf for name, leaf in base.spec.leaves.items() if name in columns or root(name) in columns
        }
        unknown = sorted(set(columns) - leaves.keys() - {root(name) for name in leaves})
        if unknown:
            raise DataError(
                f"the data have no column {', '.join(unknown)}: they have {', '.join(base.spec.leaves)}"
            )
        self.spec = replace(base.spec, leaves=leaves)
        self.units = base.units
        self.digest = digest_of([base.digest, *leaves])
        self.num_episodes = base.num_episodes
        self.num_steps = base.num_steps
        self.nbytes = base.nbytes
        self.nbytes_stored = base.nbytes_stored
        self.layouts = base.layouts
        self.notes = base.notes
        self._base = base

    def read(self, unit: Unit, columns: Iterable[str] | None = None) -> Block:
        """See `Dataset.read`."""
        return self._base.read(unit, self._own(columns))

    def locate(self, unit: Unit, episode: int) -> tuple[str, int]:
        """See `Dataset.locate`."""
        return self._base.locate(unit, episode)

    def unreadable(self, unit: Unit, columns: Iterable[str] | None = None) -> Iterator[tuple[str, DataError]]:
        """See `Dataset.unreadable`."""
        return self._base.unreadable(unit, self._own(columns))

    def _own(self, columns: Iterable[str] | None) -> list[str]:
        return list(self.spec.leaves if columns is None else columns)
