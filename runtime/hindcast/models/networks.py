"""Value networks for losses: V(s), Q(s, a), Q(s, ·); the members of an ensemble are computed together.

They take the same batches as policy modules: leaf -> tensor `[B, …]` of preprocessed observations. Shape suffixes:
B = rows, E = members, F = features.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice, pairwise
from typing import Literal, cast

import gymnasium as gym
import torch
from torch import Tensor, nn

from hindcast.api.model import ModelSpec
from hindcast.episodes.action_kinds import joint_actions_problem, num_joint_actions
from hindcast.episodes.columns import Columns, leaves_of, obs_leaf
from hindcast.errors import SpecError
from hindcast.models.action_masks import build_action_mask, forbid
from hindcast.models.distributions import Actions
from hindcast.models.encoders import ACTIVATIONS, HIDDEN_GAIN, Dropout, Encoder, Features, linear
from hindcast.models.initial_weights import (
    DEFAULT_INITIALISER,
    LayerInitialisers,
    encoder_initialiser,
    head_initialiser,
)
from hindcast.models.joint_actions import enumerate_actions, index_actions
from hindcast.models.recurrent import (
    NEXT_STEPS,
    OUTPUT_STEPS,
    State,
    at_output_steps,
    build_recurrent_layer,
    extract_state,
)

Batch = Mapping[str, Tensor]

_CHUNK_ROWS = {"cpu": 512, "cuda": 256}
"""Rows per chunk. On a CPU, a layer's weights, inputs and outputs then fit into a core's cache (256 units per layer).
Without chunks, CQL's thirty actions per state make tensors of 16 MB, which take a third of an update's time. On a GPU,
the matrix product that computes the weights' gradients then uses all multiprocessors."""


def next_observations(batch: Batch) -> dict[str, Tensor]:
    """Return the next observations of a batch as observations: `new_obs` as `obs`, `new_obs/camera` as `obs/camera`.

    A network that gets the result as its batch computes its output for the next state. After `prepare_sequences`, the
    result also has the columns that recurrent networks need, but no others.

    Raises:
        KeyError: the batch has no next observations; `Needs.columns` must name `new_obs`.
    """
    leaves = leaves_of(Columns.NEXT_OBS, batch)
    if not leaves:
        raise KeyError(f"the batch has no {Columns.NEXT_OBS!r}: add it to the columns that needs() returns")
    observations = {obs_leaf(leaf): batch[leaf] for leaf in leaves}
    if NEXT_STEPS not in batch:
        return observations
    state = {leaf: batch[leaf] for leaf in leaves_of(Columns.STATE_IN, batch)}
    return {**observations, **state, OUTPUT_STEPS: batch[NEXT_STEPS]}


class RecurrentEncoder(Encoder):
    """An encoder followed by the model's recurrent layer, for value networks: sequences `[B, T, ...]` -> `[B, T, F]`.

    Raises:
        SpecError: see `Encoder`.
    """

    def __init__(self, observation_space: gym.Space, model: ModelSpec) -> None:
        super().__init__(observation_space, model)
        memory = build_recurrent_layer(self.output_size, model)
        assert memory is not None
        self.memory, self.output_size = memory, memory.output_size

    def forward(self, batch: Batch) -> Tensor:
        """Return features `[B, T, F]`, starting from the zero state: a recorded state is that of the policy."""
        return self.unroll(batch, {})[0]

    def unroll(self, batch: Batch, state: Mapping[str, Tensor]) -> tuple[Tensor, State]:
        """Return features `[B, T, F]`, or `[B, F]` of single steps, and the state after the last step."""
        features_and_state: tuple[Tensor, State] = self.memory(super().forward(batch), state)
        return features_and_state


class StateValue(nn.Module):
    """V(s): an encoder with the model's options, and a linear layer.

    Raises:
        SpecError: see `Encoder`.
    """

    def __init__(self, observation_space: gym.Space, model: ModelSpec) -> None:
        super().__init__()
        encoder_class = Encoder if model.recurrent == "none" else RecurrentEncoder
        self.encoder = encoder_class(observation_space, model)
        self.head = linear(self.encoder.output_size, 1, 1.0, head_initialiser(model))

    def forward(self, batch: Batch) -> Tensor:
        """Return `[B]` values of the batch's observations, or `[B, T]` of sequences."""
        values: Tensor = self.head(at_output_steps(self.encoder(batch), batch))
        return values.squeeze(-1)


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Put a module and its submodules into evaluation mode for the duration of the block."""
    modes = {submodule: submodule.training for submodule in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for submodule, is_training in modes.items():
            submodule.training = is_training


class Critics(nn.Module):
    """Q(s, a) of E members, for all spaces: discrete actions are one-hot.

    Each member has its own stack of `fcnet_hiddens` over the concatenated observation and action. Members share the
    convolutions over images (arXiv 2107.09645). With `recurrent`, members share an encoder and a recurrent layer, whose
    output replaces the observation. Batches are then sequences, and `[B]` below is `[B, T]`.

    Args:
        observation_space: space of the networks' inputs, after preprocessing.
        action_space: the module's action space.
        model: sizes and activations.
        members: number of members, E.
        layer_norm: normalise before each activation (arXiv 2302.02948), regardless of the model's option.
        dropout: dropout rate of hidden units (arXiv 2110.02034); 0 uses the model's option.

    Raises:
        SpecError: see `Features`.
    """

    def __init__(
        self,
        observation_space: gym.Space,
        action_space: gym.Space,
        model: ModelSpec,
        members: int = 1,
        *,
        layer_norm: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.members = members
        features_class = Features if model.recurrent == "none" else RecurrentEncoder
        self.observations = features_class(observation_space, model)
        self.actions = Features(action_space, model, Columns.ACTIONS)
        size = self.observations.output_size + self.actions.output_size
        self.stack = _build_stack(
            members, [size, *model.fcnet_hiddens], 1, model, layer_norm=layer_norm, dropout=dropout
        )

    def forward(self, batch: Batch, actions: Actions | None = None) -> Tensor:
        """Return `[E, B]` values of the batch's observations with `actions`, or with the batch's actions if None.

        Args:
            batch: has the observations.
            actions: as distributions return them: `[B, *shape]`, or leaf -> tensor. For K actions per observation,
                `[K, B, *shape]`, the values are `[E, K, B]`.
        """
        action_features, rows = self._join_features(batch, actions)
        # unflatten takes -1 for the last axis because in an export the number of rows is a symbol.
        return self._compute_values(rows).squeeze(-1).unflatten(-1, (*action_features.shape[:-2], -1))

    def evaluate_first(self, batch: Batch, actions: Actions) -> Tensor:
        """Return `[B]` values of the first member: `forward(batch, actions)[0]` without computing the others."""
        _, rows = self._join_features(batch, actions)
        features = rows.unsqueeze(0)
        for layer in islice(self.stack, 1, None):  # skips the layer that repeats the features for all members
            features = layer(features)
        return features.reshape(-1)

    def values_and_gradients(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return `[E, B]` values of the batch's actions, and `[E, B, D]` gradients with respect to the action features.

        Losses may use both, because the gradients are differentiable.
        """
        recorded_features = self.actions(batch)
        obs_features, action_features = (
            rows.flatten(0, -2).expand(self.members, -1, -1)
            for rows in (self.observations(batch), recorded_features)
        )
        action_features = action_features.detach().requires_grad_()
        features = torch.cat([obs_features, action_features], -1)
        for layer in islice(self.stack, 1, None):  # skips the layer that repeats the features for all members
            features = layer(features)
        (gradients,) = torch.autograd.grad(features.sum(), action_features, create_graph=True)
        leading_shape = recorded_features.shape[:-1]
        return features.squeeze(-1).unflatten(1, leading_shape), gradients.unflatten(1, leading_shape)

    def _join_features(self, batch: Batch, actions: Actions | None) -> tuple[Tensor, Tensor]:
        """Return the actions' features `[..., F]`, and a row of observation and action features for each action."""
        if isinstance(actions, Tensor):
            actions = {Columns.ACTIONS: actions}
        action_features = self.actions(batch if actions is None else actions)
        obs_features = at_output_steps(self.observations(batch), batch).expand(
            *action_features.shape[:-1], -1
        )
        return action_features, torch.cat([obs_features, action_features], -1).flatten(0, -2)

    def _compute_values(self, rows: Tensor) -> Tensor:
        """Compute `[E, B, 1]` values; on the CPU chunk by chunk, so that a layer's outputs stay in the cache."""
        if not rows.is_cpu or torch.compiler.is_exporting() or len(rows) <= _CHUNK_ROWS["cpu"]:
            values: Tensor = self.stack(rows)
            return values
        return torch.cat([self.stack(chunk) for chunk in rows.split(_CHUNK_ROWS["cpu"])], 1)


class ActionValues(nn.Module):
    """Q(s, ·) of E members, for one Discrete or MultiDiscrete action: means of the return, or its quantiles.

    Each member has its own stack of `fcnet_hiddens` and then `head_fcnet_hiddens`. `recurrent` is as in `Critics`, but
    the state starts from `state_in` if the batch has it.

    Shapes: n is the number of actions; for a MultiDiscrete space, of all combinations (see `enumerate_actions`).

    Args:
        observation_space, action_space, model, members, layer_norm, dropout: see `Critics`.
        quantiles: number Q of quantiles per action (arXiv 1710.10044); 1 computes the mean only.
        dueling: the last layer computes a state's value and each action's advantage over the mean (arXiv 1511.06581).

    Raises:
        SpecError: the action space is neither Discrete nor MultiDiscrete, or has too many combinations; also see
            `Features`.
    """

    joint_actions: Tensor
    strides: Tensor

    def __init__(
        self,
        observation_space: gym.Space,
        action_space: gym.Space,
        model: ModelSpec,
        members: int = 1,
        *,
        layer_norm: bool = False,
        dropout: float = 0.0,
        quantiles: int = 1,
        dueling: bool = False,
    ) -> None:
        super().__init__()
        if not isinstance(action_space, gym.spaces.Discrete | gym.spaces.MultiDiscrete):
            raise SpecError(
                "a value of each action requires a Discrete or MultiDiscrete action space, not "
                f"{action_space}; for other spaces use critics of state and action, inputs.critics().",
                field="spec.algorithm",
            )
        if problem := joint_actions_problem(action_space):
            raise SpecError(f"{action_space} has {problem}.", field="spec.algorithm")
        features_class = Features if model.recurrent == "none" else RecurrentEncoder
        self.observations = features_class(observation_space, model)
        self._is_joint = isinstance(action_space, gym.spaces.MultiDiscrete)
        if isinstance(action_space, gym.spaces.MultiDiscrete):
            joint_actions, strides = enumerate_actions(action_space)
            self.register_buffer("joint_actions", joint_actions, persistent=False)
            self.register_buffer("strides", strides, persistent=False)
        else:
            self._start = int(action_space.start)
        self._num_quantiles, self._is_dueling = quantiles, dueling
        self._action_mask = build_action_mask(observation_space, action_space)
        # Dueling: one more output for the state's value.
        num_outputs = quantiles * (num_joint_actions(action_space) + dueling)
        sizes = [self.observations.output_size, *model.fcnet_hiddens, *model.head_fcnet_hiddens]
        self.stack = _build_stack(members, sizes, num_outputs, model, layer_norm=layer_norm, dropout=dropout)

    def forward(self, batch: Batch) -> Tensor:
        """Return `[E, B, n]` values of all actions."""
        return quantile_mean(self.quantiles(batch))

    def quantiles(self, batch: Batch) -> Tensor:
        """Return `[E, B, n, Q]` quantiles of all actions' values, at (i + ½) / Q; -1e30 for masked actions."""
        return self.unroll(batch)[0]

    def unroll(self, batch: Batch) -> tuple[Tensor, State]:
        """Return the result of `quantiles`, and the recurrent state after the last step, if there is one."""
        state: State = {}
        if isinstance(self.observations, RecurrentEncoder):
            features, state = self.observations.unroll(batch, extract_state(Columns.STATE_IN, batch))
        else:
            features = self.observations(batch)
        features = at_output_steps(features, batch)
        values: Tensor = self.stack(features.flatten(0, -2)).unflatten(-1, (-1, self._num_quantiles))
        if features.dim() > 2:  # sequences
            values = values.unflatten(1, features.shape[:-1])
        if self._is_dueling:
            advantages = values[..., 1:, :]
            values = values[..., :1, :] + advantages - advantages.mean(-2, keepdim=True)
        if self._action_mask is not None:
            is_allowed = self._action_mask.allowed_actions(batch)
            values = forbid(values, at_output_steps(is_allowed, batch).unsqueeze(-1))
        return values, state

    def initial_state(self) -> State:
        """Return the recurrent state before an episode's first step, `[H]` each; empty without a recurrent layer."""
        encoder = self.observations
        return encoder.memory.initial_state() if isinstance(encoder, RecurrentEncoder) else {}

    def gather(self, values: Tensor, actions: Tensor) -> Tensor:
        """Select the values of actions: `[E, B]` from `values` `[E, B, n]`, or `[E, B, Q]` from `[E, B, n, Q]`.

        `actions` `[B, *shape]`, or `[E, B, *shape]` with other actions for each member, are integers of the action
        space, counted from its `start`.
        """
        return gather_values(values, self.indices(actions).expand(values.shape[:2]))

    def indices(self, actions: Tensor) -> Tensor:
        """Return the indices of actions `[..., *shape]`, which start at 0: `[...]` int64."""
        if self._is_joint:
            return index_actions(actions, self.joint_actions, self.strides)
        return actions.long() - self._start

    def min_values(self, batch: Batch, actions: Actions | None = None) -> Tensor:
        """Return the members' minimum `[B]` for the batch's actions, or `[K, B]` for `actions`, `[K, B, *shape]`."""
        action_sets = batch[Columns.ACTIONS].unsqueeze(0) if actions is None else cast(Tensor, actions)
        values = self(batch).amin(0).expand(len(action_sets), -1, -1)
        q = self.gather(values, action_sets)
        return q[0] if actions is None else q


def combine_members(q: Tensor, aggregation: Literal["min", "mean"]) -> Tensor:
    """Return the minimum or the mean `[...]` over the members of values `[E, ...]`."""
    return q.amin(0) if aggregation == "min" else q.mean(0)


def gather_values(values: Tensor, indices: Tensor) -> Tensor:
    """Select from `values` `[..., B, n]` or `[..., B, n, Q]` those at `indices` `[..., B]`, which start at 0."""
    index = indices.unsqueeze(-1)
    if values.dim() == index.dim():
        return values.gather(-1, index).squeeze(-1)
    return values.gather(-2, index.unsqueeze(-1).expand(*index.shape, values.shape[-1])).squeeze(-2)


def quantile_mean(quantiles: Tensor) -> Tensor:
    """Return the mean `[...]` of quantiles `[..., Q]`."""
    return quantiles.squeeze(-1) if quantiles.shape[-1] == 1 else quantiles.mean(-1)


class MemberLinear(nn.Module):
    """The linear layers of E members in one matrix product; initially orthogonal weights and zero biases.

    Args:
        members: number of members, E.
        size_in, size_out: number of input and output features.
        gain: gain of the orthogonal weights.
        initialiser: initialiser of weights and biases, in place of the default.
    """

    def __init__(
        self,
        members: int,
        size_in: int,
        size_out: int,
        gain: float,
        initialiser: LayerInitialisers = DEFAULT_INITIALISER,
    ) -> None:
        super().__init__()
        layers = [linear(size_in, size_out, gain, initialiser) for _ in range(members)]
        self.weight = nn.Parameter(torch.stack([layer.weight.detach().T for layer in layers]))
        self.bias = nn.Parameter(torch.stack([layer.bias.detach().unsqueeze(0) for layer in layers]))

    def forward(self, features: Tensor) -> Tensor:
        """Map `[e, B, size_in]` features of the first e members to `[e, B, size_out]`."""
        bias, weight = _first_members(features.shape[0], self.bias, self.weight)
        num_rows, chunk_size = features.shape[1], _CHUNK_ROWS["cuda"]
        # unflatten takes -1 rather than a computed count, because in an export the number of rows is a symbol.
        if features.is_cuda and num_rows > 2 * chunk_size and num_rows % chunk_size == 0:
            chunks = features.unflatten(1, (-1, chunk_size))
            return (chunks @ weight.unsqueeze(1) + bias.unsqueeze(1)).flatten(1, 2)
        if features.is_cuda and torch.compiler.is_compiling():
            return features @ weight + bias  # inductor fuses the sum with the operations that follow
        return torch.baddbmm(bias, features, weight)


def _first_members(count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Return the parameters of the first `count` members."""
    # All members are returned unsliced: the gradient of a slice costs a copy.
    return tensors if tensors[0].shape[0] == count else tuple(tensor[:count] for tensor in tensors)


class MemberNorm(nn.Module):
    """Layer normalisation (arXiv 1607.06450) with each member's own scale and shift."""

    def __init__(self, members: int, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(members, 1, size))
        self.bias = nn.Parameter(torch.zeros(members, 1, size))

    def forward(self, features: Tensor) -> Tensor:
        normalised_features = nn.functional.layer_norm(features, features.shape[-1:])
        bias, weight = _first_members(features.shape[0], self.bias, self.weight)
        return torch.addcmul(bias, normalised_features, weight)


class _RepeatForMembers(nn.Module):
    """Repeat the features for all members: `[B, F]` -> `[E, B, F]`, without a copy."""

    def __init__(self, members: int) -> None:
        super().__init__()
        self._members = members

    def forward(self, features: Tensor) -> Tensor:
        return features.expand(self._members, *features.shape)


def _build_stack(
    members: int,
    sizes: Sequence[int],
    num_outputs: int,
    model: ModelSpec,
    *,
    layer_norm: bool,
    dropout: float,
) -> nn.Sequential:
    layers: list[nn.Module] = [_RepeatForMembers(members)]
    for index, (size_in, size_out) in enumerate(pairwise(sizes)):
        initialiser = (
            encoder_initialiser(model) if index < len(model.fcnet_hiddens) else head_initialiser(model)
        )
        layers.append(MemberLinear(members, size_in, size_out, HIDDEN_GAIN, initialiser))
        if dropout or model.dropout:
            layers.append(Dropout(dropout or model.dropout))
        if layer_norm or model.layer_norm:
            layers.append(MemberNorm(members, size_out))
        layers.append(ACTIVATIONS[model.fcnet_activation]())
    layers.append(MemberLinear(members, sizes[-1], num_outputs, 1.0, head_initialiser(model)))
    return nn.Sequential(*layers)
