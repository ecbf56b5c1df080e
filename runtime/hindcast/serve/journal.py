"""`Journal`: stores logged records that are not in a data file yet, so that they survive the process.

On a local file system, `append` passes a record to the kernel before it returns, so a killed process loses nothing;
after `flush` the record also survives a loss of power. Objects of an object store cannot grow: there, records stay in
memory until `flush` writes them as a further object.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable
from typing import Final

from hindcast.serve.records import Record, decode_records, encode_record
from hindcast.storage.failures import storage_errors
from hindcast.storage.location import Location

_NAME_PATTERN: Final = re.compile(r"^(\d{6,})-(\d{6})\.log$")


class Journal:
    """The journal of one range of episodes, which is committed as a whole. Not thread-safe.

    Args:
        folder: the folder of all journals.
        number: number of the range, which its commit has too.
        initial_records: the first records; the journal is created with all of them or not at all.
    """

    def __init__(self, folder: Location, number: int, initial_records: Iterable[Record] = ()) -> None:
        self.number = number
        self._folder = folder
        self._num_files = 0
        self._buffer = bytearray().join(encode_record(record) for record in initial_records)
        self._write_file()
        self._file: int | None = None
        if folder.is_local:
            path = folder.child(_file_name(number, 0))
            with storage_errors("write", path):
                self._file = os.open(path.path, os.O_WRONLY | os.O_APPEND)
            self._num_bytes = os.fstat(self._file).st_size

    def append(self, record: Record) -> None:
        """Add a record.

        Raises:
            StorageError: the record could not be written; the journal is unchanged.
        """
        data = encode_record(record)
        if self._file is None:
            self._buffer += data
            return
        with storage_errors("write", self._folder):
            try:
                num_written = os.write(self._file, data)
                while num_written < len(data):
                    num_written += os.write(self._file, data[num_written:])
            except OSError:
                # Records after an incomplete record could not be read.
                with contextlib.suppress(OSError):
                    os.ftruncate(self._file, self._num_bytes)
                raise
        self._num_bytes += len(data)

    def flush(self) -> None:
        """Make all appended records durable.

        Raises:
            StorageError: the records could not be written.
        """
        if self._file is not None:
            with storage_errors("write", self._folder):
                os.fdatasync(self._file)
        elif self._buffer:
            self._write_file()

    def close(self) -> None:
        """Close the journal's file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def delete(self) -> None:
        """Close the journal and remove its files."""
        self.close()
        delete_journal(self._folder, self.number)

    def _write_file(self) -> None:
        """Write the buffer as the journal's next file, and empty the buffer."""
        self._folder.child(_file_name(self.number, self._num_files)).write_bytes(bytes(self._buffer))
        self._num_files += 1
        self._buffer = bytearray()


def read_journals(folder: Location) -> dict[int, list[Record]]:
    """Read all journals in a folder: number -> records in order.

    Raises:
        DataError: a file is damaged.
    """
    journals: dict[int, list[Record]] = {}
    for entry in folder.files():
        if match := _NAME_PATTERN.match(entry.relative_path):
            records = decode_records(entry.location.read_bytes(), str(entry.location))
            journals.setdefault(int(match[1]), []).extend(records)
    return journals


def delete_journal(folder: Location, number: int) -> None:
    """Remove the files of a journal."""
    # In reverse order: if the deletion is interrupted, the remaining files have no gap.
    for entry in reversed(list(folder.files())):
        match = _NAME_PATTERN.match(entry.relative_path)
        if match and int(match[1]) == number:
            entry.location.delete()


def _file_name(number: int, index: int) -> str:
    """Return the name of a journal's file; on an object store a journal consists of several, numbered by `index`."""
    return f"{number:06d}-{index:06d}.log"
