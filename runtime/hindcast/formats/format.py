"""`Format`: recognising the files of one kind, splitting them into pieces, and reading these."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, ClassVar, Final, NamedTuple

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
    """Options for reading a source. See the fields of `InputSource` with these names.

    Attributes:
        schema: Hindcast's column name -> the source's name, a pattern, or the names of several columns, which
            become one vector.
        columns: columns to read, by Hindcast's names; all if None.
        filter: comparisons that a row must pass, all of them.
        compress_columns: columns that may hold compressed cells; any if None.
        ignore_final_observation: whether to read data without next observations.
        options: options of the format's reader.
        keys: columns stored in the names of a file's folders (`day=3`) -> their values.
        mapper: import path of the class with a `map_rows` that makes episodes of text, images and binary files.
        mapper_kwargs: keyword arguments of its `map_rows` (`spec.pipeline.preLearnerKwargs`).
        mapper_training: the training that it maps rows for, as JSON (see `TrainingConfig`).
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
    """A part of a file that is read at once, about 16 MiB. It is pickled for worker processes.

    Attributes:
        location: the file.
        nbytes: size in memory, about.
        extent: position in the file, in the format's own form; picklable.
    """

    location: Location
    nbytes: int
    extent: Any = None


class FileGroup(NamedTuple):
    """Files that are read together, as one location.

    Attributes:
        location: argument of `Format.pieces`: a file that represents all of them, or a folder.
        files: relative paths of all files of the group, data or not; none of them is read on its own.
    """

    location: Location
    files: frozenset[str]


class Format(ABC):
    """One kind of file. Stateless; worker processes look it up by its name.

    Attributes:
        name: as `InputSource.format` names it.
        title: the format in lists of what can be read; empty leaves it out.
        has_timesteps: whether its rows are timesteps; others are mapped to episodes by a class of the user's.
        ray_methods: read methods of Ray Data for the same files; the first one reads them for pre-learners that map
            rows of any format.
    """

    name: str
    title: ClassVar[str] = ""
    has_timesteps: ClassVar[bool] = True
    ray_methods: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def recognises(self, location: Location) -> bool:
        """Return whether a file is of this kind, by its name, first bytes or footer; it is never read whole.

        Raises:
            StorageError: it cannot be read.
        """

    @abstractmethod
    def pieces(self, location: Location, options: ReadOptions) -> list[Piece]:
        """Split the file into pieces, in stored order. Cheap: reads only what finding their bounds requires.

        Raises:
            DataError: the file is damaged, or lacks something that the format requires.
        """

    @abstractmethod
    def read(self, piece: Piece, options: ReadOptions) -> Iterator[Rows | Block]:
        """Read the piece's timesteps in stored order, or complete episodes if the format stores episodes.

        A `Block` holds complete episodes only and is not reordered. `options.columns` and `options.filter` have been
        applied to `Rows`, and not to a `Block`.

        Raises:
            DataError: damage, or a cell that cannot be read, with file and row.
        """

    def groups(self, entries: Sequence[Entry]) -> list[FileGroup]:  # noqa: ARG002
        """Group the files of a recursive listing that are read together; empty if files are read one by one.

        Raises:
            StorageError: a file cannot be read.
        """
        return []

    def describe(self, location: Location) -> DataSpec:  # noqa: ARG002
        """Return the spaces and the environment that the file states, without leaves. Cheap.

        Raises:
            DataError: as `pieces`.
        """
        return DataSpec()

    def notes(self, location: Location, options: ReadOptions) -> tuple[str, ...]:  # noqa: ARG002
        """Return notes on how the file is interpreted. Cheap.

        They do not name the file, because most files of a folder have the same notes.

        Raises:
            DataError: as `pieces`.
        """
        return ()


def require_package(location: Location, package: str, extra: str) -> Any:
    """Import a package that reading a file requires.

    Raises:
        DataError: the package is not installed; names the extra that contains it.
    """
    try:
        return import_module(package)
    except ImportError as error:
        raise DataError(
            f"reading {location} requires {package}, which is not installed: pip install 'hindcast-rl[{extra}]'"
        ) from error


def check_no_schema(options: ReadOptions, form: str) -> None:
    """Refuse a schema map, which would have no effect.

    Raises:
        DataError: a schema map is given.
    """
    if options.schema:
        names = ", ".join(sorted(options.schema))
        raise DataError(f"`schema` names {names}, but {form} defines its own columns: leave it out")


def is_hidden(relative: str) -> bool:
    """Return whether a path below a folder is hidden, and so not read."""
    return any(part.startswith((".", "_")) for part in relative.split("/"))
