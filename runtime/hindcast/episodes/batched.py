"""Batched values: many samples as one nested value, whose leaves are arrays with a leading time dimension."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hindcast.episodes.nested import Nested, is_composite, leaves, map_leaves, outline

_CHANGED = {
    "float64": "float32",
    "float16": "float32",
    "uint16": "int32",
    "uint32": "int64",
    "uint64": "int64",
}


@cache  # NumPy makes a dtype's name anew each time, and policies ask in every step
def batch_dtype(dtype: np.dtype) -> np.dtype:
    """The dtype in which networks get values of another: floats are float32, integers signed except uint8."""
    return np.dtype(_CHANGED.get(dtype.name, dtype.name))


def is_batch(value: Any) -> bool:
    """Whether it is an array, or dicts and tuples, rather than a sequence of samples."""
    return isinstance(value, np.ndarray) or is_composite(value)


def batch_length(value: Nested) -> int:
    """How many samples a batched value holds; 0 when it has no leaf.

    Raises:
        ValueError: leaves that are not arrays, or that differ in length.
    """
    lengths = set()
    for leaf in leaves(value):
        if not isinstance(leaf, np.ndarray) or leaf.ndim == 0:
            raise ValueError(f"expected arrays with a leading time dimension, found {outline(value)}")
        lengths.add(len(leaf))
    if len(lengths) > 1:
        raise ValueError(f"parts of one value differ in length: {sorted(lengths)}")
    return lengths.pop() if lengths else 0


def take(value: Nested, index: Any) -> Nested:
    """`leaf[index]` of every leaf: one sample, a view (slice) or a copy (list of indices)."""
    return map_leaves(lambda leaf: leaf[index], value)


def stack(samples: Sequence[Nested]) -> Nested:
    """Samples as one batched value. Text becomes an object array of `str`, so that none is cut short.

    Raises:
        ValueError: no samples, or samples that differ in structure or shape.
    """
    if not len(samples):
        raise ValueError("stacking needs at least one sample")
    first, *rest = samples
    return map_leaves(lambda *parts: _stack_leaf(parts), first, *rest)


def unstack(value: Nested) -> list[Nested]:
    """The samples of a batched value, as views (scalars come as NumPy scalars)."""
    return [take(value, i) for i in range(batch_length(value))]


def concatenate(values: Sequence[Nested]) -> Nested:
    """Batched values end to end.

    Raises:
        ValueError: they differ in structure or in the shape of a sample.
    """
    first, *rest = values
    return map_leaves(lambda *parts: np.concatenate(parts), first, *rest)


def extend(value: Nested, new: Nested) -> Nested:
    """The batch and new samples after it, in the batch's dtypes where these can hold them.

    Raises:
        ValueError: samples of another structure or shape.
    """

    def join(leaf: NDArray[Any], samples: Any) -> NDArray[Any]:
        array = text_as_objects(samples)
        if array.shape[1:] != leaf.shape[1:]:
            raise ValueError(f"new data have the shape {array.shape[1:]}, those before {leaf.shape[1:]}")
        return np.concatenate([leaf, array.astype(leaf.dtype) if _holds(leaf.dtype, array) else array])

    return map_leaves(join, value, new)


def fill_missing(found: Nested, blank: Nested, missing: NDArray[np.bool_]) -> Nested:
    """`[len(missing), …]`: the sample `blank` where `missing`, elsewhere the samples `found`, in order."""

    def spread_leaf(found: NDArray[Any], blank: NDArray[Any]) -> NDArray[Any]:
        out = np.empty((len(missing), *blank.shape), dtype=np.result_type(found.dtype, blank.dtype))
        out[~missing] = found
        out[missing] = blank
        return out

    return map_leaves(spread_leaf, found, blank)


def overwrite(value: Nested, positions: list[int], new: Nested, in_place: bool) -> Nested:
    """The batch with new samples at the positions.

    A leaf whose dtype cannot hold them (a float for an int) is converted, not the new values.

    Args:
        value: the batch.
        positions: of the samples.
        new: a batch with one sample for each position.
        in_place: write into the arrays where the dtype allows it, instead of copies.

    Raises:
        ValueError: samples of another structure or shape; nothing is written then.
    """

    def checked(leaf: NDArray[Any], samples: Any) -> NDArray[Any]:
        array = text_as_objects(samples)
        found, expected = array.shape[1:], leaf.shape[1:]
        if found != expected:
            raise ValueError(f"new data of shape {found} were given where {expected} is needed")
        return array

    def write(leaf: NDArray[Any], samples: NDArray[Any]) -> NDArray[Any]:
        if _holds(leaf.dtype, samples):
            out = leaf if in_place else leaf.copy()
        else:
            out = leaf.astype(np.result_type(leaf.dtype, samples.dtype))
        out[positions] = samples
        return out

    return map_leaves(write, value, map_leaves(checked, value, new))


def text_as_objects(leaf: Any) -> NDArray[Any]:
    """Fixed-width text as an object array of `str`; other leaves as arrays."""
    array = np.asarray(leaf)
    return array.astype(object) if array.dtype.kind == "U" else array


def objects_as_text(leaf: NDArray[Any]) -> NDArray[Any]:
    """An object array of `str` as fixed-width text, which formats can store without pickling."""
    return np.array(leaf.tolist(), dtype=np.str_) if leaf.dtype == object else leaf


def _holds(dtype: np.dtype, samples: NDArray[Any]) -> bool:
    """Whether an array of the dtype can take the samples: integers that fit, floats of any precision."""
    if dtype.kind in "iu" and samples.dtype.kind in "iu" and samples.size:
        limits = np.iinfo(dtype)
        return bool(limits.min <= samples.min() and samples.max() <= limits.max)
    return bool(np.can_cast(samples.dtype, dtype, "same_kind"))


def _stack_leaf(parts: Sequence[Any]) -> NDArray[Any]:
    if isinstance(parts[0], str):
        return np.array(parts, dtype=object)
    try:
        return np.array(parts)
    except ValueError as error:
        shapes = [np.asarray(part, dtype=object).shape for part in parts]
        odd = next((i for i, shape in enumerate(shapes) if shape != shapes[0]), 0)
        raise ValueError(
            f"samples differ in shape: {shapes[0]} at index 0, {shapes[odd]} at index {odd}; "
            "all of a column must have one shape"
        ) from error
