"""A column of one episode, as stored in the episode's cell."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgpack

from hindcast.formats.messagepack.values import refuse_ext, restore
from hindcast.formats.storable import Refused


class Buffer(NamedTuple):
    """A column of an episode; one of `strip`, `items` and `batch` holds it.

    Attributes:
        size: items, the lookback included.
        lookback: how many of them, at the front, are not part of the episode.
        strip: the items' bytes end to end, where all seem to have one length.
        items: a list of items.
        batch: arrays with a leading time dimension, in dicts and lists where the space is composite.
    """

    size: int
    lookback: int
    strip: memoryview | None = None
    items: list[Any] | None = None
    batch: Any = None

    @property
    def stride(self) -> int:
        """Bytes of an item of the strip."""
        return len(self.strip or b"") // self.size

    @property
    def own(self) -> memoryview:
        """The strip without the lookback."""
        assert self.strip is not None
        return self.strip[self.lookback * self.stride :]

    def own_items(self) -> list[Any]:
        """The items without the lookback, one by one."""
        if self.items is None:
            assert self.strip is not None
            return unpack_items(self.strip, self.size)[self.lookback :]
        return self.items[self.lookback :]


def unpack_items(strip: memoryview, count: int) -> list[Any]:
    """The items in a strip, one by one.

    Raises:
        Refused: there are not `count` of them.
    """
    unpacker = msgpack.Unpacker(
        object_hook=restore, ext_hook=refuse_ext, strict_map_key=False, max_buffer_size=len(strip)
    )
    unpacker.feed(strip)
    items = list(unpacker)
    if len(items) != count or unpacker.tell() != len(strip):
        raise Refused(f"{len(items)} items where {count} were announced")
    return items
