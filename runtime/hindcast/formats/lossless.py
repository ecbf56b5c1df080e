"""Conversions of arrays to the expected shape or type that lose no value.

They drop axes of length one, and turn whole floats and texts of digits into integers, and texts of numbers into floats.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hindcast.episodes.block import Bool
from hindcast.formats.layout import CellError

MAX_EXACT_FLOAT: Final = 2.0**53
"""Below this float64, the float nearest to a number has the number's whole part."""
_WHOLE_NUMBER: Final = re.compile(r"\s*([+-]?\d+)(?:\.0*)?\s*")


def is_same_up_to_ones(shape: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Return whether two shapes differ only in axes of length one: `[1]`, `[]` and `[1, 1]`."""
    return [size for size in shape if size != 1] == [size for size in other if size != 1]


def fit_shape(array: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any] | None:
    """Return the array's values as `[n, *shape]`; None if the shapes differ in more than axes of length one."""
    if array.shape[1:] == shape:
        return array
    return array.reshape(len(array), *shape) if is_same_up_to_ones(array.shape[1:], shape) else None


def find_rounded_row(array: NDArray[Any], dtype: np.dtype) -> int | None:
    """Return the index of the first row with an integer that a float dtype would round; None if there is none."""
    if array.dtype.kind not in "iu" or dtype.kind != "f" or not array.size:
        return None
    limit = 2 ** (np.finfo(dtype).nmant + 1)
    if array.min() >= -limit and array.max() <= limit:
        return None
    with np.errstate(invalid="ignore", over="ignore"):
        floats = array.astype(dtype)
        # the largest integer rounds to a float beyond its type, which a cast back may turn into that integer
        is_rounded = (floats >= float(np.iinfo(array.dtype).max)) | (floats.astype(array.dtype) != array)
    rows = is_rounded.reshape(len(array), -1).any(axis=1)
    return int(np.argmax(rows)) if rows.any() else None


def has_exact_dtype(arrays: Sequence[NDArray[Any]]) -> bool:
    """Return whether the common dtype of arrays holds their integers exactly; all are numbers, or all are text."""
    dtype = np.result_type(*(array.dtype for array in arrays))
    return all(find_rounded_row(array, dtype) is None for array in arrays)


def describe_rounded(name: str, value: object, dtype: np.dtype) -> str:
    """Describe an integer that would be rounded among floats, as a clause with the remedy."""
    return (
        f"{name!r} is {value}, which {dtype}, the type of its other numbers, would round: write all of them as "
        f"integers, or as {dtype} if rounding does no harm"
    )


def to_floats(array: NDArray[Any], name: str) -> NDArray[Any]:
    """Convert integers and booleans to float64; other arrays stay.

    Raises:
        CellError: float64 would round an integer.
    """
    if array.dtype.kind not in "biu":
        return array
    row = find_rounded_row(array, np.dtype(np.float64))
    if row is not None:
        raise CellError(row, describe_rounded(name, array[row], np.dtype(np.float64)))
    return array.astype(np.float64)


def is_float_exact(number: int | Decimal, value: float) -> bool:
    """Return whether a float may replace a number of a file.

    A fraction may become the nearest float, but the whole part of a number must not change.
    """
    value = float(value)  # NumPy would compare an integer as a float
    return abs(value) < MAX_EXACT_FLOAT or number == value


def to_integers(array: NDArray[Any]) -> tuple[NDArray[Any], Bool]:
    """Convert whole floats, or texts of whole numbers, to int64; integers and booleans stay.

    Returns:
        The array `[n, *shape]`, and a mask `[n, *shape]` of the values that are not whole numbers and became 0.
    """
    if array.dtype == object:
        matches = [_WHOLE_NUMBER.fullmatch(text) for text in array.ravel()]
        # Python converts texts to integers only up to 4300 digits.
        values = [int(Decimal(match[1])) if match is not None else None for match in matches]
        is_wrong = np.array([value is None or not -(2**63) <= value < 2**63 for value in values], np.bool_)
        integers = [0 if is_bad else value for value, is_bad in zip(values, is_wrong, strict=True)]
        return np.array(integers, np.int64).reshape(array.shape), is_wrong.reshape(array.shape)
    if array.dtype.kind not in "fc":
        return array, np.zeros(array.shape, np.bool_)
    with np.errstate(invalid="ignore"):
        is_wrong = (array != np.floor(array)) | ~(np.abs(array) < 2.0**63)
        return np.where(is_wrong, 0, array).astype(np.int64), is_wrong


def parse_numbers(array: NDArray[Any]) -> tuple[NDArray[Any], Bool]:
    """Convert texts of numbers to float64; an array of numbers stays.

    Returns:
        The array `[n, *shape]`, and a mask `[n, *shape]` of the texts that are not numbers and became 0, or are whole
        numbers that float64 would round.
    """
    if array.dtype != object:
        return array, np.zeros(array.shape, np.bool_)
    values, is_wrong = np.zeros(array.size), np.zeros(array.size, np.bool_)
    for i, text in enumerate(array.ravel()):
        try:
            values[i] = float(text)
        except ValueError:
            is_wrong[i] = True
        else:
            match = _WHOLE_NUMBER.fullmatch(text)
            # Python reads "1_000" as a number
            is_wrong[i] = "_" in text or (
                match is not None and not is_float_exact(Decimal(match[1]), values[i])
            )
    return values.reshape(array.shape), is_wrong.reshape(array.shape)
