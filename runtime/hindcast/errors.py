"""Errors a user can act on. Each carries one or several problems: what is wrong, where, and what to do.

Code that knows more about the place of an error adds it with `UserError.locate`. The sentence is rendered at the edge:
`str(error)` names fields as YAML does, the Python builder names its options instead, and `--json` prints the parts.
The command line prints the sentence without a traceback and exits with `exit_code`.
Anything that is not a `UserError` is a bug in Hindcast.

Between processes a user error travels as a value (`catch_user_error`, `unwrap`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Self, TypeVar

T = TypeVar("T")

FieldPath = tuple[str | int, ...]
"""Path of a value in a document: keys and list indices."""

_VERBS: Final = frozenset(
    [
        "cannot",
        "combines",
        "contains",
        "continues",
        "counts",
        "does",
        "excludes",
        "has",
        "holds",
        "is",
        "lacks",
        "maps",
        "merges",
        "must",
        "needs",
        "only",
        "provides",
        "refers",
        "requires",
        "separates",
        "sets",
        "was",
        "would",
    ]
)
"""First words of problems that continue the sentence after the name of the place."""


def format_path(path: Sequence[str | int]) -> str:
    """Format a path: `spec.input[0].path`."""
    text = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path)
    return text.removeprefix(".")


def parse_path(text: str) -> FieldPath:
    """Return the path that `format_path` formatted."""
    return tuple(int(key) if key.isdigit() else key for key in re.findall(r"\w+", text))


@dataclass(frozen=True)
class Problem:
    """A sentence for the user, and the place that it is about.

    Attributes:
        field: path of a resource's field, or the name of an option; empty for none. Code that does not know in which
            section of a resource a field is names it relative to that section (`("model", "convFilters")`).
        what: the sentence without the place.
        line: line of the field in `file`, from 1; 0 is the whole file. None is not known.
        file: the YAML file of the resource.
        resource: `Kind/name` of the resource.
        path: a file or folder of data, or another file that cannot be used.
        row: row in `path`, from 0.
        row_name: what `row` counts, if not rows: lines from 1, or records from 0.
        episode: id of the episode in `path`.
        step: its timestep `t`.
        remedy: what to do, after a semicolon.
        python: `what` with values as Python writes them (`True`, `None`, a dictionary); empty if that is the same.
        mentions: other fields, as the sentence writes them: `spec.environment` or, with the value to set,
            `prepare.cutOffSteps: Drop`. A path begins at the resource, at `field`, at the spec, or at an entry of
            `spec.input`.
    """

    field: FieldPath
    what: str
    line: int | None = None
    file: str = ""
    resource: str = ""
    path: str = ""
    row: int | None = None
    row_name: str = ""
    episode: str = ""
    step: int | None = None
    remedy: str = ""
    python: str = ""
    mentions: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The sentence without the place."""
        return f"{self.what}; {self.remedy}" if self.remedy else self.what

    def __str__(self) -> str:
        file, data = f"{self.file}:{self.line}" if self.line else self.file, self.path
        if self.row is not None:
            data += f", {self.row_name or 'row'} {self.row}"
        if self.episode:
            data += f" (episode {self.episode}" + ("" if self.step is None else f", t {self.step}") + ")"
        places = [place for place in (file, self.resource, format_path(self.field), data) if place]
        if not places or self.text.split(" ", 1)[0] not in _VERBS or not (self.field or data):
            return ": ".join([*places, self.text])
        return f"{': '.join(places)} {self.text}"

    def with_names(self, field: FieldPath, names: Mapping[str, str]) -> Problem:
        """Return the same problem for users who know fields by other names.

        Args:
            field: the new field.
            names: text that names another field -> what to write instead.
        """
        what, remedy = self.what, self.remedy
        # The longest one first, because it may begin with another one.
        for mention in sorted(names, key=len, reverse=True):
            pattern = rf"(?<![\w.]){re.escape(mention)}(?!\w)"
            what, remedy = (re.sub(pattern, lambda _: names[mention], text) for text in (what, remedy))  # noqa: B023
        return replace(self, field=field, what=what, remedy=remedy, mentions=())

    def to_json(self) -> dict[str, Any]:
        """Return the sentence as `message`, and the parts of its place that are known."""
        parts = {
            name: getattr(self, name)
            for name in ("file", "line", "resource", "path", "row", "episode", "step")
        }
        place = {"field": format_path(self.field), **parts}
        return {
            "message": str(self),
            **{name: part for name, part in place.items() if part not in ("", None)},
        }


class UserError(Exception):
    """Base of all errors that are shown to the user without a traceback (exit code 1).

    Args:
        what: the sentence without the place; see `Problem`.
        field: path of the resource's field that is wrong (`spec.input[0].path`).
        place: other attributes of `Problem`.

    Attributes:
        problems: at least one; `str` renders one line for each.
    """

    exit_code = 1

    def __init__(self, what: str = "", field: str | FieldPath = (), **place: Any) -> None:
        super().__init__(what)
        path = parse_path(field) if isinstance(field, str) else field
        self.problems: tuple[Problem, ...] = (Problem(path, what, **place),)

    @classmethod
    def of(cls, problems: Iterable[Problem]) -> Self:
        """Make an error of several problems."""
        error = cls()
        error.problems = tuple(problems)
        return error

    def locate(self, field: str | FieldPath = (), **place: Any) -> Self:
        """Set attributes of the problems that are not set yet, and return the error."""
        if field:
            place["field"] = parse_path(field) if isinstance(field, str) else field
        self.problems = tuple(_complete(problem, place) for problem in self.problems)
        return self

    def __str__(self) -> str:
        return "\n".join(map(str, self.problems))


def _complete(problem: Problem, place: dict[str, Any]) -> Problem:
    unset = {part.name for part in fields(problem) if getattr(problem, part.name) in ((), "", None)}
    if problem.path:  # `place` may be a row of another file
        unset -= {"row", "row_name", "episode", "step"}
    return replace(problem, **{name: value for name, value in place.items() if name in unset})


class SpecError(UserError):
    """A resource is wrong: broken YAML, unknown field, wrong type, impossible combination."""

    exit_code = 2


class NoCudaDevice(SpecError):
    """A learner is configured to use a GPU, but torch finds no CUDA device (exit code 2)."""


class DataError(UserError):
    """Recorded data cannot be used: truncated file, wrong shape, NaN, no episodes."""

    exit_code = 3


class MissingDataError(DataError):
    """Nothing exists at a path or matches a pattern."""


class OutputConflict(UserError):
    """The output folder belongs to something else, or to the same thing with another spec."""

    exit_code = 4


class StorageError(UserError):
    """Storage failed or denied a request: read-only, full, access denied, unreachable."""

    exit_code = 5


class StorageUnavailable(StorageError):
    """Storage did not answer, or kept failing, until the retries of a request timed out. A later try may succeed."""


class UserCodeError(UserError):
    """The user's own code (environment, algorithm, connector, …) raised an exception or returned something unusable."""

    exit_code = 6


class WorkerLost(UserError):
    """Worker processes or nodes keep dying; the run resumes when it is started again."""

    exit_code = 7


class OutOfMemory(WorkerLost):
    """A process was killed because memory ran out; the message says which size to raise."""


class Interrupted(UserError):
    """The run was interrupted after a checkpoint and can be continued."""

    exit_code = 130


def first_line(error: Exception) -> str:
    """Return the first non-empty line of another library's message, which may continue with a long traceback."""
    lines = (line.strip() for line in str(error).splitlines())
    return next(filter(None, lines), "no reason given")


def catch_user_error(function: Callable[[], T]) -> T | UserError:
    """Call the function; return its result, or the `UserError` that it raises."""
    try:
        return function()
    except UserError as error:
        return error  # if it were raised here, Ray or loky would wrap it in another error


def unwrap(result: T | UserError) -> T:
    """Return the result of a `catch_user_error` in another process, or raise the error that it returned.

    Raises:
        UserError: the function called by `catch_user_error` raised it.
    """
    if isinstance(result, UserError):
        raise result
    return result
