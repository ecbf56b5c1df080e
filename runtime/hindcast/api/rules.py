"""Rules on the fields of a resource, each written once for the loader and for the API server.

A rule states what must hold as an expression. The CRD contains the expression as CEL, which the API server evaluates at
admission; the loader evaluates it in Python. Both see the same values: YAML's names and words, with defaults.
"""

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from pydantic_core import PydanticCustomError

Relation = Literal["less than", "at most", "a multiple of"]

RULE_ERROR: Final = "rule"
"""Type of pydantic's error for values that break rules; `problems` in its context has (field, text) of each."""
CHOICE_ERROR: Final = "choice"
"""Type of pydantic's error for alternative fields of which too many or none are set; its context has the `text`."""

_CEL_KEYWORDS: Final = re.compile(
    "true|false|null|in|as|break|const|continue|else|for|function|if|import|let|loop|package|namespace|return"
)


@dataclass(frozen=True)
class Expression:
    """An expression over the values of a part, in CEL and in Python.

    Attributes:
        cel: returns the expression in CEL; its argument is the name of the part (`self`).
        evaluate: returns the expression's value; its argument is the part as plain values.
    """

    cel: Callable[[str], str]
    evaluate: Callable[[Any], Any]

    def __invert__(self) -> "Expression":
        return Expression(lambda part: f"!{self.cel(part)}", lambda part: not self.evaluate(part))

    def __and__(self, other: "Expression") -> "Expression":
        return Expression(
            lambda part: f"({self.cel(part)} && {other.cel(part)})",
            lambda part: self.evaluate(part) and other.evaluate(part),
        )

    def __or__(self, other: "Expression") -> "Expression":
        return Expression(
            lambda part: f"({self.cel(part)} || {other.cel(part)})",
            lambda part: self.evaluate(part) or other.evaluate(part),
        )

    def implies(self, other: "Expression") -> "Expression":
        """Return an expression that holds unless this one holds and the other does not."""
        return ~self | other


def cel_name(field: str) -> str:
    """Return a field's name in CEL, which escapes keywords."""
    return f"__{field}__" if _CEL_KEYWORDS.fullmatch(field) else field


def is_set(path: str) -> Expression:
    """Return whether a field has a value; its parents need not have one."""
    steps = [cel_name(step) for step in path.split(".")]
    prefixes = [".".join(steps[: length + 1]) for length in range(len(steps))]

    def to_cel(part: str) -> str:
        terms = " && ".join(f"has({part}.{prefix})" for prefix in prefixes)
        return f"({terms})" if len(prefixes) > 1 else terms

    return Expression(to_cel, lambda part: _get(part, path) is not None)


def is_empty(path: str) -> Expression:
    """Return whether a list has no entries or is not set."""
    return ~is_set(path) | Expression(
        lambda part: f"{_cel_path(part, path)}.size() == 0", lambda part: not _get(part, path)
    )


def is_one_of(path: str, *values: Any) -> Expression:
    """Return whether a field is set to one of the values."""
    return is_set(path) & Expression(
        lambda part: f"{_cel_path(part, path)} in [{', '.join(map(_cel_literal, values))}]",
        lambda part: _get(part, path) in values,
    )


def is_text(path: str) -> Expression:
    """Return whether a field that may also be a number is set to a text."""
    return is_set(path) & Expression(
        lambda part: f"type({_cel_path(part, path)}) == string",
        lambda part: isinstance(_get(part, path), str),
    )


def is_default(path: str, default: Any) -> Expression:
    """Return whether a field has its default or is not set."""
    if default in ([], {}):
        return is_empty(path)
    return ~is_set(path) if default is None else is_set(path).implies(is_one_of(path, default))


def matches(path: str, pattern: str) -> Expression:
    """Return whether a text matches a pattern that both Python and RE2 understand; "" is the part itself."""
    # Python's `$` also matches before a final newline.
    compiled_pattern = re.compile(re.sub(r"\$$", r"\\Z", pattern))
    return Expression(
        lambda part: f"{_cel_path(part, path)}.matches(r'{pattern}')",
        lambda part: compiled_pattern.search(_get(part, path)) is not None,
    )


def every(path: str, condition: Expression) -> Expression:
    """Return whether a condition holds for all entries of a list that is always set."""
    return Expression(
        lambda part: f"{_cel_path(part, path)}.all(entry, {condition.cel('entry')})",
        lambda part: all(map(condition.evaluate, _get(part, path))),
    )


def has_one_entry(path: str) -> Expression:
    """Return whether a list that is always set has one entry."""
    return Expression(
        lambda part: f"{_cel_path(part, path)}.size() == 1", lambda part: len(_get(part, path)) == 1
    )


def at_most_one(path: str, condition: Expression) -> Expression:
    """Return whether a condition holds for at most one entry of a list that is always set."""
    return Expression(
        lambda part: f"{_cel_path(part, path)}.filter(entry, {condition.cel('entry')}).size() <= 1",
        lambda part: sum(map(bool, map(condition.evaluate, _get(part, path)))) <= 1,
    )


def field_value(path: str, default: "Expression | float | str | None" = None) -> Expression:
    """Return the value of a field; if it is not set, the default, which may be another expression."""
    if default is None:
        return Expression(lambda part: _cel_path(part, path), lambda part: _get(part, path))
    fallback = default if isinstance(default, Expression) else constant(default)
    field_is_set = is_set(path)

    def evaluate(part: Any) -> Any:
        return _get(part, path) if field_is_set.evaluate(part) else fallback.evaluate(part)

    return Expression(
        lambda part: f"({field_is_set.cel(part)} ? {_cel_path(part, path)} : {fallback.cel(part)})", evaluate
    )


def constant(value: float | str) -> Expression:
    """Return a number, or any other text of CEL."""
    return Expression(lambda _: str(value), lambda _: value)


def negative(number: Expression) -> Expression:
    """Return a number with the opposite sign."""
    return Expression(lambda part: f"-{number.cel(part)}", lambda part: -number.evaluate(part))


def difference(path: str, other: str) -> Expression:
    """Return the difference of two numbers that are always set."""
    return Expression(
        lambda part: f"({_cel_path(part, path)} - {_cel_path(part, other)})",
        lambda part: _get(part, path) - _get(part, other),
    )


_RELATIONS: Final[Mapping[Relation, tuple[str, Callable[[Any, Any], bool]]]] = {
    "less than": ("{} < {}", operator.lt),
    "at most": ("{} <= {}", operator.le),
    "a multiple of": ("{} % {} == 0", lambda number, divisor: number % divisor == 0),
}
"""Relation -> CEL, and check(number, other number)."""


def compare(left: Expression, relation: Relation, right: Expression) -> Expression:
    """Return whether two numbers have a relation: "less than", "at most" or "a multiple of"."""
    cel, holds = _RELATIONS[relation]

    def evaluate(part: Any) -> bool:
        numbers = left.evaluate(part), right.evaluate(part)
        # The type of an option is checked on its own.
        return not all(isinstance(number, int | float) for number in numbers) or holds(*numbers)

    return Expression(lambda part: cel.format(left.cel(part), right.cel(part)), evaluate)


@dataclass(frozen=True)
class Rule:
    """A rule on a part of a resource.

    Attributes:
        holds: the expression that must hold.
        message: the sentence after the name of the field, with `{0}`, `{1}`, … for `values`, and `@` before the path of
            another field of the part.
        field: path, from the part, of the field that the message is about (`stop.timesteps`); "" is the part.
        values: values that the message names. The API server only gets texts, since it estimates an unbounded cost for
            the text of a number.
        cel_message: the API server's message, if the values are not texts.
        checked_by: "all"; "loader" if CEL cannot read a field of the rule; "server" if it is about pods alone.
    """

    holds: Expression
    message: str
    field: str = ""
    values: tuple[Expression, ...] = ()
    cel_message: str | None = None
    checked_by: Literal["all", "loader", "server"] = "all"

    def validation(self) -> dict[str, str]:
        """Return the entry of `x-kubernetes-validations`."""
        message = name_fields(self.message if self.cel_message is None else self.cel_message)
        terms = [
            self.values[int(piece)].cel("self") if index % 2 else _cel_literal(piece)
            for index, piece in enumerate(re.split(r"\{(\d)\}", message))
            if piece
        ]
        computed_message = {"messageExpression": " + ".join(terms)}
        location = {"fieldPath": f".{self.field}"} if self.field else {}
        return {
            "rule": self.holds.cel("self"),
            **(computed_message if len(terms) > 1 else {"message": message}),
            **location,
        }

    def text(self, part: Any) -> str:
        """Return the message for a part that breaks the rule."""
        return self.message.format(*(_value_text(value.evaluate(part)) for value in self.values))


def comparison(
    field: str,
    relation: Relation,
    other: str,
    *,
    values: tuple[Expression, Expression] | None = None,
    condition: Expression | None = None,
    reason: str = "",
) -> Rule:
    """Return the rule that a number has a relation to another one.

    Args:
        field: path of the field with the number.
        relation: the relation of the first to the second number.
        other: path of the field with the second number.
        values: the two numbers. Default: the fields' values; then the rule holds if one of them is not set.
        condition: where the rule applies. Default: always.
        reason: end of the message.
    """
    if values is None:
        are_set = is_set(field) & is_set(other)
        condition = are_set if condition is None else are_set & condition
        values = field_value(field), field_value(other)
    holds = compare(values[0], relation, values[1])
    return Rule(
        holds if condition is None else condition.implies(holds),
        f"is {{0}}, expected {relation} @{other}, {{1}}{reason}",
        field,
        values,
        cel_message=f"must be {relation} @{other}{reason}",
    )


def find_problems(rules: Iterable[Rule], part: Any) -> list[tuple[str, str]]:
    """Return (field, text) for each rule that a part breaks.

    Args:
        rules: the rules.
        part: the part as plain values: YAML's names and words, with defaults.
    """
    return [
        (rule.field, rule.text(part))
        for rule in rules
        if rule.checked_by != "server" and not rule.holds.evaluate(part)
    ]


def check_rules(rules: Iterable[Rule], part: Any) -> None:
    """Raise pydantic's error for the rules that a part breaks, if there are any; see `find_problems`."""
    raise_problems(find_problems(rules, part))


def raise_problems(problems: list[tuple[str, str]]) -> None:
    """Raise pydantic's error for problems of a part, as (field, text), if there are any."""
    if problems:
        text = name_fields("; ".join(f"{field} {text}".strip() for field, text in problems))
        raise PydanticCustomError(RULE_ERROR, "{text}", {"text": text, "problems": problems})


_FIELD_IN_MESSAGE: Final = re.compile(r"@([a-z]\w*(?:\.\w+)*)")


def name_fields(message: str, path: str = "") -> str:
    """Replace the fields in a message, each after an `@`, by their names.

    Args:
        message: the message of a rule.
        path: path of the part that has the rule, with which the names begin.
    """
    return _FIELD_IN_MESSAGE.sub(rf"{path}.\1" if path else r"\1", message)


def mentioned_fields(message: str, path: str) -> tuple[str, ...]:
    """Return the names of the fields in a message; see `name_fields`."""
    return tuple(f"{path}.{field}" for field in _FIELD_IN_MESSAGE.findall(message))


def _get(part: Any, path: str) -> Any:
    """Return the value at a path, or None if the path does not exist."""
    for step in path.split(".") if path else ():
        part = part.get(step) if isinstance(part, dict) else None
    return part


def _cel_path(part: str, path: str) -> str:
    return ".".join([part, *map(cel_name, path.split("."))]) if path else part


def _cel_literal(value: Any) -> str:
    if isinstance(value, str):
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _value_text(value: Any) -> str:
    """Format a value; a whole number has no fraction."""
    return f"{value:.15g}" if isinstance(value, float) else str(value)
