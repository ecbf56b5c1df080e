"""`readOptions`: the options of a format's own reader."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hindcast.errors import SpecError


def check_options(options: Mapping[str, Any], allowed: Mapping[str, type], format: str) -> None:
    """Refuse what the format's reader does not have.

    Args:
        options: the user's.
        allowed: option -> type of its value.
        format: as `InputSource.format` names it.

    Raises:
        SpecError: an unknown option, or one of another type.
    """
    for name, value in options.items():
        if name not in allowed:
            known = f"it has {', '.join(sorted(allowed))}" if allowed else "it has none"
            raise SpecError(f"readOptions has {name!r}, which the reader of {format} has not: {known}")
        kind = allowed[name]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise SpecError(f"readOptions.{name} is {value!r}: expected a value of type {kind.__name__}")
