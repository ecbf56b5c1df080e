"""Windows travel to a GPU while the learner computes on the one before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[Any]


def empty_pinned(shape: tuple[int, ...], dtype: np.dtype) -> Array:
    """An array in page-locked memory, which a GPU reads without the processor's help."""
    return torch.empty_like(torch.from_numpy(np.empty(shape, dtype)), pin_memory=True).numpy()


def upload(arrays: Mapping[str, Array], device: torch.device | None) -> dict[str, Tensor]:
    """The arrays as tensors on `device`, complete on return; None is the CPU, which shares their memory.

    On a GPU they are copied on a stream of their own, so that nothing that the learner has queued or queues meanwhile
    waits for them. Only arrays of `empty_pinned` overlap with computation.
    """
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    if device is None or device.type == "cpu":
        return tensors
    streams = torch.get_device_module(device)
    # Allocated on the learner's stream, which frees them too: then no memory is reused before its readers are done.
    copies = {name: torch.empty_like(tensor, device=device) for name, tensor in tensors.items()}
    copying = streams.Stream(device)
    copying.wait_stream(streams.current_stream(device))
    with streams.stream(copying):
        for name, copy in copies.items():
            copy.copy_(tensors[name], non_blocking=True)
    copying.synchronize()
    return copies
