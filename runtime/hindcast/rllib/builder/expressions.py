"""Convert a filter expression of pyarrow to the comparisons of a resource."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice
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
_MIRRORED_OPERATORS: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_NEGATED_OPERATORS: Final = {"==": "!=", "!=": "=="}
"""Operator -> its negation; negated inequalities also hold for NaN, which no operator expresses."""
_AND_FUNCTIONS: Final = ("and_kleene", "and", "and_")
_OR_FUNCTIONS: Final = ("or_kleene", "or", "or_")
_TOKEN: Final = re.compile(r"(call|field_ref|literal|options|end): '(.*)'")

Term = dict[str, Any]
Token = tuple[str, str]
"""(type, content) of a line of a printed expression: `("field_ref", "reward")`."""


def is_expression(value: Any) -> bool:
    """Return True if a value is an expression of pyarrow, without importing pyarrow."""
    return type(value).__name__ == "Expression" and type(value).__module__.startswith("pyarrow.")


def parse_comparisons(expression: Any) -> list[Term]:
    """Return the filter terms (`column`, `op`, `value`) that are together equivalent to the expression.

    Args:
        expression: comparisons of a column with a value, including `isin`, and Boolean columns, joined by `&`. `|` may
            join values of one column, and `~` negate `==`, `!=` and what `|` joins: the rest has no equivalent, or
            treats NaN or missing values in another way.

    Raises:
        SpecError: the expression contains anything else.
    """
    try:
        tokens, values = _tokenize(expression)
        iterator = iter(tokens)
        return _convert(next(iterator), iterator, values)
    except (LookupError, NotImplementedError, TypeError, ValueError) as error:
        raise SpecError(
            f"input_read_method_kwargs: the filter {expression} is not a list of comparisons: compare columns with "
            "numbers, text, True or False using ==, !=, <, <=, >, >= or isin, joined by &; | may join values of one "
            "column, and ~ negate == and !=."
        ) from error


def _tokenize(expression: Any) -> tuple[list[Token], Sequence[Any]]:
    """Return an expression's tokens, in order, and the values that its literals and options refer to by index."""
    import pyarrow as pa

    # pyarrow has no accessors for the parts of an expression, and `to_substrait` requires the columns' types, which a
    # config does not know. So the calls are read from the metadata of the pickled form, as printed.
    (buffer,) = expression.__reduce__()[1]
    with pa.ipc.open_file(buffer) as file:
        batch = file.get_batch(0)
        # As text, because all calls have the same key, and a dict of the metadata would keep only one.
        text = file.schema.to_string(truncate_metadata=False)
    lines = text.partition("-- schema metadata --\n")[2].split("\n")
    tokens = [(match[1], match[2]) for line in lines if (match := _TOKEN.fullmatch(line))]
    if len(tokens) < len(lines):
        raise ValueError("a nested column, or a column with an unsupported name")
    return tokens, [column[0].as_py() for column in batch.columns]


def _convert(
    token: Token, tokens: Iterator[Token], values: Sequence[Any], is_negated: bool = False
) -> list[Term]:
    """Return the terms of the subexpression that begins with a token, and take its other tokens."""
    kind, name = token
    if kind == "field_ref":
        return [{"column": name, "op": "==", "value": not is_negated}]
    if kind != "call":
        raise TypeError(f"{kind} {name} is not a comparison")
    if name not in (*_AND_FUNCTIONS, *_OR_FUNCTIONS, "invert"):
        left_operand, right_operand, end = islice(tokens, 3)
        term = _parse_term(token, left_operand, right_operand, end, values)
        return [term | {"op": _NEGATED_OPERATORS[term["op"]]} if is_negated else term]
    operands = [
        _convert(operand, tokens, values, is_negated != (name == "invert"))
        for operand in iter(lambda: next(tokens), ("end", name))
    ]
    is_conjunction = name == "invert" or (name in _AND_FUNCTIONS) != is_negated
    return [term for terms in operands for term in terms] if is_conjunction else [_join_values(operands)]


def _join_values(operands: Sequence[Sequence[Term]]) -> Term:
    """Return one term for alternative values of a column."""
    terms = [term for (term,) in operands]
    (column,) = {term["column"] for term in terms}
    if any(term["op"] not in ("==", "in") for term in terms):
        raise TypeError(f"only values of {column} can be joined by |")
    values = [term["value"] if term["op"] == "in" else [term["value"]] for term in terms]
    return {"column": column, "op": "in", "value": [value for group in values for value in group]}


def _parse_term(
    call: Token, left_operand: Token, right_operand: Token, end: Token, values: Sequence[Any]
) -> Term:
    op = _COMPARISONS[call[1]]
    if right_operand[0] == "field_ref":
        left_operand, right_operand, op = right_operand, left_operand, _MIRRORED_OPERATORS.get(op, op)
    if [call[0], left_operand[0], end[0]] != ["call", "field_ref", "end"] or right_operand[0] not in (
        "literal",
        "options",
    ):
        raise TypeError(f"{call[1]} does not compare a column with a value")
    value = values[int(right_operand[1])]
    if op == "in":
        value = value["value_set"]
    if not all(isinstance(element, str | int | float) for element in (value if op == "in" else [value])):
        raise TypeError(f"{call[1]} compares a column with {value!r}")
    return {"column": left_operand[1], "op": op, "value": value}
