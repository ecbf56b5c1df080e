"""A format's own options, as a user writes them under `readOptions`."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from hindcast.errors import DataError
from hindcast.foreign.tables.naming import nearest


def check_options(form: str, options: Mapping[str, Any], allowed: Collection[str]) -> dict[str, Any]:
    """The options by their names in snake case.

    Raises:
        DataError: one that the format does not have.
    """
    found: dict[str, Any] = {}
    for name, value in options.items():
        own = re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower()
        if own not in allowed:
            hint = nearest(own, allowed) if allowed else "it has none"
            raise DataError(f"{form} has no read option {name!r}: {hint}")
        found[own] = value
    return found
