"""Reading a buffer: timesteps by index, slice and list, replacements for missing ones, one-hot encoding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from hindcast.episodes import batched
from hindcast.episodes.encoding import batch_types, filled, one_hot, space_types
from hindcast.episodes.indexing import Layout, as_slice, split
from hindcast.episodes.nested import Nested

Indices = int | slice | Sequence[int] | None


class BufferReads:
    """What `InfiniteLookbackBuffer` knows of reading."""

    __slots__ = ("_shared", "_space", "data", "finalized", "lookback")

    data: Any
    finalized: bool
    lookback: int
    _space: spaces.Space | None
    _shared: bool  # others may see the arrays: copy before writing

    def __len__(self) -> int:
        """Timesteps, without the lookback."""
        return self.len_incl_lookback() - self.lookback

    def len_incl_lookback(self) -> int:
        """Timesteps and lookback together."""
        return batched.batch_length(self.data) if self.finalized else len(self.data)

    def get(
        self,
        indices: Indices = None,
        *,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        one_hot_discrete: bool = False,
    ) -> Any:
        """Samples at timesteps.

        Args:
            indices: one timestep; a slice or a list of them; None for all (without the lookback). A negative
                index counts from the end and may reach into the lookback.
            neg_index_as_lookback: -1 is then the last item before timestep 0.
            fill: replaces items that are out of range: a number or text (given the space's shape and
                dtype; without a space a list answers the bare value), or a nested value. Without it an index
                out of range is an error, and a slice is cut to what there is.
            one_hot_discrete: encode discrete values as float32 one-hot vectors.

        Returns:
            One sample for one index; else a list (list mode) or a batched value (NumPy mode).

        Raises:
            IndexError: an index out of range, without `fill`.
            ValueError: one-hot without a space; a `fill` that does not fit.
        """
        if one_hot_discrete and self._space is None:
            raise ValueError(
                "one-hot encoding needs the space: give the episode its observation_space/action_space"
            )
        layout, look = self._layout(), neg_index_as_lookback
        if isinstance(indices, int | np.integer):
            position = layout.position(int(indices), look)
            if layout.contains(position):
                return self._encode(self._one(position), one_hot_discrete)
            if fill is None:
                raise self._out_of_range(indices, look)
            return self._filling(fill, one_hot_discrete)
        if indices is None or isinstance(indices, slice):
            return self._get_slice(layout.positions(indices or slice(None), look), fill, one_hot_discrete)
        return self._get_list(indices, look, fill, one_hot_discrete)

    def _layout(self) -> Layout:
        total = self.len_incl_lookback()
        return Layout(self.lookback, total - self.lookback)

    def _one(self, position: int) -> Nested:
        return batched.take(self.data, position) if self.finalized else self.data[position]

    def _many(self, positions: slice) -> Any:
        return batched.take(self.data, positions) if self.finalized else self.data[positions]

    def _encode(self, value: Any, one_hot_discrete: bool) -> Any:
        if not one_hot_discrete:
            return value
        assert self._space is not None
        return one_hot(value, self._space)

    def _encode_all(self, values: Any, one_hot_discrete: bool) -> Any:
        if self.finalized:
            return self._encode(values, one_hot_discrete)
        return [self._encode(value, one_hot_discrete) for value in values]

    def _get_slice(self, positions: range, fill: Any, one_hot_discrete: bool) -> Any:
        before, inside, after = split(positions, self.len_incl_lookback())
        found = self._encode_all(self._many(as_slice(inside)), one_hot_discrete)
        if fill is None or before + after == 0:
            return found
        blank = self._filling(fill, one_hot_discrete)
        if not self.finalized:
            return [blank] * before + found + [blank] * after
        return batched.concatenate([batched.repeat(blank, before), found, batched.repeat(blank, after)])

    def _get_list(self, indices: Sequence[int], look: bool, fill: Any, one_hot_discrete: bool) -> Any:
        layout = self._layout()
        positions = [layout.position(int(index), look) for index in indices]
        missing = [not layout.contains(position) for position in positions]
        if any(missing) and fill is None:
            raise self._out_of_range(indices[missing.index(True)], look)
        if not self.finalized:
            return [
                self._filling(fill, one_hot_discrete)
                if gone
                else self._encode(self._one(position), one_hot_discrete)
                for position, gone in zip(positions, missing, strict=True)
            ]
        if not any(missing):
            return self._encode(batched.take(self.data, np.array(positions, dtype=np.intp)), one_hot_discrete)
        present = np.array([p for p, gone in zip(positions, missing, strict=True) if not gone], dtype=np.intp)
        found = self._encode(batched.take(self.data, present), one_hot_discrete)
        return batched.spread(found, self._filling(fill, one_hot_discrete), np.array(missing))

    def _filling(self, fill: Any, one_hot_discrete: bool) -> Nested:
        if self._space is not None:
            return filled(space_types(self._space, one_hot_discrete), fill)
        return filled(batch_types(self.data, fill), fill) if self.finalized else fill

    def _out_of_range(self, index: Any, look: bool) -> IndexError:
        return IndexError(
            f"index {index} (neg_index_as_lookback={look}) is out of range: there are {len(self)} timesteps "
            f"and {self.lookback} of lookback; pass fill=… to get a value instead"
        )
