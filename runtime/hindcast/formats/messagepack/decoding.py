"""Decoding cells into blocks: all items of a column at once if only their numbers differ, else one by one."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgpack
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from hindcast.episodes import batched, nested
from hindcast.episodes.block import Block
from hindcast.episodes.columns import SEPARATOR, Columns, is_per_observation
from hindcast.episodes.convert import info_to_json
from hindcast.episodes.nested import Nested
from hindcast.episodes.spaces import space_struct
from hindcast.formats.dtypes import RefusedValueError
from hindcast.formats.layout import CellError, DifferentCellError
from hindcast.formats.lossless import to_floats
from hindcast.formats.messagepack.cells import PACKED_EMPTY_INFO, Buffer, CellReader, EpisodeState
from hindcast.formats.messagepack.template import Template
from hindcast.formats.spec import describe_array

Arrays = dict[str, NDArray[Any]]
Spaces = Mapping[str, spaces.Space | None]


def read_states(cells: Sequence[memoryview], columns: Collection[str] | None = None) -> list[EpisodeState]:
    """Read the state in each cell.

    Args:
        cells: the cells.
        columns: columns to read; None reads all.

    Raises:
        CellError: a cell does not hold a valid state; the error's `row` is the index of the cell.
    """
    reader = CellReader(max((len(cell) for cell in cells), default=0), columns)
    states = []
    for row, cell in enumerate(cells):
        try:
            states.append(reader.read(cell))
        except RefusedValueError as error:
            raise CellError(row, f"it holds {error}") from error
        except (ValueError, TypeError, AttributeError, IndexError, msgpack.UnpackException) as error:
            raise CellError(row, f"it is not the state of an episode ({error})") from error
    return states


def decode_states(states: Sequence[EpisodeState], columns: Sequence[str], column_spaces: Spaces) -> Block:
    """Decode episodes into a block of the columns.

    Args:
        states: states of the episodes.
        columns: names of columns (`obs`, not `obs/camera`); infos become JSON text.
        column_spaces: column -> space or None; a space distinguishes tuples from vectors.

    Raises:
        CellError: an episode lacks a column, or its values differ in structure, dtype or shape from those of
            other episodes.
    """
    arrays: Arrays = {}
    for column in columns:
        if column == Columns.INFOS:
            arrays[column] = _decode_infos(states)
        else:
            arrays.update(_decode_column(states, column, space_struct(column_spaces.get(column))))
    details = np.array([state.details for state in states], dtype=object)
    return Block(
        columns=arrays,
        length=np.array([state.length for state in states], dtype=np.int64),
        eps_id=np.array([state.eps_id for state in states], dtype=object),
        t_started=np.array([state.t_started for state in states], dtype=np.int64),
        terminated=np.array([state.terminated for state in states], dtype=np.bool_),
        truncated=np.array([state.truncated for state in states], dtype=np.bool_),
        details=details if details.any() else None,
    )


def column_names(states: Sequence[EpisodeState]) -> list[str]:
    """Return the columns of the states; `infos` only if an info is not empty."""
    names = dict.fromkeys(name for state in states for name in state.buffers)
    if Columns.INFOS in names and all(_has_no_infos(state.buffers.get(Columns.INFOS)) for state in states):
        del names[Columns.INFOS]
    return list(names)


def _decode_column(states: Sequence[EpisodeState], column: str, struct: Nested) -> Arrays:
    """Decode a column of all episodes; `struct` is the structure of the column's space."""
    buffers: list[tuple[int, Buffer]] = []
    for row, state in enumerate(states):
        if column in state.buffers:
            buffers.append((row, state.buffers[column]))
        elif state.length or is_per_observation(column):
            raise CellError(row, f"episode {state.eps_id} has no {column!r}, which others have")
    non_empty_buffers = [(row, buffer) for row, buffer in buffers if buffer.size > buffer.lookback]
    arrays = _decode_together([buffer for _, buffer in non_empty_buffers], column)
    if arrays is not None:
        return arrays
    return _join_arrays(
        [(row, _decode_one(row, buffer, column, struct)) for row, buffer in non_empty_buffers]
    )


def _decode_together(buffers: Sequence[Buffer], column: str) -> Arrays | None:
    """Decode all buffers together; None if they are not packed, or if their items differ in more than their numbers."""
    is_packed = bool(buffers) and all(buffer.packed_items is not None for buffer in buffers)
    if not is_packed or len({buffer.stride for buffer in buffers}) > 1:
        return None
    template = None
    # `_decode_one` raises an error again, with the row
    with suppress(RefusedValueError, ValueError, IndexError):
        template = Template.from_item(bytes(buffers[0].packed_episode_items[: buffers[0].stride]))
    if template is None:
        return None
    numbers = template.read(b"".join([buffer.packed_episode_items for buffer in buffers]))
    if numbers is None:
        return None
    arrays = {SEPARATOR.join((column, *path)): array for path, array in numbers.items()}
    if column == Columns.REWARDS and all(payload.is_plain for payload in template.payloads):
        with suppress(CellError):
            return {name: to_floats(array, name) for name, array in arrays.items()}
        return None
    return arrays


def _decode_one(row: int, buffer: Buffer, column: str, struct: Nested) -> Arrays:
    try:
        arrays = _decode_together([buffer], column)
        if arrays is not None:
            return arrays
        if buffer.batch is not None:
            batch = nested.restore_tuples(nested.lists_as_tuples(buffer.batch), struct)
            values = batched.take(batch, slice(buffer.lookback, None))
        else:
            items = buffer.episode_items()
            values = batched.stack([_restore_sample(item, struct) for item in items])
            if column == Columns.REWARDS and all(type(item) in (bool, int, float) for item in items):
                values = to_floats(values, column)
        arrays = {
            name: batched.text_as_objects(leaf) for name, leaf in nested.flatten(values, column).items()
        }
    except CellError as error:
        raise error.with_row(row) from error
    except RefusedValueError as error:
        raise CellError(row, f"{column!r} holds {error}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CellError(row, f"{column!r} cannot be read: {error}") from error
    return {name: _convert_array(row, name, array) for name, array in arrays.items()}


def _restore_sample(item: Any, struct: Nested) -> Any:
    """Convert lists in an item to tuples; a list of plain numbers stays a vector unless the space is a tuple."""
    if nested.is_composite(struct):
        return nested.restore_tuples(item, struct)
    if isinstance(item, Mapping):
        return {key: _restore_sample(value, None) for key, value in item.items()}
    if isinstance(item, list) and struct is None and any(_is_tuple_element(element) for element in item):
        return tuple(_restore_sample(element, None) for element in item)
    return item


def _is_tuple_element(value: Any) -> bool:
    return isinstance(value, np.ndarray | np.generic | Mapping | str)


def _convert_array(row: int, name: str, array: NDArray[Any]) -> NDArray[Any]:
    """Return numbers in little-endian order, or text.

    Raises:
        CellError: the array holds neither.
    """
    if array.dtype == object and all(isinstance(item, str) for item in array.flat) and array.ndim == 1:
        return array
    if array.dtype.kind not in "biufc":
        raise CellError(row, f"{name!r} holds values that are neither numbers of one shape nor text")
    return array.astype(array.dtype.newbyteorder("<"), copy=False)


def _join_arrays(arrays_by_row: Sequence[tuple[int, Arrays]]) -> Arrays:
    """Concatenate the arrays of several rows; empty without rows.

    Raises:
        CellError: a row differs from the first one in its leaves, or in their shapes or kinds (numbers or text).
    """
    if not arrays_by_row:
        return {}
    _, first_arrays = arrays_by_row[0]
    for row, arrays in arrays_by_row:
        if arrays.keys() != first_arrays.keys():
            raise DifferentCellError(
                row, f"it has the leaves {sorted(arrays)}, others have {sorted(first_arrays)}"
            )
        for name, array in arrays.items():
            first = first_arrays[name]
            if array.shape[1:] != first.shape[1:] or (array.dtype == object) != (first.dtype == object):
                raise DifferentCellError(
                    row,
                    f"{name!r} is {describe_array(array)} here and {describe_array(first_arrays[name])} in others",
                )
    return {name: np.concatenate([arrays[name] for _, arrays in arrays_by_row]) for name in first_arrays}


def _has_no_infos(buffer: Buffer | None) -> bool:
    if buffer is None or buffer.size == 0:
        return True
    if buffer.packed_items is not None:
        return bytes(buffer.packed_episode_items) == PACKED_EMPTY_INFO * (buffer.size - buffer.lookback)
    return not any(buffer.items or ())


def _decode_infos(states: Sequence[EpisodeState]) -> NDArray[np.object_]:
    texts: list[str] = []
    for row, state in enumerate(states):
        buffer = state.buffers.get(Columns.INFOS)
        if buffer is None or _has_no_infos(buffer):
            texts += [""] * (state.length + 1)
            continue
        try:
            texts += [info_to_json(info) if info else "" for info in buffer.episode_items()]
        except (RefusedValueError, ValueError, TypeError) as error:
            raise CellError(row, f"{Columns.INFOS!r} cannot be read: {error}") from error
    return np.array(texts, dtype=object)
