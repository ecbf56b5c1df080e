"""Parts of an update side by side: the same numbers as one after the other."""

import pytest
import torch
from torch import nn

from hindcast.learn.streams import MAX_STREAMS, run_parallel
from hindcast.learn.update_graphs import CudaGraph

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def test_without_streams_parts_follow_each_other():
    done = []
    assert run_parallel(*(lambda number=number: done.append(number) or number for number in range(9))) == [
        *range(9)
    ]
    assert done == [*range(9)]


@pytest.mark.gpu
def test_more_parts_than_streams_and_parts_within_parts_give_what_they_give_alone():
    torch.manual_seed(0)
    nets = [
        nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)).to(DEVICE)
        for _ in range(MAX_STREAMS + 2)
    ]
    rows = torch.randn(256, 64, device=DEVICE)

    def losses(net):
        return lambda: net(rows).square().mean(), lambda: net(-rows).mean()

    def gradients(found):
        loss = torch.stack([each for pair in found for each in pair]).sum()
        return torch.autograd.grad(loss, [each for net in nets for each in net.parameters()])

    def in_parts():
        return gradients(run_parallel(*(lambda net=net: run_parallel(*losses(net)) for net in nets)))

    alone = gradients([[loss() for loss in losses(net)] for net in nets])
    if DEVICE == "cpu":
        assert all(torch.equal(one, other) for one, other in zip(in_parts(), alone, strict=True))
        return
    graph = CudaGraph(torch.Generator(DEVICE))
    for _ in range(3):
        graph.warm_up(in_parts)
    recorded = graph.record(in_parts)
    for _ in range(50):
        for each in recorded:
            each.zero_()
        graph.launch()
        assert all(torch.equal(one, other) for one, other in zip(recorded, alone, strict=True))
