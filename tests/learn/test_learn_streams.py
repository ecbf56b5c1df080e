"""Parts of an update give the same numbers in parallel as in sequence."""

import pytest
import torch
from torch import nn

from hindcast.learn.streams import MAX_STREAMS, run_parallel
from hindcast.learn.update_graphs import CudaGraph

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def test_run_parallel_without_streams_runs_in_order():
    calls = []
    assert run_parallel(*(lambda number=number: calls.append(number) or number for number in range(9))) == [
        *range(9)
    ]
    assert calls == [*range(9)]


@pytest.mark.gpu
def test_run_parallel_with_nested_and_many_parts_equals_sequential_results():
    torch.manual_seed(0)
    nets = [
        nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)).to(DEVICE)
        for _ in range(MAX_STREAMS + 2)
    ]
    rows = torch.randn(256, 64, device=DEVICE)

    def losses(net):
        return lambda: net(rows).square().mean(), lambda: net(-rows).mean()

    def gradients(found):
        loss = torch.stack([tensor for pair in found for tensor in pair]).sum()
        return torch.autograd.grad(loss, [tensor for net in nets for tensor in net.parameters()])

    def in_parts():
        return gradients(run_parallel(*(lambda net=net: run_parallel(*losses(net)) for net in nets)))

    alone = gradients([[loss() for loss in losses(net)] for net in nets])
    if DEVICE == "cpu":
        assert all(torch.equal(actual, expected) for actual, expected in zip(in_parts(), alone, strict=True))
        return
    graph = CudaGraph(torch.Generator(DEVICE))
    for _ in range(3):
        graph.warm_up(in_parts)
    results = graph.record(in_parts)
    for _ in range(50):
        for tensor in results:
            tensor.zero_()
        graph.launch()
        assert all(torch.equal(actual, expected) for actual, expected in zip(results, alone, strict=True))
