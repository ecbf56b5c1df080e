"""`InfiniteLookbackBuffer`: one column of an episode, and of the timesteps before it (the lookback)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Number
from typing import Any

import numpy as np
from gymnasium import spaces

from hindcast.episodes import batched, nested
from hindcast.episodes.encoding import empty_batch, fill_sample, one_hot
from hindcast.episodes.nested import Nested
from hindcast.episodes.spaces import space_from_state, space_struct, space_to_state

Indices = int | slice | Sequence[int] | None


class InfiniteLookbackBuffer:
    """One column of an episode: `lookback` items from before the episode's start, then its timesteps.

    Timestep t >= 0 is at position `lookback + t` of the data. A negative index counts from the end (-1 is the last
    timestep), and reaches into the lookback if it goes back beyond timestep 0; with `neg_index_as_lookback` -1 is the
    last item of the lookback.

    A buffer has two modes. In list mode `data` is a list with one sample per item (`finalized` is False). In NumPy
    mode `data` is a batched value: an array, or a dict/tuple of arrays, with a leading time dimension
    (`finalized` is True). `get` returns the same mode: a list, or a batched value.

    Arrays are not copied when they are passed; the first write makes a copy, so that views never write through.

    Attributes:
        data: all items, the lookback first.
        lookback: number of items that are lookback.
        finalized: whether the buffer is in NumPy mode.
        space: the samples' space; None if unknown.
    """

    __slots__ = ("_shared", "data", "finalized", "lookback", "space")

    def __init__(self, data: Any = None, lookback: int = 0, space: spaces.Space | None = None) -> None:
        """Make a buffer.

        Args:
            data: a sequence of samples (list mode), or an array or nested arrays (NumPy mode); None is empty.
            lookback: number of items at the front that are lookback; a number beyond them means all.
            space: the samples' space; required for one-hot encoding, and gives `fill` its shape.

        Raises:
            ValueError: the lookback is negative; nested data are not arrays of one length.
        """
        if lookback < 0:
            raise ValueError(f"lookback is {lookback}: it must be 0 or more")
        self.finalized = batched.is_batch(data)
        if data is None:
            data = []
        self.data: Any = data if self.finalized else list(data)
        self._shared = self.finalized  # the caller may use the arrays, too: copy them before writing
        self.space = space
        self.lookback = min(int(lookback), self.len_incl_lookback())

    @property
    def space_struct(self) -> Nested:
        """The leaf spaces, nested like a sample; None without a space."""
        return space_struct(self.space)

    def __len__(self) -> int:
        """Return the number of timesteps, without the lookback."""
        return self.len_incl_lookback() - self.lookback

    def len_incl_lookback(self) -> int:
        """Return the number of timesteps and lookback items together."""
        return batched.batch_length(self.data) if self.finalized else len(self.data)

    def get(
        self,
        indices: Indices = None,
        *,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        one_hot_discrete: bool = False,
    ) -> Any:
        """Return samples at timesteps.

        Args:
            indices: one timestep; a slice or a list of them; None for all (without the lookback). A negative
                index counts from the end and may reach into the lookback.
            neg_index_as_lookback: whether -1 is the last item before timestep 0.
            fill: replaces items that are out of range: a number or text, which gets the shape and dtype of the space
                (without a space, list mode returns it unchanged), or a nested value. Without `fill` an index out of
                range is an error, and a slice is clipped.
            one_hot_discrete: whether to encode discrete values as float32 one-hot vectors.

        Returns:
            One sample for one index; else a list (list mode) or a batched value (NumPy mode).

        Raises:
            IndexError: an index is out of range, without `fill`.
            ValueError: one-hot encoding has no space; `fill` does not fit.
        """
        if one_hot_discrete and self.space is None:
            raise ValueError(
                "one-hot encoding requires the space: give the episode its observation_space/action_space"
            )
        from_lookback, total = neg_index_as_lookback, self.len_incl_lookback()
        if isinstance(indices, int | np.integer):
            position = self._resolve_index(int(indices), from_lookback)
            if 0 <= position < total:
                return self._encode(self._take(position), one_hot_discrete)
            if fill is None:
                raise self._out_of_range_error(indices, from_lookback)
            return self._fill_value(fill, one_hot_discrete)
        positions = self._resolve_indices(indices, from_lookback, is_filled=fill is not None)
        # a slice gives views, indices would copy
        if isinstance(positions, range) and positions == _clip(positions, total):
            return self._encode_all(self._take(_as_slice(positions)), one_hot_discrete)
        return self._gather(positions, fill, one_hot_discrete)

    def slice_positions(self, indices: slice, neg_index_as_lookback: bool = False) -> range:
        """Return the positions of a slice, which may be outside the data. A slice without bounds covers all timesteps.

        Raises:
            ValueError: the step is 0.
        """
        total = self.len_incl_lookback()
        step = 1 if indices.step is None else int(indices.step)
        start, stop = (self.lookback, total) if step > 0 else (total - 1, self.lookback - 1)
        if indices.start is not None:
            start = self._resolve_index(int(indices.start), neg_index_as_lookback)
        if indices.stop is not None:
            stop = self._resolve_index(int(indices.stop), neg_index_as_lookback)
        if step == 0:
            raise ValueError("the step of a slice cannot be 0")
        return range(start, stop, step)

    def set(self, new_data: Any, *, at_indices: Indices = None, neg_index_as_lookback: bool = False) -> None:
        """Overwrite samples; the length stays.

        Args:
            new_data: one sample for one index; else a sequence of samples or a batched value, one sample for
                each index.
            at_indices: as in `get`; None for all timesteps (without the lookback).
            neg_index_as_lookback: as in `get`.

        Raises:
            IndexError: an index is out of range, or there is not one sample for each index.
            ValueError: in NumPy mode, samples have another structure or shape.
        """
        if isinstance(at_indices, int | np.integer):
            at_indices, new_data = [int(at_indices)], [new_data]
        positions = list(self._resolve_indices(at_indices, neg_index_as_lookback, is_filled=False))
        samples = self._convert_samples(new_data)
        count = batched.batch_length(samples) if self.finalized else len(samples)
        if count != len(positions):
            raise IndexError(
                f"{count} new samples were passed for {len(positions)} timesteps (at_indices={at_indices})"
            )
        if self.finalized:
            self.data = batched.overwrite(self.data, positions, samples, in_place=not self._shared)
            self._shared = False
            return
        for position, sample in zip(positions, samples, strict=True):
            self.data[position] = sample

    def append(self, item: Nested) -> None:
        """Add one sample at the end."""
        self.extend([item])

    def extend(self, items: Any) -> None:
        """Add samples at the end: a sequence of samples or a batched value."""
        samples = self._convert_samples(items)
        if not self.finalized:
            self.data.extend(samples)
        elif self.len_incl_lookback() == 0:
            # the first samples determine structure and dtype; the caller may still hold them
            self.data, self._shared = samples, True
        else:
            self.data, self._shared = batched.extend(self.data, samples), False

    def pop(self, index: int = -1) -> None:
        """Remove one item. `index` counts through all items, lookback included: 0 is the oldest item.

        The lookback keeps its length (as long as there are items): `append` and `pop(0)` slide a window.
        """
        total = self.len_incl_lookback()
        if not -total <= index < total:
            raise IndexError(f"pop({index}): the buffer has {total} items, lookback included")
        if self.finalized:
            self.data = nested.map_leaves(lambda leaf: np.delete(leaf, index, axis=0), self.data)
            self._shared = False
        else:
            self.data.pop(index)
        self.lookback = min(self.lookback, total - 1)

    def concat(self, other: InfiniteLookbackBuffer) -> None:
        """Add the timesteps of another buffer (not its lookback) at the end; the buffers may differ in mode."""
        if len(other):
            self.extend(other.get())

    def finalize(self) -> None:
        """Switch to NumPy mode; no effect in NumPy mode.

        Raises:
            ValueError: samples differ in structure or shape.
        """
        if self.finalized:
            return
        if self.data:
            self.data = batched.stack(self.data)
        else:
            self.data = np.zeros(0) if self.space is None else empty_batch(self.space)
        self.finalized = True
        self._shared = False

    def section(self, first: int, stop: int, step: int, lookback: int) -> InfiniteLookbackBuffer:
        """Return a buffer of the items at `range(first, stop, step)`, the first `lookback` of them as lookback.

        In list mode its list is a copy with the same samples; in NumPy mode its arrays are views.
        """
        self._shared = self._shared or self.finalized  # the section gets views of the arrays
        return InfiniteLookbackBuffer(self._take(slice(first, stop, step)), lookback, self.space)

    def get_state(self) -> dict[str, Any]:
        """Return the buffer as `{data, lookback, finalized, space}`, ready for MessagePack with NumPy arrays."""
        data = nested.map_leaves(batched.objects_as_text, self.data) if self.finalized else list(self.data)
        space = None if self.space is None else space_to_state(self.space)
        return {"data": data, "lookback": self.lookback, "finalized": self.finalized, "space": space}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> InfiniteLookbackBuffer:
        """Make a buffer from its state; lists that MessagePack made of tuples become tuples again.

        Raises:
            ValueError: a field is missing or invalid.
        """
        for key in ("data", "lookback", "finalized", "space"):
            if key not in state:
                raise ValueError(f"the state of an episode's column lacks {key!r}; it has {sorted(state)}")
        data, space = state["data"], space_from_state(state["space"])
        if state["finalized"]:
            data = nested.map_leaves(batched.text_as_objects, nested.lists_as_tuples(data))
        else:
            struct = space_struct(space)
            data = [nested.restore_tuples(item, struct) for item in data]
        return cls(data, int(state["lookback"]), space)

    def __getitem__(self, item: Indices) -> Any:
        return self.get(item)

    def __setitem__(self, key: Indices, value: Any) -> None:
        self.set(value, at_indices=key)

    def __add__(self, other: Any) -> InfiniteLookbackBuffer:
        """Return a new buffer: with a number added to all items, or with a sequence or another buffer appended."""
        if isinstance(other, Number):
            return InfiniteLookbackBuffer(self._add_number(other), self.lookback, self.space)
        result = InfiniteLookbackBuffer(self.data, self.lookback, self.space)
        if isinstance(other, InfiniteLookbackBuffer):
            result.concat(other)
        else:
            result.extend(other)
        return result

    def __eq__(self, other: object) -> bool:
        """Return whether items, lookback, mode and space are equal."""
        if not isinstance(other, InfiniteLookbackBuffer):
            return NotImplemented
        if (self.lookback, self.finalized, self.space) != (other.lookback, other.finalized, other.space):
            return False
        if self.len_incl_lookback() != other.len_incl_lookback():
            return False
        if self.finalized:
            return nested.equal(self.data, other.data)
        return all(
            nested.equal(item, other_item) for item, other_item in zip(self.data, other.data, strict=True)
        )

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        lookback_items, items = (
            self._take(part) for part in (slice(0, self.lookback), slice(self.lookback, None))
        )
        return f"{type(self).__name__}({lookback_items} <- lookback({self.lookback}) | {items})"

    def _resolve_index(self, index: int, from_lookback: bool) -> int:
        return self.lookback + index if index >= 0 or from_lookback else self.len_incl_lookback() + index

    def _resolve_indices(
        self, indices: slice | Sequence[int] | None, from_lookback: bool, is_filled: bool
    ) -> Sequence[int]:
        """Return the positions of indices in the data; for a slice a range.

        Without `is_filled`, slices are clipped to the data.

        Raises:
            IndexError: an index in a list is out of range, without `is_filled`.
        """
        total = self.len_incl_lookback()
        if indices is None or isinstance(indices, slice):
            slice_range = self.slice_positions(indices or slice(None), from_lookback)
            return slice_range if is_filled else _clip(slice_range, total)
        positions = [self._resolve_index(int(index), from_lookback) for index in indices]
        for index, position in zip(indices, positions, strict=True):
            if not (is_filled or 0 <= position < total):
                raise self._out_of_range_error(index, from_lookback)
        return positions

    def _take(self, positions: Any) -> Any:
        """Return the item at a position, or the items of a slice."""
        return batched.take(self.data, positions) if self.finalized else self.data[positions]

    def _gather(self, positions: Sequence[int], fill: Any, one_hot_discrete: bool) -> Any:
        """Return the items at the positions, in either mode, and the fill value outside the data."""
        total = self.len_incl_lookback()
        missing_mask = [not 0 <= position < total for position in positions]
        fill_value = self._fill_value(fill, one_hot_discrete) if any(missing_mask) else None
        if not self.finalized:
            return [
                fill_value if is_missing else self._encode(self.data[position], one_hot_discrete)
                for position, is_missing in zip(positions, missing_mask, strict=True)
            ]
        present_positions = np.array(
            [
                position
                for position, is_missing in zip(positions, missing_mask, strict=True)
                if not is_missing
            ],
            dtype=np.intp,
        )
        samples = self._encode(batched.take(self.data, present_positions), one_hot_discrete)
        return (
            batched.fill_missing(samples, fill_value, np.array(missing_mask))
            if any(missing_mask)
            else samples
        )

    def _encode(self, value: Any, one_hot_discrete: bool) -> Any:
        if not one_hot_discrete:
            return value
        assert self.space is not None
        return one_hot(value, self.space)

    def _encode_all(self, values: Any, one_hot_discrete: bool) -> Any:
        if self.finalized:
            return self._encode(values, one_hot_discrete)
        return [self._encode(value, one_hot_discrete) for value in values]

    def _fill_value(self, fill: Any, one_hot_discrete: bool) -> Nested:
        """Return the sample that replaces items out of range."""
        if self.space is not None:
            return fill_sample(self._encode(empty_batch(self.space), one_hot_discrete), fill)
        return fill_sample(self.data, fill, widen=True) if self.finalized else fill

    def _out_of_range_error(self, index: Any, from_lookback: bool) -> IndexError:
        return IndexError(
            f"index {index} (neg_index_as_lookback={from_lookback}) is out of range: there are {len(self)} timesteps "
            f"and {self.lookback} lookback items; pass fill=… to get a value instead"
        )

    def _convert_samples(self, items: Any) -> Any:
        """Convert new samples to this buffer's mode."""
        if not self.finalized:
            return batched.unstack(items) if batched.is_batch(items) else list(items)
        if batched.is_batch(items):
            return items
        items = list(items)
        return batched.stack(items) if items else batched.take(self.data, slice(0, 0))

    def _add_number(self, number: Any) -> Any:
        if self.finalized:
            return nested.map_leaves(lambda leaf: leaf + number, self.data)
        return [nested.map_leaves(lambda leaf: leaf + number, item) for item in self.data]


def _clip(positions: range, total: int) -> range:
    """Clip positions to the data; the positions may be descending."""
    first, end = (0, total) if positions.step > 0 else (total - 1, -1)
    # len(range(positions.start, bound, step)) is the number of positions before the bound
    start = min(len(range(positions.start, first, positions.step)), len(positions))
    stop = min(len(range(positions.start, end, positions.step)), len(positions))
    return positions[start : max(start, stop)]


def _as_slice(positions: range) -> slice:
    """Return the slice of these positions, which are all in the data."""
    if not positions:
        return slice(0, 0)
    stop = positions[-1] + (1 if positions.step > 0 else -1)
    return slice(positions[0], stop if stop >= 0 else None, positions.step)
