"""Action distributions with exact log-probabilities, which sample from the caller's noise.

Noise is an argument, one row per sample, so that a row's sample depends only on that row's noise, and a recording is
the same whichever process makes it. Shape suffixes: B = rows (any leading dimensions), P = numbers in
`action_dist_inputs`, K = noise numbers, D = elements of an action.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Literal, Self, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from hindcast.errors import SpecError
from hindcast.models.joint_actions import index_actions

Actions: TypeAlias = Tensor | Mapping[str, Tensor]
NoiseKind: TypeAlias = Literal["uniform", "normal"]
Shape: TypeAlias = tuple[int, ...]

# The largest float32 below 1. Noise is uniform on [0, 1); a float64 number may round up to 1 when it is converted.
BELOW_ONE = 1.0 - 2.0**-24
# tanh reaches ±1 in float32 at about 9. An action closer to a bound, in the range ±1, counts as this far away from the
# bound.
_TANH_MARGIN = 1e-6
_HERMITE_NODES = 16  # exact to 1e-5 for standard deviations up to 1, to 3e-3 up to 2


class Distribution(ABC):
    """A distribution over actions, one per row.

    Actions of one leaf are a tensor `[B, *shape]`; actions of a composite space are a mapping leaf -> tensor.
    Discrete actions are the environment's own integers, a `start` included.
    """

    @abstractmethod
    def logp(self, actions: Actions) -> Tensor:
        """Return the log-probability `[B]` of actions (log-density for continuous leaves)."""

    @abstractmethod
    def entropy(self) -> Tensor:
        """Return the entropy `[B]` in nats (differential entropy for continuous leaves)."""

    @abstractmethod
    def kl(self, other: Self) -> Tensor:
        """Return KL(self ‖ other) `[B]`, in nats."""

    @abstractmethod
    def mode(self) -> Actions:
        """Return the greedy action."""

    @abstractmethod
    def sample(self, noise_BK: Tensor) -> Actions:
        """Sample one action per row, a function of its row of noise; reparameterised in continuous spaces."""

    def sample_with_logp(self, noise_BK: Tensor) -> tuple[Actions, Tensor]:
        """Return `sample`, and the log-probability `[B]` of the sample; gradients flow through both."""
        actions = self.sample(noise_BK)
        return actions, self.logp(actions)

    def imitation_loss(self, actions: Actions) -> Tensor:
        """Return the loss `[B]` of cloning `actions`: the negative log-likelihood."""
        return -self.logp(actions)


class Categorical(Distribution):
    """One of n integers.

    Args:
        logits: `[B, n]`; may hold -inf for actions that must not be taken.
        start: the smallest action (`Discrete.start`).
    """

    def __init__(self, logits: Tensor, start: int = 0) -> None:
        # Clamped to a finite number, as in torch's Categorical: 0 * -inf would make the entropy NaN.
        self._log_probs = torch.log_softmax(logits, -1).clamp_min(torch.finfo(logits.dtype).min)
        self._start = start

    def logp(self, actions: Actions) -> Tensor:
        indices = _as_tensor(actions).long() - self._start
        return self._log_probs.gather(-1, indices.unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        return -(self._log_probs.exp() * self._log_probs).sum(-1)

    def kl(self, other: Self) -> Tensor:
        return (self._log_probs.exp() * (self._log_probs - other._log_probs)).sum(-1)

    def mode(self) -> Tensor:
        return self._log_probs.argmax(-1) + self._start

    def sample(self, noise_BK: Tensor) -> Tensor:
        """Sample by the inverse CDF of one uniform number per row: int64 `[B]`."""
        cumulative = self._log_probs.exp().cumsum(-1)
        # Scaled by the rounded total, so that a trailing action of probability 0 is never sampled.
        threshold = noise_BK.clamp_max(BELOW_ONE) * cumulative[..., -1:]
        return (cumulative <= threshold).sum(-1) + self._start


class JointCategorical(Categorical):
    """One of the N combinations of the elements of a MultiDiscrete action.

    Args:
        logits: `[B, N]`; may hold -inf for actions that must not be taken.
        joint_actions, strides: see `enumerate_actions`.
    """

    def __init__(self, logits: Tensor, joint_actions: Tensor, strides: Tensor) -> None:
        super().__init__(logits)
        self._joint_actions = joint_actions
        self._strides = strides

    def logp(self, actions: Actions) -> Tensor:
        return super().logp(index_actions(_as_tensor(actions), self._joint_actions, self._strides))

    def mode(self) -> Tensor:
        return self._joint_actions[super().mode()]

    def sample(self, noise_BK: Tensor) -> Tensor:
        """Sample from one uniform number per row: int64 `[B, *shape]`."""
        return self._joint_actions[super().sample(noise_BK)]


class MultiCategorical(Distribution):
    """D independent categoricals, for MultiDiscrete and for bounded integer boxes.

    Args:
        inputs: `[B, sum(sizes)]` concatenated logits.
        sizes: number of values of each categorical.
        starts: `[D]` int64, smallest value of each categorical.
        shape: shape of an action.
    """

    def __init__(self, inputs: Tensor, sizes: tuple[int, ...], starts: Tensor, shape: Shape) -> None:
        self._leading_shape = inputs.shape[:-1]
        self._categoricals = Categorical(_pad_logits(inputs, sizes))
        self._starts = starts
        self._shape = shape

    def logp(self, actions: Actions) -> Tensor:
        indices = _as_tensor(actions).long().reshape(*self._leading_shape, -1) - self._starts
        return self._categoricals.logp(indices).sum(-1)

    def entropy(self) -> Tensor:
        return self._categoricals.entropy().sum(-1)

    def kl(self, other: Self) -> Tensor:
        return self._categoricals.kl(other._categoricals).sum(-1)

    def mode(self) -> Tensor:
        return _to_shape(self._categoricals.mode() + self._starts, self._shape)

    def sample(self, noise_BK: Tensor) -> Tensor:
        """Sample from one uniform number per element: int64 `[B, *shape]`."""
        return _to_shape(self._categoricals.sample(noise_BK.unsqueeze(-1)) + self._starts, self._shape)


class Bernoulli(Distribution):
    """Independent bits, for MultiBinary.

    Args:
        logits: `[B, D]` log-odds of each bit.
        shape: shape of an action.
    """

    def __init__(self, logits: Tensor, shape: Shape) -> None:
        self._logits = logits
        self._shape = shape

    def logp(self, actions: Actions) -> Tensor:
        bits = _as_tensor(actions).to(self._logits.dtype).reshape(self._logits.shape)
        return -_cross_entropy(self._logits, bits)

    def entropy(self) -> Tensor:
        return _cross_entropy(self._logits, torch.sigmoid(self._logits))

    def kl(self, other: Self) -> Tensor:
        return _cross_entropy(other._logits, torch.sigmoid(self._logits)) - self.entropy()

    def mode(self) -> Tensor:
        return _to_shape((self._logits > 0).to(torch.int8), self._shape)

    def sample(self, noise_BK: Tensor) -> Tensor:
        """Sample from one uniform number per bit: int8 `[B, *shape]`."""
        bits = noise_BK.clamp_max(BELOW_ONE) < torch.sigmoid(self._logits)
        return _to_shape(bits.to(torch.int8), self._shape)


class DiagGaussian(Distribution):
    """A normal distribution with diagonal covariance.

    Args:
        inputs: `[B, 2 D]` means, then logarithms of the standard deviations.
        shape: shape of an action.
        log_std_range: range to which the logarithms are clamped.
    """

    def __init__(
        self, inputs: Tensor, shape: Shape, log_std_range: tuple[float, float] = (-20.0, 20.0)
    ) -> None:
        mean, log_std = inputs.chunk(2, -1)
        self._mean = mean
        self._log_std = log_std.clamp(*log_std_range)
        self._shape = shape

    def logp(self, actions: Actions) -> Tensor:
        return self._logp_flat(_flatten_like(actions, self._mean))

    def entropy(self) -> Tensor:
        return (self._log_std + 0.5 * math.log(2.0 * math.pi * math.e)).sum(-1)

    def kl(self, other: Self) -> Tensor:
        gap = self._mean - other._mean
        variances = torch.exp(2.0 * self._log_std) + gap * gap
        return (
            other._log_std - self._log_std + 0.5 * variances * torch.exp(-2.0 * other._log_std) - 0.5
        ).sum(-1)

    def mode(self) -> Tensor:
        return _to_shape(self._mean, self._shape)

    def sample(self, noise_BK: Tensor) -> Tensor:
        """Sample from one standard normal number per element: `[B, *shape]`."""
        return _to_shape(self._sample_flat(noise_BK), self._shape)

    def _logp_flat(self, values: Tensor) -> Tensor:
        z = (values - self._mean) * torch.exp(-self._log_std)
        return (-0.5 * z * z - self._log_std - 0.5 * math.log(2.0 * math.pi)).sum(-1)

    def _sample_flat(self, noise: Tensor) -> Tensor:
        return self._mean + torch.exp(self._log_std) * noise


class BoundedGaussian(DiagGaussian):
    """A normal distribution whose mean is `low + (high - low) (tanh(u) + 1) / 2`.

    The policy of IQL (arXiv 2110.06169). Density and samples extend beyond the bounds; `ActionToEnv` clips samples.

    Args:
        inputs: `[B, 2 D]` u, then logarithms of the standard deviations, in the actions' own units.
        shape: shape of an action.
        low: `[D]` lower bounds.
        high: `[D]` upper bounds.
        log_std_range: range to which the logarithms are clamped.
    """

    def __init__(
        self,
        inputs: Tensor,
        shape: Shape,
        low: Tensor,
        high: Tensor,
        log_std_range: tuple[float, float] = (-20.0, 20.0),
    ) -> None:
        super().__init__(inputs, shape, log_std_range)
        self._mean = _squash_to_bounds(self._mean, low, (high - low) * 0.5)


class SquashedGaussian(DiagGaussian):
    """`low + (high - low) (tanh(u) + 1) / 2` with u from a diagonal Gaussian (arXiv 1801.01290, appendix C).

    `logp` inverts the squashing of the stored action. An action within 1e-6 of a bound (in the range ±1) counts as 1e-6
    away from it, so that demonstrations at the bound have a finite likelihood. `mode` is the squashed mean. KL is that
    of the Gaussians, which squashing does not change.

    Args:
        inputs: `[B, 2 D]` means, then logarithms of the standard deviations, of u.
        shape: shape of an action.
        low: `[D]` lower bounds.
        high: `[D]` upper bounds.
        log_std_range: range to which the logarithms are clamped.
    """

    def __init__(
        self,
        inputs: Tensor,
        shape: Shape,
        low: Tensor,
        high: Tensor,
        log_std_range: tuple[float, float] = (-20.0, 20.0),
    ) -> None:
        super().__init__(inputs, shape, log_std_range)
        self._low = low
        self._half_range = (high - low) * 0.5

    def logp(self, actions: Actions) -> Tensor:
        tanh_u = (_flatten_like(actions, self._mean) - self._low) / self._half_range - 1.0
        u = torch.atanh(tanh_u.clamp(-1.0 + _TANH_MARGIN, 1.0 - _TANH_MARGIN))
        return self._logp_flat(u) - self._log_slope(u).sum(-1)

    def entropy(self) -> Tensor:
        """Return the entropy `[B]`: the Gaussian's, plus the squashing's mean log-slope by Gauss-Hermite quadrature."""
        nodes, weights = _hermite_quadrature(self._mean.device, self._mean.dtype)
        u = self._mean.unsqueeze(-1) + torch.exp(self._log_std).unsqueeze(-1) * nodes
        slopes = _log_tanh_slope(u) + torch.log(self._half_range).unsqueeze(-1)
        return super().entropy() + (slopes * weights).sum((-2, -1))

    def mode(self) -> Tensor:
        return _to_shape(self._squash(self._mean), self._shape)

    def sample(self, noise_BK: Tensor) -> Tensor:
        return _to_shape(self._squash(self._sample_flat(noise_BK)), self._shape)

    def sample_with_logp(self, noise_BK: Tensor) -> tuple[Tensor, Tensor]:
        """Return a sample and its log-probability `[B]`."""
        # From u rather than from the action: tanh may round to a bound, where density and gradient would be lost.
        u = self._sample_flat(noise_BK)
        return _to_shape(self._squash(u), self._shape), self._logp_flat(u) - self._log_slope(u).sum(-1)

    def _squash(self, u: Tensor) -> Tensor:
        return _squash_to_bounds(u, self._low, self._half_range)

    def _log_slope(self, u: Tensor) -> Tensor:
        return _log_tanh_slope(u) + torch.log(self._half_range)


class ImplicitDistribution(Distribution):
    """A distribution without log-probabilities: `logp`, `entropy` and `kl` raise `SpecError`."""

    def logp(self, actions: Actions) -> Tensor:  # noqa: ARG002
        raise _no_density_error()

    def entropy(self) -> Tensor:
        raise _no_density_error()

    def kl(self, other: Self) -> Tensor:  # noqa: ARG002
        raise _no_density_error()


class Deterministic(ImplicitDistribution):
    """A point mass at the network's output. Its imitation loss is the squared error.

    Args:
        values: `[B, D]`.
        shape: shape of an action.
    """

    def __init__(self, values: Tensor, shape: Shape) -> None:
        self._values = values
        self._shape = shape

    def mode(self) -> Tensor:
        return _to_shape(self._values, self._shape)

    def sample(self, noise_BK: Tensor) -> Tensor:  # noqa: ARG002
        """Return the mode; the noise has no columns (K = 0) and is not used."""
        return self.mode()

    def imitation_loss(self, actions: Actions) -> Tensor:
        """Return the squared error `[B]`, averaged over the action's elements."""
        gap = self._values - _flatten_like(actions, self._values)
        return (gap * gap).mean(-1)


class SquashedDeterministic(Deterministic):
    """A point mass at `low + (high - low) (tanh(u) + 1) / 2`.

    Args:
        inputs: `[B, D]`, u.
        shape: shape of an action.
        low: `[D]` lower bounds.
        high: `[D]` upper bounds.
    """

    def __init__(self, inputs: Tensor, shape: Shape, low: Tensor, high: Tensor) -> None:
        super().__init__(_squash_to_bounds(inputs, low, (high - low) * 0.5), shape)


class PushforwardDistribution(ImplicitDistribution):
    """The distribution of a function of an observation's features and standard normal noise.

    Args:
        features: `[B, F]`.
        push: maps features `[B, F]` and noise `[B, K]` to actions `[B, *shape]`.
        greedy_noise: noise `[B, K]` of the greedy actions.
    """

    def __init__(
        self, features: Tensor, push: Callable[[Tensor, Tensor], Tensor], greedy_noise: Tensor
    ) -> None:
        self._features = features
        self._push = push
        self._greedy_noise = greedy_noise

    def mode(self) -> Tensor:
        """Return the greedy action."""
        return self.sample(self._greedy_noise)

    def sample(self, noise_BK: Tensor) -> Tensor:
        return self._push(self._features, noise_BK)


class Product(Distribution):
    """Independent distributions over the leaves of a Dict or Tuple action space.

    Args:
        distributions: leaf -> distribution.
        noise_columns: leaf -> columns of the noise.
        uniform_leaves: leaves that need uniform noise but get standard normal noise, which is converted.
    """

    def __init__(
        self,
        distributions: Mapping[str, Distribution],
        noise_columns: Mapping[str, slice],
        uniform_leaves: frozenset[str] = frozenset(),
    ) -> None:
        self._distributions = distributions
        self._noise_columns = noise_columns
        self._uniform_leaves = uniform_leaves

    def logp(self, actions: Actions) -> Tensor:
        leaves = _as_mapping(actions)
        return _sum_terms(
            [distribution.logp(leaves[leaf]) for leaf, distribution in self._distributions.items()]
        )

    def entropy(self) -> Tensor:
        return _sum_terms([distribution.entropy() for distribution in self._distributions.values()])

    def kl(self, other: Self) -> Tensor:
        return _sum_terms(
            [
                distribution.kl(other._distributions[leaf])
                for leaf, distribution in self._distributions.items()
            ]
        )

    def mode(self) -> dict[str, Tensor]:
        return {leaf: _as_tensor(distribution.mode()) for leaf, distribution in self._distributions.items()}

    def sample(self, noise_BK: Tensor) -> dict[str, Tensor]:
        return {
            leaf: _as_tensor(distribution.sample(self._noise(leaf, noise_BK)))
            for leaf, distribution in self._distributions.items()
        }

    def imitation_loss(self, actions: Actions) -> Tensor:
        """Return the sum `[B]` of the leaves' losses."""
        leaves = _as_mapping(actions)
        return _sum_terms(
            [distribution.imitation_loss(leaves[leaf]) for leaf, distribution in self._distributions.items()]
        )

    def _noise(self, leaf: str, noise_BK: Tensor) -> Tensor:
        columns = noise_BK[..., self._noise_columns[leaf]]
        if leaf not in self._uniform_leaves:
            return columns
        # The normal CDF by `erf`: ONNX has neither `ndtr` nor its inverse.
        return 0.5 + 0.5 * torch.erf(columns * math.sqrt(0.5))


def _as_tensor(actions: Actions) -> Tensor:
    return cast(Tensor, actions)


def _as_mapping(actions: Actions) -> Mapping[str, Tensor]:
    return cast(Mapping[str, Tensor], actions)


def _flatten_like(actions: Actions, like: Tensor) -> Tensor:
    return _as_tensor(actions).to(like.dtype).reshape(like.shape)


def _to_shape(values: Tensor, shape: Shape) -> Tensor:
    """Reshape elements `[B, D]` to actions `[B, *shape]`."""
    return values.reshape(*values.shape[:-1], *shape)


def _sum_terms(terms: list[Tensor]) -> Tensor:
    return torch.stack(terms).sum(0)


def _pad_logits(inputs: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Reshape logits `[B, sum(sizes)]` to `[B, D, max(sizes)]`, padded with values of probability 0."""
    max_size = max(sizes)
    if all(size == max_size for size in sizes):
        return inputs.reshape(*inputs.shape[:-1], len(sizes), max_size)
    min_logit = torch.finfo(inputs.dtype).min
    logits_and_sizes = zip(inputs.split(sizes, -1), sizes, strict=True)
    return torch.stack(
        [functional.pad(logits, (0, max_size - size), value=min_logit) for logits, size in logits_and_sizes],
        -2,
    )


def _cross_entropy(logits: Tensor, bits: Tensor) -> Tensor:
    """Return the cross-entropy `[B]` of log-odds `[B, D]` and bits, or probabilities of bits, `[B, D]`."""
    return functional.binary_cross_entropy_with_logits(logits, bits, reduction="none").sum(-1)


def _squash_to_bounds(u: Tensor, low: Tensor, half_range: Tensor) -> Tensor:
    return low + (torch.tanh(u) + 1.0) * half_range


def _log_tanh_slope(u: Tensor) -> Tensor:
    """Compute log(1 - tanh(u)²) without cancellation."""
    return 2.0 * (math.log(2.0) - u - functional.softplus(-2.0 * u))


@lru_cache(maxsize=8)
def _hermite_quadrature(device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return nodes and weights that integrate a function over the standard normal distribution."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(_HERMITE_NODES)
    with torch.inference_mode(False):  # the cache also serves training, which rejects inference tensors
        return (
            torch.tensor(nodes, device=device, dtype=dtype),
            torch.tensor(weights / weights.sum(), device=device, dtype=dtype),
        )


def _no_density_error() -> SpecError:
    return SpecError(
        "the actions of this policy have no log-probabilities, but they are needed here; "
        "use 'Gaussian', 'BoundedGaussian' or 'SquashedGaussian'.",
        field="model.distribution",
    )
