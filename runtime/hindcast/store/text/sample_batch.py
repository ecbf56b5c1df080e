"""The layout "SampleBatch": one episode a line, as the reference's JSON writer writes its batches, unpacked."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa
from numpy.typing import NDArray

from hindcast.episodes.block import Block
from hindcast.episodes.columns import Columns
from hindcast.store.data_file import Group
from hindcast.store.spec import DataSpec, Leaf
from hindcast.store.tabular.infos import step_texts
from hindcast.store.tabular.steps import Steps
from hindcast.store.text.cells import Words, as_numbers, json_of
from hindcast.store.text.file import TextEncoder, lines_of
from hindcast.store.text.infos import info_json
from hindcast.store.text.json_layout import nest

SAMPLE_BATCH_LAYOUT: Final = "SampleBatch"
_WORDS: Final = Words(b"NaN", b"Infinity", b"-Infinity")  # no JSON, but what the reference writes and reads


class SampleBatchLayout:
    """A `WrittenLayout`."""

    name = SAMPLE_BATCH_LAYOUT

    def encoder(self, spec: DataSpec) -> SampleBatchEncoder:
        """See `WrittenLayout.encoder`."""
        return SampleBatchEncoder(spec)


class SampleBatchEncoder(TextEncoder):
    """An `Encoder`."""

    suffix = ".json"

    def __init__(self, spec: DataSpec) -> None:
        self._steps = Steps(spec, SAMPLE_BATCH_LAYOUT)

    def encode(self, block: Block) -> Group:
        """See `Encoder.encode`; the column of infos is there only in blocks where any says something."""
        leaves = self._steps.leaves
        columns = {name: _plain(array, leaves[name]) for name, array in self._steps.arrays(block).items()}
        infos = step_texts(block.without_details())
        if infos is not None:
            columns[Columns.INFOS] = infos
        lines = [_line(block, i, columns) for i in range(block.num_episodes)]
        return lines_of(pa.array(lines, pa.large_binary()), block.length, np.ones_like(block.length))


def _plain(column: NDArray[Any], leaf: Leaf) -> NDArray[Any]:
    """Floats as double ones, which is what the reference makes of them: others read the very same value."""
    if leaf.dtype is None:
        return column
    values = as_numbers(column, leaf)
    return values.astype(np.float64) if values.dtype.kind == "f" else values


def _line(block: Block, episode: int, columns: dict[str, NDArray[Any]]) -> bytes:
    start, length = int(block.start[episode]), int(block.length[episode])
    own = {name: _value(name, column[start : start + length]) for name, column in columns.items()}
    batch = {
        "type": SAMPLE_BATCH_LAYOUT,
        Columns.EPS_ID: [block.eps_id[episode]] * length,
        **nest(own),
    }
    return orjson.dumps(batch, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE)


def _value(name: str, values: NDArray[Any]) -> Any:
    if name == Columns.INFOS:
        return [orjson.Fragment(info_json(text) if text else b"{}") for text in values.tolist()]
    if values.dtype == object:
        return values.tolist()
    return orjson.Fragment(json_of(values, _WORDS))
