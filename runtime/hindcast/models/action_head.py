"""What an action space asks of a network: outputs, noise, distribution; and its range as tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from hindcast.api.model import ModelSpec
from hindcast.episodes.columns import Columns
from hindcast.episodes.spaces import flatten_space
from hindcast.errors import SpecError
from hindcast.models.distributions import (
    Bernoulli,
    BoundedGaussian,
    Categorical,
    Deterministic,
    DiagGaussian,
    Distribution,
    MultiCategorical,
    NoiseKind,
    Product,
    SquashedDeterministic,
    SquashedGaussian,
)
from hindcast.models.preprocessing import is_float_box

_GAUSSIANS = {
    "gaussian": DiagGaussian,
    "auto": DiagGaussian,
    "boundedGaussian": BoundedGaussian,
    "squashedGaussian": SquashedGaussian,
}
_BOUNDED = ("boundedGaussian", "squashedGaussian", "squashedDeterministic")
_CONTINUOUS = ("gaussian", "deterministic", *_BOUNDED)
_MOST_INTEGERS = 4096


@dataclass(frozen=True)
class ActionHead:
    """The network side of an action space.

    Attributes:
        from_inputs: `[B, inputs_size]` network outputs (`action_dist_inputs`) -> the distribution.
        inputs_size: P.
        noise_size: K, noise numbers per sampled action.
        noise: their kind, "uniform" on [0, 1) or standard "normal".
        discrete: every leaf is discrete, so that a greedy action has a probability (of 1).
        stochastic: no leaf is deterministic, so that a sampled action has a log-probability.
        log_std_columns: the columns of the inputs that are logarithms of standard deviations.
    """

    from_inputs: Callable[[Tensor], Distribution]
    inputs_size: int
    noise_size: int
    noise_kind: NoiseKind
    is_discrete: bool = False
    is_stochastic: bool = True
    log_std_columns: tuple[int, ...] = ()

    def map_tensors(self, move: Callable[[Tensor], Tensor]) -> ActionHead:
        """The same, with the constants of the action space where `move` takes them."""
        if not isinstance(self.from_inputs, partial):
            return self
        made = self.from_inputs
        constants = [_moved(each, move) for each in made.args]
        return replace(self, from_inputs=partial(made.func, *constants, **_moved(made.keywords, move)))


def _moved(constant: Any, move: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(constant, Tensor):
        return move(constant)
    if isinstance(constant, Mapping):
        return {name: _moved(each, move) for name, each in constant.items()}
    return constant.map_tensors(move) if isinstance(constant, ActionHead) else constant


def distribution_for(action_space: gym.Space, model: ModelSpec) -> ActionHead:
    """The head for the actions a module puts out.

    `distribution: Auto` is categorical for Discrete, MultiDiscrete and bounded integer boxes, Bernoulli for
    MultiBinary and a diagonal Gaussian for float boxes; Dict and Tuple spaces are the product over their
    leaves. The continuous kinds apply to the float boxes of a composite space.

    Args:
        action_space: the module's (`Preprocessing.action_space`): within ±1 where actions are normalised.
        model: uses `distribution` and `log_std_range`.

    Raises:
        SpecError: the distribution does not fit the space, or the space cannot be acted in.
    """
    leaves = flatten_space(action_space, Columns.ACTIONS)
    _check_applies(model.distribution, leaves)
    heads = {leaf: _leaf_head(leaf, space, model) for leaf, space in leaves.items()}
    if list(heads) == [Columns.ACTIONS]:
        return heads[Columns.ACTIONS]
    return _product(heads)


def _check_applies(distribution: str, leaves: Mapping[str, gym.Space]) -> None:
    floats = [leaf for leaf, space in leaves.items() if is_float_box(space)]
    if distribution in _CONTINUOUS and not floats:
        raise SpecError(
            f"model.distribution: {_word(distribution)!r} is for continuous actions, and the action space has none "
            f"({_describe(leaves)}); use 'Auto' or 'Categorical'."
        )
    if distribution == "categorical" and floats:
        raise SpecError(
            f"model.distribution: 'Categorical' is for discrete actions, and {floats[0]!r} is continuous "
            f"({_describe(leaves)}); use 'Auto', 'Gaussian', 'Deterministic', or a bounded or squashed one."
        )


def _word(distribution: str) -> Any:
    return ModelSpec.in_yaml("distribution", distribution)


def _leaf_head(leaf: str, space: gym.Space, model: ModelSpec) -> ActionHead:
    if isinstance(space, gym.spaces.Discrete):
        return _discrete(partial(Categorical, start=int(space.start)), int(space.n), noise_size=1)
    if isinstance(space, gym.spaces.MultiDiscrete):
        return _multi_categorical(space.nvec, space.start, space.shape)
    if isinstance(space, gym.spaces.MultiBinary):
        bits = int(np.prod(space.shape))
        return _discrete(partial(Bernoulli, shape=space.shape), bits, noise_size=bits)
    if is_float_box(space):
        return _continuous(leaf, space, model)
    if isinstance(space, gym.spaces.Box):
        return _integer_box(leaf, space)
    raise SpecError(
        f"action space: {leaf!r} is a {type(space).__name__} space, which no action distribution covers; "
        "allowed are Discrete, MultiDiscrete, MultiBinary, Box, and Dict or Tuple of these."
    )


def _multi_categorical(sizes: np.ndarray, starts: np.ndarray, shape: tuple[int, ...]) -> ActionHead:
    flat = tuple(int(size) for size in np.ravel(sizes))
    first = torch.from_numpy(np.ravel(starts).astype(np.int64))
    return _discrete(
        partial(MultiCategorical, sizes=flat, starts=first, shape=shape), sum(flat), noise_size=len(flat)
    )


def _discrete(
    from_inputs: Callable[[Tensor], Distribution], inputs_size: int, *, noise_size: int
) -> ActionHead:
    return ActionHead(from_inputs, inputs_size, noise_size, "uniform", is_discrete=True)


def _integer_box(leaf: str, space: gym.spaces.Box) -> ActionHead:
    sizes = space.high.astype(np.float64) - space.low.astype(np.float64) + 1.0
    if sizes.max(initial=1.0) > _MOST_INTEGERS:
        raise SpecError(
            f"action space: {leaf!r} is an integer Box with {int(sizes.max())} values in an element; "
            f"at most {_MOST_INTEGERS} can be distinguished. Use a float Box, or a smaller range."
        )
    return _multi_categorical(sizes, space.low, space.shape)


def _continuous(leaf: str, space: gym.spaces.Box, model: ModelSpec) -> ActionHead:
    size = int(np.prod(space.shape))
    bounds = _bounds(leaf, space, model) if model.distribution in _BOUNDED else {}
    if model.distribution in ("deterministic", "squashedDeterministic"):
        kind = SquashedDeterministic if bounds else Deterministic
        from_inputs = partial(kind, shape=space.shape, **bounds)
        return ActionHead(from_inputs, size, noise_size=0, noise_kind="normal", is_stochastic=False)
    gaussian = _GAUSSIANS[model.distribution]
    return ActionHead(
        from_inputs=partial(gaussian, shape=space.shape, log_std_range=model.log_std_range, **bounds),
        inputs_size=2 * size,
        noise_size=size,
        noise_kind="normal",
        log_std_columns=tuple(range(size, 2 * size)),
    )


def _bounds(leaf: str, space: gym.spaces.Box, model: ModelSpec) -> dict[str, Tensor]:
    if not space.is_bounded():
        raise SpecError(
            f"model.distribution: {_word(model.distribution)!r} needs bounds, and {leaf!r} has none on some side "
            f"({space}); use {'Gaussian' if model.distribution in _GAUSSIANS else 'Deterministic'!r}."
        )
    low, high = (torch.from_numpy(bound.ravel().astype(np.float32)) for bound in (space.low, space.high))
    return {"low": low, "high": high}


def _product(heads: Mapping[str, ActionHead]) -> ActionHead:
    """Uniform noise when any leaf wants it; the others' is then made normal by the inverse normal CDF."""
    noise: NoiseKind = "uniform" if any(head.noise_kind == "uniform" for head in heads.values()) else "normal"
    inputs_columns = _columns({leaf: head.inputs_size for leaf, head in heads.items()})
    noise_columns = _columns({leaf: head.noise_size for leaf, head in heads.items()})
    to_normal = frozenset(leaf for leaf, head in heads.items() if head.noise_kind != noise)
    return ActionHead(
        from_inputs=partial(
            _product_from_inputs,
            heads=heads,
            inputs_columns=inputs_columns,
            noise_columns=noise_columns,
            to_normal=to_normal,
        ),
        inputs_size=sum(head.inputs_size for head in heads.values()),
        noise_size=sum(head.noise_size for head in heads.values()),
        noise_kind=noise,
        is_discrete=all(head.is_discrete for head in heads.values()),
        is_stochastic=all(head.is_stochastic for head in heads.values()),
        log_std_columns=tuple(
            inputs_columns[leaf].start + column
            for leaf, head in heads.items()
            for column in head.log_std_columns
        ),
    )


def _product_from_inputs(
    inputs: Tensor,
    heads: Mapping[str, ActionHead],
    inputs_columns: Mapping[str, slice],
    noise_columns: Mapping[str, slice],
    to_normal: frozenset[str],
) -> Product:
    parts = {leaf: head.from_inputs(inputs[..., inputs_columns[leaf]]) for leaf, head in heads.items()}
    return Product(parts, noise_columns, to_normal)


def _columns(sizes: Mapping[str, int]) -> dict[str, slice]:
    edges = pairwise(accumulate(sizes.values(), initial=0))
    return {leaf: slice(start, stop) for leaf, (start, stop) in zip(sizes, edges, strict=True)}


def _describe(leaves: Mapping[str, gym.Space]) -> str:
    return ", ".join(f"{leaf}: {space}" for leaf, space in leaves.items())


class ActionRange(nn.Module):
    """Bounds of a float Box. Among an algorithm's networks it moves to their device; checkpoints do not hold it.

    Args:
        action_space: the module's.
        algorithm: whose actions they are, for the message.

    Attributes:
        low, high: `[*shape]` float32.
        half_range: `[*shape]` float32.

    Raises:
        SpecError: the space is not a float Box, or has no bounds.
    """

    low: Tensor
    high: Tensor
    half_range: Tensor

    def __init__(self, action_space: gym.Space, algorithm: str) -> None:
        super().__init__()
        if not is_float_box(action_space):
            raise SpecError(
                f"spec.algorithm: {algorithm} needs continuous actions, in one float Box, not {action_space}; "
                "for others take IQL, MARWIL or BC."
            )
        if not action_space.is_bounded():
            raise SpecError(
                f"spec.algorithm: {algorithm} needs actions with bounds, and {action_space} has none on some side; "
                "take IQL, MARWIL or BC, or give bounds (gymnasium's RescaleAction, ClipAction)."
            )
        low, high = (
            torch.from_numpy(bound.astype(np.float32)) for bound in (action_space.low, action_space.high)
        )
        for name, values in {"low": low, "high": high, "half_range": (high - low) / 2}.items():
            self.register_buffer(name, values, persistent=False)

    def clamp(self, actions: Tensor) -> Tensor:
        """The actions, those beyond a bound on it."""
        return actions.clamp(self.low, self.high)

    def to_unit(self, actions: Tensor) -> Tensor:
        """`[..., *shape]` actions with their bounds at ±1, as `[..., D]`."""
        values = (actions - self.low) / self.half_range - 1.0
        return values.reshape(*values.shape[: values.dim() - self.low.dim()], -1)

    def from_unit(self, values: Tensor) -> Tensor:
        """The inverse, within the bounds: those beyond one are on it."""
        shaped = values.clamp(-1.0, 1.0).reshape(*values.shape[:-1], *self.low.shape)
        return self.clamp(self.low + (shaped + 1.0) * self.half_range)

    def uniform(self, count: int, generator: torch.Generator) -> Tensor:
        """`[count, *shape]` actions, uniform over the range."""
        shares = torch.rand((count, *self.low.shape), generator=generator, device=self.low.device)
        return self.low + 2.0 * self.half_range * shares

    def log_density(self) -> Tensor:
        """Log-density of `uniform`, a scalar: -Σ log(high - low)."""
        return -(2.0 * self.half_range).log().sum()
