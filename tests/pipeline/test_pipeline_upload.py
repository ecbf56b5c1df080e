"""Copies to a GPU, with a fake device module that records its calls, since tests run without a GPU."""

from contextlib import contextmanager

import numpy as np
import torch

from hindcast.pipeline import upload as upload_module
from hindcast.pipeline.upload import upload

ARRAYS = {"obs": np.ones((4, 3), np.float32), "rewards": np.arange(4.0)}


def test_upload_to_cpu_shares_memory():
    arrays = {"rewards": np.zeros(3)}
    for device in (None, torch.device("cpu")):
        tensors = upload(arrays, device)
        arrays["rewards"][0] += 1
        assert tensors["rewards"][0] == arrays["rewards"][0]


class FakeDeviceModule:
    """Like `torch.cuda`; `calls` records what is requested."""

    def __init__(self):
        self.calls = []
        self.streams = ["the learner's stream"]

    def current_stream(self, device):
        return self.streams[-1]

    def Stream(self, device):  # noqa: N802
        return self

    def wait_stream(self, stream):
        self.calls.append(f"wait for {stream}")

    def synchronize(self):
        self.calls.append("complete")

    @contextmanager
    def stream(self, stream):
        assert stream is self
        self.streams.append("the copy stream")
        yield
        self.streams.pop()


def test_upload_to_gpu_uses_a_separate_stream(monkeypatch):
    device_module = FakeDeviceModule()
    empty_like, copy = torch.empty_like, torch.Tensor.copy_

    def allocate(tensor, device):
        device_module.calls.append(f"allocate on {device_module.streams[-1]}")
        return empty_like(tensor, device=device)

    def copy_tensor(target, source, non_blocking):
        assert non_blocking
        device_module.calls.append(f"copy on {device_module.streams[-1]}")
        return copy(target, source)

    monkeypatch.setattr(torch, "get_device_module", lambda device: device_module)
    monkeypatch.setattr(upload_module.torch, "empty_like", allocate)
    monkeypatch.setattr(torch.Tensor, "copy_", copy_tensor)
    tensors = upload(ARRAYS, torch.device("meta"))
    assert device_module.calls == [
        *["allocate on the learner's stream"] * 2,
        "wait for the learner's stream",
        *["copy on the copy stream"] * 2,
        "complete",
    ]
    assert {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()} == {
        "obs": ((4, 3), torch.float32),
        "rewards": ((4,), torch.float64),
    }
