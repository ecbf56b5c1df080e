"""`InfiniteLookbackBuffer`: one column of an episode, with the timesteps before it to look back at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Number
from typing import Any

import numpy as np
from gymnasium import spaces

from hindcast.episodes import batched, nested
from hindcast.episodes.encoding import space_types
from hindcast.episodes.indexing import split
from hindcast.episodes.lookback_reads import BufferReads, Indices
from hindcast.episodes.nested import Nested
from hindcast.episodes.spaces import space_from_state, space_struct, space_to_state


class InfiniteLookbackBuffer(BufferReads):
    """A column in time: `lookback` items of the past, then the timesteps.

    It has two modes. In list mode `data` is a list with one sample per item (`finalized` is False). In NumPy
    mode `data` is a batched value: an array, or a dict/tuple of arrays, with a leading time dimension
    (`finalized` is True). `get` answers in the same mode: a list, or a batched value.

    Given arrays are not copied; the first write makes a copy, so that views never write through.

    Attributes:
        data: all items, the lookback first.
        lookback: how many of them are lookback.
        finalized: NumPy mode.
    """

    __slots__ = ()

    def __init__(self, data: Any = None, lookback: int = 0, space: spaces.Space | None = None) -> None:
        """Makes a buffer.

        Args:
            data: a sequence of samples (list mode), or an array or nested arrays (NumPy mode); None is empty.
            lookback: items at the front that are lookback; at most all of them.
            space: the samples' space; needed for one-hot encoding, and gives `fill` its shape.

        Raises:
            ValueError: a negative lookback; nested data that are not arrays of one length.
        """
        if lookback < 0:
            raise ValueError(f"lookback is {lookback}: it must be 0 or more")
        self.finalized = batched.is_batch(data)
        self.data: Any = data if self.finalized else list(data) if data is not None else []
        self._shared = self.finalized
        self._space = space
        self.lookback = min(int(lookback), self.len_incl_lookback())

    @property
    def space(self) -> spaces.Space | None:
        """The samples' space."""
        return self._space

    @space.setter
    def space(self, space: spaces.Space | None) -> None:
        self._space = space

    @property
    def space_struct(self) -> Nested:
        """The leaf spaces, nested like a sample; None without a space."""
        return space_struct(self._space)

    def set(self, new_data: Any, *, at_indices: Indices = None, neg_index_as_lookback: bool = False) -> None:
        """Overwrites samples; the length stays.

        Args:
            new_data: one sample for one index; else a sequence of samples or a batched value, one sample for
                each index.
            at_indices: as in `get`; None for all timesteps (without the lookback).
            neg_index_as_lookback: as in `get`.

        Raises:
            IndexError: an index out of range, or not one sample for each index.
            ValueError: in NumPy mode, samples of another structure or shape.
        """
        if isinstance(at_indices, int | np.integer):
            (position,) = self._positions([at_indices], neg_index_as_lookback)
            if self.finalized:
                self._overwrite(position, new_data)
            else:
                self.data[position] = new_data
            return
        positions = self._positions(at_indices, neg_index_as_lookback)
        samples = self._samples(new_data)
        count = batched.batch_length(samples) if self.finalized else len(samples)
        if count != len(positions):
            raise IndexError(
                f"{count} new samples were given for {len(positions)} timesteps (at_indices={at_indices})"
            )
        if self.finalized:
            self._overwrite(positions, samples)
            return
        for position, sample in zip(positions, samples, strict=True):
            self.data[position] = sample

    def append(self, item: Nested) -> None:
        """Adds one sample at the end."""
        self.extend([item])

    def extend(self, items: Any) -> None:
        """Adds samples at the end: a sequence of samples or a batched value."""
        samples = self._samples(items)
        if not self.finalized:
            self.data.extend(samples)
        elif self.len_incl_lookback() == 0:
            self.data, self._shared = samples, True
        else:
            self.data, self._shared = batched.extend(self.data, samples), False

    def pop(self, index: int = -1) -> None:
        """Removes one item. `index` counts through all items, lookback included: 0 is the oldest item.

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
        """Adds the other's timesteps (not its lookback) at the end, whatever the mode of each."""
        if len(other):
            self.extend(other.get())

    def finalize(self) -> None:
        """Changes to NumPy mode; does nothing there.

        Raises:
            ValueError: samples that differ in structure or shape.
        """
        if self.finalized:
            return
        self.data = batched.stack(self.data) if self.data else self._empty_batch()
        self.finalized = True
        self._shared = False

    def section(self, first: int, last: int, step: int, lookback: int) -> InfiniteLookbackBuffer:
        """A buffer of the items at positions `range(first, last, step)`, `lookback` of them as lookback.

        It has a copied list of the same samples, or views of the arrays.
        """
        positions = slice(first, last, step)
        data = batched.take(self.data, positions) if self.finalized else self.data[positions]
        self._shared = self._shared or self.finalized
        return InfiniteLookbackBuffer(data, lookback, self._space)

    def get_state(self) -> dict[str, Any]:
        """The buffer as `{data, lookback, finalized, space}`, ready for MessagePack with NumPy arrays."""
        data = nested.map_leaves(batched.objects_as_text, self.data) if self.finalized else list(self.data)
        space = None if self._space is None else space_to_state(self._space)
        return {"data": data, "lookback": self.lookback, "finalized": self.finalized, "space": space}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> InfiniteLookbackBuffer:
        """The inverse of `get_state`; lists that MessagePack made of tuples become tuples again.

        Raises:
            ValueError: a field is missing or wrong.
        """
        for key in ("data", "lookback", "finalized", "space"):
            if key not in state:
                raise ValueError(f"the state of an episode's column lacks {key!r}; it has {sorted(state)}")
        data, space = state["data"], space_from_state(state["space"])
        if state["finalized"]:
            data = nested.map_leaves(batched.text_as_objects, nested.lists_as_tuples(data))
        else:
            struct = space_struct(space)
            data = [nested.with_tuples_of(item, struct) for item in data]
        return cls(data, int(state["lookback"]), space)

    def __getitem__(self, item: Indices) -> Any:
        return self.get(item)

    def __setitem__(self, key: Indices, value: Any) -> None:
        self.set(value, at_indices=key)

    def __add__(self, other: Any) -> InfiniteLookbackBuffer:
        """A new buffer: all items plus a number; or these and those of a sequence, or of a buffer."""
        if isinstance(other, Number):
            return InfiniteLookbackBuffer(self._plus(other), self.lookback, self._space)
        result = InfiniteLookbackBuffer(self.data, self.lookback, self._space)
        if isinstance(other, InfiniteLookbackBuffer):
            result.concat(other)
        else:
            result.extend(other)
        return result

    def __eq__(self, other: object) -> bool:
        """Same items, lookback, mode and space."""
        if not isinstance(other, InfiniteLookbackBuffer):
            return NotImplemented
        mine, theirs = (
            (buffer.lookback, buffer.finalized, buffer.len_incl_lookback(), buffer.space)
            for buffer in (self, other)
        )
        if mine != theirs:
            return False
        if self.finalized:
            return nested.equal(self.data, other.data)
        return all(nested.equal(one, two) for one, two in zip(self.data, other.data, strict=True))

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __repr__(self) -> str:
        past, now = (self._many(part) for part in (slice(0, self.lookback), slice(self.lookback, None)))
        return f"{type(self).__name__}({past} <- lookback({self.lookback}) | {now})"

    def _positions(self, indices: slice | Sequence[int] | None, look: bool) -> list[int]:
        """Where in the data to write; slices are cut to what there is."""
        layout = self._layout()
        if indices is None or isinstance(indices, slice):
            return list(split(layout.positions(indices or slice(None), look), layout.total)[1])
        positions = [layout.position(int(index), look) for index in indices]
        for index, position in zip(indices, positions, strict=True):
            if not layout.contains(position):
                raise self._out_of_range(index, look)
        return positions

    def _samples(self, items: Any) -> Any:
        """New samples in the form of this buffer's mode."""
        if not self.finalized:
            return batched.unstack(items) if batched.is_batch(items) else list(items)
        if batched.is_batch(items):
            return items
        items = list(items)
        return batched.stack(items) if items else batched.take(self.data, slice(0, 0))

    def _overwrite(self, positions: int | list[int], samples: Nested) -> None:
        self.data = batched.overwrite(self.data, positions, samples, in_place=not self._shared)
        self._shared = False

    def _plus(self, number: Any) -> Any:
        if self.finalized:
            return nested.map_leaves(lambda leaf: leaf + number, self.data)
        return [nested.map_leaves(lambda leaf: leaf + number, item) for item in self.data]

    def _empty_batch(self) -> Nested:
        if self._space is None:
            return np.zeros(0)
        types = space_types(self._space)
        return nested.map_leaves(lambda leaf: np.zeros((0, *leaf.shape), dtype=leaf.dtype), types)
