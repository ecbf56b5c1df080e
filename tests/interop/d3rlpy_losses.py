"""Compute d3rlpy's losses and gradients for a batch and weights. Runs in the environment that has d3rlpy.

    python d3rlpy_losses.py FOLDER ALGORITHM ...

FOLDER/<algorithm>.npz has the batch, the algorithm's draws of noise, `noise/...`, and the weights,
`<network>/<member>/<layer>/{weight,bias}`. FOLDER/<algorithm>-d3rlpy.npz gets the losses, and the gradients by the
names of the weights.
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
from d3rlpy.models.torch.q_functions import mean_q_function
from d3rlpy.torch_utility import TorchMiniBatch, TorchTrajectoryMiniBatch
from torch import nn

ENCODER = VectorEncoderFactory([16, 16], activation="tanh")
ENCODER_FACTORIES = {"actor_encoder_factory": ENCODER, "critic_encoder_factory": ENCODER}
TINY_LEARNING_RATE = 1e-30
"""With this learning rate d3rlpy computes gradients, but changes no parameter."""


def iql(inputs, batch):
    options = {"value_encoder_factory": ENCODER, "expectile": 0.8, "weight_temp": 3.0}
    impl = build_d3rlpy(d3rlpy.algos.IQLConfig(**ENCODER_FACTORIES, **options))
    policy, values = impl._modules.policy, impl._modules.value_func
    nets = {
        "policy": [[*linear_layers(policy._encoder), policy._mu]],
        "value": [linear_layers(values)],
        "critics": member_layers(impl._modules.q_funcs),
    }
    load_weights(nets, inputs)
    load_weights({"target_critics": member_layers(impl._modules.targ_q_funcs)}, inputs)
    # As in Hindcast, the log standard deviation is a free parameter; d3rlpy's would be a sigmoid between bounds.
    log_std = nn.Parameter(torch.zeros(1, 2))

    def forward(self, x, *_):
        mean = torch.tanh(self._mu(self._encoder(x)))
        return ActionOutput(mean, mean, log_std)

    policy.forward = MethodType(forward, policy)
    critic = impl.compute_critic_loss(batch, impl.compute_target(batch))
    actor = impl.compute_actor_loss(batch, policy(batch.observations)).actor_loss
    (critic.critic_loss + actor).backward()
    losses = {"value": critic.v_loss, "critics": critic.q_loss, "policy": actor}
    return losses, get_gradients(nets) | {"log_std": log_std.grad.numpy()}


def td3_bc(inputs, batch):
    config = d3rlpy.algos.TD3PlusBCConfig(**ENCODER_FACTORIES, alpha=2.5, target_smoothing_sigma=0.0)
    return td3(config, inputs, batch)


def rebrac(inputs, batch):
    config = d3rlpy.algos.ReBRACConfig(
        **ENCODER_FACTORIES, actor_beta=0.3, critic_beta=0.4, target_smoothing_sigma=0.0
    )
    return td3(config, inputs, batch)


def td3(config, inputs, batch):
    impl = build_d3rlpy(config)
    nets = {"policy": member_layers([impl._modules.policy]), "critics": member_layers(impl._modules.q_funcs)}
    load_weights(nets, inputs)
    targets = {
        "target_policy": member_layers([impl._modules.targ_policy]),
        "target_critics": member_layers(impl._modules.targ_q_funcs),
    }
    load_weights(targets, inputs)
    critic = impl.compute_critic_loss(batch, impl.compute_target(batch)).critic_loss
    critic.backward()
    critic_gradients = get_gradients({"critics": nets["critics"]})
    actor = impl.compute_actor_loss(batch, impl._modules.policy(batch.observations)).actor_loss
    actor.backward()
    return {"critics": critic, "policy": actor}, critic_gradients | get_gradients({"policy": nets["policy"]})


def cql(inputs, batch, **lagrangian):
    config = d3rlpy.algos.CQLConfig(
        **ENCODER_FACTORIES,
        conservative_weight=5.0,
        n_action_samples=4,
        soft_q_backup=True,
        temp_learning_rate=TINY_LEARNING_RATE,
        **{"alpha_threshold": 0.0, "alpha_learning_rate": 0.0, **lagrangian},
    )
    return soft_actor_critic(config, inputs, batch)


def cql_lagrangian(inputs, batch):
    return cql(inputs, batch, alpha_threshold=2.0, alpha_learning_rate=TINY_LEARNING_RATE)


def sac(inputs, batch):
    config = d3rlpy.algos.SACConfig(**ENCODER_FACTORIES, temp_learning_rate=TINY_LEARNING_RATE)
    return soft_actor_critic(config, inputs, batch)


def soft_actor_critic(config, inputs, batch):
    """Use Hindcast's draws. d3rlpy does not return the loss of α' (`gap_weight`). Being proportional to α', it
    equals its gradient by log α', which stands for both.
    """
    impl = build_d3rlpy(config)
    modules = impl._modules
    policy = modules.policy
    nets = {
        "policy": [[*linear_layers(policy._encoder), policy._mu, policy._logstd]],
        "critics": member_layers(modules.q_funcs),
    }
    load_weights(nets, inputs)
    load_weights({"target_critics": member_layers(modules.targ_q_funcs)}, inputs)
    log_weights = {"log/alpha": modules.log_temp, "log/gap_weight": getattr(modules, "log_alpha", None)}
    logs = {name: next(log_weight.parameters()) for name, log_weight in log_weights.items() if name in inputs}
    with torch.no_grad():
        for name, log in logs.items():
            log.fill_(float(inputs[name]))
    names = [f"noise/{name}" for name in ("target", "current", "next", "actor")]
    noise = iter([torch.from_numpy(inputs[name]) for name in names if name in inputs])

    def rsample(self, shape=()):
        return self.loc + self.scale * next(noise)

    def uniform(zeros, *_):
        return torch.from_numpy(inputs["noise/uniform"]).transpose(0, 1).reshape(zeros.shape)

    losses, gradients_by_name = {}, {}
    with patch.object(Normal, "rsample", rsample), patch.object(torch.Tensor, "uniform_", uniform):
        losses["critics"] = impl.compute_critic_loss(batch, impl.compute_target(batch)).critic_loss
        if "log/gap_weight" in logs:
            losses["gap_weight"] = logs["log/gap_weight"].grad.clone().squeeze()
            gradients_by_name["log/gap_weight"] = losses["gap_weight"].numpy()
        losses["critics"].backward()
        gradients_by_name |= get_gradients({"critics": nets["critics"]})
        losses["policy"] = impl.compute_actor_loss(batch, policy(batch.observations)).actor_loss
        gradients_by_name["log/alpha"] = logs["log/alpha"].grad.clone().squeeze().numpy()
        losses["policy"].backward()
    return losses, gradients_by_name | get_gradients({"policy": nets["policy"]})


def discrete_sac(inputs, batch):
    """Square the critics' errors, as the paper and Hindcast do; d3rlpy's critics have the Huber loss. The losses of
    policy and α are computed with the same critics, as d3rlpy's learning rates are tiny.
    """
    config = d3rlpy.algos.DiscreteSACConfig(**ENCODER_FACTORIES, temp_learning_rate=TINY_LEARNING_RATE)
    impl = build_d3rlpy(config, actions=3)
    modules = impl._modules
    nets = {"policy": [linear_layers(modules.policy)], "critics": member_layers(modules.q_funcs)}
    load_weights(nets, inputs)
    load_weights({"target_critics": member_layers(modules.targ_q_funcs)}, inputs)
    log_alpha = next(modules.log_temp.parameters())
    with torch.no_grad():
        log_alpha.fill_(float(inputs["log/alpha"]))
    with patch.object(mean_q_function, "compute_huber_loss", lambda q, target: (q - target).square()):
        losses = {"critics": impl.compute_critic_loss(batch, impl.compute_target(batch))}
    losses["critics"].backward()
    gradients_by_name = get_gradients({"critics": nets["critics"]})
    losses["policy"] = impl.compute_actor_loss(batch)["loss"]
    gradients_by_name["log/alpha"] = log_alpha.grad.clone().squeeze().numpy()
    losses["policy"].backward()
    return losses, gradients_by_name | get_gradients({"policy": nets["policy"]})


def dqn(inputs, batch):
    return discrete_q_learning(d3rlpy.algos.DoubleDQNConfig(encoder_factory=ENCODER), inputs, batch)


def discrete_cql(inputs, batch):
    quantiles = d3rlpy.models.QRQFunctionFactory(n_quantiles=4)
    config = d3rlpy.algos.DiscreteCQLConfig(encoder_factory=ENCODER, q_func_factory=quantiles, alpha=2.0)
    return discrete_q_learning(config, inputs, batch)


def discrete_q_learning(config, inputs, batch):
    impl = build_d3rlpy(config, actions=3)
    nets = {"policy": member_layers(impl._modules.q_funcs)}
    load_weights(nets, inputs)
    load_weights({"target": member_layers(impl._modules.targ_q_funcs)}, inputs)
    loss = impl.compute_loss(batch, impl.compute_target(batch)).loss
    loss.backward()
    return {"policy": loss}, get_gradients(nets)


def decision_transformer(inputs, batch):
    """Use complete sequences. d3rlpy sums the two squared errors of an action, and Hindcast averages them. d3rlpy's
    layer norm has another epsilon, and its table of timesteps has two more rows than `max_timestep`.
    """
    encoder = VectorEncoderFactory([16], activation="none")
    no_dropout = dict.fromkeys(("attn_dropout", "resid_dropout", "embed_dropout"), 0.0)
    sizes = {"context_size": 4, "max_timestep": 10, "num_heads": 2, "num_layers": 2}
    config = d3rlpy.algos.DecisionTransformerConfig(encoder_factory=encoder, **sizes, **no_dropout)
    impl = build_d3rlpy(config)
    model = impl._modules.transformer.train()
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 1e-5
    layers_by_name = {
        "of_observation": linear_layers(model._encoder),
        "of_action": [model._action_embed],
        "of_return": [model._rtg_embed],
        "of_time": [model._position_encoding._embed],
        "norm": [model._embed_ln],
        "transformer.norm": [model._gpt2._layer_norm],
        "pi.0": [model._output],
    }
    for index, block in enumerate(model._gpt2._transformer):
        attention, dense = block._attention, block._mlp
        block_layers = {
            "before_attention": [block._layer_norm1],
            "before_dense": [block._layer_norm2],
            "projections": [attention._q, attention._k, attention._v],
            "merge": [attention._proj],
            "dense.0": [dense._l1],
            "dense.2": [dense._l2],
        }
        prefix = f"transformer.layers.{index}"
        layers_by_name |= {f"{prefix}.{name}": layers for name, layers in block_layers.items()}
    tensors = {
        f"{name}.{kind}": [getattr(layer, kind) for layer in layers]
        for name, layers in layers_by_name.items()
        for kind in ("weight", "bias")
        if hasattr(layers[0], kind)
    }
    # Hindcast has one layer where d3rlpy has several: their weights are its rows, in order.
    with torch.no_grad():
        for name, parameters in tensors.items():
            values = torch.from_numpy(inputs[name]).chunk(len(parameters))
            for parameter, value in zip(parameters, values, strict=True):
                parameter.copy_(value)
    loss = impl.compute_loss(batch) / 2
    loss.backward()
    gradients = {
        name: torch.cat([parameter.grad for parameter in parameters]).numpy()
        for name, parameters in tensors.items()
    }
    return {"policy": loss}, gradients


def build_d3rlpy(config, actions=2):
    algorithm = config.create(device="cpu")
    algorithm.create_impl((3,), actions)
    return algorithm.impl


def linear_layers(module):
    return [layer for layer in module.modules() if isinstance(layer, nn.Linear)]


def member_layers(modules):
    return [linear_layers(member) for member in modules]


def iterate_tensors(nets):
    for name, layers_by_member in nets.items():
        for member, layers in enumerate(layers_by_member):
            for index, layer in enumerate(layers):
                yield f"{name}/{member}/{index}/weight", layer.weight
                yield f"{name}/{member}/{index}/bias", layer.bias


def load_weights(nets, inputs):
    with torch.no_grad():
        for name, tensor in iterate_tensors(nets):
            tensor.copy_(torch.from_numpy(inputs[name]))


def get_gradients(nets):
    tensors = iterate_tensors(nets)
    return {name: tensor.grad.numpy().copy() for name, tensor in tensors if tensor.grad is not None}


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


def make_sequence_batch(inputs):
    names = ("obs", "actions", "rewards", "returns_to_go", "t")
    columns = {name: torch.from_numpy(inputs[name]) for name in names}
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


def make_batch(inputs):
    if "returns_to_go" in inputs:
        return make_sequence_batch(inputs)
    names = ("obs", "actions", "rewards", "new_obs", "new_actions", "terminals")
    columns = {name: torch.from_numpy(inputs[name]) for name in names}
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
        losses, gradients = CASES[algorithm](inputs, make_batch(inputs))
        losses = {f"loss/{name}": loss.detach().numpy() for name, loss in losses.items()}
        np.savez(folder / f"{algorithm}-d3rlpy.npz", **losses, **gradients)
    print(folder)


if __name__ == "__main__":
    main()
