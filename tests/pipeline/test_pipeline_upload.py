"""Copies to a GPU, by a module that says what a GPU's would be asked for: there is none where tests run."""

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


class Streams:
    """As `torch.cuda`; writes down what is asked for."""

    def __init__(self):
        self.asked = []
        self.used = ["the learner's"]

    def current_stream(self, device):
        return self.used[-1]

    def Stream(self, device):  # noqa: N802
        return self

    def wait_stream(self, stream):
        self.asked.append(f"wait for {stream}")

    def synchronize(self):
        self.asked.append("complete")

    @contextmanager
    def stream(self, stream):
        assert stream is self
        self.used.append("its own")
        yield
        self.used.pop()


def test_upload_to_gpu_uses_a_separate_stream(monkeypatch):
    streams = Streams()
    empty_like, copy = torch.empty_like, torch.Tensor.copy_

    def allocate(tensor, device):
        streams.asked.append(f"allocate on {streams.used[-1]}")
        return empty_like(tensor, device=device)

    def copy_tensor(target, source, non_blocking):
        assert non_blocking
        streams.asked.append(f"copy on {streams.used[-1]}")
        return copy(target, source)

    monkeypatch.setattr(torch, "get_device_module", lambda device: streams)
    monkeypatch.setattr(upload_module.torch, "empty_like", allocate)
    monkeypatch.setattr(torch.Tensor, "copy_", copy_tensor)
    tensors = upload(ARRAYS, torch.device("meta"))
    assert streams.asked == [
        *["allocate on the learner's"] * 2,
        "wait for the learner's",
        *["copy on its own"] * 2,
        "complete",
    ]
    assert {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()} == {
        "obs": ((4, 3), torch.float32),
        "rewards": ((4,), torch.float64),
    }
