"""`Journal`: what was logged and is in no data file yet, in a form that outlives the process.

On this machine a record is with the kernel before `append` returns: a kill of the process loses nothing, and `flush`
keeps it through a loss of power. An object store has no files that grow: there records wait in memory until `flush`
puts them as an object of their own.
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

_NAME: Final = re.compile(r"^(\d{6,})-(\d{6})\.log$")


class Journal:
    """The journal of one range of episodes; not for several threads at once.

    Args:
        folder: of all journals.
        number: of the range.
        head: records that it begins with; it appears with all of them, or not at all.
    """

    def __init__(self, folder: Location, number: int, head: Iterable[Record] = ()) -> None:
        self.number = number
        self._folder = folder
        self._parts = 0
        self._waiting = bytearray().join(encode_record(record) for record in head)
        self._put()
        self._file: int | None = None
        if folder.is_local:
            path = folder.child(_name(number, 0))
            with storage_errors("write", path):
                self._file = os.open(path.path, os.O_WRONLY | os.O_APPEND)
            self._end = os.fstat(self._file).st_size

    def append(self, record: Record) -> None:
        """Add a record.

        Raises:
            StorageError: it could not be written; the journal is as it was.
        """
        data = encode_record(record)
        if self._file is None:
            self._waiting += data
            return
        with storage_errors("write", self._folder):
            try:
                written = os.write(self._file, data)
                while written < len(data):
                    written += os.write(self._file, data[written:])
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._file, self._end)
                raise
        self._end += len(data)

    def flush(self) -> None:
        """Make durable what was appended.

        Raises:
            StorageError: it could not be written.
        """
        if self._file is not None:
            with storage_errors("write", self._folder):
                os.fdatasync(self._file)
        elif self._waiting:
            self._put()

    def close(self) -> None:
        """Append nothing more."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def delete(self) -> None:
        """Close it and remove its files."""
        self.close()
        delete_journal(self._folder, self.number)

    def _put(self) -> None:
        self._folder.child(_name(self.number, self._parts)).write_bytes(bytes(self._waiting))
        self._parts += 1
        self._waiting = bytearray()


def read_journals(folder: Location) -> dict[int, list[Record]]:
    """The records of each journal that is left, by number, in order.

    Raises:
        DataError: a file is damaged.
    """
    found: dict[int, list[Record]] = {}
    for entry in folder.files():
        if match := _NAME.match(entry.relative_path):
            records = decode_records(entry.location.read_bytes(), str(entry.location))
            found.setdefault(int(match[1]), []).extend(records)
    return found


def delete_journal(folder: Location, number: int) -> None:
    """Remove the files of a journal, the last one first: what is left has no gap."""
    for entry in reversed(list(folder.files())):
        match = _NAME.match(entry.relative_path)
        if match and int(match[1]) == number:
            entry.location.delete()


def _name(number: int, part: int) -> str:
    return f"{number:06d}-{part:06d}.log"
