import pytest
import torch
from torch import nn

from hindcast.learn.optimisers import Optimiser, OptimiserSpec
from hindcast.learn.target_networks import frozen_copy, polyak


def gradients_after_clipping(bound, by):
    """Two parameters with gradients of norms 3 and 4; what the optimiser steps with."""
    parameters = [nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(2))]
    optimiser = Optimiser(OptimiserSpec(parameters, lr=1.0), bound, by)
    seen = []
    optimiser.torch.register_step_pre_hook(
        lambda *_: seen.extend(parameter.grad.clone() for parameter in parameters)
    )
    optimiser.backward(3 * parameters[0].sum() + 4 * parameters[1][0], keep_graph=False)
    norm = optimiser.step(timesteps=0)
    return seen, float(norm)


def test_without_a_bound_gradients_are_untouched_and_their_norm_is_reported():
    (first, second), norm = gradients_after_clipping(None, "global_norm")
    assert norm == pytest.approx(5.0)
    assert first.tolist() == [3.0] and second.tolist() == [4.0, 0.0]


def test_global_norm_scales_all_together_and_reports_the_norm_before():
    (first, second), norm = gradients_after_clipping(1.0, "global_norm")
    assert norm == pytest.approx(5.0)
    assert first.tolist() == pytest.approx([0.6]) and second.tolist() == pytest.approx([0.8, 0.0])


def test_norm_bounds_each_parameter():
    (first, second), _ = gradients_after_clipping(3.5, "norm")
    assert first.tolist() == [3.0] and second.tolist() == pytest.approx([3.5, 0.0])


def test_value_bounds_each_value():
    (first, second), _ = gradients_after_clipping(3.5, "value")
    assert first.tolist() == [3.0] and second.tolist() == [3.5, 0.0]


def test_a_bound_that_is_not_reached_changes_nothing():
    for by in ("global_norm", "norm", "value"):
        (first, second), _ = gradients_after_clipping(100.0, by)
        assert first.tolist() == [3.0] and second.tolist() == [4.0, 0.0]


def test_the_learning_rate_follows_its_schedule():
    parameter = nn.Parameter(torch.zeros(1))
    optimiser = Optimiser(OptimiserSpec([parameter], lr=[[0, 1.0], [100, 0.0]]), None, "global_norm")
    rates = []
    for timesteps in (0, 50, 100, 200):
        optimiser.backward(parameter.sum(), keep_graph=False)
        optimiser.step(timesteps)
        rates.append(optimiser.lr)
    assert rates == [1.0, 0.5, 0.0, 0.0]


def test_polyak_moves_a_part_of_the_way_and_copies_buffers():
    source = nn.BatchNorm1d(1)
    target = frozen_copy(source)
    with torch.no_grad():
        source.weight.fill_(3.0)
    source.running_mean.fill_(7.0)
    polyak(target, source, 0.25)
    assert target.weight.item() == 1.5
    assert target.running_mean.item() == 7.0
    assert not any(parameter.requires_grad for parameter in target.parameters())


def test_a_tau_of_1_copies():
    source, target = nn.Linear(2, 2), nn.Linear(2, 2)
    polyak(target, source, 1.0)
    assert torch.equal(source.weight, target.weight)
