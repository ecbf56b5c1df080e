"""`Format`, the base of all formats that data are read from: it recognises files, splits them and reads the pieces."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, ClassVar, Final, NamedTuple

import pyarrow as pa

from hindcast.api.input import FilterTerm, TimeSpec
from hindcast.episodes.block import Block
from hindcast.errors import DataError
from hindcast.formats.rows import Rows
from hindcast.formats.spec import DataSpec
from hindcast.storage.location import Entry, Location

PIECE_BYTES: Final = 16 << 20
"""Approximate size of a piece."""
HEAD_ROWS: Final = 1 << 16
"""Maximum number of rows of `Format.read_head`."""


@dataclass(frozen=True)
class ReadOptions:
    """Options for reading a source. See the fields of `InputSource` with these names.

    Attributes:
        schema: Hindcast's column name -> the source's column name, a pattern of names, or several names; several
            columns become one vector.
        columns: Hindcast's names of the columns to read; None reads all.
        filter: comparisons; a row is read only if it passes all of them.
        time: column and unit of the rows' times; None if there are none.
        compress_columns: Hindcast's names of the columns that may hold compressed cells; with None any column may.
        ignore_final_observation: whether to read data without next observations; each episode's last observation is
            then repeated.
        options: the format's own options, `readOptions` in a resource.
        keys: name -> value of the columns that are stored in the names of a file's folders (`day=3`).
        mapper: import path of the user's class that converts rows of text, images, binary files or Ray Data to episodes
            (`spec.pipeline.preLearner`); None if the user names no class.
        mapper_kwargs: keyword arguments for the class's `map_rows` (`spec.pipeline.preLearnerKwargs`).
        mapper_training: the training that the class converts rows for, as JSON (see `TrainingConfig`).
    """

    schema: Mapping[str, str | Sequence[str]] = field(default_factory=dict)
    columns: Sequence[str] | None = None
    filter: Sequence[FilterTerm] = ()
    time: TimeSpec | None = None
    compress_columns: Sequence[str] | None = None
    ignore_final_observation: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    keys: Mapping[str, pa.Scalar] = field(default_factory=dict)
    mapper: str | None = None
    mapper_kwargs: Mapping[str, Any] = field(default_factory=dict)
    mapper_training: Mapping[str, Any] = field(default_factory=dict)


class NoRowsError(DataError):
    """A file without rows, such as tools write for an empty part; it is left out if other files have rows."""

    def __init__(self, location: Location) -> None:
        super().__init__("holds no rows: delete it, or leave it out of the paths", path=str(location))


class Piece(NamedTuple):
    """A part of a file that is read at once, about 16 MiB. Pieces are pickled for worker processes.

    Attributes:
        location: the file.
        nbytes: approximate size in memory.
        extent: position in the file; each format has its own type, which can be pickled.
    """

    location: Location
    nbytes: int
    extent: Any = None


class FileGroup(NamedTuple):
    """Files that are read together, as one location.

    Attributes:
        location: argument of `Format.list_pieces`: one file that represents the group, or a folder.
        files: paths of all files of the group, with or without data, relative to the listed folder; none of them is
            read separately.
    """

    location: Location
    files: frozenset[str]


class Format(ABC):
    """A file format. Instances have no state; worker processes look them up by name.

    Attributes:
        name: name of the format, as in `InputSource.format`.
        title: name of the format in lists of readable formats; empty for formats that those lists leave out.
        has_timesteps: whether rows are timesteps; a class of the user converts other rows to episodes.
        ray_methods: read methods of Ray Data for the same files; the first one reads the files for pre-learners that
            convert rows of any format.
        read_option_names: names of the format's `readOptions`, in snake case; None if another library checks them.
    """

    name: str
    title: ClassVar[str] = ""
    has_timesteps: ClassVar[bool] = True
    ray_methods: ClassVar[tuple[str, ...]] = ()
    read_option_names: ClassVar[tuple[str, ...] | None] = ()

    @abstractmethod
    def recognises(self, location: Location) -> bool:
        """Return whether a file has this format, judged by its name, first bytes or footer; never reads all of it.

        Raises:
            StorageError: the file cannot be read.
        """

    @abstractmethod
    def list_pieces(self, location: Location, options: ReadOptions) -> list[Piece]:
        """List the pieces of the file, in stored order. Cheap: reads only what is required to find their bounds.

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

    def join_pieces(self, pieces: Sequence[Piece], options: ReadOptions) -> list[Piece]:  # noqa: ARG002
        """Join the pieces of several files that are cheaper to read at once; by default none."""
        return list(pieces)

    def group_files(self, entries: Sequence[Entry]) -> list[FileGroup]:  # noqa: ARG002
        """Group the files that are read together; empty if each file is read separately.

        Args:
            entries: result of `Location.list(recursive=True)`.

        Raises:
            StorageError: a file cannot be read.
        """
        return []

    def describe(self, location: Location) -> DataSpec:  # noqa: ARG002
        """Return the spaces and the environment that the file states; `leaves` stays empty. Cheap.

        Raises:
            DataError: see `list_pieces`.
        """
        return DataSpec()

    def read_head(self, location: Location, options: ReadOptions) -> pa.Table | None:  # noqa: ARG002
        """Read the first rows of a table with all of its columns, also with those that are not data; None for other
        formats.

        Raises:
            DataError: the file is damaged.
        """
        return None

    def list_notes(self, location: Location, options: ReadOptions) -> tuple[str, ...]:  # noqa: ARG002
        """List notes on how the file is interpreted. Cheap.

        They do not name the file, because most files of a folder have the same notes.

        Raises:
            DataError: see `list_pieces`.
        """
        return ()


def require_package(location: Location, package: str, extra: str) -> Any:
    """Import and return a package that reading a file requires.

    Args:
        location: the file, for the message.
        package: name of the package.
        extra: extra of `hindcast-rl` that contains the package.

    Raises:
        DataError: the package is not installed.
    """
    try:
        return import_module(package)
    except ImportError as error:
        raise DataError(
            f"reading {location} requires {package}, which is not installed: pip install 'hindcast-rl[{extra}]'"
        ) from error


def check_no_schema(options: ReadOptions, format_name: str) -> None:
    """Refuse `schema` and `time` for a format in which they would have no effect.

    Raises:
        DataError: `schema` or `time` is set.
    """
    if options.time is not None:
        raise DataError(
            f"`time` names the column {options.time.column!r}, but {format_name} defines its own columns: leave `time` "
            "out"
        )
    if options.schema:
        names = ", ".join(sorted(options.schema))
        raise DataError(
            f"`schema` names {names}, but {format_name} defines its own columns: leave `schema` out"
        )


def has_suffix(path: str, suffixes: tuple[str, ...], *, may_be_gzip: bool = False) -> bool:
    """Return whether a file has one of the suffixes, in any case: Windows and Oracle write `.CSV`.

    Args:
        path: name or path of the file.
        suffixes: suffixes in lower case.
        may_be_gzip: whether `.gz` may follow the suffix.
    """
    name = path.lower()
    return (name.removesuffix(".gz") if may_be_gzip else name).endswith(suffixes)


def is_hidden(relative_path: str) -> bool:
    """Return whether a file or one of its folders is hidden (named `.…` or `_…`); hidden files are not read."""
    return any(part.startswith((".", "_")) for part in relative_path.split("/"))
