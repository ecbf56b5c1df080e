"""What to say of a file that no format recognises."""

from __future__ import annotations

from typing import Final

from hindcast.errors import DataError
from hindcast.storage.location import Location

_HEAD: Final = 4096
_SHOWN: Final = 40
_READ: Final = (
    "what is read is Parquet, JSON and CSV (plain or gzip), RLlib's SampleBatch, Minari, D4RL and TFRecord"
)
_KNOWN: Final[tuple[tuple[bytes, str], ...]] = (
    (b"\x28\xb5\x2f\xfd", "compressed with zstd: decompress it, or use gzip"),
    (b"BZh", "compressed with bzip2: decompress it, or use gzip"),
    (b"\xfd7zXZ", "compressed with xz: decompress it, or use gzip"),
    (b"ARROW1", "an Arrow file (Feather): write it as Parquet"),
    (b"FEA1", "an Arrow file (Feather): write it as Parquet"),
    (b"PK\x03\x04", "a ZIP archive or NumPy's .npz: unpack it, or write its arrays as columns of Parquet"),
    (b"\x93NUMPY", "a NumPy array: write it as a column of Parquet"),
    (b"\x80", "a pickle, which may run code and is not opened: write it as Parquet"),
    (b"Obj\x01", "an Avro file: write it as Parquet"),
    (b"ORC", "an ORC file: write it as Parquet"),
    (b"SQLite format 3", "an SQLite database: write its table as Parquet"),
)
_JSON: Final = (".json", ".jsonl", ".ndjson")


def unknown(location: Location) -> DataError:
    """The sentence for a file that was named and is of no known format.

    Raises:
        StorageError: it cannot be read.
    """
    with location.reading() as stream:
        head = bytes(stream.read(_HEAD))
    return DataError(f"{location} {_kind(location, head)}; {_READ}")


def _kind(location: Location, head: bytes) -> str:
    if not head:
        return "is empty (0 bytes)"
    named = next((kind for magic, kind in _KNOWN if head.startswith(magic)), None)
    if named is not None:
        return f"is {named}"
    line = _first_line(head)
    if line is None:
        return f"begins with {head[:4]!r}, which no known format does"
    if location.name.endswith(_JSON):
        return f"is text that begins with {line!r}: JSON begins with an object or a list; delete what is before it"
    return "is text whose name does not say of which kind: name it by `format` (--format CSV)"


def _first_line(head: bytes) -> str | None:
    """The first line of text; None of anything else. A character may be cut at the end of the head."""
    text = head.decode(errors="ignore")
    is_text = len(head) - len(text.encode()) < 4 and all(
        char.isprintable() or char.isspace() for char in text
    )
    return (text.lstrip().splitlines() or [""])[0][:_SHOWN] if is_text else None
