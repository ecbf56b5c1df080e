"""Batched values: many samples as one nested value, whose leaves are arrays with a leading time dimension."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hindcast.episodes.nested import Nested, is_composite, leaves, map_leaves, outline

_NETWORK_DTYPES = {
    "float64": "float32",
    "float16": "float32",
    "uint16": "int32",
    "uint32": "int64",
    "uint64": "int64",
}


@cache  # NumPy builds a dtype's name on each access, and policies need it in every step
def batch_dtype(dtype: np.dtype) -> np.dtype:
    """Return the dtype that networks get for values of a dtype: floats become float32, unsigned integers signed.

    All other dtypes stay: uint8, signed integers, booleans, complex numbers and objects.
    """
    return np.dtype(_NETWORK_DTYPES.get(dtype.name, dtype.name))


def is_batch(value: Any) -> bool:
    """Return True for a batched value (an array, a dict or a tuple), False for a sequence of samples."""
    return isinstance(value, np.ndarray) or is_composite(value)


def batch_length(value: Nested) -> int:
    """Return the number of samples of a batched value; 0 if it has no leaf.

    Raises:
        ValueError: leaves are not arrays, or differ in length.
    """
    lengths = set()
    for leaf in leaves(value):
        if not isinstance(leaf, np.ndarray) or leaf.ndim == 0:
            raise ValueError(f"expected arrays with a leading time dimension, found {outline(value)}")
        lengths.add(len(leaf))
    if len(lengths) > 1:
        raise ValueError(f"the leaves of one value differ in length: {sorted(lengths)}")
    return lengths.pop() if lengths else 0


def take(value: Nested, index: Any) -> Nested:
    """Return `leaf[index]` of every leaf: one sample for an int, views for a slice, copies for a list of ints."""
    return map_leaves(lambda leaf: leaf[index], value)


def stack(samples: Sequence[Nested]) -> Nested:
    """Stack samples into one batched value. Text becomes an object array of `str`, so that it is not truncated.

    Raises:
        ValueError: there are no samples, or they differ in structure or shape.
    """
    if not len(samples):
        raise ValueError("stacking requires at least one sample")
    first_sample, *other_samples = samples
    return map_leaves(lambda *items: _stack_leaf(items), first_sample, *other_samples)


def unstack(value: Nested) -> list[Nested]:
    """Return the samples of a batched value as views (scalars as NumPy scalars)."""
    return [take(value, i) for i in range(batch_length(value))]


def concatenate(values: Sequence[Nested]) -> Nested:
    """Concatenate batched values.

    Raises:
        ValueError: the values differ in structure or in the shape of a sample.
    """
    first_value, *other_values = values
    return map_leaves(lambda *arrays: np.concatenate(arrays), first_value, *other_values)


def extend(value: Nested, new_samples: Nested) -> Nested:
    """Append new samples to a batch, in the batch's dtypes if these can hold them.

    Raises:
        ValueError: the samples have another structure or shape.
    """

    def join(leaf: NDArray[Any], samples: Any) -> NDArray[Any]:
        array = text_as_objects(samples)
        if array.shape[1:] != leaf.shape[1:]:
            raise ValueError(f"new data have shape {array.shape[1:]}, earlier data have {leaf.shape[1:]}")
        # without the cast Python floats would widen float32 to float64
        return np.concatenate([leaf, array.astype(leaf.dtype) if _can_hold(leaf.dtype, array) else array])

    return map_leaves(join, value, new_samples)


def fill_missing(samples: Nested, blank: Nested, is_missing: NDArray[np.bool_]) -> Nested:
    """Return a batch of `len(is_missing)` samples: the sample `blank` where missing, elsewhere `samples` in order."""

    def fill_leaf(samples: NDArray[Any], blank: NDArray[Any]) -> NDArray[Any]:
        out = np.empty((len(is_missing), *blank.shape), dtype=np.result_type(samples.dtype, blank.dtype))
        out[~is_missing] = samples
        out[is_missing] = blank
        return out

    return map_leaves(fill_leaf, samples, blank)


def overwrite(value: Nested, positions: list[int], new_samples: Nested, in_place: bool) -> Nested:
    """Overwrite samples of a batch at positions.

    If a leaf's dtype cannot hold the new values (a float for an int), the leaf is converted, not the values.

    Args:
        value: the batch.
        positions: positions of the samples.
        new_samples: a batch with one sample for each position.
        in_place: whether to write into the arrays, if the dtype allows it, instead of copies.

    Raises:
        ValueError: the samples have another structure or shape; then nothing is written.
    """

    def check_shape(leaf: NDArray[Any], samples: Any) -> NDArray[Any]:
        array = text_as_objects(samples)
        sample_shape, expected_shape = array.shape[1:], leaf.shape[1:]
        if sample_shape != expected_shape:
            raise ValueError(f"new data have shape {sample_shape}, expected {expected_shape}")
        return array

    def write(leaf: NDArray[Any], samples: NDArray[Any]) -> NDArray[Any]:
        if _can_hold(leaf.dtype, samples):
            out = leaf if in_place else leaf.copy()
        else:
            out = leaf.astype(np.result_type(leaf.dtype, samples.dtype))
        out[positions] = samples
        return out

    # all shapes are checked before anything is written
    return map_leaves(write, value, map_leaves(check_shape, value, new_samples))


def text_as_objects(leaf: Any) -> NDArray[Any]:
    """Return fixed-width text as an object array of `str`; other leaves as arrays."""
    array = np.asarray(leaf)
    return array.astype(object) if array.dtype.kind == "U" else array


def objects_as_text(leaf: NDArray[Any]) -> NDArray[Any]:
    """Return an object array of `str` as fixed-width text, which formats store without pickling."""
    return np.array(leaf.tolist(), dtype=np.str_) if leaf.dtype == object else leaf


def _can_hold(dtype: np.dtype, samples: NDArray[Any]) -> bool:
    """Return whether a dtype can hold the samples: integers if all fit, floats in any precision."""
    if dtype.kind in "iu" and samples.dtype.kind in "iu" and samples.size:
        limits = np.iinfo(dtype)
        return bool(limits.min <= samples.min() and samples.max() <= limits.max)
    return bool(np.can_cast(samples.dtype, dtype, "same_kind"))


def _stack_leaf(items: Sequence[Any]) -> NDArray[Any]:
    if isinstance(items[0], str):
        return np.array(items, dtype=object)
    try:
        return np.array(items)
    except ValueError as error:
        shapes = [np.asarray(item, dtype=object).shape for item in items]
        mismatch = next((i for i, shape in enumerate(shapes) if shape != shapes[0]), 0)
        raise ValueError(
            f"samples differ in shape: {shapes[0]} at index 0, {shapes[mismatch]} at index {mismatch}; "
            "all samples of a column must have the same shape"
        ) from error
