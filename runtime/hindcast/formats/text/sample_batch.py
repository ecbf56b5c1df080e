"""The layout "SampleBatch": one episode a line, as RLlib's JSON writer writes its batches."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
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
from hindcast.formats.columns.infos import step_texts
from hindcast.formats.columns.pickles import pickled
from hindcast.formats.columns.steps import Steps, as_numbers, nest
from hindcast.formats.data_file import Group
from hindcast.formats.spec import DataSpec, Leaf
from hindcast.formats.text.lines import TextEncoder, Words, info_json, json_of, lines_of

SAMPLE_BATCH_LAYOUT: Final = "SampleBatch"
_WORDS: Final = Words(b"NaN", b"Infinity", b"-Infinity")  # no JSON, but what RLlib writes and reads


class SampleBatchEncoder(TextEncoder):
    """An `Encoder`.

    Args:
        spec: of the data.
        packed: columns of numbers to pack, as RLlib does by default with `obs` and `new_obs`.

    Raises:
        DataError: a column to pack that does not exist or holds text.
    """

    suffix = ".json"

    def __init__(self, spec: DataSpec, packed: Sequence[str] = ()) -> None:
        self._steps = Steps(spec, SAMPLE_BATCH_LAYOUT)
        self._packed = {name: _packable(name, self._steps.leaves) for name in packed}
        of_obs, of_actions = space_struct(spec.observation_space), space_struct(spec.action_space)
        self._structs = {Columns.OBS: of_obs, Columns.NEXT_OBS: of_obs, Columns.ACTIONS: of_actions}

    def encode(self, block: Block) -> Group:
        """See `Encoder.encode`; there is a column of infos only in blocks in which any is not empty."""
        leaves = self._steps.leaves
        arrays = self._steps.arrays(block)
        columns = {
            name: _plain(array, leaves[name])
            for name, array in arrays.items()
            if root(name) not in self._packed
        }
        infos = step_texts(block.without_details())
        if infos is not None:
            columns[Columns.INFOS] = infos
        lines = [
            _line(block, i, columns, {name: self._pack(name, block, i, arrays) for name in self._packed})
            for i in range(block.num_episodes)
        ]
        return lines_of(pa.array(lines, pa.large_binary()), block.length, np.ones_like(block.length))

    def _pack(self, name: str, block: Block, episode: int, arrays: dict[str, NDArray[Any]]) -> str:
        """Base64 of an LZ4 frame of a pickle: an episode's arrays in their own dtypes, nested as in their space."""
        rows = slice(int(block.start[episode]), int(block.start[episode] + block.length[episode]))
        own = {
            leaf: np.ascontiguousarray(arrays[leaf][rows], dtype=self._steps.leaves[leaf].dtype)
            for leaf in self._packed[name]
        }
        return _packed(nested.unflatten(own, name, self._structs.get(name)))


def line_of(columns: Mapping[str, Any], packed: Sequence[str] = ()) -> bytes:
    """A batch of any columns as a line.

    Args:
        columns: column -> arrays `[T, ...]`, dicts and tuples of them, or a list of infos.
        packed: columns that are packed, where they are there.

    Raises:
        DataError: values that JSON cannot hold.
    """
    own = {name: _packed(value) if name in packed else _given(name, value) for name, value in columns.items()}
    try:
        batch = {"type": SAMPLE_BATCH_LAYOUT, **own}
        return orjson.dumps(batch, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE)
    except TypeError as error:
        raise DataError(f"a batch cannot be written as JSON: {error}") from error


def _packed(value: Any) -> str:
    return base64.b64encode(pa.Codec("lz4").compress(pickled(value), asbytes=True)).decode()


def _given(name: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _given("", part) for key, part in value.items()}
    if isinstance(value, tuple):
        return [_given("", part) for part in value]
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
        return orjson.Fragment(json_of(value.astype(np.float64), _WORDS))
    if isinstance(value, np.ndarray):
        return value.tolist()
    return [orjson.Fragment(info_to_json(info)) for info in value] if name == Columns.INFOS else value


def _packable(name: str, leaves: Mapping[str, Leaf]) -> list[str]:
    """The leaves of a column that can be packed.

    Raises:
        DataError: there is no column of this name, or it holds text.
    """
    of_numbers = dict.fromkeys(root(leaf) for leaf in leaves)
    for leaf, kind in leaves.items():
        if kind.dtype is None:
            of_numbers.pop(root(leaf), None)
    if name not in of_numbers:
        raise DataError(
            f"{name!r} is not a column of numbers that can be packed: allowed are {', '.join(of_numbers)}"
        )
    return [leaf for leaf in leaves if root(leaf) == name]


def _plain(column: NDArray[Any], leaf: Leaf) -> NDArray[Any]:
    """Floats as double ones, which is what RLlib makes of them: others read the very same value."""
    if leaf.dtype is None:
        return column
    values = as_numbers(column, leaf)
    return values.astype(np.float64) if values.dtype.kind == "f" else values


def _line(block: Block, episode: int, columns: dict[str, NDArray[Any]], packed: dict[str, str]) -> bytes:
    start, length = int(block.start[episode]), int(block.length[episode])
    own = {name: _value(name, column[start : start + length]) for name, column in columns.items()}
    batch = {
        "type": SAMPLE_BATCH_LAYOUT,
        Columns.EPS_ID: [block.eps_id[episode]] * length,
        **nest(own),
        **packed,
    }
    return orjson.dumps(batch, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE)


def _value(name: str, values: NDArray[Any]) -> Any:
    if name == Columns.INFOS:
        return [orjson.Fragment(info_json(text) if text else b"{}") for text in values.tolist()]
    if values.dtype == object:
        return values.tolist()
    return orjson.Fragment(json_of(values, _WORDS))
