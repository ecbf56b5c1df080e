"""Sentences on a resource that the builder made, in the names of its options: `lr` for `spec.config.lr`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pydantic.alias_generators import to_snake

from hindcast.builder.options import BY_NAME, MODEL, MODULE, OPTIONS
from hindcast.errors import UserError

_PATH: Final = re.compile(r"\bspec((?:\.[A-Za-z]\w*)+)\b(?!\[)")
_OWN: Final = "config."
"""Where a resource has the algorithm's own options."""


def _by_field() -> dict[str, str]:
    """Field of a resource -> the option that says it; of several the table's first."""
    named = [("", BY_NAME), ("model_config.", OPTIONS[MODEL]), ("rl_module_spec.", OPTIONS[MODULE])]
    found: dict[str, str] = {}
    for prefix, options in named:
        for option in options.values():
            for field in (option.training, option.recording):
                found.setdefault(field, f"{prefix}{option.name}")
    return found


_BY_FIELD: Final = _by_field()


def in_python(sentence: str) -> str:
    """The sentence with each field of a resource under its option's name; others stay as they are."""
    return _PATH.sub(_option, sentence)


@contextmanager
def python_names() -> Iterator[None]:
    """Errors raised in this block name options rather than fields.

    Raises:
        UserError: the one raised in the block.
    """
    try:
        yield
    except UserError as error:
        error.args = tuple(in_python(each) if isinstance(each, str) else each for each in error.args)
        raise


def _option(found: re.Match[str]) -> str:
    field = found[1][1:]
    if field.startswith(_OWN):
        return to_snake(field.removeprefix(_OWN))
    return _BY_FIELD.get(field, found[0])
