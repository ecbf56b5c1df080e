import copy
import sys

import pytest
import torch
from torch import nn

from hindcast.errors import DataError, SpecError
from hindcast.learn.optimisers import _OPTIMISER_CLASSES, Optimiser, OptimiserSpec, ParameterGroup, backward
from hindcast.learn.target_networks import frozen_copy, polyak_update


def gradients_after_clipping(bound, by):
    """Clip two gradients, of norms 3 and 4; return both and their joint norm before clipping."""
    parameters = [nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(2))]
    optimiser = Optimiser(OptimiserSpec(parameters, lr=1.0), bound, by)
    backward([3 * parameters[0].sum() + 4 * parameters[1][0]], [optimiser])
    norm = optimiser.gradient_norm()
    optimiser.clip(norm)
    return [parameter.grad for parameter in parameters], float(norm)


@pytest.mark.parametrize(
    ("bound", "by", "first_expected", "second_expected"),
    [
        (None, "global_norm", [3.0], [4.0, 0.0]),
        (1.0, "global_norm", pytest.approx([0.6]), pytest.approx([0.8, 0.0])),
        (3.5, "norm", [3.0], pytest.approx([3.5, 0.0])),
        (3.5, "value", [3.0], [3.5, 0.0]),
        *((100.0, by, [3.0], [4.0, 0.0]) for by in ("global_norm", "norm", "value")),
    ],
)
def test_clip_bounds_gradients_together_by_parameter_or_by_value(bound, by, first_expected, second_expected):
    (first_grad, second_grad), norm = gradients_after_clipping(bound, by)
    assert norm == pytest.approx(5.0)
    assert first_grad.tolist() == first_expected
    assert second_grad.tolist() == second_expected


def test_learning_rate_follows_its_schedule():
    parameter = nn.Parameter(torch.zeros(1))
    optimiser = Optimiser(OptimiserSpec([parameter], lr=[[0, 1.0], [100, 0.0]]), None, "global_norm")
    rates = []
    for timesteps in (0, 50, 100, 200):
        backward([parameter.sum()], [optimiser])
        optimiser.set_learning_rates(timesteps)
        optimiser.step()
        optimiser.zero_grad()
        rates.append(optimiser.lr)
    assert rates == [1.0, 0.5, 0.0, 0.0]


def train(spec, parameters, num_updates):
    """Return the optimiser after updates on `parameters`."""
    optimiser = Optimiser(spec, None, "global_norm")
    for index in range(num_updates):
        train_one_update(optimiser, parameters, index)
    return optimiser


def random_loss(parameters, seed):
    """Return the squared distance of the parameters from random values."""
    generator = torch.Generator().manual_seed(seed)
    return sum((p - torch.randn(p.shape, generator=generator)).square().sum() for p in parameters)


def train_one_update(optimiser, parameters, timesteps):
    """Move parameters towards random values seeded by `timesteps`, the number of timesteps trained before."""
    backward([random_loss(parameters, timesteps)], [optimiser])
    optimiser.set_learning_rates(timesteps)
    optimiser.step()
    optimiser.zero_grad()


def make_parameters():
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(rows, 2, generator=generator)) for rows in (3, 2)]


@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad:UserWarning")  # torch's ASGD
@pytest.mark.parametrize("lr", [0.01, [[0, 0.02], [10, 0.01]]], ids=["constant", "scheduled"])
@pytest.mark.parametrize("kind", sorted(_OPTIMISER_CLASSES))
def test_every_optimiser_steps_and_resumes_from_its_state(kind, lr):
    uninterrupted, resumed = make_parameters(), make_parameters()
    train(OptimiserSpec(uninterrupted, lr, kind), uninterrupted, 6)
    state = train(OptimiserSpec(resumed, lr, kind), resumed, 3).state()
    resumed_optimiser = Optimiser(OptimiserSpec(resumed, lr, kind), None, "global_norm")
    resumed_optimiser.load(*state)
    for timesteps in range(3, 6):
        train_one_update(resumed_optimiser, resumed, timesteps)
    assert not torch.equal(uninterrupted[0], make_parameters()[0])
    assert all(map(torch.equal, uninterrupted, resumed))


def test_optimisers_do_not_import_the_compiler(monkeypatch):
    """The import takes longer than a short training."""
    monkeypatch.setitem(sys.modules, "torch._dynamo", None)  # so that importing it fails
    for kind in ("adam", "sgd", "adagrad"):
        parameters = make_parameters()
        optimiser = train(OptimiserSpec(parameters, 0.01, kind), parameters, 1)
        optimiser.load(*optimiser.state())


def test_optimiser_options_reach_torch():
    parameters, torch_parameters = make_parameters(), make_parameters()
    options = {"betas": (0.5, 0.9), "eps": 1e-3, "weight_decay": 0.1}
    train(OptimiserSpec(parameters, 0.01, "AdamW", options), parameters, 5)
    adam = torch.optim.AdamW(torch_parameters, lr=0.01, fused=True, **options)
    for seed in range(5):
        random_loss(torch_parameters, seed).backward()
        adam.step()
        adam.zero_grad()
    assert all(map(torch.equal, parameters, torch_parameters))


def test_parameter_groups_have_their_own_rates_and_options():
    first, second = make_parameters()
    group = ParameterGroup([second], lr=[[0, 0.5], [2, 0.0, "step"]], options={"momentum": 0.0})
    spec = OptimiserSpec([first], 0.1, "sgd", {"momentum": 0.9}, [group])
    optimiser = train(spec, [first, second], 2)
    groups = optimiser.state()[1]
    assert [(group["lr"], group["momentum"]) for group in groups] == [(0.1, 0.9), (0.25, 0.0)]
    second_before = second.detach().clone()
    train_one_update(optimiser, [first, second], 2)
    assert torch.equal(second, second_before)


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"kind": "adamm"}, r"optimiser 'policy' has kind 'adamm', but torch\.optim has only adadelta, "),
        ({"kind": "lbfgs"}, "has kind 'lbfgs'"),
        ({"options": {"momentum": 0.9}}, r"optim\.Adam has no option 'momentum'; it has amsgrad, betas"),
        ({"options": {"lr": 0.9}}, "no option 'lr'"),
        ({"options": {"betas": (2.0, 0.9)}}, r"optimiser 'policy' \(Adam\): Invalid beta parameter"),
        ({"options": {"betas": 3}}, r"optimiser 'policy' \(Adam\)"),
        ({"options": {"foreach": True, "fused": True}}, r"optimiser 'policy' \(Adam\)"),
        ({"kind": "muon", "parameters": [nn.Parameter(torch.zeros(2))]}, r"optimiser 'policy' \(Muon\)"),
        (
            {"groups": [ParameterGroup([nn.Parameter(torch.zeros(2))], options={"eps": -1.0})]},
            "Invalid epsilon",
        ),
        ({"parameters": []}, "'policy' has no parameters"),
    ],
)
def test_invalid_optimiser_is_refused_with_its_reason(spec, reason):
    with pytest.raises(SpecError, match=reason):
        Optimiser(OptimiserSpec(**{"parameters": make_parameters(), "lr": 0.1, **spec}), None, "global_norm")


def test_state_of_other_parameters_is_refused():
    state = Optimiser(OptimiserSpec(make_parameters(), 0.1), None, "global_norm").state()
    with pytest.raises(DataError, match=r"groups of \[2\] parameters, but this one has groups of \[1\]"):
        Optimiser(OptimiserSpec(make_parameters()[:1], 0.1), None, "global_norm").load(*state)


def test_polyak_update_moves_by_tau_and_copies_buffers():
    source = nn.BatchNorm1d(1)
    target = frozen_copy(source)
    with torch.no_grad():
        source.weight.fill_(3.0)
    source.running_mean.fill_(7.0)
    polyak_update(target, source, 0.25)
    assert target.weight.item() == 1.5
    assert target.running_mean.item() == 7.0
    assert not any(parameter.requires_grad for parameter in target.parameters())


def test_polyak_update_with_tau_1_copies():
    source, target = nn.Linear(2, 2), nn.Linear(2, 2)
    polyak_update(target, source, 1.0)
    assert torch.equal(source.weight, target.weight)


def test_frozen_copy_is_never_in_training_mode():
    nets = nn.ModuleDict({"net": nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))})
    nets["target"] = frozen_copy(nets["net"])
    copied_nets = copy.deepcopy(nets)
    for modules in (nets.train(), copied_nets.train(), copy.deepcopy(nets).train()):
        assert modules["net"][1].training
        assert not any(module.training for module in modules["target"].modules())
    assert isinstance(nets["target"], nn.Sequential)
    assert nets["target"].state_dict().keys() == nets["net"].state_dict().keys()


def test_frozen_copy_of_a_frozen_copy_is_frozen():
    frozen_twice = frozen_copy(frozen_copy(nn.Dropout(0.5)))
    assert not frozen_twice.train().training and type(frozen_twice).__name__ == "Dropout"
