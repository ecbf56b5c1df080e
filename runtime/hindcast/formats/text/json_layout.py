"""The layout "JSON": one object a line, one line per timestep."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hindcast.episodes.block import Block
from hindcast.episodes.columns import SEPARATOR, Columns
from hindcast.formats.columns.infos import step_texts
from hindcast.formats.columns.steps import Steps, as_numbers, nest
from hindcast.formats.data_file import Group
from hindcast.formats.spec import DataSpec, Leaf
from hindcast.formats.text.lines import TextEncoder, Words, info_json, lines_of, number_cells, repeated

JSON_LAYOUT: Final = "JSON"
WORDS: Final = Words(b'"NaN"', b'"Infinity"', b'"-Infinity"')
_PLACE: Final = b"\0"


class JsonEncoder(TextEncoder):
    """An `Encoder`."""

    suffix = ".json"

    def __init__(self, spec: DataSpec) -> None:
        self._steps = Steps(spec, JSON_LAYOUT)
        self._order, self._between = _skeleton([Columns.EPS_ID, *self._steps.leaves])

    def encode(self, block: Block) -> Group:
        """See `Encoder.encode`; a row has `infos` only if they are not empty."""
        arrays = self._steps.arrays(block)
        parts: list[Any] = []
        for name, before in zip(self._order, self._between, strict=False):
            parts += [pa.scalar(before, pa.large_binary()), self._cells(name, block, arrays)]
        parts.append(pa.scalar(self._between[-1], pa.large_binary()))
        infos = step_texts(block)
        if infos is not None:
            parts.append(_info_cells(infos))
        ends = [pa.scalar(text, pa.large_binary()) for text in (b"}\n", b"")]
        return lines_of(pc.binary_join_element_wise(*parts, *ends), block.length, block.length)

    def _cells(self, name: str, block: Block, arrays: dict[str, NDArray[Any]]) -> pa.LargeBinaryArray:
        if name == Columns.EPS_ID:
            return repeated([orjson.dumps(eps_id) for eps_id in block.eps_id.tolist()], block)
        return _cells(arrays[name], self._steps.leaves[name])


def _cells(column: NDArray[Any], leaf: Leaf) -> pa.LargeBinaryArray:
    if leaf.dtype is None:
        return pa.array([orjson.dumps(text) for text in column.tolist()], pa.large_binary())
    return number_cells(as_numbers(column, leaf), WORDS)


def _info_cells(texts: NDArray[np.object_]) -> pa.LargeBinaryArray:
    cells = [b',"infos":' + info_json(text) if text else b"" for text in texts.tolist()]
    return pa.array(cells, pa.large_binary())


def _skeleton(names: Sequence[str]) -> tuple[list[str], list[bytes]]:
    """The leaves as they follow each other in a line; the text before each, and before the last brace."""
    tree = nest(dict.fromkeys(names, orjson.Fragment(_PLACE)))
    return list(_paths(tree, "")), orjson.dumps(tree)[:-1].split(_PLACE)


def _paths(tree: dict[str, Any], prefix: str) -> Iterator[str]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _paths(value, f"{prefix}{key}{SEPARATOR}")
        else:
            yield f"{prefix}{key}"
