"""The layout "SampleBatch": one episode per line, as RLlib's JSON writer writes batches."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa
from numpy.typing import NDArray

from hindcast.episodes import nested
from hindcast.episodes.block import Block
from hindcast.episodes.columns import Columns, root
from hindcast.episodes.convert import info_to_json
from hindcast.episodes.spaces import space_struct
from hindcast.errors import DataError
from hindcast.formats.columns.infos import make_info_cells
from hindcast.formats.columns.packed_cells import pack_cell
from hindcast.formats.columns.steps import StepLayout, nest, to_real_numbers
from hindcast.formats.data_file import EncodedEpisodes
from hindcast.formats.spec import DataSpec, Leaf
from hindcast.formats.text.lines import (
    NonFiniteTexts,
    TextEncoder,
    array_to_json,
    encode_lines,
    single_line_info,
)

SAMPLE_BATCH_LAYOUT: Final = "SampleBatch"
# not valid JSON, but RLlib writes and reads these
_NON_FINITE: Final[NonFiniteTexts] = {"nan": b"NaN", "inf": b"Infinity", "-inf": b"-Infinity"}


class SampleBatchEncoder(TextEncoder):
    """The `RowEncoder` of the layout "SampleBatch".

    Args:
        spec: spec of the data.
        packed_columns: columns of numbers to pack, as RLlib does by default with `obs` and `new_obs`.

    Raises:
        DataError: a column to pack does not exist or holds text.
    """

    suffix = ".json"

    def __init__(self, spec: DataSpec, packed_columns: Sequence[str] = ()) -> None:
        self._step_layout = StepLayout(spec, SAMPLE_BATCH_LAYOUT)
        for name in packed_columns:
            _check_packable(name, self._step_layout.leaves)
        self._packed_columns = packed_columns
        obs_struct, action_struct = space_struct(spec.observation_space), space_struct(spec.action_space)
        self._structs = {
            Columns.OBS: obs_struct,
            Columns.NEXT_OBS: obs_struct,
            Columns.ACTIONS: action_struct,
        }

    def encode(self, block: Block) -> EncodedEpisodes:
        """See `RowEncoder.encode`. There is a column of infos only if the block has infos that are not empty."""
        columns = {
            name: self._leaf_values(name, array)
            for name, array in self._step_layout.make_arrays(block).items()
        }
        infos = make_info_cells(block.without_details())
        if infos is not None:
            columns[Columns.INFOS] = infos
        lines = [self._episode_line(block, i, columns) for i in range(block.num_episodes)]
        return encode_lines(pa.array(lines, pa.large_binary()), block.length, np.ones_like(block.length))

    def _leaf_values(self, name: str, array: NDArray[Any]) -> NDArray[Any]:
        """Return a leaf's values in its dtype; complex numbers that are not packed become pairs of floats."""
        leaf = self._step_layout.leaves[name]
        if leaf.dtype is None:
            return array
        if root(name) in self._packed_columns:
            return np.ascontiguousarray(array, dtype=leaf.dtype)
        return to_real_numbers(array, leaf)

    def _episode_line(self, block: Block, episode: int, columns: Mapping[str, NDArray[Any]]) -> bytes:
        """Return the line of an episode; packed columns come last, with the structure of their space."""
        start, length = int(block.start[episode]), int(block.length[episode])
        episode_columns = {name: column[start : start + length] for name, column in columns.items()}
        plain_values = {
            name: values for name, values in episode_columns.items() if root(name) not in self._packed_columns
        }
        packed_values = {
            name: nested.unflatten(episode_columns, name, self._structs.get(name))
            for name in self._packed_columns
        }
        ids = [block.eps_id[episode]] * length
        return batch_to_line(
            {Columns.EPS_ID: ids, **nest(plain_values), **packed_values}, self._packed_columns
        )


def batch_to_line(columns: Mapping[str, Any], packed_columns: Collection[str] = ()) -> bytes:
    """Encode a batch of any columns as a line.

    Args:
        columns: column -> array `[T, …]`, dict or tuple of arrays, or list of infos (dicts, or their JSON).
        packed_columns: columns to pack, if present, as base64 of an LZ4 frame of a pickle, in their own dtype.

    Raises:
        DataError: JSON cannot represent a value.
    """
    try:
        fields = {
            name: pack_cell(value) if name in packed_columns else _to_json(name, value)
            for name, value in columns.items()
        }
        batch = {"type": SAMPLE_BATCH_LAYOUT, **fields}
        return orjson.dumps(batch, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE)
    except TypeError as error:
        raise DataError(f"a batch cannot be written as JSON: {error}") from error


def _to_json(name: str, value: Any) -> Any:
    """Convert a column to JSON; floats are written as float64, as RLlib writes them, so that reading is exact."""
    if name == Columns.INFOS:
        return [_info_fragment(info) for info in value]
    if isinstance(value, Mapping):
        return {key: _to_json("", child) for key, child in value.items()}
    if isinstance(value, tuple):
        return [_to_json("", child) for child in value]
    if not isinstance(value, np.ndarray):
        return value
    if value.ndim == 0 or value.dtype.kind not in "biuf":
        return value.tolist()
    dtype = np.float64 if value.dtype.kind == "f" else value.dtype.newbyteorder("=")
    return orjson.Fragment(array_to_json(np.ascontiguousarray(value, dtype=dtype), _NON_FINITE))


def _info_fragment(info: Any) -> orjson.Fragment:
    if isinstance(info, str):
        return orjson.Fragment(single_line_info(info) if info else b"{}")
    return orjson.Fragment(info_to_json(info))


def _check_packable(name: str, leaves: Mapping[str, Leaf]) -> None:
    """Check that a column can be packed.

    Raises:
        DataError: the column does not exist, or holds text.
    """
    text_columns = {root(leaf) for leaf, leaf_spec in leaves.items() if leaf_spec.dtype is None}
    packable_columns = [column for column in dict.fromkeys(map(root, leaves)) if column not in text_columns]
    if name not in packable_columns:
        raise DataError(
            f"{name!r} is not a column of numbers that can be packed: allowed are {', '.join(packable_columns)}"
        )
