"""Opening Parquet files, and the errors for damaged ones."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import pyarrow as pa
import pyarrow.parquet as pq

from hindcast.errors import DataError
from hindcast.storage.disk_cache import read_through
from hindcast.storage.failures import reason_of
from hindcast.storage.location import Location

PARQUET_SUFFIXES = (".parquet", ".pq")
_MAGIC = b"PAR1"
_SAMPLE_BYTES = 64 << 10  # hashed at the beginning and at the end of a file
_MAX_REASON_CHARACTERS = 400
_TABLE_BYTES = 8 << 20  # approximate size of a table of `iter_tables`
_MAX_TABLE_ROWS = 8192
_MAX_FOOTER_BYTES = 32 << 20
_REMEDY = "copy it again from its source, or delete it and record its episodes again"


class FooterCache:
    """Footers of recently read files, for any number of threads; unpickling one returns the cache of that process."""

    def __init__(self) -> None:
        self._footers: dict[tuple[str, int], pq.FileMetaData] = {}
        self._num_bytes = 0
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Callable[[], FooterCache], tuple[()]]:
        return _get_process_cache, ()

    def get(self, path: str, size: int) -> pq.FileMetaData | None:
        """Return the footer of a file with a path and a size, or None if it is not in the cache."""
        return self._footers.get((path, size))

    def put(self, path: str, size: int, footer: pq.FileMetaData) -> None:
        """Add a footer; if all footers become too large, remove those that were added first."""
        with self._lock:
            if (path, size) in self._footers:
                return
            self._footers[path, size] = footer
            self._num_bytes += footer.serialized_size
            while self._num_bytes > _MAX_FOOTER_BYTES and len(self._footers) > 1:
                self._num_bytes -= self._footers.pop(next(iter(self._footers))).serialized_size


@cache
def _get_process_cache() -> FooterCache:
    """Return this process's cache, for datasets that were received from another process."""
    return FooterCache()


@contextmanager
def open_parquet(
    location: Location,
    footers: FooterCache | None = None,
    size: int | None = None,
    checksum: str | None = None,
) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file for a `with` block, in which errors of Arrow and the operating system become `DataError`.

    Args:
        location: the file.
        footers: footers that need not be read again; the file's footer is added.
        size: see `Location.open`.
        checksum: identifies the file's content in this process's disk cache; None bypasses the cache.
    """
    footers = FooterCache() if footers is None else footers
    stream = location.open(size)
    if checksum is not None and not location.is_local:
        stream = read_through(stream, checksum)
    with stream:
        try:
            # The path does not name the bucket, and data workers have one cache for all datasets.
            key = f"{location.uri} {location.path}", stream.size()
            file = pq.ParquetFile(
                stream,
                metadata=footers.get(*key),
                pre_buffer=not location.is_local,  # from a store, few large requests are faster than many small ones
                page_checksum_verification=True,
            )
            footers.put(*key, file.metadata)
            yield file
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise DataError(describe_damage(reason_of(error)), path=str(location)) from error
        except ValueError as error:
            if "Unable to deserialize" not in str(error):
                raise
            raise DataError(
                "holds tensors with shapes that Ray 2.49 to 2.54 pickled; only Ray Data can read them: "
                "write the dataset again with a later Ray",
                path=str(location),
            ) from error


def iter_tables(file: pq.ParquetFile, row_group: int, columns: list[str] | None = None) -> Iterator[pa.Table]:
    """Read a row group in tables of at most about 8 MiB; empty tables are left out."""
    group_metadata = file.metadata.row_group(row_group)
    num_rows = max(1, group_metadata.num_rows * _TABLE_BYTES // max(1, group_metadata.total_byte_size))
    batches = file.iter_batches(
        min(num_rows, _MAX_TABLE_ROWS), row_groups=[row_group], columns=columns, use_threads=False
    )
    return (pa.Table.from_batches([batch]) for batch in batches if len(batch))


def describe_damage(reason: str) -> str:
    """Return the sentence for a file that cannot be decoded, without its path."""
    if len(reason) > _MAX_REASON_CHARACTERS:
        reason = f"{reason[:_MAX_REASON_CHARACTERS]}…"
    return f"is damaged ({reason}): {_REMEDY}"


def compute_fingerprint(location: Location) -> tuple[hashlib._Hash, int]:
    """Return a sha256 hash object of a Parquet file's size, beginning and end; and the size in bytes.

    Raises:
        DataError: the file is empty, truncated, or not Parquet.
    """
    with location.open_stream() as stream:
        size = stream.size()
        head = stream.read(min(size, _SAMPLE_BYTES))
        stream.seek(max(0, size - _SAMPLE_BYTES))
        tail = stream.read()
    if size == 0:
        raise DataError("is empty (0 bytes): delete it and record its episodes again", path=str(location))
    if not head.startswith(_MAGIC):
        raise UnknownLayoutError(
            f"is not a Parquet file: it begins with {head[:4]!r} instead of {_MAGIC!r}", path=str(location)
        )
    if not tail.endswith(_MAGIC):
        raise DataError(
            f"is truncated (its {size} bytes do not end with {_MAGIC!r}): {_REMEDY}", path=str(location)
        )
    fingerprint = hashlib.sha256(str(size).encode())
    fingerprint.update(head)
    fingerprint.update(tail)
    return fingerprint, size


class UnknownLayoutError(DataError):
    """The file has none of the layouts that are opened directly.

    Attributes:
        has_rows: False for a Parquet file without rows.
    """

    has_rows: bool = True
