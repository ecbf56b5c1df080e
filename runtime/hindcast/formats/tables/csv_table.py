"""The format "CSV": a header and one row per line, with any delimiter; plain or gzip."""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from hindcast.episodes.columns import Columns, obs_leaf
from hindcast.errors import DataError
from hindcast.formats.columns.arrays import is_text
from hindcast.formats.format import ReadOptions, has_suffix
from hindcast.formats.layout import CellError, bisect_first_invalid
from hindcast.formats.lossless import MAX_EXACT_FLOAT
from hindcast.formats.spec import DataSpec
from hindcast.formats.tables.json_lines import (
    DECLARED_TYPE_ADVICE,
    TYPE_ADVICE,
    beyond_int64_error,
    find_beyond_int64,
    rounded_integer_error,
)
from hindcast.formats.tables.naming import TablePlan, plan_columns
from hindcast.formats.tables.read_options import check_options, declared_column_types, separator_advice
from hindcast.formats.tables.recorded_spec import find_empty_leaves, leaf_type
from hindcast.formats.tables.text_files import find_record_ends, read_head
from hindcast.formats.tables.text_tables import TextExtent, TextTables, Types
from hindcast.storage.location import Location

_DELIMITERS: Final = (";", "\t", "|", ",")
_NULL_TEXTS: Final = ("", "NULL", "null", "NA", "N/A", "n/a", "#N/A", "None")
_TEXT_COLUMNS: Final = (Columns.EPS_ID, Columns.AGENT_ID, Columns.INFOS)
_HEADER_BYTES: Final = 64 << 10
_MAX_HEADER_BYTES: Final = 8 << 20
"""Bytes that are searched for the header: `_HEADER_BYTES`, or, if these contain no line end, `_MAX_HEADER_BYTES`."""
_SEPARATOR_LINE: Final = re.compile(r'"?sep=(.)"?\r?\n', re.IGNORECASE)  # for Excel
_LARGE_INTEGER: Final = re.compile(r"\s*[+-]?\d{16,}\s*")
_INVALID_VALUE: Final = re.compile(r"invalid value '(.*)'$")
NUMBER: Final = re.compile(r"\s*[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?\s*")
"""A number with a decimal point or none."""
_FORMATTED_NUMBER: Final = re.compile(r"\s*[+-]?[\d.,]*\d[\d.,]*(?:[eE][+-]?\d+)?\s*")
"""A number with any decimal point and separators of thousands."""
_NO_HEADER_ADVICE: Final = (
    "its first line holds numbers: if the file has no header, name its columns in readOptions.column_names "
    "(--read-option 'column_names=[\"obs_0\", …]')"
)
_UTF8_ADVICE: Final = "convert the file to UTF-8 (Excel: save as CSV UTF-8)"
_WHOLE_NUMBER: Final = r"^[+-]?\d+$"
_ROW_NUMBER: Final = re.compile(r"Row #(\d+): ")


class _Header(NamedTuple):
    """The columns' names, the delimiter, and the number of records before the first row, the names included."""

    names: list[str]
    delimiter: str
    num_records: int


class Csv(TextTables):
    """CSV files, plain or gzip."""

    name = "CSV"
    title = "CSV (plain or gzip)"
    ray_methods = ("read_csv",)
    read_option_names = (
        "delimiter",
        "header",
        "column_names",
        "null_values",
        "quote_char",
        "column_types",
        "decimal_point",
        "thousands",
    )

    def recognises(self, location: Location) -> bool:
        """See `Format.recognises`."""
        return has_suffix(location.name, (".csv", ".tsv"), may_be_gzip=True)

    def quote_character(self, options: ReadOptions) -> bytes | None:
        """See `TextTables.quote_character`."""
        quote = _read_options(options).get("quote_char", '"')
        if quote is not False and not (isinstance(quote, str) and len(quote.encode()) == 1):
            raise DataError(f"readOptions.quote_char is {quote!r}: expected one character, or false")
        return None if quote is False else quote.encode()

    def inspect(self, location: Location, spec: DataSpec, options: ReadOptions) -> TextExtent:
        """See `TextTables.inspect`: the columns' names are in the option `column_names`, or else in the header."""
        read_options = _read_options(options)
        names = read_options.get("column_names")
        delimiter = read_options.get(
            "delimiter", "\t" if has_suffix(location.name, (".tsv",), may_be_gzip=True) else ","
        )
        if not isinstance(delimiter, str) or len(delimiter.encode()) != 1:
            raise DataError(f"readOptions.delimiter is {delimiter!r}: expected one character")
        has_header = read_options.get("header", names is None)
        num_header_records = 0
        if has_header:
            is_delimiter_set = "delimiter" in read_options
            header = self._read_header(location, delimiter, options, is_delimiter_set=is_delimiter_set)
            delimiter, num_header_records = header.delimiter, header.num_records
            names = names or header.names
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise DataError(f"readOptions.column_names is {names!r}: expected a list of names")
        try:
            plan = plan_columns(names, options, find_empty_leaves(spec.leaves))
        except DataError as error:
            error.locate(path=str(location), remedy=_header_advice(names, delimiter))
            raise
        types = _known_types(plan, spec, options)
        return TextExtent(None, num_header_records, tuple(names), types, spec.leaves, delimiter)

    def parse(self, data: bytes, extent: TextExtent, options: ReadOptions) -> pa.Table:
        """See `TextTables.parse`."""
        table = self._parse(data, extent, extent.types, options)
        # Arrow infers dates, times and binary from text: such columns are read again as text
        misread_columns = [
            field.name
            for field in table.schema
            if pa.types.is_temporal(field.type) or pa.types.is_binary(field.type)
        ]
        if misread_columns:
            table = self._parse(
                data, extent, {**extent.types, **dict.fromkeys(misread_columns, pa.string())}, options
            )
        declared_types = declared_column_types(options)
        large_columns = [
            name
            for name in table.column_names
            if name not in declared_types and _may_round_integers(table.column(name))
        ]
        # Arrow reads integers beyond int64, and those in columns with fractions, as floats: only the text shows them
        if large_columns:
            texts = self._read_csv(data, extent, dict.fromkeys(large_columns, pa.string()), options)
            _refuse_rounded_integers(texts.select(large_columns), _read_thousands(options) or "")
        return table

    def _parse(self, data: bytes, extent: TextExtent, types: Types, options: ReadOptions) -> pa.Table:
        """Parse a table, in which numbers may have separators of thousands.

        Raises:
            CellError: a record is invalid, or a cell does not fit the known type of its column.
        """
        separator, declared_types = _read_thousands(options), declared_column_types(options)
        number_types = {
            name: data_type
            for name, data_type in (declared_types if separator is None else types).items()
            if pa.types.is_integer(data_type) or (separator is not None and pa.types.is_floating(data_type))
        }
        if separator is None:
            try:
                return self._read_csv(data, extent, types, options)
            except CellError:
                # Arrow refuses whole floats, such as 1.0 or 1e+00, in a column that the user declares as integers
                if not number_types:
                    raise
        table = self._read_csv(data, extent, {**types, **dict.fromkeys(number_types, pa.string())}, options)
        null_texts = pa.array(_read_null_texts(options), pa.string())
        for index, field in enumerate(table.schema):
            name, is_number = field.name, field.name in number_types
            if not is_number and (separator is None or name in types or not is_text(field.type)):
                continue
            column = table.column(index)
            column = pc.if_else(pc.is_in(column, null_texts), None, column)
            texts = _remove_thousands(column, separator or "", _read_decimal_point(options))
            candidates = (number_types[name],) if is_number else (pa.int64(), pa.float64())
            casts = (
                _cast_numbers(column, texts, number_type, is_declared=name in declared_types)
                for number_type in candidates
            )
            numbers = next((cast for cast in casts if cast is not None), None)
            if numbers is not None:
                table = table.set_column(index, name, numbers)
            elif is_number:
                raise _number_error(column, texts, name, number_types[name], options)
        return table

    def _read_csv(self, data: bytes, extent: TextExtent, types: Types, options: ReadOptions) -> pa.Table:
        quote, names = self.quote_character(options), list(extent.names or ())
        num_header_records = extent.num_header_records
        # Lines above the header have other numbers of columns, which Arrow refuses.
        if num_header_records > 1:
            data, num_header_records = _skip_records(data, num_header_records, quote), 0
        read_options = pacsv.ReadOptions(
            use_threads=False,  # pieces are parsed in parallel
            block_size=len(data) + 1,  # one block, because Arrow infers types from the first block
            column_names=names,
            skip_rows_after_names=num_header_records,
        )
        parse_options = pacsv.ParseOptions(
            delimiter=extent.delimiter,
            quote_char=False if quote is None else quote.decode(),
            newlines_in_values=quote is not None and quote in data,
        )
        convert_options = pacsv.ConvertOptions(
            column_types={name: column_type for name, column_type in types.items() if name in names},
            null_values=_read_null_texts(options),
            quoted_strings_can_be_null=False,  # "NA" in quotes is text
            decimal_point=_read_decimal_point(options),
        )
        try:
            return pacsv.read_csv(pa.py_buffer(data), read_options, parse_options, convert_options)
        except (pa.ArrowException, UnicodeDecodeError) as error:
            advice = _header_advice(names, extent.delimiter)
            raise _to_cell_error(error, names, num_header_records, advice, options) from error

    def _read_header(
        self, location: Location, delimiter: str, options: ReadOptions, *, is_delimiter_set: bool
    ) -> _Header:
        """Read the columns' names from the header, which lines of comments or Excel's `sep=;` may precede."""
        quote = self.quote_character(options)
        text = read_head(location, _HEADER_BYTES)
        if not len(find_record_ends(text, quote)):
            text = read_head(location, _MAX_HEADER_BYTES)
        if text.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise DataError("is UTF-16 text: save it as UTF-8", path=str(location))
        # bytes that are not UTF-8 are replaced here, so that an error below names them
        head = io.StringIO(text.decode("utf-8-sig", "replace"), newline="")
        dialect: dict[str, Any] = (
            {"quoting": csv.QUOTE_NONE} if quote is None else {"quotechar": quote.decode()}
        )
        separator = _SEPARATOR_LINE.match(head.getvalue())
        if separator is not None:
            head.seek(separator.end())
            delimiter = delimiter if is_delimiter_set else separator[1]
        try:
            records = _read_until_data(csv.reader(head, delimiter=delimiter, **dialect))
        except csv.Error as error:
            raise DataError(f"has a header that cannot be read: {error}", path=str(location)) from error
        position = _find_header(records) if records else 0
        names = records[position] if records else []
        header_text = "".join(names)
        if not header_text.strip() or "\0" in header_text:
            raise DataError("has no header with column names in its first line", path=str(location))
        if b"\n" not in text and b"\r" in text.rstrip():
            raise DataError(
                "ends its lines by carriage returns alone: save it with line feeds", path=str(location)
            )
        if "\N{REPLACEMENT CHARACTER}" in header_text:
            raise DataError(
                f"is not UTF-8 text: its header is {names}; convert it to UTF-8", path=str(location)
            )
        # np.savetxt writes the header as a comment
        names = [names[0].removeprefix("#").strip(), *(name.strip() for name in names[1:])]
        return _Header(names, delimiter, position + 1 + (separator is not None))


def _read_until_data(reader: Iterable[list[str]]) -> list[list[str]]:
    """Read records, without empty ones, until the first that is no comment."""
    records = []
    for record in filter(None, reader):
        records.append(record)
        if not record[0].lstrip().startswith("#"):
            break
    return records


def _find_header(records: Sequence[Sequence[str]]) -> int:
    """Return the index of the header: the last record, or a comment above it if it is a row with numbers."""
    *comments, last_record = records
    is_row = any(map(_FORMATTED_NUMBER.fullmatch, last_record)) or last_record[0].lstrip().startswith("#")
    is_comment_header = bool(comments) and is_row and len(comments[-1]) == len(last_record)
    return len(comments) - 1 if is_comment_header else len(comments)


def _skip_records(data: bytes, num_records: int, quote: bytes | None) -> bytes:
    """Return the text after its first `num_records` records; empty lines are not records."""
    start = 0
    for end in find_record_ends(data, quote).tolist():
        if not num_records:
            break
        num_records -= data[start:end] not in (b"", b"\r")
        start = end + 1
    return data[start:]


def _read_null_texts(options: ReadOptions) -> list[str]:
    return list(_read_options(options).get("null_values", _NULL_TEXTS))


def _read_decimal_point(options: ReadOptions) -> str:
    point = _read_options(options).get("decimal_point", ".")
    if point not in (".", ","):
        raise DataError(f"readOptions.decimal_point is {point!r}: expected '.' or ','")
    return str(point)


def _read_thousands(options: ReadOptions) -> str | None:
    separator = _read_options(options).get("thousands")
    is_valid = isinstance(separator, str) and len(separator) == 1 and not separator.isalnum()
    if separator is not None and (not is_valid or separator == _read_decimal_point(options)):
        raise DataError(
            f"readOptions.thousands is {separator!r}: expected a character that is not the decimal point"
        )
    return separator


def _remove_thousands(column: pa.ChunkedArray, separator: str, decimal_point: str) -> pa.ChunkedArray:
    """Return the texts of numbers without separators (if any) and with a decimal point; null for other texts."""
    thousands, point = re.escape(separator), re.escape(decimal_point)
    digits = rf"(\d{{1,3}}({thousands}\d{{3}})+|\d+)({point}\d*)?|{point}\d+"
    number = rf"^\s*[+-]?(({digits})(e[+-]?\d+)?|nan|inf(inity)?)\s*$"
    texts = pc.if_else(pc.match_substring_regex(column, number, ignore_case=True), column, None)
    texts = pc.utf8_trim_whitespace(pc.replace_substring(texts, separator, "") if separator else texts)
    return pc.replace_substring(texts, decimal_point, ".")


def _cast_numbers(
    column: pa.ChunkedArray, texts: pa.ChunkedArray, number_type: pa.DataType, *, is_declared: bool
) -> pa.ChunkedArray | None:
    """Cast a column, with the result of `_remove_thousands`, to numbers; None if a cell does not fit the type.

    In a column that the user declared, whole floats are integers.
    """
    if texts.null_count > column.null_count:
        return None
    try:
        return texts.cast(number_type)
    except pa.ArrowInvalid:
        is_integer = is_declared and pa.types.is_integer(number_type)
        return _cast_whole_floats(texts, number_type) if is_integer else None


def _number_error(
    column: pa.ChunkedArray,
    texts: pa.ChunkedArray,
    name: str,
    number_type: pa.DataType,
    options: ReadOptions,
) -> CellError:
    """Make the error for the first cell that does not fit the type; see `_cast_numbers`."""
    is_declared = name in declared_column_types(options)

    def has_mismatch(stop: int) -> bool:
        head, head_texts = column.slice(0, stop), texts.slice(0, stop)
        return _cast_numbers(head, head_texts, number_type, is_declared=is_declared) is None

    row = bisect_first_invalid(len(column), has_mismatch)
    text, expected = column[row].as_py(), "a number" if pa.types.is_floating(number_type) else number_type
    hint = separator_advice(text, options) or _type_advice(name, options)
    return CellError(row, f"{name!r} is {text!r}: expected {expected}{hint}")


def _cast_whole_floats(texts: pa.ChunkedArray, integer_type: pa.DataType) -> pa.ChunkedArray | None:
    """Cast texts of integers and whole floats to integers, without losses; None if a cell does not fit the type."""
    is_whole = pc.match_substring_regex(texts, _WHOLE_NUMBER)
    try:
        floats = pc.if_else(is_whole, None, texts).cast(pa.float64())
        if pc.any(pc.greater_equal(pc.abs(floats), MAX_EXACT_FLOAT)).as_py():
            return None  # a float may have rounded the text
        return pc.coalesce(pc.if_else(is_whole, texts, None).cast(integer_type), floats.cast(integer_type))
    except pa.ArrowInvalid:
        return None


def _type_advice(name: str, options: ReadOptions) -> str:
    """Return advice for a cell that does not fit the type of its column, which the user may have set."""
    return DECLARED_TYPE_ADVICE if name in declared_column_types(options) else TYPE_ADVICE


def _header_advice(names: Sequence[str], delimiter: str) -> str:
    """Return advice if the header holds numbers, or one name that contains another delimiter; otherwise ""."""
    if len(names) != 1:
        return _NO_HEADER_ADVICE if all(map(NUMBER.fullmatch, names)) else ""
    candidate = next((char for char in _DELIMITERS if char != delimiter and char in names[0]), None)
    if candidate is None:
        return ""
    candidate_text = json.dumps(candidate) if candidate == "\t" else candidate
    return (
        f"its header is one name with {candidate!r} in it: if that separates the columns, set "
        f"readOptions.delimiter (--read-option 'delimiter={candidate_text}')"
    )


def _read_options(options: ReadOptions) -> dict[str, Any]:
    return check_options(Csv.name, options.options, Csv.read_option_names)


def _known_types(plan: TablePlan, spec: DataSpec, options: ReadOptions) -> dict[str, pa.DataType]:
    """Return column -> type for the columns whose type does not depend on the file's content."""
    types: dict[str, pa.DataType] = {}
    for name, source in plan.sources.items():
        leaf = spec.leaves.get(obs_leaf(name))
        if name in _TEXT_COLUMNS:
            types.update(dict.fromkeys(source.columns, pa.string()))
        elif leaf is not None:
            types.update(dict.fromkeys(source.columns, leaf_type(leaf)))
        elif name == Columns.REWARDS:
            types.update(dict.fromkeys(source.columns, pa.float64()))
    return {**types, **declared_column_types(options)}


def _refuse_rounded_integers(texts: pa.Table, separator: str) -> None:
    """Refuse integers, perhaps with separators of thousands, that are beyond int64 or that a float would round."""
    for name in texts.column_names:
        for row, text in enumerate(texts.column(name).to_pylist()):
            digits = (text or "").replace(separator, "")
            if not _LARGE_INTEGER.fullmatch(digits):
                continue
            number = Decimal(digits)  # has no maximum of digits, unlike an integer
            if find_beyond_int64(int(number)) is not None:
                raise beyond_int64_error(row, name, text)
            if number != float(digits):
                raise rounded_integer_error(row, name, text)


def _may_round_integers(column: pa.ChunkedArray) -> bool:
    """Return whether a column of floats may come from text with integers that float64 rounds."""
    if not pa.types.is_float64(column.type):
        return False
    return bool(pc.any(pc.greater_equal(pc.abs(column), MAX_EXACT_FLOAT)).as_py())


def _to_cell_error(
    error: Exception, names: Sequence[str], num_header_records: int, advice: str, options: ReadOptions
) -> CellError:
    """Convert an error of Arrow, which counts rows from 1, header included, and numbers columns from 0.

    Args:
        error: the error.
        names: names of the columns.
        num_header_records: number of records before the rows.
        advice: advice on the header, for rows with another number of columns; "" for none.
        options: options of the user.
    """
    text = str(error)
    row_match = _ROW_NUMBER.search(text)
    row = int(row_match[1]) - 1 - num_header_records if row_match is not None else 0
    column_match = re.match(r"In CSV column #(\d+): ", text)
    column_index = len(names) if column_match is None else int(column_match[1])
    name = names[column_index] if column_index < len(names) else None
    column_prefix = "" if name is None else f"{name!r}: "
    reason = _ROW_NUMBER.sub("", re.sub(r"^In CSV column #\d+: ", "", text)).removeprefix("CSV parse error: ")
    reason = reason.replace("CSV conversion error to", "it cannot be converted to")
    if "invalid UTF8" in reason:
        return CellError(row, f"{column_prefix}the text is not UTF-8: {_UTF8_ADVICE}")
    hint = ""
    if name is not None:
        hint = _type_advice(name, options)
    elif advice:
        hint = f"; {advice}"
    value = _INVALID_VALUE.search(reason)
    hint = (value and separator_advice(value[1], options)) or hint
    return CellError(row, f"{column_prefix}{reason}{hint}")
