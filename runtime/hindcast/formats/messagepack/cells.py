"""Parsing MessagePack cells into episode states, with columns that mostly stay packed."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import msgpack
import numpy as np

from hindcast.episodes import batched, details, nested
from hindcast.episodes.columns import Columns, is_per_observation
from hindcast.formats.dtypes import RefusedValueError
from hindcast.formats.messagepack.values import refuse_ext, restore, unpack
from hindcast.formatting import describe_type

# Key of an episode's state in RLlib -> column.
BUFFER_COLUMNS = {
    "observations": Columns.OBS,
    "actions": Columns.ACTIONS,
    "rewards": Columns.REWARDS,
    "infos": Columns.INFOS,
}
PACKED_EMPTY_INFO = b"\x80"  # an empty dict
_SPACE_KEYS = ("_observation_space", "_action_space")
_REQUIRED_KEYS = (
    "id_",
    "observations",
    "actions",
    "rewards",
    "is_terminated",
    "is_truncated",
    "t_started",
    "t",
)
_KEY_AFTER_ITEMS = b"\xa8lookback"  # the packed key that RLlib writes after a buffer's items


class Buffer(NamedTuple):
    """A column of an episode.

    One of `packed_items`, `items` and `batch` holds the values, lookback included; the other two are None. All three
    are None if the state has no data for the column.

    Attributes:
        size: number of items, lookback included.
        lookback: number of items at the front that precede the episode.
        packed_items: the items' bytes end to end, if all items seem to have one length.
        items: the items, unpacked.
        batch: arrays with a leading time dimension, in dicts and lists if the space is composite.
    """

    size: int
    lookback: int
    packed_items: memoryview | None = None
    items: list[Any] | None = None
    batch: Any = None

    @property
    def stride(self) -> int:
        """Size of a packed item in bytes; only for buffers with `packed_items`."""
        return len(self.packed_items or b"") // self.size

    @property
    def packed_episode_items(self) -> memoryview:
        """The packed items without the lookback."""
        assert self.packed_items is not None
        return self.packed_items[self.lookback * self.stride :]

    def episode_items(self) -> list[Any]:
        """Return the items without the lookback, unpacked."""
        if self.items is None:
            assert self.packed_items is not None
            return _unpack_items(self.packed_items, self.size)[self.lookback :]
        return self.items[self.lookback :]


class EpisodeState(NamedTuple):
    """The state of an episode.

    Attributes:
        eps_id: id of the episode.
        t_started: first timestep.
        length: number of timesteps.
        terminated: whether the environment has ended the episode.
        truncated: whether the episode was cut off.
        buffers: column -> buffer, for the requested columns.
        spaces: packed observation space and packed action space; a missing space is packed as nil.
        details: details as text (see `hindcast.episodes.details`).
    """

    eps_id: str
    t_started: int
    length: int
    terminated: bool
    truncated: bool
    buffers: dict[str, Buffer]
    spaces: tuple[bytes, bytes]
    details: str


class CellReader:
    """Reads cells one after another; columns mostly stay packed, and unrequested columns are skipped.

    Args:
        max_bytes: size of the longest cell.
        columns: columns to read; by default all columns.
    """

    def __init__(self, max_bytes: int, columns: Collection[str] | None = None) -> None:
        self._columns = columns
        self._unpacker = msgpack.Unpacker(
            object_hook=restore,
            ext_hook=refuse_ext,
            strict_map_key=False,
            read_size=1 << 12,
            max_buffer_size=2**31 - 1,  # the largest that msgpack allows
            max_str_len=max_bytes,
            max_bin_len=max_bytes,
            max_array_len=max_bytes,
            max_map_len=max_bytes,
        )
        self._cell = memoryview(b"")
        self._cell_start = 0

    def read(self, cell: memoryview) -> EpisodeState:
        """Read a cell.

        Raises:
            RefusedValueError: the cell is not the state of an episode, or holds a refused value.
            ValueError: the cell is not MessagePack, or ends too early.
        """
        self._cell = cell
        self._unpacker.feed(cell)
        self._cell_start = self._unpacker.tell()  # tell() counts the bytes of all cells so far
        try:
            values, buffers = self._read_state_map()
        except msgpack.OutOfData as error:
            raise RefusedValueError(f"{len(cell)} bytes, which end before the episode does") from error
        if self._position != len(cell):
            raise RefusedValueError(f"{len(cell) - self._position} bytes after the end of the episode")
        return _make_state(values, buffers)

    @property
    def _position(self) -> int:
        """Position in the cell of the byte that the unpacker reads next."""
        return self._unpacker.tell() - self._cell_start

    def _read_state_map(self) -> tuple[dict[str, Any], dict[str, Buffer]]:
        unpack_next = self._unpacker.unpack
        values: dict[str, Any] = {}
        buffers: dict[str, Buffer] = {}
        for _ in range(self._unpacker.read_map_header()):
            key = unpack_next()
            if key in BUFFER_COLUMNS:
                values[key] = None  # marks the key as present, for `_make_state`
                self._read_buffer(BUFFER_COLUMNS[key], buffers)
            elif key == "extra_model_outputs":
                self._read_outputs(buffers)
            elif key in _SPACE_KEYS:
                start = self._position
                self._unpacker.skip()
                # stays packed: most episodes of a file have the same space, which is then decoded only once
                values[key] = bytes(self._cell[start : self._position])
            else:
                values[key] = unpack_next()
        return values, buffers

    def _read_outputs(self, buffers: dict[str, Buffer]) -> None:
        if self._cell[self._position] == 0xC0:  # nil: no outputs
            self._unpacker.skip()
            return
        for _ in range(self._unpacker.read_map_header()):
            name = self._unpacker.unpack()
            if not isinstance(name, str) or name in BUFFER_COLUMNS.values():
                raise RefusedValueError(f"an extra model output named {name!r}")
            if self._cell[self._position] == 0xC0:  # nil
                self._unpacker.skip()
            else:
                self._read_buffer(name, buffers)

    def _read_buffer(self, column: str, buffers: dict[str, Buffer]) -> None:
        """Read a buffer, and add it to `buffers` if the column is requested."""
        unpack_next = self._unpacker.unpack
        fields: dict[Any, Any] = {}
        buffer = Buffer(0, 0)
        for _ in range(self._unpacker.read_map_header()):
            key = unpack_next()
            if key == "data":
                buffer = self._read_data()
            elif key == "space":
                self._unpacker.skip()
            else:
                fields[key] = unpack_next()
        if self._columns is not None and column not in self._columns:
            return
        # If RLlib has finalised the buffer, a MessagePack array holds one array for each element of a tuple space, not
        # one entry for each item; infos stay a list of items. The lookback is still 0, so it is not cut off here.
        if fields.get("finalized") and buffer.batch is None and column != Columns.INFOS:
            buffer = Buffer(0, 0, batch=buffer.episode_items() if buffer.size else [])
        if buffer.batch is not None:
            buffer = buffer._replace(size=_batch_length(column, buffer.batch))
        lookback = fields.get("lookback")
        if not isinstance(lookback, int) or not 0 <= lookback <= buffer.size:
            raise RefusedValueError(f"{column!r} with {buffer.size} items and a lookback of {lookback!r}")
        buffers[column] = buffer._replace(lookback=lookback)

    def _read_data(self) -> Buffer:
        """Read the data of a buffer. Its lookback, and the size of a `batch`, are not known yet and stay 0."""
        unpacker, start = self._unpacker, self._position
        # without the tag of a MessagePack array, the data are not a list of items
        if not (0x90 <= self._cell[start] <= 0x9F or self._cell[start] in (0xDC, 0xDD)):
            return Buffer(0, 0, batch=unpacker.unpack())
        count = unpacker.read_array_header()
        if count == 0:
            return Buffer(0, 0, items=[])
        start = self._position
        unpacker.skip()
        # If all items are as long as the first one, the buffer's next key lies right behind `count` such items; then
        # the items stay packed.
        end = start + count * (self._position - start)
        if self._cell[end : end + len(_KEY_AFTER_ITEMS)] == _KEY_AFTER_ITEMS:
            unpacker.read_bytes(end - self._position)
            return Buffer(count, 0, packed_items=self._cell[start:end])
        first_item = unpack(self._cell[start : self._position])
        return Buffer(count, 0, items=[first_item, *(unpacker.unpack() for _ in range(count - 1))])


def _batch_length(column: str, batch: Any) -> int:
    try:
        return batched.batch_length(nested.lists_as_tuples(batch))
    except ValueError as error:
        raise RefusedValueError(
            f"{column!r} that is neither a list of items nor arrays with a common length"
        ) from error


def _make_state(values: dict[str, Any], buffers: dict[str, Buffer]) -> EpisodeState:
    missing_keys = [key for key in _REQUIRED_KEYS if key not in values]
    if missing_keys:
        raise RefusedValueError(f"a map without {', '.join(missing_keys)}: it is not the state of an episode")
    t_started, t = values["t_started"], values["t"]
    if not (isinstance(t_started, int) and isinstance(t, int) and 0 <= t_started <= t):
        raise RefusedValueError(f"an episode from timestep {t_started!r} to {t!r}")
    flags = [values[key] for key in ("is_terminated", "is_truncated")]
    if not all(isinstance(flag, bool | np.bool_) for flag in flags):
        raise RefusedValueError(f"an episode that is terminated: {flags[0]!r}, truncated: {flags[1]!r}")
    for column, buffer in buffers.items():
        expected = t - t_started + is_per_observation(column)
        if buffer.size - buffer.lookback != expected and (buffer.size or column != Columns.INFOS):
            raise RefusedValueError(
                f"{column!r} with {buffer.size - buffer.lookback} items: expected {expected}"
            )
    spaces = tuple(values.get(key, b"\xc0") for key in _SPACE_KEYS)
    return EpisodeState(
        str(values["id_"]),
        t_started,
        t - t_started,
        bool(flags[0]),
        bool(flags[1]),
        buffers,
        spaces,
        _encode_details(values),
    )


def _encode_details(values: dict[str, Any]) -> str:
    if not isinstance(values.get("custom_data") or {}, dict):
        raise RefusedValueError(
            f"custom data that are {describe_type(values['custom_data'])}: expected a dict"
        )
    try:
        return details.to_text(**{name: values.get(key) for key, name in details.FIELDS.items()})
    except ValueError as error:
        raise RefusedValueError(f"custom data or ids with {error}") from error


def _unpack_items(packed_items: memoryview, count: int) -> list[Any]:
    """Unpack items one by one.

    Raises:
        RefusedValueError: the bytes do not hold `count` items.
    """
    unpacker = msgpack.Unpacker(
        object_hook=restore, ext_hook=refuse_ext, strict_map_key=False, max_buffer_size=len(packed_items)
    )
    unpacker.feed(packed_items)
    items = list(unpacker)
    if len(items) != count or unpacker.tell() != len(packed_items):
        raise RefusedValueError(f"{len(items)} items, expected {count}")
    return items
