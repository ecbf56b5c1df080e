"""Parts of an update give the same numbers in parallel as in sequence."""

import pytest
import torch
from torch import nn

from hindcast.learn.streams import MAX_STREAMS, run_parallel
from hindcast.learn.update_graphs import CudaGraph

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def test_run_parallel_without_streams_runs_in_order():
    calls = []
    results = run_parallel(*(lambda index=index: calls.append(index) or index for index in range(9)))
    assert results == calls == [*range(9)]


@pytest.mark.gpu
def test_run_parallel_with_nested_and_many_parts_equals_sequential_results():
    torch.manual_seed(0)
    make_net = lambda: nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))  # noqa: E731
    nets = [make_net().to(DEVICE) for _ in range(MAX_STREAMS + 2)]
    rows = torch.randn(256, 64, device=DEVICE)

    def make_losses(net):
        return lambda: net(rows).square().mean(), lambda: net(-rows).mean()

    def compute_gradients(loss_pairs):
        loss = torch.stack([tensor for pair in loss_pairs for tensor in pair]).sum()
        return torch.autograd.grad(loss, [tensor for net in nets for tensor in net.parameters()])

    def compute_in_parallel():
        parts = (lambda net=net: run_parallel(*make_losses(net)) for net in nets)
        return compute_gradients(run_parallel(*parts))

    expected_gradients = compute_gradients([[loss() for loss in make_losses(net)] for net in nets])
    if DEVICE == "cpu":
        assert all(map(torch.equal, compute_in_parallel(), expected_gradients))
        return
    graph = CudaGraph(torch.Generator(DEVICE))
    for _ in range(3):
        graph.warm_up(compute_in_parallel)
    results = graph.record(compute_in_parallel)
    for _ in range(50):
        for tensor in results:
            tensor.zero_()
        graph.launch()
        assert all(map(torch.equal, results, expected_gradients))
