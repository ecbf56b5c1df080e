"""TFRecord files: records with a length before them, each of the two with a checksum. Shape suffix: R = records.

Read here rather than by the package `tfrecord` (1.14.6), which opens local paths only, verifies no checksum,
and parses record by record through protobuf at a quarter of the speed.
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
_FIELDS: Final = np.dtype([("length", "<i8"), ("checksum", "<u4")])  # of a header
_CHUNK: Final = 8 << 20
_POLYNOMIAL: Final = 0x82F63B78  # CRC-32C, reversed
_MASK: Final = 0xA282EAD8

U8 = NDArray[np.uint8]
U32 = NDArray[np.uint32]


def read_lengths(location: Location) -> I64:
    """`[R]` bytes of each record; only the headers are read, and checked.

    Raises:
        DataError: it ends within a record, or a header is damaged.
        StorageError: it cannot be read.
    """
    size = location.info().size or 0
    headers: list[bytes] = []
    with location.open_stream() as stream, io.BufferedReader(stream, _CHUNK) as file:
        at = 0
        while at < size:
            file.seek(at)
            header = file.read(HEADER)
            headers.append(header)
            at += HEADER + int.from_bytes(header[:8], "little") + FOOTER
            if len(header) < HEADER or at > size:
                break
    data = b"".join(header.ljust(HEADER, b"\0") for header in headers)
    fields = np.frombuffer(data, _FIELDS)
    starts = np.arange(len(fields)) * HEADER
    sums = masked_crc(np.frombuffer(data, np.uint8), starts, np.full(len(fields), 8))
    if (wrong := first_true(sums != fields["checksum"])) is not None:
        raise DataError(
            f"{location} is damaged, truncated, compressed or not a TFRecord file: the header of record {wrong} "
            "does not fit its checksum"
        )
    if at != size:
        raise DataError(f"{location} ends within record {len(headers) - 1}: copy it again")
    return fields["length"].astype(np.int64)


def read_records(location: Location, start: int, lengths: I64, first: int) -> tuple[U8, I64]:
    """Adjacent records.

    Args:
        start: byte at which the first one's header begins.
        lengths: `[R]` bytes of each.
        first: its number in the file.

    Returns:
        The bytes from `start` on, and `[R]` where each record begins in them.

    Raises:
        DataError: one that does not fit its checksum.
    """
    nbytes = int((lengths + HEADER + FOOTER).sum())
    with location.open_stream() as file:
        file.seek(start)
        data = np.frombuffer(file.read(nbytes), np.uint8)
    if len(data) != nbytes:
        raise DataError(f"{location} became shorter while it was read: copy it again")
    starts = np.cumsum(lengths + HEADER + FOOTER) - lengths - FOOTER
    stored = data[(starts + lengths)[:, None] + np.arange(FOOTER)].copy().view("<u4").ravel()
    if (wrong := first_true(masked_crc(data, starts, lengths) != stored)) is not None:
        raise DataError(f"{location}, record {first + wrong}: it does not fit its checksum; copy it again")
    return data, starts


def masked_crc(data: U8, starts: I64, lengths: I64) -> U32:
    """`[R]` checksums of parts of `data`, as TFRecord stores them: all parts at once, byte after byte."""
    order = np.argsort(-lengths, kind="stable")
    begins = starts[order]
    active = np.searchsorted(-lengths[order], -np.arange(lengths.max(initial=0)), side="left")
    crc = np.full(len(lengths), 0xFFFFFFFF, dtype=np.uint32)
    for i, count in enumerate(active):
        now = crc[:count]
        crc[:count] = _TABLE[(now ^ data[begins[:count] + i]) & 0xFF] ^ (now >> np.uint32(8))
    crc = ~crc
    out = np.empty_like(crc)
    out[order] = ((crc >> np.uint32(15)) | (crc << np.uint32(17))) + np.uint32(_MASK)
    return out


def _table() -> U32:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> np.uint32(1)) ^ np.uint32(_POLYNOMIAL), table >> np.uint32(1))
    return table.astype(np.uint32)


_TABLE: Final = _table()
