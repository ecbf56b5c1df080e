"""Networks of losses: V(s), Q(s, a), Q(s, ·), of which several members are computed at once.

They take the same batches as modules: leaf -> tensor `[B, …]` of preprocessed observations. Shape suffixes: B = rows,
E = members, F = features.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice, pairwise

import gymnasium as gym
import torch
from torch import Tensor, nn

from hindcast.api.model import ModelSpec
from hindcast.episodes.columns import Columns, leaves_of, obs_leaf
from hindcast.errors import SpecError
from hindcast.models.distributions import Actions
from hindcast.models.encoders import ACTIVATIONS, HIDDEN_GAIN, Dropout, Encoder, Features, linear
from hindcast.models.initial_weights import (
    DEFAULT_INITIALISER,
    Initialiser,
    encoder_initialiser,
    head_initialiser,
)

Batch = Mapping[str, Tensor]

_ROWS_AT_A_TIME = {"cpu": 512, "cuda": 256}
"""On a CPU a layer's weights, what comes in and what goes out then fit into a core's cache, with layers of 256. On a
GPU the product that makes the weights' gradients is then spread over all of it."""


def next_observations(batch: Batch) -> dict[str, Tensor]:
    """The next observations of a batch as observations: `new_obs` as `obs`, `new_obs/camera` as `obs/camera`.

    With them any network gives its output for the next state. Other columns are not there.

    Raises:
        KeyError: the batch has no next observations; `Needs.columns` must name `new_obs`.
    """
    leaves = leaves_of(Columns.NEXT_OBS, batch)
    if not leaves:
        raise KeyError(f"the batch has no {Columns.NEXT_OBS!r}: name it among the columns that are needed")
    return {obs_leaf(leaf): batch[leaf] for leaf in leaves}


class StateValue(nn.Module):
    """V(s): an encoder of the model's, and a linear layer.

    Raises:
        SpecError: as of `Encoder`.
    """

    def __init__(self, observation_space: gym.Space, model: ModelSpec) -> None:
        super().__init__()
        self.encoder = Encoder(observation_space, model)
        self.head = linear(self.encoder.output_size, 1, 1.0, head_initialiser(model))

    def forward(self, batch: Batch) -> Tensor:
        """`[B]` values of the batch's observations."""
        values: Tensor = self.head(self.encoder(batch))
        return values.squeeze(-1)


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Put a module and its parts into evaluation mode for a while."""
    modes = {each: each.training for each in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for each, training in modes.items():
            each.training = training


class Critics(nn.Module):
    """Q(s, a) of E members, for all spaces: discrete actions are one-hot.

    Each member has a stack of `fcnet_hiddens` of its own over observations and actions, end to end. Members share
    the convolutions over images (arXiv 2107.09645).

    Args:
        observation_space: what the networks see.
        action_space: the policy's own.
        model: sizes and activations.
        members: E.
        layer_norm: normalise before each activation (arXiv 2302.02948), whatever the model says.
        dropout: share of hidden units that training leaves out (arXiv 2110.02034); 0 is the model's.

    Raises:
        SpecError: as of `Features`.
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
        self.observations = Features(observation_space, model)
        self.actions = Features(action_space, model, Columns.ACTIONS)
        size = self.observations.output_size + self.actions.output_size
        self.stack = _stack(
            members, [size, *model.fcnet_hiddens], 1, model, layer_norm=layer_norm, dropout=dropout
        )

    def forward(self, batch: Batch, actions: Actions | None = None) -> Tensor:
        """`[E, B]` values of the batch's observations with `actions`, or with the batch's own where None.

        Args:
            batch: of observations.
            actions: as distributions give them: `[B, *shape]`, or leaf -> tensor. Of several for each observation,
                `[K, B, *shape]`, the values are `[E, K, B]`.
        """
        taken, rows = self._rows(batch, actions)
        return self._values(rows).reshape(-1, *taken.shape[:-1])

    def first(self, batch: Batch, actions: Actions) -> Tensor:
        """`[B]` values by the first member alone: `forward(batch, actions)[0]` without computing the others."""
        features = self._rows(batch, actions)[1].unsqueeze(0)
        for layer in islice(self.stack, 1, None):  # after the one that repeats the features for all members
            features = layer(features)
        return features.reshape(-1)

    def _rows(self, batch: Batch, actions: Actions | None) -> tuple[Tensor, Tensor]:
        """The actions' features `[..., F]`, and a row for each of them: the observation's features, then these."""
        if isinstance(actions, Tensor):
            actions = {Columns.ACTIONS: actions}
        taken = self.actions(batch if actions is None else actions)
        seen = self.observations(batch).expand(*taken.shape[:-1], -1)
        return taken, torch.cat([seen, taken], -1).flatten(0, -2)

    def _values(self, rows: Tensor) -> Tensor:
        """`[E, B, 1]`; on the CPU of some rows at a time, so that what a layer gives stays in the cache."""
        if not rows.is_cpu or len(rows) <= _ROWS_AT_A_TIME["cpu"]:
            values: Tensor = self.stack(rows)
            return values
        return torch.cat([self.stack(some) for some in rows.split(_ROWS_AT_A_TIME["cpu"])], 1)


class ActionValues(nn.Module):
    """Q(s, ·) of E members, for one Discrete action; of each value its mean, or so many of its quantiles.

    Each member has a stack of `fcnet_hiddens` and then `head_fcnet_hiddens` of its own.

    Args: as of `Critics`; n is the number of actions.
        quantiles: Q of each value (arXiv 1710.10044); 1 is the mean alone.
        dueling: the last layer gives a state's value and each action's advantage over the mean (arXiv 1511.06581).

    Raises:
        SpecError: the action space is not Discrete; or as of `Features`.
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
        quantiles: int = 1,
        dueling: bool = False,
    ) -> None:
        super().__init__()
        if not isinstance(action_space, gym.spaces.Discrete):
            raise SpecError(
                f"spec.algorithm: a value of each action needs a Discrete action space, not {action_space}; for others "
                "take critics of state and action, inputs.critics()."
            )
        self.observations = Features(observation_space, model)
        self._start = int(action_space.start)
        self._quantiles, self._dueling = quantiles, dueling
        outputs = quantiles * (int(action_space.n) + dueling)
        sizes = [self.observations.output_size, *model.fcnet_hiddens, *model.head_fcnet_hiddens]
        self.stack = _stack(members, sizes, outputs, model, layer_norm=layer_norm, dropout=dropout)

    def forward(self, batch: Batch) -> Tensor:
        """`[E, B, n]` values of all actions."""
        return quantile_mean(self.quantiles(batch))

    def quantiles(self, batch: Batch) -> Tensor:
        """`[E, B, n, Q]` quantiles of all actions' values, at (i + ½) / Q."""
        values: Tensor = self.stack(self.observations(batch)).unflatten(-1, (-1, self._quantiles))
        if not self._dueling:
            return values
        advantages = values[..., 1:, :]
        return values[..., :1, :] + advantages - advantages.mean(-2, keepdim=True)

    def gather(self, values: Tensor, actions: Tensor) -> Tensor:
        """`[E, B]`: of `values` `[E, B, n]` those of `actions` `[B]` (integers, the space's start included).

        Of quantiles `[E, B, n, Q]` it is `[E, B, Q]`.
        """
        return gather_values(values, (actions.long() - self._start).expand(values.shape[:2]))


def gather_values(values: Tensor, indices: Tensor) -> Tensor:
    """Of `values` `[..., B, n]` or `[..., B, n, Q]` those of actions `[..., B]`, counted from 0."""
    chosen = indices.unsqueeze(-1)
    if values.dim() == chosen.dim():
        return values.gather(-1, chosen).squeeze(-1)
    return values.gather(-2, chosen.unsqueeze(-1).expand(*chosen.shape, values.shape[-1])).squeeze(-2)


def quantile_mean(quantiles: Tensor) -> Tensor:
    """`[...]` the mean of quantiles `[..., Q]`."""
    return quantiles.squeeze(-1) if quantiles.shape[-1] == 1 else quantiles.mean(-1)


class MemberLinear(nn.Module):
    """A linear layer of each of E members, in one matrix product; orthogonal weights, no bias at the start.

    Args:
        members: E.
        size_in, size_out: features.
        gain: of the weights.
        initial: what they begin with instead.
    """

    def __init__(
        self,
        members: int,
        size_in: int,
        size_out: int,
        gain: float,
        initial: Initialiser = DEFAULT_INITIALISER,
    ) -> None:
        super().__init__()
        layers = [linear(size_in, size_out, gain, initial) for _ in range(members)]
        self.weight = nn.Parameter(torch.stack([layer.weight.detach().T for layer in layers]))
        self.bias = nn.Parameter(torch.stack([layer.bias.detach().unsqueeze(0) for layer in layers]))

    def forward(self, features: Tensor) -> Tensor:
        """`[e, B, size_in]`, of the first e members, -> `[e, B, size_out]`."""
        bias, weight = _first(features.shape[0], self.bias, self.weight)
        rows, at_a_time = features.shape[1], _ROWS_AT_A_TIME["cuda"]
        if features.is_cuda and rows > 2 * at_a_time and rows % at_a_time == 0:
            parts = features.unflatten(1, (-1, at_a_time))
            return (parts @ weight.unsqueeze(1) + bias.unsqueeze(1)).flatten(1, 2)
        if features.is_cuda and torch.compiler.is_compiling():
            return features @ weight + bias  # the sum and what follows it become one kernel
        return torch.baddbmm(bias, features, weight)


def _first(count: int, *of_members: Tensor) -> tuple[Tensor, ...]:
    """Of the first members; of all of them as they are, for slices would cost their gradients a copy."""
    return of_members if of_members[0].shape[0] == count else tuple(each[:count] for each in of_members)


class _MemberNorm(nn.Module):
    """Layer normalisation (arXiv 1607.06450) with scale and shift of each member's own."""

    def __init__(self, members: int, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(members, 1, size))
        self.bias = nn.Parameter(torch.zeros(members, 1, size))

    def forward(self, features: Tensor) -> Tensor:
        normalised = nn.functional.layer_norm(features, features.shape[-1:])
        bias, weight = _first(features.shape[0], self.bias, self.weight)
        return torch.addcmul(bias, normalised, weight)


class _Members(nn.Module):
    """The same features for all members: `[B, F]` -> `[E, B, F]`, without a copy."""

    def __init__(self, members: int) -> None:
        super().__init__()
        self._members = members

    def forward(self, features: Tensor) -> Tensor:
        return features.expand(self._members, *features.shape)


def _stack(
    members: int, sizes: Sequence[int], outputs: int, model: ModelSpec, *, layer_norm: bool, dropout: float
) -> nn.Sequential:
    layers: list[nn.Module] = [_Members(members)]
    for layer, (size_in, size_out) in enumerate(pairwise(sizes)):
        initial = encoder_initialiser(model) if layer < len(model.fcnet_hiddens) else head_initialiser(model)
        layers.append(MemberLinear(members, size_in, size_out, HIDDEN_GAIN, initial))
        if dropout or model.dropout:
            layers.append(Dropout(dropout or model.dropout))
        if layer_norm or model.layer_norm:
            layers.append(_MemberNorm(members, size_out))
        layers.append(ACTIVATIONS[model.fcnet_activation]())
    layers.append(MemberLinear(members, sizes[-1], outputs, 1.0, head_initialiser(model)))
    return nn.Sequential(*layers)
