"""Copy windows to a GPU while the learner computes on the previous one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[Any]


def empty_pinned(shape: tuple[int, ...], dtype: np.dtype) -> Array:
    """Return an uninitialised array in page-locked memory, which a GPU reads without the CPU."""
    # NumPy cannot allocate page-locked memory. `from_numpy` maps NumPy's dtype to torch's.
    return torch.empty_like(torch.from_numpy(np.empty(shape, dtype)), pin_memory=True).numpy()


def upload(arrays: Mapping[str, Array], device: torch.device | None) -> dict[str, Tensor]:
    """Copy arrays to tensors on `device`, and wait for the copies.

    On the CPU, which is also meant by None, the tensors share the arrays' memory. Only arrays of `empty_pinned` are
    copied while the GPU computes.
    """
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    if device is None or device.type == "cpu":
        return tensors
    device_module = torch.get_device_module(device)
    # Allocated on the learner's stream, which also frees them, so no memory is reused before its readers are done.
    copies = {name: torch.empty_like(tensor, device=device) for name, tensor in tensors.items()}
    # A separate stream, so that the learner's queued operations do not wait for the copies.
    stream = device_module.Stream(device)
    stream.wait_stream(device_module.current_stream(device))
    with device_module.stream(stream):
        for name, copy in copies.items():
            copy.copy_(tensors[name], non_blocking=True)
    stream.synchronize()
    return copies
