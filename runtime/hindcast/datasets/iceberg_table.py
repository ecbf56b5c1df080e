"""The current files of an Iceberg table, read from its own metadata without a catalog."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from hindcast.errors import DataError, StorageError
from hindcast.formats.format import require_package
from hindcast.storage.location import Location

_METADATA_VERSION: Final = re.compile(r"v?(\d+)(?:-[^/]*)?(?:\.gz)?\.metadata\.json")


class _TableFile(NamedTuple):
    """A file of a table's metadata, as pyiceberg opens it."""

    file: Location

    @property
    def location(self) -> str:
        """The path, whose suffix says how it is compressed."""
        return self.file.path

    def open(self, seekable: bool = True) -> io.BytesIO:  # noqa: ARG002
        """Return the content."""
        return io.BytesIO(self.file.read_bytes())


class _TableFolder(NamedTuple):
    """A table's folder, from which pyiceberg opens files by the paths that they had where the table was written."""

    folder: Location
    original_path: str

    def relative_path(self, path: str) -> str:
        """Return a path relative to the table.

        Raises:
            DataError: the path is not in the table's folder.
        """
        prefix = _without_scheme(self.original_path).rstrip("/") + "/"
        if not _without_scheme(path).startswith(prefix):
            raise DataError(f"it has the file {path} outside its folder")
        return _without_scheme(path).removeprefix(prefix)

    def new_input(self, path: str) -> _TableFile:
        """Return the file that had this path."""
        return _TableFile(self.folder.child(self.relative_path(path)))


def list_current_files(folder: Location, metadata_names: Sequence[str], remedy: str) -> set[str]:
    """Return the paths of the data files of an Iceberg table's current snapshot, relative to the table.

    Args:
        folder: the table.
        metadata_names: names of the `*.metadata.json` in its folder `metadata`.
        remedy: ends each message, as a clause.

    Raises:
        DataError: pyiceberg is not installed, or the data files do not hold exactly the table's rows and columns.
        StorageError: the storage fails.
    """
    require_package(folder, "pyiceberg", "iceberg")
    try:
        return set(_list_files(folder, _newest_metadata(metadata_names)))
    except StorageError:
        raise
    except Exception as error:  # pyiceberg raises exceptions of many types
        raise DataError(
            f"{folder} is an Iceberg table that cannot be read as files ({' '.join(str(error).split())}): {remedy}"
        ) from error


def _newest_metadata(names: Sequence[str]) -> str:
    """Return the name with the highest version.

    Raises:
        DataError: two names have it, or none has a version.
    """
    versions = {
        name: int(match[1]) for name in names if (match := _METADATA_VERSION.fullmatch(name)) is not None
    }
    newest_names = [name for name, version in versions.items() if version == max(versions.values())]
    if len(newest_names) != 1:
        raise DataError(
            f"only its catalog knows which of {', '.join(sorted(newest_names or names))} is current"
        )
    return newest_names[0]


def _list_files(folder: Location, metadata_name: str) -> Iterator[str]:
    from pyiceberg.manifest import ManifestContent
    from pyiceberg.serializers import FromInputFile

    metadata: Any = FromInputFile.table_metadata(_TableFile(folder.child("metadata", metadata_name)))
    _check_names(metadata)
    snapshot = metadata.current_snapshot()
    if snapshot is None:
        return
    table = _TableFolder(folder, metadata.location)
    for manifest in snapshot.manifests(table):
        entries = manifest.fetch_manifest_entry(table)
        if entries and manifest.content == ManifestContent.DELETES:
            raise DataError("deleted rows are still in its files")
        yield from (table.relative_path(entry.data_file.file_path) for entry in entries)


def _check_names(metadata: Any) -> None:
    """Check that the current schema has every column that files may have: Iceberg knows columns by numbers, not names.

    Raises:
        DataError: a column was renamed, replaced or removed.
    """
    from pyiceberg.schema import index_name_by_id

    columns = {column for schema in metadata.schemas for column in index_name_by_id(schema).items()}
    old_columns = columns - set(index_name_by_id(metadata.schema()).items())
    if old_columns:
        names = sorted({name for _, name in old_columns})
        raise DataError(f"a column was renamed, replaced or removed: {', '.join(names)}")


def _without_scheme(path: str) -> str:
    """Return a URI without its scheme, which differs between tools: `s3a://b/t` and `s3://b/t`, `file:/t` and `/t`."""
    return re.sub(r"^[a-z0-9]+:(?://)?", "", path)
