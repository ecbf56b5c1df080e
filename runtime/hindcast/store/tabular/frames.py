"""Observations of many numbers, such as camera frames, in files of timesteps: what is read and written by the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hindcast.episodes.block import I64
from hindcast.episodes.columns import SEPARATOR, Columns, root
from hindcast.store.parquet import Source
from hindcast.store.spec import DataSpec, Leaf
from hindcast.store.tabular.decoding import Frames
from hindcast.store.tabular.names import of_next
from hindcast.store.tabular.pages import Lists, Rows, read_lists

_FRAME = 1024  # numbers


def is_frame(leaf: Leaf) -> bool:
    """Whether a leaf has so many numbers that taking them apart one by one is what reading them costs."""
    return leaf.dtype is not None and leaf.dtype.kind in "iuf" and _width(leaf) >= _FRAME


def path_of(leaf: str) -> str:
    """A leaf's path in a Parquet schema: `obs/camera` -> `obs.camera`."""
    return leaf.replace(SEPARATOR, ".")


def split_columns(leaves: Mapping[str, Leaf]) -> list[str]:
    """The Parquet columns whose numbers are written byte by byte, all first bytes first.

    Parquet stores a small integer in four bytes. Apart from the others, the three empty ones take no room and no time.
    """
    return [
        f"{path_of(name)}.list.element"
        for name, leaf in leaves.items()
        if is_frame(leaf) and leaf.dtype is not None and leaf.dtype.kind in "iu" and leaf.dtype.itemsize < 4
    ]


def read_frames(
    source: Source, row_groups: Sequence[int], lengths: I64, spec: DataSpec, leaves: Sequence[str]
) -> dict[str, Frames]:
    """Those of the observations' leaves that are frames, where the file has them in pages that are known."""
    found: dict[str, Frames] = {}
    stops = np.cumsum(lengths).tolist()
    everything: Rows = [(0, stops[-1])] if stops else []
    last: Rows = [(stop - 1, stop) for stop in stops]
    for name in leaves:
        if root(name) != Columns.OBS or not is_frame(spec.leaves[name]) or "." in name:
            continue
        now = _read(source, row_groups, name, spec.leaves[name], everything)
        final = None if now is None else _read(source, row_groups, of_next(name), spec.leaves[name], last)
        if now is not None and final is not None:
            found[name] = Frames(now, final)
    return found


def _read(
    source: Source, row_groups: Sequence[int], name: str, leaf: Leaf, rows: Rows
) -> NDArray[Any] | None:
    assert leaf.dtype is not None
    lists = read_lists(source, row_groups, Lists(path_of(name), leaf.dtype, _width(leaf)), rows)
    return None if lists is None else lists.reshape(len(lists), *leaf.shape)


def _width(leaf: Leaf) -> int:
    return int(np.prod(leaf.shape, dtype=np.int64))
