"""Compute d3rlpy's losses and gradients for a batch and given weights. Runs in the Python of the rivals.

    python d3rlpy_losses.py FOLDER ALGORITHM ...

FOLDER/<algorithm>.npz holds the batch, `noise/...` where the algorithm draws any, and the weights,
`<network>/<member>/<layer>/{weight,bias}`. FOLDER/<algorithm>-theirs.npz gets the losses and, named as the weights,
gradients.
"""

import sys
from pathlib import Path
from types import MethodType
from unittest.mock import patch

import d3rlpy
import numpy as np
import torch
from d3rlpy.models import VectorEncoderFactory
from d3rlpy.models.torch.distributions import Normal
from d3rlpy.models.torch.policies import ActionOutput
from d3rlpy.torch_utility import TorchMiniBatch, TorchTrajectoryMiniBatch
from torch import nn

ENCODER = VectorEncoderFactory([16, 16], activation="tanh")
ENCODER_FACTORIES = {"actor_encoder_factory": ENCODER, "critic_encoder_factory": ENCODER}
STILL = 1e-30
"""A learning rate with which d3rlpy computes a gradient, and nothing moves."""


def iql(given, batch):
    impl = build_d3rlpy(
        d3rlpy.algos.IQLConfig(
            **ENCODER_FACTORIES, value_encoder_factory=ENCODER, expectile=0.8, weight_temp=3.0
        )
    )
    policy, values = impl._modules.policy, impl._modules.value_func
    nets = {
        "policy": [[*linears(policy._encoder), policy._mu]],
        "value": [linears(values)],
        "critics": members(impl._modules.q_funcs),
    }
    load(nets, given)
    load({"target_critics": members(impl._modules.targ_q_funcs)}, given)
    # Ours has its log standard deviation as it is, where d3rlpy's is a sigmoid between its bounds.
    log_std = nn.Parameter(torch.zeros(1, 2))

    def forward(self, x, *_):
        mean = torch.tanh(self._mu(self._encoder(x)))
        return ActionOutput(mean, mean, log_std)

    policy.forward = MethodType(forward, policy)
    critic = impl.compute_critic_loss(batch, impl.compute_target(batch))
    actor = impl.compute_actor_loss(batch, policy(batch.observations)).actor_loss
    (critic.critic_loss + actor).backward()
    losses = {"value": critic.v_loss, "critics": critic.q_loss, "policy": actor}
    return losses, gradients(nets) | {"log_std": log_std.grad.numpy()}


def td3_bc(given, batch):
    return td3(
        d3rlpy.algos.TD3PlusBCConfig(**ENCODER_FACTORIES, alpha=2.5, target_smoothing_sigma=0.0), given, batch
    )


def rebrac(given, batch):
    config = d3rlpy.algos.ReBRACConfig(
        **ENCODER_FACTORIES, actor_beta=0.3, critic_beta=0.4, target_smoothing_sigma=0.0
    )
    return td3(config, given, batch)


def td3(config, given, batch):
    impl = build_d3rlpy(config)
    nets = {"policy": members([impl._modules.policy]), "critics": members(impl._modules.q_funcs)}
    load(nets, given)
    targets = {
        "target_policy": members([impl._modules.targ_policy]),
        "target_critics": members(impl._modules.targ_q_funcs),
    }
    load(targets, given)
    critic = impl.compute_critic_loss(batch, impl.compute_target(batch)).critic_loss
    critic.backward()
    critic_gradients = gradients({"critics": nets["critics"]})
    actor = impl.compute_actor_loss(batch, impl._modules.policy(batch.observations)).actor_loss
    actor.backward()
    return {"critics": critic, "policy": actor}, critic_gradients | gradients({"policy": nets["policy"]})


def cql(given, batch, **lagrangian):
    config = d3rlpy.algos.CQLConfig(
        **ENCODER_FACTORIES,
        conservative_weight=5.0,
        n_action_samples=4,
        soft_q_backup=True,
        temp_learning_rate=STILL,
        **{"alpha_threshold": 0.0, "alpha_learning_rate": 0.0, **lagrangian},
    )
    return soft(config, given, batch)


def cql_lagrangian(given, batch):
    return cql(given, batch, alpha_threshold=2.0, alpha_learning_rate=STILL)


def sac(given, batch):
    return soft(d3rlpy.algos.SACConfig(**ENCODER_FACTORIES, temp_learning_rate=STILL), given, batch)


def soft(config, given, batch):
    """On Hindcast's draws. The loss of α' is proportional to α', hence equal to its own gradient by log α'."""
    impl = build_d3rlpy(config)
    modules = impl._modules
    policy = modules.policy
    nets = {
        "policy": [[*linears(policy._encoder), policy._mu, policy._logstd]],
        "critics": members(modules.q_funcs),
    }
    load(nets, given)
    load({"target_critics": members(modules.targ_q_funcs)}, given)
    log_weights = {"log/alpha": modules.log_temp, "log/gap_weight": getattr(modules, "log_alpha", None)}
    logs = {name: next(log_weight.parameters()) for name, log_weight in log_weights.items() if name in given}
    with torch.no_grad():
        for name, log in logs.items():
            log.fill_(float(given[name]))
    noises = [given[key] for name in ("next", "own", "later", "now") if (key := f"noise/{name}") in given]
    noise = iter(map(torch.from_numpy, noises))

    def rsample(self, shape=()):
        return self.loc + self.scale * next(noise)

    def uniform(zeros, *_):
        return torch.from_numpy(given["noise/uniform"]).transpose(0, 1).reshape(zeros.shape)

    losses, gradients_by_name = {}, {}
    with patch.object(Normal, "rsample", rsample), patch.object(torch.Tensor, "uniform_", uniform):
        losses["critics"] = impl.compute_critic_loss(batch, impl.compute_target(batch)).critic_loss
        if "log/gap_weight" in logs:
            losses["gap_weight"] = logs["log/gap_weight"].grad.clone().squeeze()
            gradients_by_name["log/gap_weight"] = losses["gap_weight"].numpy()
        losses["critics"].backward()
        gradients_by_name |= gradients({"critics": nets["critics"]})
        losses["policy"] = impl.compute_actor_loss(batch, policy(batch.observations)).actor_loss
        gradients_by_name["log/alpha"] = logs["log/alpha"].grad.clone().squeeze().numpy()
        losses["policy"].backward()
    return losses, gradients_by_name | gradients({"policy": nets["policy"]})


def dqn(given, batch):
    return discrete(d3rlpy.algos.DoubleDQNConfig(encoder_factory=ENCODER), given, batch)


def discrete_cql(given, batch):
    quantiles = d3rlpy.models.QRQFunctionFactory(n_quantiles=4)
    config = d3rlpy.algos.DiscreteCQLConfig(encoder_factory=ENCODER, q_func_factory=quantiles, alpha=2.0)
    return discrete(config, given, batch)


def discrete(config, given, batch):
    impl = build_d3rlpy(config, actions=3)
    nets = {"policy": members(impl._modules.q_funcs)}
    load(nets, given)
    load({"target": members(impl._modules.targ_q_funcs)}, given)
    loss = impl.compute_loss(batch, impl.compute_target(batch)).loss
    loss.backward()
    return {"policy": loss}, gradients(nets)


def decision_transformer(given, batch):
    """On whole sequences. d3rlpy adds up an action's squared errors, of which ours is the mean; it normalises with
    another epsilon, and its table of timesteps has two rows more than it says.
    """
    encoder = VectorEncoderFactory([16], activation="none")
    none = dict.fromkeys(("attn_dropout", "resid_dropout", "embed_dropout"), 0.0)
    sizes = {"context_size": 4, "max_timestep": 10, "num_heads": 2, "num_layers": 2}
    impl = build_d3rlpy(d3rlpy.algos.DecisionTransformerConfig(encoder_factory=encoder, **sizes, **none))
    model = impl._modules.transformer.train()
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 1e-5
    weights = {
        "of_observation": linears(model._encoder),
        "of_action": [model._action_embed],
        "of_return": [model._rtg_embed],
        "of_time": [model._position_encoding._embed],
        "norm": [model._embed_ln],
        "transformer.norm": [model._gpt2._layer_norm],
        "pi.0": [model._output],
    }
    for number, block in enumerate(model._gpt2._transformer):
        attention, dense = block._attention, block._mlp
        layers = {
            "before_attention": [block._layer_norm1],
            "before_dense": [block._layer_norm2],
            "projections": [attention._q, attention._k, attention._v],
            "merge": [attention._proj],
            "dense.0": [dense._l1],
            "dense.2": [dense._l2],
        }
        weights |= {f"transformer.layers.{number}.{name}": parameter for name, parameter in layers.items()}
    tensors = {
        f"{name}.{kind}": [getattr(layer, kind) for layer in parameter]
        for name, parameter in weights.items()
        for kind in ("weight", "bias")
        if hasattr(parameter[0], kind)
    }
    with torch.no_grad():
        for name, parts in tensors.items():
            for part, values in zip(parts, torch.from_numpy(given[name]).chunk(len(parts)), strict=True):
                part.copy_(values)
    loss = impl.compute_loss(batch) / 2
    loss.backward()
    slopes = {name: torch.cat([part.grad for part in parts]).numpy() for name, parts in tensors.items()}
    return {"policy": loss}, slopes


def build_d3rlpy(config, actions=2):
    algorithm = config.create(device="cpu")
    algorithm.create_impl((3,), actions)
    return algorithm.impl


def linears(module):
    return [layer for layer in module.modules() if isinstance(layer, nn.Linear)]


def members(modules):
    return [linears(member) for member in modules]


def each_tensor(nets):
    for name, of_members in nets.items():
        for member, layers in enumerate(of_members):
            for number, layer in enumerate(layers):
                yield f"{name}/{member}/{number}/weight", layer.weight
                yield f"{name}/{member}/{number}/bias", layer.bias


def load(nets, given):
    with torch.no_grad():
        for name, tensor in each_tensor(nets):
            tensor.copy_(torch.from_numpy(given[name]))


def gradients(nets):
    return {name: tensor.grad.numpy().copy() for name, tensor in each_tensor(nets) if tensor.grad is not None}


CASES = {
    "IQL": iql,
    "TD3BC": td3_bc,
    "ReBRAC": rebrac,
    "CQL": cql,
    "CQLLagrangian": cql_lagrangian,
    "SAC": sac,
    "DQN": dqn,
    "DiscreteCQL": discrete_cql,
    "DecisionTransformer": decision_transformer,
}


def sequences_of(given):
    names = ("obs", "actions", "rewards", "returns_to_go", "t")
    columns = {name: torch.from_numpy(given[name]) for name in names}
    return TorchTrajectoryMiniBatch(
        observations=columns["obs"],
        actions=columns["actions"],
        rewards=columns["rewards"][..., None],
        returns_to_go=columns["returns_to_go"][..., None],
        terminals=torch.zeros_like(columns["rewards"])[..., None],
        timesteps=columns["t"],
        masks=torch.ones_like(columns["rewards"]),
        device="cpu",
    )


def batch_of(given):
    if "returns_to_go" in given:
        return sequences_of(given)
    columns = {
        name: torch.from_numpy(given[name])
        for name in ("obs", "actions", "rewards", "new_obs", "new_actions", "terminals")
    }
    empty = torch.zeros(len(columns["obs"]), 1)
    return TorchMiniBatch(
        observations=columns["obs"],
        actions=columns["actions"],
        rewards=columns["rewards"][:, None],
        next_observations=columns["new_obs"],
        next_actions=columns["new_actions"],
        returns_to_go=empty,
        terminals=columns["terminals"][:, None],
        intervals=torch.ones_like(empty),
        device="cpu",
    )


def main():
    torch.set_default_dtype(torch.float64)
    folder = Path(sys.argv[1])
    for algorithm in sys.argv[2:]:
        inputs = dict(np.load(folder / f"{algorithm}.npz"))
        losses, gradients = CASES[algorithm](inputs, batch_of(inputs))
        losses = {f"loss/{name}": loss.detach().numpy() for name, loss in losses.items()}
        np.savez(folder / f"{algorithm}-theirs.npz", **losses, **gradients)
    print(folder)


if __name__ == "__main__":
    main()
