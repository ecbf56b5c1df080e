"""What can be wrong with a dataset: each kind of problem has a name, a severity, and a sentence."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from hindcast.errors import DataError
from hindcast.formats.entries import Stored
from hindcast.formats.layout import RowError

Severity = Literal["error", "warning", "info"]
Kind = Literal[
    "unreadable",
    "missing",
    "changed",
    "mixed-layouts",
    "drift",
    "other-lengths",
    "other-space",
    "goes-on",
    "not-finite",
    "outside-space",
    "repeated-id",
    "ended-twice",
    "no-beginning",
    "empty-episode",
    "unfinished",
    "zero-rewards",
    "constant",
    "no-logp",
    "incomplete",
    "unlisted",
    "empty-file",
    "note",
]

_ORDER: dict[Severity, int] = {"error": 0, "warning": 1, "info": 2}


class Problem(Stored):
    """Something to know: an "error" stops training, a "warning" may spoil it, an "info" explains.

    Attributes:
        severity: see above.
        kind: its stable name; docs/data/inspect.md says what to do about each.
        message: the sentence.
        path: the file, where there is one.
        row: row in the file, where there is one.
    """

    severity: Severity
    kind: Kind = "note"
    message: str
    path: str | None = None
    row: int | None = None


def problem_of(path: str, error: DataError) -> Problem:
    """The problem of a file that cannot be read, with its kind and row if the error has them."""
    kind: Kind = error.kind if isinstance(error, RowError) else "unreadable"
    row = error.row if isinstance(error, RowError) else None
    message = str(error) if path in str(error) else f"{path}: {error}"
    return Problem(severity="error", kind=kind, message=message, path=path, row=row)


def worst_first(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Errors, warnings, infos; otherwise in the order given."""
    return tuple(sorted(problems, key=lambda problem: _ORDER[problem.severity]))
