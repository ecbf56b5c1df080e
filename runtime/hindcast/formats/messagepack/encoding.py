"""Encoding blocks into cells. A cell is an episode's state, byte for byte as RLlib's recorder packs it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgpack
import numpy as np
import orjson
from gymnasium import spaces
from numpy.typing import NDArray

from hindcast.episodes import details, nested
from hindcast.episodes.block import I64, Block
from hindcast.episodes.columns import SEPARATOR, Columns, is_per_observation, leaves_of, root
from hindcast.episodes.episode_data import REWARD_SPACE
from hindcast.episodes.nested import Nested
from hindcast.episodes.spaces import space_struct, space_to_state
from hindcast.errors import DataError
from hindcast.formats.dtypes import RefusedValueError
from hindcast.formats.messagepack.cells import BUFFER_COLUMNS, PACKED_EMPTY_INFO
from hindcast.formats.messagepack.template import Template
from hindcast.formats.messagepack.values import pack
from hindcast.formats.spec import DataSpec, Leaf

PackedItems = NDArray[np.uint8] | list[bytes]
"""A column's packed items: an array `[rows, bytes]` if all items have the same length, else a list."""

# The other three entries are lookback, finalized and space.
_BUFFER_START: Final = msgpack.Packer().pack_map_header(4) + pack("data")
_TEXT_BYTES: Final = 64  # estimate
_NUM_IDS: Final = 3  # the first entries of `details.FIELDS` are ids, which come before the columns in a state
_STANDARD_COLUMNS: Final = tuple(BUFFER_COLUMNS.values())
_REQUIRED_COLUMNS: Final = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS)


class StateEncoder:
    """Packs the episodes of blocks with one spec.

    Raises:
        DataError: the spec lacks observations, actions or rewards, or has a space that episodes cannot have.
    """

    def __init__(self, spec: DataSpec) -> None:
        missing_columns = [column for column in _REQUIRED_COLUMNS if not leaves_of(column, spec.leaves)]
        if missing_columns:
            raise DataError(
                f"an episode in MessagePack requires {', '.join(missing_columns)}: the data have none"
            )
        column_spaces = {Columns.OBS: spec.observation_space, Columns.ACTIONS: spec.action_space}
        self._spec = spec
        roots = dict.fromkeys(root(leaf) for leaf in spec.leaves)
        self._outputs = [name for name in roots if name not in _STANDARD_COLUMNS]
        self._column_encoders = {
            name: _make_column_encoder(spec, name, space_struct(column_spaces.get(name)))
            for name in (*_REQUIRED_COLUMNS, *self._outputs)
        }
        packed_spaces = {name: _pack_space(space) for name, space in column_spaces.items()}
        self._buffer_ends = {
            name: _pack_buffer_end(packed_spaces.get(name, pack(None)))
            for name in (*_STANDARD_COLUMNS, *self._outputs)
        }
        self._buffer_ends[Columns.REWARDS] = _pack_buffer_end(_pack_space(REWARD_SPACE))
        self._space_entries = _pack_entries(
            _observation_space=packed_spaces[Columns.OBS], _action_space=packed_spaces[Columns.ACTIONS]
        )
        # estimates: 512 bytes for the keys and values of a state, 64 for the keys of a buffer
        self._overhead_bytes = (
            512 + len(self._space_entries) + sum(len(end) + 64 for end in self._buffer_ends.values())
        )

    def estimate_bytes(self, block: Block) -> I64:
        """Estimate the size of each episode's cell in bytes, `[N]`."""
        total = self._overhead_bytes + (block.length + 1) * (
            len(PACKED_EMPTY_INFO) if _info_texts(block) is None else _TEXT_BYTES
        )
        for name, encoder in self._column_encoders.items():
            total += (block.length + is_per_observation(name)) * encoder.item_bytes
        if block.details is not None:
            total += np.array([len(text) for text in block.details], dtype=np.int64)
        return total

    def pack(self, block: Block) -> list[bytes]:
        """Pack each episode's state into a cell.

        Raises:
            DataError: a column does not fit the spec; MessagePack cannot represent the details.
        """
        self._spec.check_names(block)
        items = {name: encoder.pack_items(block) for name, encoder in self._column_encoders.items()}
        infos = _info_texts(block)
        if infos is not None:
            items[Columns.INFOS] = [pack(orjson.loads(text)) if text else PACKED_EMPTY_INFO for text in infos]
        return [b"".join(self._iter_state_parts(block, i, items)) for i in range(block.num_episodes)]

    def _iter_state_parts(self, block: Block, i: int, items: dict[str, PackedItems]) -> Iterator[Any]:
        """Yield the bytes of the state of episode `i`, in parts; `items` are the packed items of the whole block."""
        length, t_started = int(block.length[i]), int(block.t_started[i])
        packer = msgpack.Packer()
        yield packer.pack_map_header(18)  # number of keys of an episode's state in RLlib
        ids, other_details = _PACKED_NO_DETAILS
        if block.details is not None:
            ids, other_details = _pack_details(block.details[i], block.eps_id[i])
        yield _pack_entries(id_=pack(str(block.eps_id[i])))
        yield ids
        for key, name in BUFFER_COLUMNS.items():
            yield pack(key)
            yield from self._iter_buffer_parts(name, block.rows_of(name, i), items.get(name))
        yield pack("extra_model_outputs")
        yield packer.pack_map_header(len(self._outputs)) if self._outputs else pack(None)
        for name in self._outputs:
            yield pack(name)
            yield from self._iter_buffer_parts(name, block.rows_of(name, i), items.get(name))
        yield _pack_entries(
            is_terminated=pack(bool(block.terminated[i])),
            is_truncated=pack(bool(block.truncated[i])),
            t_started=pack(t_started),
            t=pack(t_started + length),
        )
        yield self._space_entries
        yield other_details

    def _iter_buffer_parts(self, name: str, rows: slice, items: PackedItems | None) -> Iterator[Any]:
        """Yield the parts of a buffer: a column's rows of one episode; without `items`, the rows are empty infos."""
        yield _BUFFER_START
        yield msgpack.Packer().pack_array_header(rows.stop - rows.start)
        if items is None:
            yield PACKED_EMPTY_INFO * (rows.stop - rows.start)
        else:
            # a view of the array's memory: `join` copies it once
            yield items[rows].data if isinstance(items, np.ndarray) else b"".join(items[rows])
        yield self._buffer_ends[name]


class _TemplateColumnEncoder:
    """An encoder of a column with items that differ only in their numbers; it uses a template."""

    def __init__(self, column: str, spec: DataSpec, template: Template) -> None:
        self.item_bytes = template.stride
        self._spec, self._template = spec, template
        self._names = {payload.path: SEPARATOR.join((column, *payload.path)) for payload in template.payloads}

    def pack_items(self, block: Block) -> NDArray[np.uint8]:
        """Return the packed items, `[rows, item_bytes]`."""
        return self._template.fill(
            {path: self._spec.require_column(block, name) for path, name in self._names.items()}
        )


class _ItemColumnEncoder:
    """An encoder of a column that contains text or has no template; it packs the items one by one."""

    def __init__(self, column: str, spec: DataSpec, struct: Nested) -> None:
        self._column, self._spec, self._struct = column, spec, struct
        self._leaves = leaves_of(column, spec.leaves)
        self.item_bytes = sum(spec.leaves[name].itemsize + _TEXT_BYTES for name in self._leaves)

    def pack_items(self, block: Block) -> list[bytes]:
        """Return the packed items, one for each row."""
        columns = {name: self._spec.require_column(block, name) for name in self._leaves}
        rows = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
        return [pack(nested.unflatten(row, self._column, self._struct)) for row in rows]


def _make_column_encoder(
    spec: DataSpec, column: str, struct: Nested
) -> _TemplateColumnEncoder | _ItemColumnEncoder:
    leaves = {name: spec.leaves[name] for name in leaves_of(column, spec.leaves)}
    if any(leaf.dtype is None for leaf in leaves.values()):
        return _ItemColumnEncoder(column, spec, struct)
    sample = nested.unflatten({name: _zero_sample(leaf) for name, leaf in leaves.items()}, column, struct)
    template = Template.from_item(pack(sample))
    return (
        _ItemColumnEncoder(column, spec, struct)
        if template is None
        else _TemplateColumnEncoder(column, spec, template)
    )


def _zero_sample(leaf: Leaf) -> Any:
    """Return an item of zeros; a single number is a NumPy scalar, as RLlib records it."""
    assert leaf.dtype is not None
    return np.zeros(leaf.shape, leaf.dtype) if leaf.shape else leaf.dtype.type(0)


def _info_texts(block: Block) -> NDArray[np.object_] | None:
    """Return the infos' texts; None if all are empty."""
    texts = block.columns.get(Columns.INFOS)
    return None if texts is None or not texts.any() else texts


def _pack_entries(**values: bytes) -> bytes:
    """Return the bytes of map entries; the keys are packed here, the values are already packed."""
    return b"".join(part for key, value in values.items() for part in (pack(key), value))


def _pack_details(text: str, eps_id: str = "") -> tuple[bytes, bytes]:
    """Return the details as packed map entries in two parts: ids, which come before the columns, and other entries."""
    values = {"custom_data": {}, **details.from_text(text)}
    try:
        entries = [
            _pack_entries(**{key: pack(values.get(name), is_strict=True)})
            for key, name in details.FIELDS.items()
        ]
    except (TypeError, OverflowError, RefusedValueError) as error:
        raise DataError(
            f"episode {eps_id} has custom data or an id that MessagePack cannot represent ({error}): choose "
            "the format Episodes"
        ) from error
    return b"".join(entries[:_NUM_IDS]), b"".join(entries[_NUM_IDS:])


_PACKED_NO_DETAILS: Final = _pack_details(details.NO_DETAILS)


def _pack_space(space: spaces.Space | None) -> bytes:
    if space is None:
        return pack(None)
    try:
        return pack(space_to_state(space))
    except ValueError as error:
        raise DataError(str(error)) from error


def _pack_buffer_end(space: bytes) -> bytes:
    """Return the entries of a buffer that follow its data; `space` is packed."""
    return _pack_entries(lookback=pack(0), finalized=pack(False), space=space)
