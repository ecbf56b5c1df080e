"""One update from equal weights on an equal batch has the same losses and gradients as in d3rlpy.

If they differ by design, a docstring names the difference, and the comparison covers the rest. Both compute in float64:
in float32, rounding alone makes relative errors above 1e-5 in gradients whose summands cancel.
"""

from unittest.mock import patch

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from hindcast.algorithms import build
from hindcast.api.model import ModelSpec
from hindcast.learn.algorithm import Losses, ModelInputs, Step, new_networks
from hindcast.models.networks import MemberLinear

OBS = gym.spaces.Box(-1, 1, (3,), np.float32)
ACTIONS = gym.spaces.Box(-1, 1, (2,), np.float32)
DISCRETE_ACTIONS = gym.spaces.Discrete(3)
GAMMA = 0.99


def build_algorithm(name, config, actions=ACTIONS, **model):
    algorithm = build(name, config)
    inputs = ModelInputs(OBS, actions, ModelSpec(**{"fcnet_hiddens": [16, 16], **model}))
    nets = new_networks(algorithm, inputs, seed=0).double()
    with (
        torch.no_grad()
    ):  # change all weights, so that biases are not 0, and targets differ from their networks
        for index, parameter in enumerate(nets.parameters()):
            generator = torch.Generator().manual_seed(index)
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
    return algorithm, nets


def make_transitions(discrete=False):
    rng = np.random.default_rng(0)
    terminals = (rng.random(64) < 0.3).astype(np.float64)
    return {
        "obs": rng.uniform(-1, 1, (64, 3)),
        "new_obs": rng.uniform(-1, 1, (64, 3)),
        "actions": rng.integers(3, size=64) if discrete else rng.uniform(-1, 1, (64, 2)),
        "rewards": rng.normal(size=64),
        "discounts": GAMMA * (1 - terminals),
        "terminals": terminals,
        "new_actions": rng.uniform(-1, 1, (64, 2)),
        "followed": terminals == 0,
    }


def make_sequences():
    """Return 16 sequences of 4 steps without padding."""
    rng = np.random.default_rng(1)
    return {
        "obs": rng.uniform(-1, 1, (16, 4, 3)),
        "actions": rng.uniform(-1, 1, (16, 4, 2)),
        "rewards": rng.normal(size=(16, 4)),
        "returns_to_go": rng.normal(size=(16, 4)),
        "t": rng.integers(7, size=(16, 1)) + np.arange(4),
        "loss_mask": np.ones((16, 4), dtype=np.bool_),
        "seq_lens": np.full(16, 4),
    }


def to_tensors(batch):
    return {name: torch.from_numpy(column) for name, column in batch.items()}


BATCH, DISCRETE_BATCH, SEQUENCES = make_transitions(), make_transitions(discrete=True), make_sequences()
TENSORS = to_tensors(BATCH)


def layers_of(net, select=lambda parameter: parameter):
    """Return `[member][layer]` of (`select(weight)`, `select(bias)`), with the shapes of torch's Linear."""
    member_layers = [layer for layer in net.modules() if isinstance(layer, MemberLinear)]
    if not member_layers:
        linear_layers = [layer for layer in net.modules() if isinstance(layer, nn.Linear)]
        return [[(select(layer.weight), select(layer.bias)) for layer in linear_layers]]
    tensors = [(select(layer.weight), select(layer.bias)) for layer in member_layers]
    members = range(len(tensors[0][0]))
    return [[(weight[member].T, bias[member, 0]) for weight, bias in tensors] for member in members]


def name_layers(name, layers):
    return {
        f"{name}/{member}/{index}/{kind}": tensor.detach().numpy()
        for member, member_layers in enumerate(layers)
        for index, layer in enumerate(member_layers)
        for kind, tensor in zip(("weight", "bias"), layer, strict=True)
    }


def weights_of(nets, *names, select=lambda parameter: parameter):
    arrays = {}
    for name in names:
        arrays |= name_layers(name, layers_of(nets[name], select))
    return arrays


def gradients_of(nets, *names):
    return weights_of(nets, *names, select=lambda parameter: parameter.grad)


def losses_of(algorithm, nets, batch=TENSORS):
    """Return losses by optimiser and leave the gradients in the networks; no weights change between stages."""
    step = Step(updates=1, timesteps=0, generator=torch.Generator().manual_seed(0))
    losses = {}
    stages = algorithm.losses(nets, batch, step)
    for stage in [stages] if isinstance(stages, Losses) else stages:
        for name, loss in stage.losses.items():
            parameters = [weight for weight in nets[name].parameters() if weight.requires_grad]
            gradients = torch.autograd.grad(loss, parameters, retain_graph=True)
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
            losses[name] = float(loss.detach())
    return losses


def iql():
    """d3rlpy's log deviations are a sigmoid between bounds, so `d3rlpy_losses.py` gives d3rlpy's policy free log
    deviations, as Hindcast's policy has.
    """
    model = {"free_log_std": True, "distribution": "boundedGaussian"}
    algorithm, nets = build_algorithm("IQL", {"expectile": 0.8}, **model)
    with torch.no_grad():
        nets["policy"].log_std.log_std.zero_()
    weights = weights_of(nets, "policy", "value", "critics", "target_critics")
    losses = losses_of(algorithm, nets)
    log_std = {"log_std": nets["policy"].log_std.log_std.grad[None].numpy()}
    return weights, losses, gradients_of(nets, "policy", "value", "critics") | log_std


def td3_bc():
    """Use no target noise, which each library would draw itself."""
    return td3("TD3BC", {})


def rebrac():
    """Use no target noise, and no layer norm (the kit's default), which d3rlpy's critics apply after the activation."""
    return td3("ReBRAC", {"actorBeta": 0.3, "criticBeta": 0.4})


def td3(name, config):
    algorithm, nets = build_algorithm(name, {"targetNoise": 0.0, **config})
    weights = weights_of(nets, "policy", "critics", "target_policy", "target_critics")
    return weights, losses_of(algorithm, nets), gradients_of(nets, "policy", "critics")


def cql(**lagrangian):
    """Use targets with the entropy: without it d3rlpy's next action is the mean, but Hindcast's is sampled."""
    algorithm, nets = build_algorithm("CQL", {"numActions": 4, "deterministicBackup": False, **lagrangian})
    generator = torch.Generator().manual_seed(0)
    # In the order in which Hindcast draws. The first of the five next actions is the one of the target.
    current_noise, next_noise = (torch.randn((count, 64, 2), generator=generator) for count in (4, 5))
    uniform = nets["range"].draw_uniform(4 * 64, generator).view(4, 64, 2)
    actor_noise = torch.randn((1, 64, 2), generator=generator)
    noise = {
        "target": next_noise[0],
        "current": current_noise,
        "next": next_noise[1:],
        "actor": actor_noise[0],
        "uniform": uniform,
    }
    return soft_actor_critic(algorithm, nets, noise)


def cql_lagrangian():
    """d3rlpy's threshold, 2, applies to the gap; Hindcast's, 10, to the gap times its weight of 5."""
    return cql(lagrangian=True, lagrangianThresh=10.0)


def sac():
    algorithm, nets = build_algorithm("SAC", {})
    generator = torch.Generator().manual_seed(0)
    target_noise, actor_noise = (torch.randn((1, 64, 2), generator=generator)[0] for _ in range(2))
    return soft_actor_critic(algorithm, nets, {"target": target_noise, "actor": actor_noise})


def soft_actor_critic(algorithm, nets, noise):
    """Use Hindcast's noise. The loss of α is linear in α in d3rlpy, but in log α in Hindcast, so d3rlpy's gradient by
    log α is α times Hindcast's.
    """
    weights = split_policy_layers(nets) | weights_of(nets, "critics", "target_critics")
    weights |= {f"noise/{name}": tensor.numpy() for name, tensor in noise.items()}
    logs = {name: nets[name].log for name in ("alpha", "gap_weight") if name in nets}
    weights |= {f"log/{name}": log.detach().numpy() for name, log in logs.items()}
    losses = losses_of(algorithm, nets)
    gradients = split_policy_layers(nets, lambda tensor: tensor.grad) | gradients_of(nets, "critics")
    gradients |= {f"log/{name}": log.grad.numpy() for name, log in logs.items()}
    gradients["log/alpha"] = gradients["log/alpha"] * nets["alpha"]().detach().numpy()
    return weights, losses, gradients


def split_policy_layers(nets, select=lambda parameter: parameter):
    """Return the policy's layers by name, with the last one split in two, as in d3rlpy: for mean and log deviation."""
    *hidden, (weight, bias) = layers_of(nets["policy"], select)[0]
    return name_layers("policy", [[*hidden, *zip(weight.chunk(2), bias.chunk(2), strict=True)]])


def discrete_sac():
    """d3rlpy's critics have the Huber loss, which `d3rlpy_losses.py` replaces by the paper's square. As with SAC,
    d3rlpy's gradient by log α is α times Hindcast's.
    """
    algorithm, nets = build_algorithm("DiscreteSAC", {"initialAlpha": 0.3}, DISCRETE_ACTIONS)
    weights = weights_of(nets, "policy", "critics", "target_critics")
    weights["log/alpha"] = nets["alpha"].log.detach().numpy()
    losses = losses_of(algorithm, nets, to_tensors(DISCRETE_BATCH))
    gradients = gradients_of(nets, "policy", "critics")
    gradients["log/alpha"] = nets["alpha"].log.grad.numpy() * nets["alpha"]().detach().numpy()
    return weights, losses, gradients


def dqn():
    return discrete_q_learning("DQN", {})


def discrete_cql():
    """Use four quantiles."""
    return discrete_q_learning("DiscreteCQL", {"minQWeight": 2.0, "numQuantiles": 4})


def discrete_q_learning(name, config):
    algorithm, nets = build_algorithm(name, {"dueling": False, **config}, DISCRETE_ACTIONS)
    weights = weights_of(nets, "policy", "target")
    losses = losses_of(algorithm, nets, to_tensors(DISCRETE_BATCH))
    return weights, losses, gradients_of(nets, "policy")


def decision_transformer():
    """Use complete sequences, since d3rlpy pads before a sequence and Hindcast after it."""
    config = {"contextLength": 4, "embedSize": 16, "numHeads": 2, "numLayers": 2, "dropout": 0.0}
    config |= {"maxTimestep": 12, "returnScale": 1.0}
    algorithm, nets = build_algorithm("DecisionTransformer", config, fcnet_hiddens=[])
    parameters = dict(nets["policy"].named_parameters())
    weights = {name: parameter.detach().numpy() for name, parameter in parameters.items()}
    losses = losses_of(algorithm, nets, to_tensors(SEQUENCES))
    return weights, losses, {name: parameter.grad.numpy() for name, parameter in parameters.items()}


CASES = {
    "IQL": iql,
    "TD3BC": td3_bc,
    "ReBRAC": rebrac,
    "CQL": cql,
    "CQLLagrangian": cql_lagrangian,
    "SAC": sac,
    "DiscreteSAC": discrete_sac,
    "DQN": dqn,
    "DiscreteCQL": discrete_cql,
    "DecisionTransformer": decision_transformer,
}
BATCHES = dict.fromkeys(("DiscreteSAC", "DQN", "DiscreteCQL"), DISCRETE_BATCH) | {
    "DecisionTransformer": SEQUENCES
}


@pytest.fixture(scope="module")
def case_results(run_script, tmp_path_factory):
    """Return algorithm -> (Hindcast's losses, Hindcast's gradients, file with d3rlpy's losses and gradients)."""
    folder = tmp_path_factory.mktemp("d3rlpy")
    cases = {}
    for name, case in CASES.items():
        # Losses and encoders convert batches with `float`.
        with patch.object(torch.Tensor, "float", torch.Tensor.double):
            weights, *cases[name] = case()
        np.savez(folder / f"{name}.npz", **BATCHES.get(name, BATCH), **weights)
    run_script("d3rlpy_losses.py", folder, *CASES)
    return {name: (*arrays, folder / f"{name}-d3rlpy.npz") for name, arrays in cases.items()}


@pytest.mark.parametrize("name", CASES)
def test_losses_and_gradients_equal_d3rlpy(name, case_results):
    losses, gradients, file = case_results[name]
    expected_arrays = dict(np.load(file))
    # d3rlpy does not return the loss of alpha.
    assert expected_arrays.keys() == gradients.keys() | {f"loss/{name}" for name in losses if name != "alpha"}
    for key, value in expected_arrays.items():
        if key.startswith("loss/"):
            assert losses[key.removeprefix("loss/")] == pytest.approx(float(value), rel=1e-5), key
        else:
            np.testing.assert_allclose(gradients[key], value, rtol=1e-5, atol=1e-9, err_msg=key)
