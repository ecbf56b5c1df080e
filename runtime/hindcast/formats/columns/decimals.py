"""Conversion of Arrow's decimals to numbers with the same whole part."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from hindcast.formats.lossless import MAX_EXACT_FLOAT


def decimals_to_numbers(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Convert the decimals in a column, or in its lists and structs, to numbers.

    Decimals with a scale of 0 become int64, or float64 if one of them is beyond int64; others become float64.

    Returns:
        The numbers; the column itself if it has no decimals; its decimals, in one chunk, if float64 would change the
        whole part of one.
    """
    has_decimals = _replace_decimals(column.type, pa.null(), pa.null()) != column.type
    if not has_decimals:
        return column
    # Arrow's own cast of decimals to floats is often wrong in the last bit: the cast of their text is not.
    try:
        exact_values = column.cast(_replace_decimals(column.type, pa.int64(), pa.string()))
        numbers = exact_values.cast(_replace_decimals(column.type, pa.int64(), pa.float64()))
    except pa.ArrowInvalid:  # an integer is beyond int64
        exact_values = column.cast(_replace_decimals(column.type, pa.string(), pa.string()))
        numbers = exact_values.cast(_replace_decimals(column.type, pa.float64(), pa.float64()))
    # A cast may join chunks.
    decimals = column.combine_chunks()
    return numbers if _is_exact(decimals, numbers.combine_chunks()) else pa.chunked_array([decimals])


def map_elements(arrow_type: pa.DataType, find_type: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Return `find_type(arrow_type)`; for lists and structs, the same type with `find_type` applied to the elements."""
    if pa.types.is_struct(arrow_type):
        return pa.struct([field.with_type(map_elements(field.type, find_type)) for field in arrow_type])
    if pa.types.is_fixed_size_list(arrow_type):
        return pa.list_(map_elements(arrow_type.value_type, find_type), arrow_type.list_size)
    if pa.types.is_list(arrow_type) or pa.types.is_large_list(arrow_type):
        value_type = map_elements(arrow_type.value_type, find_type)
        if value_type == arrow_type.value_type:
            return arrow_type
        return (pa.large_list if pa.types.is_large_list(arrow_type) else pa.list_)(value_type)
    return find_type(arrow_type)


def _replace_decimals(
    arrow_type: pa.DataType, whole_type: pa.DataType, fraction_type: pa.DataType
) -> pa.DataType:
    def find_type(element: pa.DataType) -> pa.DataType:
        if not pa.types.is_decimal(element):
            return element
        return whole_type if element.scale <= 0 else fraction_type

    return map_elements(arrow_type, find_type)


def _is_exact(decimals: pa.Array, numbers: pa.Array) -> bool:
    """Return whether floats keep the whole parts of the decimals, as all floats below 2⁵³ do."""
    if pa.types.is_struct(decimals.type):
        return all(map(_is_exact, decimals.flatten(), numbers.flatten()))
    if pa.types.is_nested(decimals.type):
        return _is_exact(decimals.flatten(), numbers.flatten())
    if not (pa.types.is_decimal(decimals.type) and pa.types.is_floating(numbers.type)):
        return True
    is_large = pc.greater_equal(pc.abs(numbers), MAX_EXACT_FLOAT)
    pairs = zip(decimals.filter(is_large).to_pylist(), numbers.filter(is_large).to_pylist(), strict=True)
    return all(decimal == number for decimal, number in pairs)
