"""Reading the pickles of arrays without unpickling: a machine that knows what arrays are made of, and nothing else.

RLlib packs observations with pickle. Such a pickle says: take these bytes, that dtype, that shape. This
reader carries out the few instructions that saying so takes, and knows the names of the functions only as words; a
pickle that names any other function is refused before anything happens. Python's own pickle module is not used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from hindcast.formats.columns import pickle_calls as calls
from hindcast.formats.storable import Refused

_MARK: Final = object()


class ArrayPickle:
    """One pickle.

    Args:
        data: its bytes.

    Attributes:
        buffers: (start, stop) in `data` of each piece of raw bytes that was met.
    """

    def __init__(self, data: bytes) -> None:
        self.buffers: list[tuple[int, int]] = []
        self._data = data
        self._at = 0
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def load(self) -> Any:
        """The array, number, or tuples, lists and dicts of such.

        Raises:
            Refused: it holds or calls anything else, or ends too early.
        """
        try:
            while (code := self._byte()) != 0x2E:  # "."
                step = _STEPS.get(code)
                if step is None:
                    raise Refused(f"a pickle with the instruction {code:#04x}, which arrays do not need")
                step(self)
            return calls.finished(self._stack.pop())
        except (
            IndexError,
            KeyError,
            TypeError,
            ValueError,
            AttributeError,
            OverflowError,
            RecursionError,
        ) as error:
            raise Refused(f"a pickle that is not an array ({type(error).__name__}: {error})") from error

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _take(self, count: int) -> bytes:
        start, self._at = self._at, self._at + count
        if count < 0 or self._at > len(self._data):
            raise Refused("a pickle that ends too early")
        return self._data[start : self._at]

    def _integer(self, size: int, signed: bool = False) -> int:
        return int.from_bytes(self._take(size), "little", signed=signed)

    def _line(self) -> str:
        end = self._data.index(b"\n", self._at)
        return self._take(end + 1 - self._at)[:-1].decode()

    def push(self, value: Any) -> None:
        """Put a value on the stack."""
        self._stack.append(value)

    def push_bytes(self, size: int) -> None:
        """Raw bytes, whose length is written in `size` bytes."""
        length = self._integer(size)
        value = self._take(length)
        self.buffers.append((self._at - length, self._at))
        self.push(value)

    def push_text(self, size: int) -> None:
        """Text, likewise."""
        self.push(self._take(self._integer(size)).decode("utf-8"))

    def push_number(self, size: int, signed: bool = False) -> None:
        """An integer of so many bytes."""
        self.push(self._integer(size, signed))

    def push_float(self) -> None:
        """A float, big-endian."""
        self.push(float(np.frombuffer(self._take(8), ">f8")[0]))

    def push_long(self) -> None:
        """An integer of any size."""
        self.push(self._integer(self._integer(1), signed=True))

    def skip(self, size: int) -> None:
        """What only helps to read faster."""
        self._take(size)

    def memoize(self, key: int | None = None) -> None:
        """Remember the top of the stack."""
        place = len(self._memo) if key is None else key
        self._memo[place] = self._stack[-1]
        if isinstance(self._stack[-1], calls.Unbuilt):
            self._stack[-1].keys.append(place)

    def recall(self, key: int) -> None:
        """Put what was remembered on the stack; not what could then contain itself, or grow with each use."""
        value = self._memo[key]
        if isinstance(value, list | dict) or (isinstance(value, tuple) and not calls.is_shape(value)):
            raise Refused("a pickle that holds the same list twice")
        self.push(value)

    def name(self) -> None:
        """A function, by module and name from the stack."""
        name, module = self._stack.pop(), self._stack.pop()
        self.push(calls.callee(module, name))

    def name_in_text(self) -> None:
        """A function, by module and name in two lines."""
        module, name = self._line(), self._line()
        self.push(calls.callee(module, name))

    def since_mark(self) -> list[Any]:
        """Take everything from the stack that was put there after the mark."""
        start = len(self._stack) - 1
        while self._stack[start] is not _MARK:  # IndexError where there is none
            start -= 1
        values = self._stack[start + 1 :]
        del self._stack[start:]
        return values

    def tuple_of(self, count: int | None) -> None:
        """A tuple of the last values, or of those since the mark."""
        if count is None:
            self.push(tuple(self.since_mark()))
            return
        values = tuple(self._stack[len(self._stack) - count :])
        del self._stack[len(self._stack) - count :]
        self.push(values)

    def append(self) -> None:
        """The top of the stack to the list below it."""
        value = self._stack.pop()
        self._list().append(value)

    def appends(self) -> None:
        """Everything since the mark to the list below it."""
        values = self.since_mark()
        self._list().extend(values)

    def set_item(self) -> None:
        """Value and key from the stack into the dict below them."""
        value, key = self._stack.pop(), self._stack.pop()
        self._dict()[key] = value

    def set_items(self) -> None:
        """Keys and values since the mark into the dict below it."""
        values = self.since_mark()
        self._dict().update(zip(values[::2], values[1::2], strict=True))

    def call(self) -> None:
        """Carry out what a named function would do."""
        arguments, function = self._stack.pop(), self._stack.pop()
        self.push(calls.call(function, arguments))

    def build(self) -> None:
        """Give a dtype or an array its state."""
        state, target = self._stack.pop(), self._stack.pop()
        if not isinstance(target, calls.Unbuilt) or not isinstance(state, tuple):
            raise Refused("a pickle that gives something other than an array a state")
        value = calls.array(*state) if target.dtype is None else calls.ordered(target.dtype, state)
        self._memo.update(dict.fromkeys(target.keys, value))
        self.push(value)

    def _list(self) -> list[Any]:
        if not isinstance(self._stack[-1], list):
            raise Refused("a pickle that changes something other than a list")
        return self._stack[-1]

    def _dict(self) -> dict[Any, Any]:
        if not isinstance(self._stack[-1], dict):
            raise Refused("a pickle that changes something other than a dict")
        return self._stack[-1]


_Step = Callable[[ArrayPickle], None]
_STEPS: Final[dict[int, _Step]] = {
    0x80: lambda p: p.skip(1),  # protocol
    0x95: lambda p: p.skip(8),  # frame
    ord("("): lambda p: p.push(_MARK),
    ord("N"): lambda p: p.push(None),
    0x88: lambda p: p.push(True),
    0x89: lambda p: p.push(False),
    ord("J"): lambda p: p.push_number(4, signed=True),
    ord("K"): lambda p: p.push_number(1),
    ord("M"): lambda p: p.push_number(2),
    0x8A: ArrayPickle.push_long,
    ord("G"): ArrayPickle.push_float,
    ord("C"): lambda p: p.push_bytes(1),
    ord("B"): lambda p: p.push_bytes(4),
    0x8E: lambda p: p.push_bytes(8),
    0x96: lambda p: p.push_bytes(8),
    0x8C: lambda p: p.push_text(1),
    ord("X"): lambda p: p.push_text(4),
    0x8D: lambda p: p.push_text(8),
    0x94: lambda p: p.memoize(),
    ord("q"): lambda p: p.memoize(p._integer(1)),
    ord("r"): lambda p: p.memoize(p._integer(4)),
    ord("h"): lambda p: p.recall(p._integer(1)),
    ord("j"): lambda p: p.recall(p._integer(4)),
    ord(")"): lambda p: p.push(()),
    0x85: lambda p: p.tuple_of(1),
    0x86: lambda p: p.tuple_of(2),
    0x87: lambda p: p.tuple_of(3),
    ord("t"): lambda p: p.tuple_of(None),
    ord("]"): lambda p: p.push([]),
    ord("a"): ArrayPickle.append,
    ord("e"): ArrayPickle.appends,
    ord("}"): lambda p: p.push({}),
    ord("s"): ArrayPickle.set_item,
    ord("u"): ArrayPickle.set_items,
    0x93: ArrayPickle.name,
    ord("c"): ArrayPickle.name_in_text,
    ord("R"): ArrayPickle.call,
    ord("b"): ArrayPickle.build,
}
