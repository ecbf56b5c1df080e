"""Decoding Arrow columns into NumPy arrays whose first dimension is the rows."""

from __future__ import annotations

import io
import json
from collections.abc import Collection, Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hindcast.episodes import batched, nested
from hindcast.episodes.columns import SEPARATOR
from hindcast.errors import DataError
from hindcast.formats.columns.decimals import decimals_to_numbers, map_elements
from hindcast.formats.columns.packed_cells import is_packed, unpack_cells, unpickle_cells
from hindcast.formats.columns.pickles import ArrayPickle
from hindcast.formats.dtypes import RefusedValueError
from hindcast.formats.layout import CellError, first_true, refuse_null, require_numbers_or_text
from hindcast.formats.lossless import is_float_exact
from hindcast.formatting import plural

_TENSOR_EXTENSIONS: Final = ("ray.data.arrow_tensor", "ray.data.arrow_tensor_v2", "arrow.fixed_shape_tensor")
_PICKLED_OBJECT_EXTENSION: Final = "ray.data.arrow_pickled_object"
_RAY_PREFIX: Final = "ray."
_BOOL_EXTENSION: Final = "arrow.bool8"
_DECODED_EXTENSIONS: Final = (*_TENSOR_EXTENSIONS, _PICKLED_OBJECT_EXTENSION, "arrow.uuid")
_IMAGE_FIELDS: Final = ["bytes", "path"]
_IMAGE_MAGIC: Final = (b"\x89PNG", b"\xff\xd8\xff")  # PNG, JPEG
_PNG_MAGIC: Final = b"\x89PNG"
_PNG_DEPTH, _PNG_COLOUR_TYPE = 24, 25  # positions in a PNG file
_MAX_PNG_DEPTH: Final = 16  # bits per colour
_PNG_GREY: Final = 0  # colour type
_SPARK_VECTOR_FIELDS: Final = ["type", "size", "indices", "values"]
_NAME_KEY, _METADATA_KEY = b"ARROW:extension:name", b"ARROW:extension:metadata"

Arrays = dict[str, NDArray[Any]]
"""Leaf name -> `[rows, *shape]`."""


def decode_leaves(column: pa.ChunkedArray, field: pa.Field, name: str) -> Arrays:
    """Decode a column into one leaf, or into several if its cells are structs (`obs/camera`) or hold nested values.

    Supports numbers, booleans and text; lists and tensors that have one shape; RLlib's compressed and pickled cells.

    Args:
        column: the column as read.
        field: the column's field in the schema; its metadata identify Ray's extension types.
        name: name of the leaf.

    Raises:
        DataError: the type is not supported.
        CellError: a cell is null or cannot be read, or lists differ in length.
    """
    refuse_null(column, name)
    extension, metadata = _extension_of(field)
    if extension == _PICKLED_OBJECT_EXTENSION:
        return _stack_samples(unpickle_cells(unwrap_extension(column).to_pylist()), name)
    if extension in _TENSOR_EXTENSIONS:
        return {name: _tensors_to_numpy(unwrap_extension(column), _parse_shape(metadata, name), name)}
    if extension is not None and extension.startswith(_RAY_PREFIX):
        raise DataError(
            f"{name!r} has the extension type {extension}: allowed are tensors of one shape, of Ray or Arrow"
        )
    if (images := _find_images(column)) is not None:
        return {name: _decode_images(images, name)}
    if pa.types.is_struct(field.type):
        return _decode_struct(column, field, name)
    column = decode_dictionary(column)
    if is_text(column.type):
        texts = column.to_pylist()
        return (
            _stack_samples(unpack_cells(texts), name)
            if is_packed(texts)
            else {name: np.array(texts, dtype=object)}
        )
    return {name: _to_numpy(column, name)}


def as_plain_table(table: pa.Table, id_columns: Collection[str] = ()) -> pa.Table:
    """Convert columns of views, decimals, Spark's vectors and extension types to plain types, with the same values.

    Decimals become numbers (see `decimals_to_numbers`), except in the columns of ids and times. Extension types become
    their storage, except tensors, pickled objects and UUIDs.
    """
    for position, field in enumerate(table.schema):
        column = table.column(position)
        plain_column = _as_plain_column(column)
        if field.name not in id_columns:
            plain_column = decimals_to_numbers(plain_column)
        if plain_column is not column:
            table = table.set_column(position, field.with_type(plain_column.type), plain_column)
    return table


def _as_plain_column(column: pa.ChunkedArray) -> pa.ChunkedArray:
    extension = getattr(column.type, "extension_name", None)
    if extension == _BOOL_EXTENSION:
        return pc.not_equal(unwrap_extension(column), 0)
    if (
        extension is not None
        and extension not in _DECODED_EXTENSIONS
        and not extension.startswith(_RAY_PREFIX)
    ):
        return _as_plain_column(unwrap_extension(column))
    if pa.types.is_struct(column.type) and [field.name for field in column.type] == _SPARK_VECTOR_FIELDS:
        return _decode_spark_vectors(column)
    if pa.types.is_dictionary(column.type):
        return _as_plain_dictionary(column)
    plain_type = map_elements(column.type, _find_plain_type)
    return column if plain_type == column.type else column.cast(plain_type)


def _as_plain_dictionary(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a dictionary column of decimals or views as a column of their plain type; others stay."""
    value_type = column.type.value_type
    if pa.types.is_decimal(value_type):
        return column.cast(value_type)
    plain_type = _find_plain_type(value_type)
    if plain_type == value_type:
        return column
    # Arrow cannot cast a dictionary of views
    chunks = [chunk.dictionary.cast(plain_type).take(chunk.indices) for chunk in column.chunks]
    return pa.chunked_array(chunks, plain_type)


def _find_plain_type(element: pa.DataType) -> pa.DataType:
    if pa.types.is_string_view(element) or pa.types.is_binary_view(element):
        return pa.string() if pa.types.is_string_view(element) else pa.binary()
    return _find_plain_type(element.value_type) if pa.types.is_run_end_encoded(element) else element


def _decode_spark_vectors(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Convert vectors of Spark ML, dense (type 1) or sparse (type 0), to lists."""
    rows: list[list[float] | None] = []
    for vector in column.to_pylist():
        if vector is None:
            rows.append(None)
        elif vector["type"] == 1:
            rows.append(vector["values"])
        else:
            values = [0.0] * vector["size"]
            for index, value in zip(vector["indices"], vector["values"], strict=True):
                values[index] = value
            rows.append(values)
    return pa.chunked_array([pa.array(rows, pa.list_(pa.float64()))])


def nulls_to_nan(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column of numbers, or of lists of numbers, with NaN in place of nulls; other columns unchanged."""
    if pa.types.is_null(column.type):
        return pa.chunked_array([pa.array(np.full(len(column), np.nan))])
    # Decimals remain in columns of ids and times, and where a filter removed those that no number holds.
    column = decimals_to_numbers(column)
    chunks = [_nulls_to_nan(chunk) for chunk in column.chunks]
    types = {chunk.type for chunk in chunks}
    if len(types) > 1:  # only some chunks have nulls
        float_type = next(arrow_type for arrow_type in types if arrow_type != column.type)
        chunks = [chunk.cast(float_type) for chunk in chunks]
    return pa.chunked_array(chunks, None if chunks else column.type)


def _nulls_to_nan(values: pa.Array) -> pa.Array:
    if is_list(values.type) and not values.null_count:
        flat_values = values.flatten()
        items = _nulls_to_nan(flat_values)
        if items is flat_values:
            return values
        return with_elements(values, items)
    if not values.null_count or not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
        return values
    number_type = values.type if pa.types.is_floating(values.type) else pa.float64()
    # Integers that float64 cannot hold stay, and their nulls are refused later.
    with suppress(pa.ArrowInvalid):
        return pc.fill_null(values.cast(number_type), np.nan)
    return values


def with_elements(lists: pa.Array, elements: pa.Array) -> pa.Array:
    """Replace the elements of lists by as many others; lists of a fixed size must not be null."""
    if pa.types.is_fixed_size_list(lists.type):
        return pa.FixedSizeListArray.from_arrays(elements, lists.type.list_size)
    offsets = lists.offsets.to_numpy() - lists.offsets[0].as_py()
    make_list = pa.LargeListArray if pa.types.is_large_list(lists.type) else pa.ListArray
    is_null = lists.is_null() if lists.null_count else None
    return make_list.from_arrays(pa.array(offsets, lists.offsets.type), elements, mask=is_null)


def decode_dictionary(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column of categories as a column of their values; other columns stay."""
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def is_text(arrow_type: pa.DataType) -> bool:
    """Return whether a type is one of Arrow's two text types."""
    return bool(pa.types.is_string(arrow_type) or pa.types.is_large_string(arrow_type))


def is_list(arrow_type: pa.DataType) -> bool:
    """Return whether a type is one of Arrow's three list types."""
    return bool(
        pa.types.is_list(arrow_type)
        or pa.types.is_large_list(arrow_type)
        or pa.types.is_fixed_size_list(arrow_type)
    )


def _extension_of(field: pa.Field) -> tuple[str | None, bytes]:
    """Return the name of a field's extension type, or None, and the type's metadata, which hold the shape of tensors.

    Works even if the type is not registered in this process.
    """
    if isinstance(field.type, pa.BaseExtensionType):
        permutation = list(getattr(field.type, "permutation", None) or ())
        # for permuted tensors the shape is left out, so that `_parse_shape` refuses them
        shape = getattr(field.type, "shape", None) if permutation == sorted(permutation) else None
        return field.type.extension_name, json.dumps(shape).encode()
    metadata = field.metadata or {}
    name = metadata.get(_NAME_KEY)
    return (None if name is None else name.decode()), metadata.get(_METADATA_KEY, b"")


def unwrap_extension(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the storage of an extension column, or the column itself if it has no extension type."""
    if not isinstance(column.type, pa.BaseExtensionType):
        return column
    return pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)


def _parse_shape(metadata: bytes, name: str) -> tuple[int, ...]:
    """Parse the shape in a tensor's metadata: JSON, or in some versions of Ray a pickle."""
    shape: Any = None
    with suppress(RefusedValueError):
        try:
            shape = json.loads(metadata)
        except ValueError:
            shape = ArrayPickle(metadata).load()
    if not isinstance(shape, list | tuple) or not all(isinstance(size, int) and size >= 0 for size in shape):
        raise DataError(f"{name!r}: the shape of the tensor cannot be read: {metadata[:40]!r}")
    return tuple(shape)


def _tensors_to_numpy(column: pa.ChunkedArray, shape: tuple[int, ...], name: str) -> NDArray[Any]:
    rows = _to_numpy(column, name)
    if rows.ndim != 2 or (len(rows) and rows.shape[1] != np.prod(shape, dtype=np.int64)):
        raise CellError(
            0, f"{name!r} has {list(rows.shape[1:])} numbers per row: expected tensors of {list(shape)}"
        )
    return rows.reshape(len(rows), *shape)


def _to_numpy(column: pa.ChunkedArray, name: str) -> NDArray[Any]:
    column, arrays, first_row = decimals_to_numbers(column), [], 0
    for chunk in column.chunks:
        try:
            arrays.append(_chunk_to_numpy(chunk, name))
        except CellError as error:
            raise error.with_row(first_row + error.row) from error
        first_row += len(chunk)
    non_empty_arrays = [array for array in arrays if len(array)]
    shapes = {array.shape[1:] for array in non_empty_arrays}
    if len(shapes) > 1:
        raise CellError(0, f"{name!r} has rows of the shapes {sorted(shapes)}: all must have one shape")
    if not non_empty_arrays:
        return _chunk_to_numpy(pa.array([], column.type), name)
    return non_empty_arrays[0] if len(non_empty_arrays) == 1 else np.concatenate(non_empty_arrays)


def _chunk_to_numpy(chunk: pa.Array, name: str) -> NDArray[Any]:
    shape: list[int] = []
    values = chunk
    while is_list(values.type):
        if values.null_count:
            raise CellError(_row_of_null(values, shape), f"{name!r} holds a null: expected a list")
        shape.append(_common_length(values, name, shape))
        values = values.flatten()  # unlike `.values`, this respects the offset of a slice
    value_type = values.type
    if pa.types.is_decimal(value_type):
        raise _rounded_decimal_error(values.to_pylist(), shape, name)
    if not (
        pa.types.is_integer(value_type) or pa.types.is_floating(value_type) or pa.types.is_boolean(value_type)
    ):
        raise DataError(
            f"{name!r} is a column of {chunk.type}: allowed are numbers, booleans, text, lists and "
            "images (PNG, JPEG)"
        )
    if values.null_count:
        raise CellError(_row_of_null(values, shape), f"{name!r} holds a null: expected a number")
    numbers = values.to_numpy(zero_copy_only=False)
    return numbers.reshape(len(chunk), *shape)


def _rounded_decimal_error(decimals: Sequence[Decimal | None], shape: Sequence[int], name: str) -> CellError:
    """Make the error for the first of the flattened decimals that no number holds; each row has `shape` of them."""
    position, decimal = next(
        (position, decimal)
        for position, decimal in enumerate(decimals)
        if decimal is not None and not is_float_exact(decimal, float(decimal))
    )
    return CellError(
        position // int(np.prod(shape, dtype=np.int64)),
        f"{name!r} is {decimal}, which neither int64 nor float64 holds: write the column as float64 if rounding does "
        "no harm",
    )


def _row_of_null(values: pa.Array, shape: Sequence[int]) -> int:
    """Return the row of the first null in the flattened `values`; each row has `shape` values."""
    position = int(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0])
    return position // int(np.prod(shape, dtype=np.int64))


def _common_length(lists: pa.Array, name: str, outer_shape: Sequence[int]) -> int:
    if pa.types.is_fixed_size_list(lists.type):
        return int(lists.type.list_size)
    lengths = np.diff(lists.offsets.to_numpy())
    common_length = int(lengths[0]) if len(lengths) else 0
    if (mismatch := first_true(lengths != common_length)) is not None:
        row = mismatch // int(np.prod(outer_shape, dtype=np.int64))
        raise CellError(
            row, f"{name!r} has {plural(lengths[mismatch], 'number')}, but the row before has {common_length}"
        )
    return common_length


def _decode_struct(column: pa.ChunkedArray, field: pa.Field, name: str) -> Arrays:
    leaves: Arrays = {}
    for child_field, child in zip(field.type.fields, column.flatten(), strict=True):
        leaves.update(decode_leaves(child, child_field, f"{name}{SEPARATOR}{child_field.name}"))
    return leaves


def _find_images(column: pa.ChunkedArray) -> list[bytes | None] | None:
    """Return the cells of a column of encoded images; None for other columns."""
    if pa.types.is_struct(column.type) and [child.name for child in column.type] == _IMAGE_FIELDS:
        return list(pc.struct_field(column, "bytes").to_pylist())
    is_binary = pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)
    if is_binary and len(column) and column[0].as_py().startswith(_IMAGE_MAGIC):
        return list(column.to_pylist())
    return None


def _decode_images(cells: Sequence[bytes | None], name: str) -> NDArray[Any]:
    """Decode encoded images (PNG, JPEG) to uint8 `[rows, H, W, C]`, or `[rows, H, W]` without channels.

    Raises:
        CellError: an image cannot be decoded, or differs in size from the first one.
    """
    images: list[NDArray[Any]] = []
    for row, data in enumerate(cells):
        if data is None:
            raise CellError(
                row, f"{name!r} has only the path of an image: store the image's bytes in the column"
            )
        try:
            from PIL import Image
        except ImportError as error:
            raise DataError(
                f"decoding {name!r} requires pillow, which is not installed: pip install pillow"
            ) from error
        try:
            with Image.open(io.BytesIO(data)) as image:
                images.append(_image_to_numpy(image, data))
        except (OSError, ValueError) as error:
            raise CellError(row, f"{name!r} is not an image: {error}") from error
        except Image.DecompressionBombError as error:
            raise CellError(row, f"{name!r} is too large an image: {error}") from error
        if images[row].shape != images[0].shape:
            raise CellError(
                row,
                f"{name!r} is an image of {list(images[row].shape)}, the first one of {list(images[0].shape)}",
            )
    return np.stack(images)


def _image_to_numpy(image: Any, data: bytes) -> NDArray[Any]:
    """Convert an image of Pillow to an array of colours, `[H, W, C]` or `[H, W]`.

    Raises:
        ValueError: Pillow would cut its colours to 8 bits.
    """
    is_wide_png = data.startswith(_PNG_MAGIC) and data[_PNG_DEPTH] == _MAX_PNG_DEPTH
    if is_wide_png and data[_PNG_COLOUR_TYPE] != _PNG_GREY:
        raise ValueError(
            "it has 16 bits per colour, of which only 8 would be read: write it with 8, or as a list"
        )
    if image.mode == "P":  # indices into a palette
        image = image.convert("RGBA" if "transparency" in image.info else "RGB")
    elif image.mode == "1":
        image = image.convert("L")
    array = np.asarray(image)
    return array.astype(np.uint16) if image.mode == "I" else array  # some versions read 16-bit grey as 32-bit


def _stack_samples(samples: list[Any], name: str) -> Arrays:
    if not samples:
        return {name: np.zeros(0)}
    try:
        leaves = nested.flatten(batched.stack(samples), name)
    except ValueError as error:
        raise CellError(0, f"{name!r}: {error}") from error
    return {leaf: require_numbers_or_text(array, leaf) for leaf, array in leaves.items()}
