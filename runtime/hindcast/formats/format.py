"""`Format`: how files of one kind are recognised, cut into pieces and read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final, NamedTuple

import pyarrow as pa

from hindcast.api.input import FilterTerm
from hindcast.episodes.block import Block
from hindcast.errors import DataError
from hindcast.formats.rows import Rows
from hindcast.formats.spec import DataSpec
from hindcast.storage.location import Entry, Location

PIECE_BYTES: Final = 16 << 20
"""About how large a piece is."""


@dataclass(frozen=True)
class ReadOptions:
    """How a source is read: see the fields of `InputSource` with these names.

    Attributes:
        schema: from Hindcast's column name to the data's, to a pattern, or to the names of several, which become one
            vector.
        columns: Hindcast's names of those to read; all if None.
        filter: comparisons that must all hold for a row.
        compress_columns: those that may hold compressed cells; any if None.
        ignore_final_observation: whether data without next observations are read.
        options: of the format's own reader.
        keys: columns stored in the names of a file's folders (`day=3`) -> their values.
        mapper: "package.module:Class" whose `map_rows` makes episodes of text, images and binary.
        mapper_kwargs: keyword arguments of its `map_rows` (`spec.pipeline.preLearnerKwargs`).
        mapper_given: the training that it maps for, as JSON (see `TrainingConfig`).
    """

    schema: Mapping[str, str | Sequence[str]] = field(default_factory=dict)
    columns: Sequence[str] | None = None
    filter: Sequence[FilterTerm] = ()
    compress_columns: Sequence[str] | None = None
    ignore_final_observation: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    keys: Mapping[str, pa.Scalar] = field(default_factory=dict)
    mapper: str | None = None
    mapper_kwargs: Mapping[str, Any] = field(default_factory=dict)
    mapper_training: Mapping[str, Any] = field(default_factory=dict)


class Piece(NamedTuple):
    """A part of a file that is read at once, about 16 MiB. It travels to workers.

    Attributes:
        location: the file.
        nbytes: size in memory, about.
        stretch: the format's own: where in the file. It pickles.
    """

    location: Location
    nbytes: int
    extent: Any = None


class FileGroup(NamedTuple):
    """Files that are read together, as one location.

    Attributes:
        location: what `Format.pieces` is given: a file that represents all, or a folder.
        files: relative paths of all that belong to it, data or not; none is read on its own.
    """

    location: Location
    files: frozenset[str]


class Format(ABC):
    """One kind of file. Stateless; it travels to workers by its name.

    Attributes:
        name: as `InputSource.format` names it.
    """

    name: str

    @abstractmethod
    def recognises(self, location: Location) -> bool:
        """Whether a file is of this kind: by its name, then by its first bytes or footer, never by all of it.

        Raises:
            StorageError: it cannot be read.
        """

    @abstractmethod
    def pieces(self, location: Location, options: ReadOptions) -> list[Piece]:
        """The file in pieces, in stored order; cheap: no more is read than finding their bounds takes.

        Raises:
            DataError: a damaged file, or one that lacks what the format needs.
        """

    @abstractmethod
    def read(self, piece: Piece, options: ReadOptions) -> Iterator[Rows | Block]:
        """The piece's timesteps in stored order, or complete episodes where the format stores episodes.

        A `Block` holds complete episodes only and is not reordered. `options.columns` and `options.filter` have been
        applied to `Rows`, and not to a `Block`.

        Raises:
            DataError: damage, or a cell that cannot be read, with file and row.
        """

    def groups(self, entries: Sequence[Entry]) -> list[FileGroup]:  # noqa: ARG002
        """The files of a recursive listing that are read together; none where files are read one by one.

        Raises:
            StorageError: a file cannot be inspected.
        """
        return []

    def describe(self, location: Location) -> DataSpec:  # noqa: ARG002
        """Spaces and environment where the file states them; no leaves. Cheap.

        Raises:
            DataError: as `pieces`.
        """
        return DataSpec()

    def notes(self, location: Location, options: ReadOptions) -> tuple[str, ...]:  # noqa: ARG002
        """How the file is interpreted, in sentences that do not name it: most files of a folder have the same. Cheap.

        Raises:
            DataError: as `pieces`.
        """
        return ()


def require_package(location: Location, package: str, extra: str) -> Any:
    """A package that reading a file takes.

    Raises:
        DataError: it is not installed; names the extra that has it.
    """
    try:
        return import_module(package)
    except ImportError as error:
        raise DataError(
            f"reading {location} takes {package}, which is not installed: pip install 'hindcast-rl[{extra}]'"
        ) from error


def check_no_schema(options: ReadOptions, form: str) -> None:
    """Refuse a schema map, which would change nothing.

    Raises:
        DataError: there is one.
    """
    if options.schema:
        names = ", ".join(sorted(options.schema))
        raise DataError(f"`schema` names {names}, but {form} defines its own columns: leave it out")


def is_hidden(relative: str) -> bool:
    """Whether a path below a folder is not looked at."""
    return any(part.startswith((".", "_")) for part in relative.split("/"))
