"""Items of one column that differ in nothing but their numbers: read and written a column at a time.

Most items of a column have the same bytes except for a few spans, the payloads: the four floats in
`{nd: true, type: "<f4", kind: "", shape: [4], data: <16 bytes>}`. A `Template` is such an item. T items that follow it
are a `[T, stride]` matrix whose other bytes are all equal, which is checked, and whose payloads are the column.

Spans: an item that begins with the template's bytes has the template's length, because every length in MessagePack
comes before what it measures. So a strip whose items all equal the template outside the payloads is nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hindcast.formats.messagepack.scan import NotFixed, Payload, scan

Path = tuple[str, ...]


class _Word(NamedTuple):
    """Some of the bytes that all items share."""

    name: str
    expected: np.generic


class Template:
    """One item of a column, and where its numbers are.

    Attributes:
        item: its bytes.
        stride: how many.
        payloads: the numbers, in order.
    """

    def __init__(self, item: bytes, payloads: Iterable[Payload]) -> None:
        self.item = item
        self.stride = len(item)
        self.payloads = tuple(payloads)
        self._record, self._words = _record(item, self.payloads)

    @classmethod
    def of(cls, item: bytes) -> Template | None:
        """The template of an item; None if items like it may differ in length (text) or are unclear (lists).

        Raises:
            Refused: an object array, an extension type.
        """
        try:
            return cls(item, scan(item))
        except NotFixed:
            return None

    def read(self, strip: bytes) -> dict[Path, NDArray[Any]] | None:
        """The numbers of items end to end, `[T, *shape]` by their place in the item; None if one differs."""
        if len(strip) % self.stride:
            return None
        items = np.frombuffer(strip, self._record)
        if not all(bool((items[word.name] == word.expected).all()) for word in self._words):
            return None
        columns: dict[Path, NDArray[Any]] = {}
        for i, payload in enumerate(self.payloads):
            column = items[f"p{i}"]
            if payload.is_small_int and (column < _LEAST_SMALL_INT).any():
                return None
            columns[payload.path] = column.astype(payload.result)
        return columns

    def fill(self, columns: Mapping[Path, NDArray[Any]], count: int) -> NDArray[np.uint8]:
        """`[count, stride]`: the inverse of `read`."""
        matrix = np.empty((count, self.stride), dtype=np.uint8)
        matrix[:] = np.frombuffer(self.item, np.uint8)
        items = matrix.reshape(-1).view(self._record)
        for i, payload in enumerate(self.payloads):
            items[f"p{i}"] = columns[payload.path]
        return matrix


_LEAST_SMALL_INT = -32


def _record(item: bytes, payloads: tuple[Payload, ...]) -> tuple[np.dtype, list[_Word]]:
    """A structured dtype of an item: its payloads, and all else in words of 8 bytes (fewer where less is left)."""
    names, formats, offsets = [], [], []
    for i, payload in enumerate(payloads):
        names.append(f"p{i}")
        formats.append((payload.dtype, payload.shape))
        offsets.append(payload.start)
    words = list(_words(len(item), payloads))
    for start, size in words:
        names.append(f"w{start}")
        formats.append((np.dtype(f"<u{size}"), ()))
        offsets.append(start)
    record = np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": len(item)})
    first = np.frombuffer(item, record)[0]
    return record, [_Word(f"w{start}", first[f"w{start}"]) for start, _ in words]


def _words(size: int, payloads: tuple[Payload, ...]) -> Iterable[tuple[int, int]]:
    """(start, bytes) of the pieces outside the payloads."""
    at = 0
    for start, stop in [*((payload.start, payload.stop) for payload in payloads), (size, size)]:
        while at < start:
            length = next(length for length in (8, 4, 2, 1) if length <= start - at)
            yield at, length
            at += length
        at = stop
