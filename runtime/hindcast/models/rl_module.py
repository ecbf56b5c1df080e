"""Policy (and value) networks, under RLlib's `RLModule` interface.

A batch is a flat mapping leaf -> tensor `[B, …]` (`obs`, or `obs/camera`, …) of *preprocessed* observations. A module
with a state also takes sequences, `[B, T, …]`, and the state before their first step, `state_in/h` `[B, …]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import gymnasium as gym
import torch
from torch import Tensor, nn

from hindcast.api.model import ModelSpec
from hindcast.episodes.columns import Columns
from hindcast.models.action_head import ActionHead, distribution_for
from hindcast.models.distributions import Distribution
from hindcast.models.encoders import Encoder, fully_connected, linear
from hindcast.models.recurrent import Recurrent, as_leaves, state_of

Batch: TypeAlias = Mapping[str, Tensor]

_FIRST_POLICY_GAIN = 0.01


class RLModule(nn.Module):
    """Base of all modules. A subclass builds its layers in `setup()` and computes in `_forward()`.

    `_forward_inference`, `_forward_exploration` and `_forward_train` may be overridden one by one; each
    is `_forward` unless it is.

    Args:
        observation_space: what the module sees (`Preprocessing.observation_space`).
        action_space: what the module puts out (`Preprocessing.action_space`).
        model: the networks' options.
        value: whether a value head is wanted.

    Attributes:
        observation_space, action_space, model_config, value: the arguments.
        action_head: outputs needed per action, the noise that a sample needs, the distribution's family.

    Raises:
        SpecError: the options do not fit the spaces.
    """

    def __init__(
        self, observation_space: gym.Space, action_space: gym.Space, model: ModelSpec, value: bool = False
    ) -> None:
        super().__init__()
        self.observation_space = observation_space
        self.action_space = action_space
        self.model_config = model
        self.value = value
        self.action_head: ActionHead = distribution_for(action_space, model)
        self.setup()

    def setup(self) -> None:
        """Build the layers. Weights come from torch's global generator."""

    def get_initial_state(self) -> dict[str, Tensor]:
        """The state before an episode's first step, name -> `[*shape]`; empty for a module without one.

        A module that gives one takes the leaf `state_in/<name>` with a batch, `[B, *shape]` (where it is left out, the
        initial state), and puts out `state_out/<name>`, the state after the batch's last step. It takes single steps
        `[B, …]` to act and sequences `[B, T, …]` to learn, and puts out `[B, …]` or `[B, T, …]` accordingly.
        """
        return {}

    def is_stateful(self) -> bool:
        """Whether it carries a state from step to step."""
        return bool(self.get_initial_state())

    def forward_inference(self, batch: Batch) -> dict[str, Tensor]:
        """For acting greedily: `action_dist_inputs` `[B, P]` at least."""
        return self._forward_inference(batch)

    def forward_exploration(self, batch: Batch) -> dict[str, Tensor]:
        """For acting by sampling: `action_dist_inputs` `[B, P]` at least."""
        return self._forward_exploration(batch)

    def forward_train(self, batch: Batch) -> dict[str, Tensor]:
        """For losses: `action_dist_inputs` `[B, P]` and, with a value head, `vf_preds` `[B]`; with T of sequences."""
        return self._forward_train(batch)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """`forward_train`, so that wrappers such as DistributedDataParallel see the training pass."""
        return self.forward_train(batch)

    def compute_values(self, batch: Batch) -> Tensor:
        """`[B]` values of the batch's observations.

        Raises:
            NotImplementedError: the module has no value head.
        """
        raise NotImplementedError(f"{type(self).__name__} has no value head")

    def distribution(self, action_dist_inputs: Tensor) -> Distribution:
        """The action distribution for the outputs of a forward pass."""
        return self.action_head.from_inputs(action_dist_inputs)

    def get_state(self) -> dict[str, Tensor]:
        """A copy of all weights on the CPU."""
        return {name: tensor.detach().to("cpu", copy=True) for name, tensor in self.state_dict().items()}

    def set_state(self, state: Mapping[str, Tensor]) -> None:
        """Take over weights from `get_state`.

        Raises:
            RuntimeError: names or shapes do not fit.
        """
        self.load_state_dict(dict(state))

    def _forward(self, batch: Batch) -> dict[str, Tensor]:
        raise NotImplementedError(f"{type(self).__name__} must define _forward()")

    def _forward_inference(self, batch: Batch) -> dict[str, Tensor]:
        return self._forward(batch)

    def _forward_exploration(self, batch: Batch) -> dict[str, Tensor]:
        return self._forward(batch)

    def _forward_train(self, batch: Batch) -> dict[str, Tensor]:
        return self._forward(batch)


class PolicyModule(RLModule):
    """The default: encoder, policy head and, with `value`, a value head.

    The value head has an encoder of its own unless `vf_share_layers`. Heads are `head_fcnet_hiddens` with the
    encoder's activation, then one linear layer; the policy's starts near zero (gain 0.01), so that the first
    policy hardly depends on the observation (arXiv 2006.05990, section 3.2).

    With `recurrent`, a recurrent layer follows each encoder. The state is that of the policy's; a value head with an
    encoder of its own begins at zero in each batch, so that it values sequences, not single steps.
    """

    def setup(self) -> None:
        model = self.model_config
        self.encoder = Encoder(self.observation_space, model)
        self.memory = _memory(self.encoder, model)
        features = self.encoder.output_size if self.memory is None else self.memory.output_size
        self.log_std = _FreeLogStd(self.action_head) if self._wants_free_log_std() else None
        policy_outputs = self.action_head.inputs_size
        if self.log_std is not None:
            policy_outputs -= self.log_std.size
        self.pi = _head(features, policy_outputs, model, _FIRST_POLICY_GAIN)
        if self.value:
            self.vf_encoder = None if model.vf_share_layers else Encoder(self.observation_space, model)
            self.vf_memory = None if self.vf_encoder is None else _memory(self.vf_encoder, model)
            self.vf = _head(features, 1, model, 1.0)

    def get_initial_state(self) -> dict[str, Tensor]:
        return {} if self.memory is None else self.memory.initial_state()

    def compute_values(self, batch: Batch) -> Tensor:
        if not self.value:
            return super().compute_values(batch)
        return self._values(self._features(batch)[0] if self.vf_encoder is None else self._vf_features(batch))

    def _forward(self, batch: Batch) -> dict[str, Tensor]:
        features, state = self._features(batch)
        return {Columns.ACTION_DIST_INPUTS: self._dist_inputs(features), **state}

    def _forward_train(self, batch: Batch) -> dict[str, Tensor]:
        features, state = self._features(batch)
        outputs = {Columns.ACTION_DIST_INPUTS: self._dist_inputs(features), **state}
        if self.value:
            value_features = features if self.vf_encoder is None else self._vf_features(batch)
            outputs[Columns.VF_PREDS] = self._values(value_features)
        return outputs

    def _features(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """What the heads see, and the leaves `state_out/…`."""
        features: Tensor = self.encoder(batch)
        if self.memory is None:
            return features, {}
        features, state = self.memory(features, state_of(Columns.STATE_IN, batch))
        return features, as_leaves(Columns.STATE_OUT, state)

    def _vf_features(self, batch: Batch) -> Tensor:
        assert self.vf_encoder is not None
        features: Tensor = self.vf_encoder(batch)
        return features if self.vf_memory is None else self.vf_memory(features, {})[0]

    def _dist_inputs(self, features: Tensor) -> Tensor:
        inputs: Tensor = self.pi(features)
        return inputs if self.log_std is None else self.log_std(inputs)

    def _values(self, features: Tensor) -> Tensor:
        values: Tensor = self.vf(features)
        return values.squeeze(-1)

    def _wants_free_log_std(self) -> bool:
        return self.model_config.free_log_std and bool(self.action_head.log_std_columns)


class _FreeLogStd(nn.Module):
    """Puts log standard deviations that are parameters into their columns of the distribution's inputs."""

    def __init__(self, head: ActionHead) -> None:
        super().__init__()
        free = list(head.log_std_columns)
        computed = [column for column in range(head.inputs_size) if column not in set(free)]
        self.size = len(free)
        self.log_std = nn.Parameter(torch.zeros(self.size))
        self._order: Tensor
        self.register_buffer("_order", torch.tensor(computed + free).argsort(), persistent=False)

    def forward(self, computed: Tensor) -> Tensor:
        log_std = self.log_std.expand(*computed.shape[:-1], self.size)
        return torch.cat([computed, log_std], -1)[..., self._order]


def build_module(
    observation_space: gym.Space,
    action_space: gym.Space,
    model: ModelSpec,
    value: bool = False,
    module_class: type[RLModule] = PolicyModule,
) -> RLModule:
    """A module with fresh weights, drawn from torch's global generator (`torch.manual_seed` fixes them).

    Args:
        observation_space: what the module sees (`Preprocessing.observation_space`).
        action_space: what the module puts out (`Preprocessing.action_space`).
        model: the networks' options.
        value: whether a value head is wanted.
        module_class: the user's own, or the default.

    Raises:
        SpecError: the options do not fit the spaces.
    """
    return module_class(observation_space, action_space, model, value)


def _memory(encoder: Encoder, model: ModelSpec) -> Recurrent | None:
    if model.recurrent == "none":
        return None
    return Recurrent(model.recurrent, encoder.output_size, model.cell_size)


def _head(size_in: int, size_out: int, model: ModelSpec, gain: float) -> nn.Sequential:
    hidden = fully_connected([size_in, *model.head_fcnet_hiddens], model.fcnet_activation)
    return nn.Sequential(*hidden, linear([size_in, *model.head_fcnet_hiddens][-1], size_out, gain))
