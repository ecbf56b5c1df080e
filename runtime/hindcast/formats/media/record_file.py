"""Reading TFRecord files, which store the length of each record and the record, both with a checksum.

Shape suffix: R = records. The package `tfrecord` (1.14.6) is not used: it opens local paths only, verifies no checksum,
and parses each record separately through protobuf, at a quarter of the speed.
"""

from __future__ import annotations

import io
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hindcast.episodes.block import I64
from hindcast.errors import DataError
from hindcast.formats.layout import first_true
from hindcast.storage.location import Location

HEADER_BYTES: Final = 12
FOOTER_BYTES: Final = 4
_HEADER_DTYPE: Final = np.dtype([("length", "<i8"), ("checksum", "<u4")])
_BUFFER_BYTES: Final = 8 << 20
_POLYNOMIAL: Final = 0x82F63B78  # CRC-32C, reversed
_CRC_MASK: Final = 0xA282EAD8  # TFRecord stores the CRC rotated by 15 bits, plus this constant

U8 = NDArray[np.uint8]
U32 = NDArray[np.uint32]


def read_lengths(location: Location) -> I64:
    """Return the size of each record in bytes, `[R]`; reads and checks only the headers.

    Raises:
        DataError: the file ends within a record, or a header is damaged.
        StorageError: the file cannot be read.
    """
    size = location.info().size or 0
    headers: list[bytes] = []
    with location.open_stream() as stream, io.BufferedReader(stream, _BUFFER_BYTES) as file:
        position = 0
        while position < size:
            file.seek(position)
            header = file.read(HEADER_BYTES)
            headers.append(header)
            position += HEADER_BYTES + int.from_bytes(header[:8], "little") + FOOTER_BYTES
            if len(header) < HEADER_BYTES or position > size:
                break
    # a truncated header is padded, so that its checksum does not match
    data = b"".join(header.ljust(HEADER_BYTES, b"\0") for header in headers)
    header_fields = np.frombuffer(data, _HEADER_DTYPE)
    starts = np.arange(len(header_fields)) * HEADER_BYTES
    checksums = compute_masked_crcs(np.frombuffer(data, np.uint8), starts, np.full(len(header_fields), 8))
    if (mismatch := first_true(checksums != header_fields["checksum"])) is not None:
        raise DataError(
            f"is damaged, truncated, compressed or not a TFRecord file: the header of record {mismatch} "
            "does not match its checksum",
            path=str(location),
        )
    if position != size:
        raise DataError(f"{location} ends within record {len(headers) - 1}: copy it again")
    return header_fields["length"].astype(np.int64)


def read_records(location: Location, start: int, lengths: I64, first_record: int) -> tuple[U8, I64]:
    """Read adjacent records.

    Args:
        location: the file.
        start: position of the first record's header in the file.
        lengths: `[R]` size of each record in bytes.
        first_record: index of the first record in the file, for the error.

    Returns:
        The bytes from `start` on, and the position of each record in them, `[R]`.

    Raises:
        DataError: a record does not match its checksum.
    """
    nbytes = int((lengths + HEADER_BYTES + FOOTER_BYTES).sum())
    with location.open_stream() as file:
        file.seek(start)
        data = np.frombuffer(file.read(nbytes), np.uint8)
    if len(data) != nbytes:
        raise DataError(f"{location} became shorter while it was read: copy it again")
    starts = np.cumsum(lengths + HEADER_BYTES + FOOTER_BYTES) - lengths - FOOTER_BYTES
    checksums = data[(starts + lengths)[:, None] + np.arange(FOOTER_BYTES)].copy().view("<u4").ravel()
    if (mismatch := first_true(compute_masked_crcs(data, starts, lengths) != checksums)) is not None:
        raise DataError(
            f"{location}, record {first_record + mismatch}: it does not match its checksum; copy the file again"
        )
    return data, starts


def compute_masked_crcs(data: U8, starts: I64, lengths: I64) -> U32:
    """Return the checksums of parts of `data` in the form that TFRecord stores, `[R]`.

    Part i has `lengths[i]` bytes and begins at `starts[i]`. The loop runs over byte positions; each pass updates the
    checksums of all parts that are long enough.
    """
    # longest first, so that the parts with a byte at position i are the first ones
    longest_first = np.argsort(-lengths, kind="stable")
    sorted_starts = starts[longest_first]
    active_counts = np.searchsorted(-lengths[longest_first], -np.arange(lengths.max(initial=0)), side="left")
    crc = np.full(len(lengths), 0xFFFFFFFF, dtype=np.uint32)
    for i, count in enumerate(active_counts):
        active_crc = crc[:count]
        crc[:count] = _CRC_TABLE[(active_crc ^ data[sorted_starts[:count] + i]) & 0xFF] ^ (
            active_crc >> np.uint32(8)
        )
    crc = ~crc
    checksums = np.empty_like(crc)
    checksums[longest_first] = ((crc >> np.uint32(15)) | (crc << np.uint32(17))) + np.uint32(_CRC_MASK)
    return checksums


def _make_crc_table() -> U32:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> np.uint32(1)) ^ np.uint32(_POLYNOMIAL), table >> np.uint32(1))
    return table.astype(np.uint32)


_CRC_TABLE: Final = _make_crc_table()
