"""Reading and writing pickles of arrays without the pickle module, and without calling functions that a pickle names.

RLlib packs observations with pickle. Such a pickle contains the bytes, the dtype and the shape of an array. The reader
supports only the few instructions that such pickles require. For each function that they call, the reader has its own
counterpart; a pickle that names any other function is refused. Only the tokenizer of `pickletools` is used.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from hindcast.formats.dtypes import RefusedValueError, parse_dtype

_LEAF_TYPES: Final = (np.ndarray, np.generic, str, bytes, bool, int, float)
_MALFORMED_ERRORS: Final = (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)
_HEADERS: Final = {"SHORT_BINBYTES": 2, "BINBYTES": 5, "BINBYTES8": 9, "BYTEARRAY8": 9}
"""Instruction with raw bytes -> its size before these bytes."""
_MARK: Final = object()

_PROTOCOL: Final = b"\x80\x04"  # readable since Python 3.4
# The writer uses few instructions. `}` pushes an empty dict, and `u` fills it with the items after the mark `(`; `t`
# makes a tuple of such items. `J`, `K`, `B`, `\x8e` and `X` push integers, bytes and text. `c` pushes a function, `R`
# calls it, and `b` sets the result's state. `.` ends the pickle.
# numpy.core.multiarray._reconstruct(numpy.ndarray, (0,), b"b"): names that NumPy 1 and 2 know
_ARRAY: Final = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85C\x01b\x87R"
_DTYPE: Final = b"cnumpy\ndtype\n"
_DTYPE_STATE_END: Final = b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"


class ArrayPickle:
    """A pickle of arrays.

    Args:
        data: bytes of the pickle.

    Attributes:
        buffers: positions (start, stop) in `data` of the raw bytes that `load` has found, in order.
    """

    def __init__(self, data: bytes) -> None:
        self.buffers: list[tuple[int, int]] = []
        self._data = data
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def load(self) -> Any:
        """Load an array, a number, text, or tuples, lists and dicts of these. Call it once.

        Raises:
            RefusedValueError: the pickle holds or calls anything else, or ends too early.
        """
        try:
            for instruction, argument, position in pickletools.genops(self._data):
                name = instruction.name
                if name not in _HANDLERS:
                    raise RefusedValueError(f"a pickle with the instruction {name}, which arrays do not need")
                if isinstance(argument, bytes | bytearray) and position is not None:
                    start = position + _HEADERS[name]
                    self.buffers.append((start, start + len(argument)))
                _HANDLERS[name](self, argument)
            return _finish(self._stack.pop())
        except _MALFORMED_ERRORS as error:
            raise RefusedValueError(
                f"a pickle that is not an array ({type(error).__name__}: {error})"
            ) from error

    def push(self, value: Any) -> None:
        """Put a value on the stack."""
        self._stack.append(value)

    def push_text(self, text: str) -> None:
        """Put text on the stack.

        Raises:
            UnicodeEncodeError: the text is not valid UTF-8.
        """
        text.encode()  # the tokenizer lets surrogates pass, which encode() refuses
        self.push(text)

    def pop(self, count: int) -> list[Any]:
        """Pop the last `count` values from the stack; return them in the order of pushing."""
        return [self._stack.pop() for _ in range(count)][::-1]

    def pop_to_mark(self) -> list[Any]:
        """Pop the mark and all values that were pushed after it; return the values in the order of pushing."""
        values = []
        while (value := self._stack.pop()) is not _MARK:  # raises IndexError without a mark
            values.append(value)
        return values[::-1]

    def memoize(self, key: int | None) -> None:
        """Remember the top of the stack under a key; by default the next free number."""
        self._memo[len(self._memo) if key is None else key] = self._stack[-1]

    def recall(self, key: int) -> None:
        """Put a remembered value on the stack.

        Raises:
            RefusedValueError: the value is a container; only tuples of integers, which may be shapes, are allowed.
        """
        value = self._memo[key]
        is_shape = isinstance(value, tuple) and all(isinstance(part, int) for part in value)
        if isinstance(value, list | dict | tuple) and not is_shape:
            # a container could contain itself, or grow exponentially with each use
            raise RefusedValueError("a pickle that holds the same list twice")
        self.push(value)

    def extend(self, values: list[Any]) -> None:
        """Add values to the list on top of the stack."""
        if not isinstance(self._stack[-1], list):
            raise RefusedValueError("a pickle that changes something other than a list")
        self._stack[-1].extend(values)

    def set_items(self, values: list[Any]) -> None:
        """Add keys and values, in turn, to the dict on top of the stack."""
        if not isinstance(self._stack[-1], dict):
            raise RefusedValueError("a pickle that changes something other than a dict")
        self._stack[-1].update(zip(values[::2], values[1::2], strict=True))

    def push_function(self, module: str, name: str) -> None:
        """Put the counterpart of the named function on the stack."""
        function = _FUNCTIONS.get((module, name))
        if function is None:
            raise RefusedValueError(
                f"a pickle that calls {f'{module}.{name}'[:80]}: Hindcast never runs code in data"
            )
        self.push(function)

    def call(self, function: Any, arguments: Any) -> None:
        """Call the counterpart of a function and put the result on the stack."""
        if not callable(function):
            _refuse_call()
        self.push(function(*arguments))

    def build(self, target: Any, state: Any) -> None:
        """Set the state of a dtype or an array, and put it back on the stack."""
        if not isinstance(target, _Buildable) or not isinstance(state, tuple):
            raise RefusedValueError("a pickle that sets the state of something other than an array")
        target.build(state)
        self.push(target)


_Handler = Callable[[ArrayPickle, Any], None]
_HANDLERS: Final[dict[str, _Handler]] = {
    **dict.fromkeys(("PROTO", "FRAME", "STOP"), lambda *_: None),
    **dict.fromkeys(("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"), ArrayPickle.push),
    **dict.fromkeys(("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"), ArrayPickle.push_text),
    **dict.fromkeys(_HEADERS, lambda p, data: p.push(bytes(data))),
    **dict.fromkeys(("MEMOIZE", "BINPUT", "LONG_BINPUT"), ArrayPickle.memoize),
    **dict.fromkeys(("BINGET", "LONG_BINGET"), ArrayPickle.recall),
    "MARK": lambda p, _: p.push(_MARK),
    "NONE": lambda p, _: p.push(None),
    "NEWTRUE": lambda p, _: p.push(True),
    "NEWFALSE": lambda p, _: p.push(False),
    "EMPTY_TUPLE": lambda p, _: p.push(()),
    "TUPLE1": lambda p, _: p.push(tuple(p.pop(1))),
    "TUPLE2": lambda p, _: p.push(tuple(p.pop(2))),
    "TUPLE3": lambda p, _: p.push(tuple(p.pop(3))),
    "TUPLE": lambda p, _: p.push(tuple(p.pop_to_mark())),
    "EMPTY_LIST": lambda p, _: p.push([]),
    "APPEND": lambda p, _: p.extend(p.pop(1)),
    "APPENDS": lambda p, _: p.extend(p.pop_to_mark()),
    "EMPTY_DICT": lambda p, _: p.push({}),
    "SETITEM": lambda p, _: p.set_items(p.pop(2)),
    "SETITEMS": lambda p, _: p.set_items(p.pop_to_mark()),
    "STACK_GLOBAL": lambda p, _: p.push_function(*p.pop(2)),
    "GLOBAL": lambda p, names: p.push_function(*names.split(" ", 1)),
    "REDUCE": lambda p, _: p.call(*p.pop(2)),
    "BUILD": lambda p, _: p.build(*p.pop(2)),
}


class _Buildable:
    """A value that the instruction BUILD completes: a dtype, or an array.

    Attributes:
        dtype: the dtype; None for an array.
        array: the array, once `build` has set its content; None before, and for a dtype.
    """

    def __init__(self, dtype: np.dtype | None = None) -> None:
        self.dtype = dtype
        self.array: NDArray[Any] | None = None

    def build(self, state: tuple[Any, ...]) -> None:
        """Set the byte order of a dtype, or the content of an array."""
        if self.dtype is None:
            _, shape, dtype, is_fortran, data = state
            self.array = _array_from_buffer(data, dtype, shape, "F" if is_fortran else "C")
        elif state[2:5] != (None, None, None):
            raise RefusedValueError("a pickle with a structured dtype")
        elif state[1] in ("<", ">"):
            self.dtype = self.dtype.newbyteorder(state[1])


def _make_dtype(name: Any, *_: Any) -> _Buildable:
    return _Buildable(parse_dtype(name))


def _require_dtype(value: Any) -> np.dtype:
    if not isinstance(value, _Buildable) or value.dtype is None:
        raise RefusedValueError("a pickle of an array without a dtype")
    return value.dtype


def _refuse_call(*_: Any) -> NoReturn:
    """Refuse a call. This is also the counterpart of `numpy.ndarray`, which pickles name but do not call."""
    raise RefusedValueError("a pickle with a call that does not make an array")


def _reconstruct(array_type: Any, *_: Any) -> _Buildable:
    if array_type is not _refuse_call:
        _refuse_call()
    return _Buildable()


def _array_from_buffer(data: bytes, dtype: Any, shape: Any, order: Any) -> NDArray[Any]:
    return np.frombuffer(data, _require_dtype(dtype)).reshape(shape, order=order)


def _make_scalar(dtype: Any, data: bytes) -> Any:
    return np.frombuffer(data, _require_dtype(dtype), count=1)[0]


def _encode_latin1(text: str, encoding: str) -> bytes:
    if encoding not in ("latin1", "latin-1"):
        _refuse_call()
    return text.encode("latin-1")


_FUNCTIONS: Final[dict[tuple[str, str], Callable[..., Any]]] = {
    **{(f"{core}.numeric", "_frombuffer"): _array_from_buffer for core in ("numpy._core", "numpy.core")},
    **{(f"{core}.multiarray", "_reconstruct"): _reconstruct for core in ("numpy._core", "numpy.core")},
    **{(f"{core}.multiarray", "scalar"): _make_scalar for core in ("numpy._core", "numpy.core")},
    ("numpy", "ndarray"): _refuse_call,
    ("numpy", "dtype"): _make_dtype,
    ("_codecs", "encode"): _encode_latin1,
    ("__builtin__", "bytes"): lambda: b"",  # pickles for Python 2 write empty bytes as this call
}


def _finish(value: Any) -> Any:
    """Replace each `_Buildable` in a value by its array.

    Raises:
        RefusedValueError: the value contains something other than arrays, numbers and text in tuples, lists and dicts.
    """
    if isinstance(value, dict):
        return {key: _finish(part) for key, part in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(map(_finish, value))
    if isinstance(value, _Buildable) and value.array is not None:
        return value.array
    if value is not None and not isinstance(value, _LEAF_TYPES):
        raise RefusedValueError("a pickle of something other than an array")
    return value


def pickle_arrays(value: Any) -> bytes:
    """Pickle an array of numbers, or dicts (with text keys) and tuples of arrays."""
    return _PROTOCOL + _pickle_value(value) + b"."


def _pickle_value(value: Any) -> bytes:
    if isinstance(value, Mapping):
        return b"}(" + b"".join(_pickle_text(key) + _pickle_value(part) for key, part in value.items()) + b"u"
    if isinstance(value, tuple):
        return b"(" + b"".join(map(_pickle_value, value)) + b"t"
    return _pickle_array(value)


def _pickle_array(array: NDArray[Any]) -> bytes:
    shape = b"(" + b"".join(b"J" + size.to_bytes(4, "little") for size in array.shape) + b"t"
    data = array.tobytes()
    is_large = len(data) >= 1 << 32  # the length takes 8 bytes (BINBYTES8) instead of 4 (BINBYTES)
    size = b"\x8e" + len(data).to_bytes(8, "little") if is_large else b"B" + len(data).to_bytes(4, "little")
    return _ARRAY + b"(K\x01" + shape + _pickle_dtype(array.dtype) + b"\x89" + size + data + b"tb"


def _pickle_dtype(dtype: np.dtype) -> bytes:
    byte_order, name = dtype.str[0], dtype.str[1:]
    return _DTYPE + _pickle_text(name) + b"\x89\x88\x87R(K\x03" + _pickle_text(byte_order) + _DTYPE_STATE_END


def _pickle_text(text: str) -> bytes:
    data = text.encode()
    return b"X" + len(data).to_bytes(4, "little") + data
