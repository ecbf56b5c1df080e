"""Torch dispatch modes: one in which reading from a device is an error, and its base."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_aten = torch.ops.aten
_READING_OPERATIONS = {
    _aten._local_scalar_dense,
    _aten.is_nonzero,
    _aten.equal,
    _aten.nonzero,
    _aten.masked_select,
    _aten._unique2,
}


class PlainDispatchMode(TorchDispatchMode):
    """A dispatch mode without torch's wrapper for compiled code, which imports the compiler at its first call."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class NoDeviceReads(PlainDispatchMode):
    """Refuses operations that return a number or a shape from a device to Python, which would wait for the device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        is_mask_index = func.overloadpacket in (_aten.index, _aten.index_put, _aten.index_put_) and any(
            index is not None and index.dtype == torch.bool for index in args[1]
        )
        assert not is_mask_index, f"{func} indexes by a mask"
        assert func.overloadpacket not in _READING_OPERATIONS, f"{func}"
        return func(*args, **(kwargs or {}))
