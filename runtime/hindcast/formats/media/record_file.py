"""Reading TFRecord files: each record follows its length, both with a checksum. Shape suffix: R = records.

The package `tfrecord` (1.14.6) is not used: it opens local paths only, verifies no checksum, and parses record by
record through protobuf at a quarter of the speed.
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

HEADER: Final = 12
FOOTER: Final = 4
_HEADER_DTYPE: Final = np.dtype([("length", "<i8"), ("checksum", "<u4")])
_CHUNK: Final = 8 << 20
_POLYNOMIAL: Final = 0x82F63B78  # CRC-32C, reversed
_MASK: Final = 0xA282EAD8  # TFRecord rotates the CRC and adds this

U8 = NDArray[np.uint8]
U32 = NDArray[np.uint32]


def read_lengths(location: Location) -> I64:
    """Return `[R]` the bytes of each record; reads and checks the headers only.

    Raises:
        DataError: the file ends within a record, or a header is damaged.
        StorageError: the file cannot be read.
    """
    size = location.info().size or 0
    headers: list[bytes] = []
    with location.open_stream() as stream, io.BufferedReader(stream, _CHUNK) as file:
        position = 0
        while position < size:
            file.seek(position)
            header = file.read(HEADER)
            headers.append(header)
            position += HEADER + int.from_bytes(header[:8], "little") + FOOTER
            if len(header) < HEADER or position > size:
                break
    # a truncated header is padded: it then fails its checksum
    data = b"".join(header.ljust(HEADER, b"\0") for header in headers)
    fields = np.frombuffer(data, _HEADER_DTYPE)
    starts = np.arange(len(fields)) * HEADER
    checksums = masked_crc(np.frombuffer(data, np.uint8), starts, np.full(len(fields), 8))
    if (mismatch := first_true(checksums != fields["checksum"])) is not None:
        raise DataError(
            f"{location} is damaged, truncated, compressed or not a TFRecord file: the header of record {mismatch} "
            "does not match its checksum"
        )
    if position != size:
        raise DataError(f"{location} ends within record {len(headers) - 1}: copy it again")
    return fields["length"].astype(np.int64)


def read_records(location: Location, start: int, lengths: I64, first: int) -> tuple[U8, I64]:
    """Read adjacent records.

    Args:
        start: byte at which the first one's header begins.
        lengths: `[R]` bytes of each.
        first: number of the first record in the file.

    Returns:
        The bytes from `start` on, and `[R]` the start of each record in them.

    Raises:
        DataError: a record does not match its checksum.
    """
    nbytes = int((lengths + HEADER + FOOTER).sum())
    with location.open_stream() as file:
        file.seek(start)
        data = np.frombuffer(file.read(nbytes), np.uint8)
    if len(data) != nbytes:
        raise DataError(f"{location} became shorter while it was read: copy it again")
    starts = np.cumsum(lengths + HEADER + FOOTER) - lengths - FOOTER
    checksums = data[(starts + lengths)[:, None] + np.arange(FOOTER)].copy().view("<u4").ravel()
    if (mismatch := first_true(masked_crc(data, starts, lengths) != checksums)) is not None:
        raise DataError(
            f"{location}, record {first + mismatch}: it does not match its checksum; copy the file again"
        )
    return data, starts


def masked_crc(data: U8, starts: I64, lengths: I64) -> U32:
    """Return `[R]` the checksums of parts of `data`, as TFRecord stores them.

    Computes all parts together, byte by byte.
    """
    # longest first: the records that have a byte i are then the first ones
    order = np.argsort(-lengths, kind="stable")
    sorted_starts = starts[order]
    active_counts = np.searchsorted(-lengths[order], -np.arange(lengths.max(initial=0)), side="left")
    crc = np.full(len(lengths), 0xFFFFFFFF, dtype=np.uint32)
    for i, count in enumerate(active_counts):
        active_crc = crc[:count]
        crc[:count] = _CRC_TABLE[(active_crc ^ data[sorted_starts[:count] + i]) & 0xFF] ^ (
            active_crc >> np.uint32(8)
        )
    crc = ~crc
    out = np.empty_like(crc)
    out[order] = ((crc >> np.uint32(15)) | (crc << np.uint32(17))) + np.uint32(_MASK)
    return out


def _make_crc_table() -> U32:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> np.uint32(1)) ^ np.uint32(_POLYNOMIAL), table >> np.uint32(1))
    return table.astype(np.uint32)


_CRC_TABLE: Final = _make_crc_table()
