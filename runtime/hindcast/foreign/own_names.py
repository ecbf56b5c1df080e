"""Formats whose columns have names of their own."""

from __future__ import annotations

from hindcast.errors import DataError
from hindcast.foreign.format import ReadOptions


def check_no_schema(options: ReadOptions, form: str) -> None:
    """Refuse a schema map, which would change nothing.

    Raises:
        DataError: there is one.
    """
    if options.schema:
        names = ", ".join(sorted(options.schema))
        raise DataError(f"`schema` names {names}, but {form} says itself what its columns are: leave it out")
