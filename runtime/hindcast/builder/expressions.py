"""A filter given as an expression of pyarrow, as the comparisons of a resource.

It is read from the printed metadata of the form in which an expression is pickled: pyarrow has no accessors for its
parts, and `to_substrait` takes the columns' types, which a config does not know, and gives protobuf.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from hindcast.errors import SpecError

_COMPARISONS: Final = {
    "equal": "==",
    "not_equal": "!=",
    "less": "<",
    "less_equal": "<=",
    "greater": ">",
    "greater_equal": ">=",
    "is_in": "in",
}
_MIRRORED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_ALL_OF: Final = ("and_kleene", "and", "and_")
_TOKEN: Final = re.compile(r"(call|field_ref|literal|options|end): '(.*)'")

Term = dict[str, Any]
Token = tuple[str, str]


def is_expression(value: Any) -> bool:
    """Whether this is an expression of pyarrow, which is not imported to find out."""
    return type(value).__name__ == "Expression" and type(value).__module__.startswith("pyarrow.")


def parse_comparisons(expression: Any) -> list[Term]:
    """The filter terms (`column`, `op`, `value`) that all hold where the expression does.

    Args:
        expression: comparisons of a column with a value, `isin` among them, joined by `&`.

    Raises:
        SpecError: it holds anything else.
    """
    try:
        tokens, values = _parts(expression)
        # Without the calls that join them, four tokens remain of each comparison, and only of comparisons.
        joined = [token for token in tokens if not (token[0] in ("call", "end") and token[1] in _ALL_OF)]
        fours = zip(*[iter(joined)] * 4, strict=True)
        return [_term(call, left, right, end, values) for call, left, right, end in fours]
    except (LookupError, NotImplementedError, TypeError, ValueError) as error:
        raise SpecError(
            f"input_read_method_kwargs: the filter {expression} is not a list of comparisons: compare columns with "
            "numbers, text, true or false using ==, !=, <, <=, >, >= or isin, joined by &."
        ) from error


def _parts(expression: Any) -> tuple[list[Token], Sequence[Any]]:
    """An expression's calls in order, from the serialised metadata, and the values that they refer to by number."""
    import pyarrow as pa

    (buffer,) = expression.__reduce__()[1]
    with pa.ipc.open_file(buffer) as file:
        batch = file.get_batch(0)
        written = file.schema.to_string(truncate_metadata=False)  # as a dict it would lose all but one call
    lines = written.partition("-- schema metadata --\n")[2].split("\n")
    tokens = [(found[1], found[2]) for line in lines if (found := _TOKEN.fullmatch(line))]
    if len(tokens) < len(lines):
        raise ValueError("a column within a column, or of an odd name")
    return tokens, [column[0].as_py() for column in batch.columns]


def _term(call: Token, left: Token, right: Token, end: Token, values: Sequence[Any]) -> Term:
    op = _COMPARISONS[call[1]]
    if right[0] == "field_ref":
        left, right, op = right, left, _MIRRORED.get(op, op)
    if [call[0], left[0], end[0]] != ["call", "field_ref", "end"] or right[0] not in ("literal", "options"):
        raise TypeError(f"{call[1]} does not compare a column with a value")
    value = values[int(right[1])]
    if op == "in":
        value = value["value_set"]
    if not all(isinstance(one, str | int | float) for one in (value if op == "in" else [value])):
        raise TypeError(f"{call[1]} compares a column with {value!r}")
    return {"column": left[1], "op": op, "value": value}
