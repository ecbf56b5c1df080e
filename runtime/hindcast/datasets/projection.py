"""Reading only some columns of data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from hindcast.datasets.footers import Indexed
from hindcast.episodes.columns import Columns, root
from hindcast.errors import DataError
from hindcast.storage.location import Location

_NO_LEAVES: Final = frozenset(
    {
        Columns.EPS_ID,
        Columns.AGENT_ID,
        Columns.MODULE_ID,
        Columns.T,
        Columns.NEXT_OBS,
        Columns.TERMINATEDS,
        Columns.TRUNCATEDS,
    }
)
"""Columns that every episode has in another form."""


class Projected(NamedTuple):
    """A path, and the columns to read of its data.

    Attributes:
        path: a file, a folder or a glob.
        columns: names of columns (`obs` means all its leaves) or of leaves; all if None.
    """

    path: str | Path | Location
    columns: Sequence[str] | None = None


def projected(files: list[Indexed], columns: Sequence[str] | None) -> list[Indexed]:
    """The files of one path, as if they held no other columns.

    Raises:
        DataError: a column that none of them has.
    """
    if columns is None or not files:
        return files
    wanted = set(columns)
    specs = {id(file.spec): file.spec for file in files}  # most files of a recording share one
    there = dict.fromkeys(leaf for spec in specs.values() for leaf in spec.leaves)
    unknown = sorted(
        name for name in wanted - there.keys() - {*map(root, there)} if root(name) not in _NO_LEAVES
    )
    if unknown:
        raise DataError(
            f"{files[0].location} has no column {', '.join(unknown)}, which `columns` names: it has {', '.join(there)}"
        )
    narrowed = {
        key: replace(
            spec, leaves={name: leaf for name, leaf in spec.leaves.items() if {name, root(name)} & wanted}
        )
        for key, spec in specs.items()
    }
    return [file._replace(spec=narrowed[id(file.spec)]) for file in files]
