"""The layouts "JSON" (one object per line) and "CSV" (a header and rows), with one line per timestep."""

from __future__ import annotations

import csv
import io
import math
from abc import abstractmethod
from collections import Counter
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hindcast.episodes import nested
from hindcast.episodes.block import Block
from hindcast.episodes.columns import Columns
from hindcast.errors import DataError
from hindcast.formats.columns.infos import make_info_cells
from hindcast.formats.columns.steps import StepLayout, nest, to_real_numbers
from hindcast.formats.data_file import EncodedEpisodes
from hindcast.formats.spec import DataSpec, Leaf
from hindcast.formats.text.lines import (
    NonFiniteTexts,
    TextEncoder,
    encode_lines,
    encode_number_cells,
    single_line_info,
)

JSON_LAYOUT: Final = "JSON"
CSV_LAYOUT: Final = "CSV"
MAX_NUMBERS_PER_LEAF: Final = 1_024
_JSON_NON_FINITE: Final[NonFiniteTexts] = {"nan": b'"NaN"', "inf": b'"Infinity"', "-inf": b'"-Infinity"'}
_CSV_NON_FINITE: Final[NonFiniteTexts] = {"nan": b"NaN", "inf": b"inf", "-inf": b"-inf"}
_PLACEHOLDER: Final = b"\0"  # stands for a cell in the pattern of a JSON line


class StepEncoder(TextEncoder):
    """A `RowEncoder` with one line per step. The text between the cells is the same in every line.

    Attributes:
        cell_prefixes: column or leaf -> text before its cells, in the order of a line.
        info_delimiters: text before and after the cells of infos.
    """

    cell_prefixes: dict[str, bytes]
    info_delimiters: tuple[bytes, bytes]

    def __init__(self, spec: DataSpec, layout: str) -> None:
        self.step_layout = StepLayout(spec, layout)

    @abstractmethod
    def encode_text(self, text: str) -> bytes:
        """Return a string as a cell."""

    @abstractmethod
    def encode_numbers(self, values: NDArray[Any]) -> pa.LargeBinaryArray:
        """Return the cells of `[S, *shape]` numbers, `[S]`."""

    @abstractmethod
    def encode_infos(self, block: Block) -> list[bytes] | None:
        """Return the cells of infos, `[S]`; None if all are empty."""

    def encode(self, block: Block) -> EncodedEpisodes:
        """See `RowEncoder.encode`."""
        arrays = self.step_layout.make_arrays(block)
        parts: list[Any] = []
        for name, prefix in self.cell_prefixes.items():
            parts += [prefix, self._cells(name, block, arrays)]
        parts += [self.info_delimiters[0], self.encode_infos(block) or b"", self.info_delimiters[1], b""]
        # the last argument is the separator, which is empty
        lines = pc.binary_join_element_wise(*map(_to_arrow, parts))
        return encode_lines(lines, block.length, block.length)

    def _cells(self, name: str, block: Block, arrays: dict[str, NDArray[Any]]) -> pa.LargeBinaryArray:
        if name == Columns.EPS_ID:
            return _to_arrow([self.encode_text(eps_id) for eps_id in block.eps_id]).take(
                pa.array(block.episode_of_step)
            )
        leaf = self.step_layout.leaves[name]
        if leaf.dtype is None:
            return _to_arrow([self.encode_text(text) for text in arrays[name]])
        return self.encode_numbers(to_real_numbers(arrays[name], leaf))


class JsonEncoder(StepEncoder):
    """The `RowEncoder` of the layout "JSON"; a row has `infos` only if they are not empty."""

    suffix = ".json"

    def __init__(self, spec: DataSpec) -> None:
        super().__init__(spec, JSON_LAYOUT)
        # one line with placeholders for the cells is encoded, and split at the placeholders
        tree = nest(dict.fromkeys([Columns.EPS_ID, *self.step_layout.leaves], orjson.Fragment(_PLACEHOLDER)))
        leaf_names = [leaf_name for name, node in tree.items() for leaf_name in nested.flatten(node, name)]
        *prefixes, end = orjson.dumps(tree)[:-1].split(_PLACEHOLDER)
        self.cell_prefixes = dict(zip(leaf_names, prefixes, strict=True))
        self.info_delimiters = end, b"}\n"

    def encode_text(self, text: str) -> bytes:
        """See `StepEncoder.encode_text`."""
        return orjson.dumps(text)

    def encode_numbers(self, values: NDArray[Any]) -> pa.LargeBinaryArray:
        """See `StepEncoder.encode_numbers`: a number, or nested lists."""
        return encode_number_cells(values, _JSON_NON_FINITE)

    def encode_infos(self, block: Block) -> list[bytes] | None:
        """See `StepEncoder.encode_infos`; a cell includes the name of the column."""
        texts = make_info_cells(block)
        if texts is None:
            return None
        return [b',"infos":' + single_line_info(text) if text else b"" for text in texts]


class CsvEncoder(StepEncoder):
    """The `RowEncoder` of the layout "CSV". All files of a spec have the same columns, even if all infos are empty.

    Episode details are not written.

    Raises:
        DataError: a leaf has more than `MAX_NUMBERS_PER_LEAF` numbers, or two leaves share a column.
    """

    suffix = ".csv"

    def __init__(self, spec: DataSpec) -> None:
        super().__init__(spec, CSV_LAYOUT)
        names = {Columns.EPS_ID: [Columns.EPS_ID]}
        names |= {name: _csv_names(name, leaf) for name, leaf in self.step_layout.leaves.items()}
        header = [name for columns in names.values() for name in columns]
        self._has_infos = Columns.INFOS in spec.leaves
        if self._has_infos:
            header.append(Columns.INFOS)
        duplicates = [name for name, count in Counter(header).items() if count > 1]
        if duplicates:
            raise DataError(
                f"two parts of the data would share the CSV column {duplicates[0]!r}: choose the format "
                "Columns"
            )
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerow(header)
        self.header = text.getvalue().encode()
        self.cell_prefixes = {
            name: b"" if name == Columns.EPS_ID else b"," for name, columns in names.items() if columns
        }
        self.info_delimiters = b"," if self._has_infos else b"", b"\n"

    def encode_text(self, text: str) -> bytes:
        """See `StepEncoder.encode_text`: always in quotes."""
        # Without quotes an id such as NA would be read as null.
        return b'"' + text.encode().replace(b'"', b'""') + b'"'

    def encode_numbers(self, values: NDArray[Any]) -> pa.LargeBinaryArray:
        """See `StepEncoder.encode_numbers`: the numbers of a step, separated by commas."""
        rows = values if values.ndim == 1 else values.reshape(len(values), -1)
        return encode_number_cells(rows, _CSV_NON_FINITE, has_brackets=False)

    def encode_infos(self, block: Block) -> list[bytes] | None:
        """See `StepEncoder.encode_infos`."""
        texts = make_info_cells(block.without_details()) if self._has_infos else None
        if texts is None:
            return None
        return [self.encode_text(single_line_info(text).decode()) if text else b"" for text in texts]


def _to_arrow(value: bytes | list[bytes] | pa.LargeBinaryArray) -> Any:
    """Convert one text for all lines, or one text per line, to Arrow."""
    if isinstance(value, bytes):
        return pa.scalar(value, pa.large_binary())
    return pa.array(value, pa.large_binary()) if isinstance(value, list) else value


def _csv_names(name: str, leaf: Leaf) -> list[str]:
    """Return a leaf's CSV columns: `obs[0]`, … of a vector, `obs[0,0]`, … of a matrix; complex numbers are pairs."""
    is_complex = leaf.dtype is not None and leaf.dtype.kind == "c"
    shape = (*leaf.shape, 2) if is_complex else leaf.shape
    if math.prod(shape) > MAX_NUMBERS_PER_LEAF:
        raise DataError(
            f"{name!r} has {math.prod(shape):,} numbers per timestep, but CSV allows at most "
            f"{MAX_NUMBERS_PER_LEAF:,} (one column each): choose the format Columns or Episodes"
        )
    if not shape:
        return [name]
    return [f"{name}[{','.join(map(str, index))}]" for index in np.ndindex(*shape)]
