"""The layout "CSV": a header, and one line per timestep."""

from __future__ import annotations

import csv
import io
from collections import Counter
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hindcast.episodes.block import Block
from hindcast.episodes.columns import Columns
from hindcast.errors import DataError
from hindcast.formats.columns.infos import step_texts
from hindcast.formats.columns.steps import Steps, as_numbers
from hindcast.formats.data_file import Group
from hindcast.formats.spec import DataSpec, Leaf
from hindcast.formats.text.lines import TextEncoder, Words, info_json, lines_of, number_cells, repeated

CSV_LAYOUT: Final = "CSV"
MOST_NUMBERS: Final = 1_024
_WORDS: Final = Words(b"NaN", b"inf", b"-inf")


class CsvEncoder(TextEncoder):
    """An `Encoder`. All files of a spec have the same columns, whether or not any info has content.

    Episode details are not written.

    Raises:
        DataError: a leaf of more than `MOST_NUMBERS` numbers, or two that share a column.
    """

    suffix = ".csv"

    def __init__(self, spec: DataSpec) -> None:
        self._steps = Steps(spec, CSV_LAYOUT)
        self._has_infos = Columns.INFOS in spec.leaves
        names = [Columns.EPS_ID, *(name for leaf in self._steps.leaves.items() for name in _names(*leaf))]
        if self._has_infos:
            names.append(Columns.INFOS)
        twice = [name for name, count in Counter(names).items() if count > 1]
        if twice:
            raise DataError(f"two parts of the data would share the CSV column {twice[0]!r}: write Columns")
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerow(names)
        self.header = text.getvalue().encode()

    def encode(self, block: Block) -> Group:
        """See `Encoder.encode`."""
        arrays = self._steps.arrays(block)
        cells: list[Any] = [repeated([_quoted(eps_id) for eps_id in block.eps_id.tolist()], block)]
        for name, leaf in self._steps.leaves.items():
            if _width(leaf):
                cells.append(_cells(arrays[name], leaf))
        if self._has_infos:
            cells.append(self._infos(block))
        joined = pc.binary_join_element_wise(*cells, pa.scalar(b",", pa.large_binary()))
        ends = [pa.scalar(text, pa.large_binary()) for text in (b"\n", b"")]
        return lines_of(pc.binary_join_element_wise(joined, *ends), block.length, block.length)

    def _infos(self, block: Block) -> Any:
        texts = step_texts(block.without_details())
        if texts is None:
            return pa.scalar(b"", pa.large_binary())
        cells = [_quoted(info_json(text).decode()) if text else b"" for text in texts.tolist()]
        return pa.array(cells, pa.large_binary())


def _cells(column: NDArray[Any], leaf: Leaf) -> pa.LargeBinaryArray:
    if leaf.dtype is None:
        return pa.array([_quoted(text) for text in column.tolist()], pa.large_binary())
    values = as_numbers(column, leaf)
    flat = values if values.ndim == 1 else values.reshape(len(values), -1)
    return number_cells(flat, _WORDS, brackets=False)


def _quoted(text: str) -> bytes:
    return b'"' + text.encode().replace(b'"', b'""') + b'"'


def _width(leaf: Leaf) -> int:
    """Columns that the leaf takes."""
    pair = 2 if leaf.dtype is not None and leaf.dtype.kind == "c" else 1
    return pair * int(np.prod(leaf.shape, dtype=np.int64))


def _names(name: str, leaf: Leaf) -> list[str]:
    """`obs[0]`, `obs[1]`, … of a vector; `obs[0,0]`, … of a matrix; a complex number is a pair."""
    if _width(leaf) > MOST_NUMBERS:
        raise DataError(
            f"{name!r} has {_width(leaf):,} numbers per timestep, and CSV takes {MOST_NUMBERS:,} at most (a column for "
            "each): write Columns, or Episodes"
        )
    shape = (*leaf.shape, 2) if leaf.dtype is not None and leaf.dtype.kind == "c" else leaf.shape
    if not shape:
        return [name]
    return [f"{name}[{','.join(map(str, index))}]" for index in np.ndindex(*shape)]
