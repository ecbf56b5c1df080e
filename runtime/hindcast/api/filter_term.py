"""Parse comparisons: `rewards > 0`, `eps_id in ["a", "b"]`."""

from __future__ import annotations

import json
import re
from typing import Any

from pydantic import ValidationError

from hindcast.api.input import FilterTerm
from hindcast.errors import SpecError

_NAME = re.compile(r"\s*([^\s=!<>\"']+)\s*")
_OPERATOR = re.compile(r"(==|!=|<=|>=|<(?!>)|>|in\b)(?![=<>])\s*")
_UNQUOTED_TEXT = re.compile(r"[^\s=!<>\"'\[\]{},]+\Z")
_OPERATORS = "==, !=, <, <=, >, >= or in"


def parse_filter(text: str) -> FilterTerm:
    """Parse a column, an operator and a value (a number, true, false or text; for `in` a list of them).

    Raises:
        SpecError: the text is not a comparison (the message names the character and what is expected there), or the
            value cannot be in a resource.
    """
    name = _NAME.match(text)
    if name is None:
        raise _syntax_error(text, 0, "a column's name")
    operator = _OPERATOR.match(text, name.end())
    if operator is None:
        raise _syntax_error(text, name.end(), _OPERATORS)
    value = _parse_value(text, operator.end(), is_list=operator[1] == "in")
    try:
        return FilterTerm.model_validate({"column": name[1], "op": operator[1], "value": value})
    except ValidationError as error:
        problem = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise SpecError(f"the comparison {text!r} {problem}") from None


def _parse_value(text: str, start: int, is_list: bool) -> Any:
    value_text = text[start:].strip()
    expected = 'a list such as ["a", "b"] or [1, 2]' if is_list else "a number, true, false or text"
    if not value_text:
        raise _syntax_error(text, start, expected)
    try:
        value = json.loads(value_text)
    except ValueError:
        value = _parse_text(value_text)
    is_valid = isinstance(value, list) if is_list else isinstance(value, str | int | float | bool)
    if not is_valid:
        raise _syntax_error(text, start, expected)
    return value


def _parse_text(value_text: str) -> Any:
    """Return a text without its single quotes, or a text that has no quotes; None if the quotes are wrong."""
    if len(value_text) > 1 and value_text[0] == value_text[-1] == "'":
        return value_text[1:-1]
    return value_text if _UNQUOTED_TEXT.match(value_text) else None


def _syntax_error(text: str, position: int, expected: str) -> SpecError:
    remainder = text[position:].strip()
    actual = f"{remainder!r} at character {position + 1}" if remainder else "nothing more"
    return SpecError(f"the comparison {text!r} cannot be read: expected {expected}, found {actual}")
