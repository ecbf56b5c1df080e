"""`ActionHead`: network outputs, noise and distribution of an action space; `ActionRange`: its bounds as tensors."""

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
from hindcast.episodes.action_kinds import action_problem, joint_actions_problem
from hindcast.episodes.columns import Columns
from hindcast.episodes.spaces import flatten_space
from hindcast.errors import SpecError
from hindcast.formatting import describe_type
from hindcast.models.distributions import (
    Bernoulli,
    BoundedGaussian,
    Categorical,
    Deterministic,
    DiagGaussian,
    Distribution,
    JointCategorical,
    MultiCategorical,
    NoiseKind,
    Product,
    SquashedDeterministic,
    SquashedGaussian,
)
from hindcast.models.joint_actions import enumerate_actions
from hindcast.models.preprocessing import is_float_box

_GAUSSIANS = {
    "gaussian": DiagGaussian,
    "auto": DiagGaussian,
    "boundedGaussian": BoundedGaussian,
    "squashedGaussian": SquashedGaussian,
}
_BOUNDED_KINDS = ("boundedGaussian", "squashedGaussian", "squashedDeterministic")
_CONTINUOUS_KINDS = ("gaussian", "deterministic", *_BOUNDED_KINDS)
_MAX_INTEGER_VALUES = 4096
"""Maximum number of values of an element of an integer Box; the network has an output for each value."""


@dataclass(frozen=True)
class ActionHead:
    """The outputs and the noise that a network needs for the actions of a space.

    Attributes:
        from_inputs: `[B, inputs_size]` network outputs (`action_dist_inputs`) -> the distribution.
        inputs_size: number of distribution inputs, P.
        noise_size: K, noise numbers per sampled action.
        noise_kind: "uniform" on [0, 1) or standard "normal".
        is_discrete: True if every leaf is discrete; a greedy action then has probability 1.
        is_stochastic: True if no leaf is deterministic; a sampled action then has a log-probability.
        is_joint: True if there is an input for each combination of a MultiDiscrete action's elements.
        log_std_columns: the columns of the inputs that are logarithms of standard deviations.
    """

    from_inputs: Callable[[Tensor], Distribution]
    inputs_size: int
    noise_size: int
    noise_kind: NoiseKind
    is_discrete: bool = False
    is_stochastic: bool = True
    is_joint: bool = False
    log_std_columns: tuple[int, ...] = ()

    def map_tensors(self, move: Callable[[Tensor], Tensor]) -> ActionHead:
        """Return a copy of the head with `move` applied to its constant tensors (bounds, starts)."""
        if not isinstance(self.from_inputs, partial):  # a method of a module, which moves its tensors itself
            return self
        factory = self.from_inputs
        constants = [_map_constant(constant, move) for constant in factory.args]
        return replace(
            self, from_inputs=partial(factory.func, *constants, **_map_constant(factory.keywords, move))
        )


def _map_constant(constant: Any, move: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(constant, Tensor):
        return move(constant)
    if isinstance(constant, Mapping):
        return {name: _map_constant(element, move) for name, element in constant.items()}
    return constant.map_tensors(move) if isinstance(constant, ActionHead) else constant


def build_action_head(action_space: gym.Space, model: ModelSpec) -> ActionHead:
    """Build the head for a module's actions.

    `distribution: Auto` is categorical for Discrete, MultiDiscrete and bounded integer boxes, Bernoulli for MultiBinary
    and a diagonal Gaussian for float boxes; Dict and Tuple spaces have the product over their leaves. The continuous
    kinds apply to the float boxes of a composite space.

    Args:
        action_space: the module's action space (`Preprocessing.action_space`), within ±1 if actions are normalised.
        model: options; `distribution` and `log_std_range` are used.

    Raises:
        SpecError: the distribution does not fit the space, or no distribution supports the space.
    """
    leaves = flatten_space(action_space, Columns.ACTIONS)
    _check_distribution_applies(model.distribution, leaves)
    heads = {leaf: _leaf_head(leaf, space, model) for leaf, space in leaves.items()}
    if list(heads) == [Columns.ACTIONS]:
        return heads[Columns.ACTIONS]
    return _product_head(heads)


def _check_distribution_applies(distribution: str, leaves: Mapping[str, gym.Space]) -> None:
    float_leaves = [leaf for leaf, space in leaves.items() if is_float_box(space)]
    if distribution in _CONTINUOUS_KINDS and not float_leaves:
        raise SpecError(
            f"{_yaml_name(distribution)!r} is for continuous actions, but the action space has "
            f"none ({_describe(leaves)}); use 'Auto' or 'Categorical'.",
            field="model.distribution",
        )
    if distribution in ("categorical", "jointCategorical") and float_leaves:
        raise SpecError(
            f"{_yaml_name(distribution)!r} is for discrete actions, but {float_leaves[0]!r} is continuous "
            f"({_describe(leaves)}); use 'Auto', 'Gaussian', 'Deterministic', or a bounded or squashed "
            "distribution.",
            field="model.distribution",
        )
    independent_leaves = [
        leaf
        for leaf, space in leaves.items()
        if not isinstance(space, gym.spaces.Discrete | gym.spaces.MultiDiscrete)
    ]
    if distribution == "jointCategorical" and independent_leaves:
        raise SpecError(
            f"'JointCategorical' is for MultiDiscrete actions, but {independent_leaves[0]!r} is another space "
            f"({_describe(leaves)}); use 'Auto', which draws the elements independently.",
            field="model.distribution",
        )


def _yaml_name(distribution: str) -> Any:
    return ModelSpec.in_yaml("distribution", distribution)


def _leaf_head(leaf: str, space: gym.Space, model: ModelSpec) -> ActionHead:
    if isinstance(space, gym.spaces.Discrete):
        return _discrete_head(partial(Categorical, start=int(space.start)), int(space.n), noise_size=1)
    if isinstance(space, gym.spaces.MultiDiscrete):
        if model.distribution == "jointCategorical":
            return joint_action_head(leaf, space)
        return _multi_categorical_head(space.nvec, space.start, space.shape)
    if isinstance(space, gym.spaces.MultiBinary):
        num_bits = int(np.prod(space.shape))
        return _discrete_head(partial(Bernoulli, shape=space.shape), num_bits, noise_size=num_bits)
    if is_float_box(space):
        return _continuous_head(leaf, space, model)
    if isinstance(space, gym.spaces.Box):
        return _integer_box_head(leaf, space)
    raise SpecError(
        f"action space: {leaf!r} is {describe_type(space)} space, which no action distribution supports; "
        "use Discrete, MultiDiscrete, MultiBinary, Box, or Dict or Tuple of these."
    )


def joint_action_head(leaf: str, space: gym.spaces.MultiDiscrete) -> ActionHead:
    """Return the head of a categorical over all combinations of an action's elements.

    Raises:
        SpecError: there are too many combinations.
    """
    if problem := joint_actions_problem(space):
        raise SpecError(
            f"{leaf!r} has {problem}; use 'Auto', which draws its elements independently, or fewer values per element.",
            field="model.distribution",
        )
    joint_actions, strides = enumerate_actions(space)
    from_inputs = partial(JointCategorical, joint_actions=joint_actions, strides=strides)
    return replace(_discrete_head(from_inputs, len(joint_actions), noise_size=1), is_joint=True)


def _multi_categorical_head(sizes: np.ndarray, starts: np.ndarray, shape: tuple[int, ...]) -> ActionHead:
    flat_sizes = tuple(int(size) for size in np.ravel(sizes))
    flat_starts = torch.from_numpy(np.ravel(starts).astype(np.int64))
    return _discrete_head(
        partial(MultiCategorical, sizes=flat_sizes, starts=flat_starts, shape=shape),
        sum(flat_sizes),
        noise_size=len(flat_sizes),
    )


def _discrete_head(
    from_inputs: Callable[[Tensor], Distribution], inputs_size: int, *, noise_size: int
) -> ActionHead:
    return ActionHead(from_inputs, inputs_size, noise_size, "uniform", is_discrete=True)


def _integer_box_head(leaf: str, space: gym.spaces.Box) -> ActionHead:
    sizes = space.high.astype(np.float64) - space.low.astype(np.float64) + 1.0
    if sizes.max(initial=1.0) > _MAX_INTEGER_VALUES:
        raise SpecError(
            f"action space: {leaf!r} is an integer Box with {int(sizes.max())} values in an element, but "
            f"at most {_MAX_INTEGER_VALUES} are supported. Use a float Box, or a smaller range."
        )
    return _multi_categorical_head(sizes, space.low, space.shape)


def _continuous_head(leaf: str, space: gym.spaces.Box, model: ModelSpec) -> ActionHead:
    size = int(np.prod(space.shape))
    bounds = _bound_tensors(leaf, space, model) if model.distribution in _BOUNDED_KINDS else {}
    if model.distribution in ("deterministic", "squashedDeterministic"):
        distribution_class = SquashedDeterministic if bounds else Deterministic
        from_inputs = partial(distribution_class, shape=space.shape, **bounds)
        return ActionHead(from_inputs, size, noise_size=0, noise_kind="normal", is_stochastic=False)
    gaussian_class = _GAUSSIANS[model.distribution]
    return ActionHead(
        from_inputs=partial(gaussian_class, shape=space.shape, log_std_range=model.log_std_range, **bounds),
        inputs_size=2 * size,
        noise_size=size,
        noise_kind="normal",
        log_std_columns=tuple(range(size, 2 * size)),
    )


def _bound_tensors(leaf: str, space: gym.spaces.Box, model: ModelSpec) -> dict[str, Tensor]:
    if not space.is_bounded():
        raise SpecError(
            f"{_yaml_name(model.distribution)!r} requires bounds, but {leaf!r} is not bounded on "
            f"every side ({space}); use {'Gaussian' if model.distribution in _GAUSSIANS else 'Deterministic'!r}.",
            field="model.distribution",
        )
    low, high = (torch.from_numpy(bound.ravel().astype(np.float32)) for bound in (space.low, space.high))
    return {"low": low, "high": high}


def _product_head(heads: Mapping[str, ActionHead]) -> ActionHead:
    """Combine the heads of leaves.

    If any leaf needs normal noise, all noise is normal, and the other leaves apply the normal CDF to it.
    """
    needs_normal = any(head.noise_kind == "normal" and head.noise_size for head in heads.values())
    noise_kind: NoiseKind = "normal" if needs_normal else "uniform"
    inputs_columns = _column_slices({leaf: head.inputs_size for leaf, head in heads.items()})
    noise_columns = _column_slices({leaf: head.noise_size for leaf, head in heads.items()})
    uniform_leaves = frozenset(
        leaf for leaf, head in heads.items() if needs_normal and head.noise_kind == "uniform"
    )
    return ActionHead(
        from_inputs=partial(
            _product_distribution,
            heads=heads,
            inputs_columns=inputs_columns,
            noise_columns=noise_columns,
            uniform_leaves=uniform_leaves,
        ),
        inputs_size=sum(head.inputs_size for head in heads.values()),
        noise_size=sum(head.noise_size for head in heads.values()),
        noise_kind=noise_kind,
        is_discrete=all(head.is_discrete for head in heads.values()),
        is_stochastic=all(head.is_stochastic for head in heads.values()),
        log_std_columns=tuple(
            inputs_columns[leaf].start + column
            for leaf, head in heads.items()
            for column in head.log_std_columns
        ),
    )


def _product_distribution(
    inputs: Tensor,
    heads: Mapping[str, ActionHead],
    inputs_columns: Mapping[str, slice],
    noise_columns: Mapping[str, slice],
    uniform_leaves: frozenset[str],
) -> Product:
    distributions = {
        leaf: head.from_inputs(inputs[..., inputs_columns[leaf]]) for leaf, head in heads.items()
    }
    return Product(distributions, noise_columns, uniform_leaves)


def _column_slices(sizes: Mapping[str, int]) -> dict[str, slice]:
    """Return leaf -> its columns, from leaf -> number of columns; the leaves' columns follow one another."""
    edges = pairwise(accumulate(sizes.values(), initial=0))
    return {leaf: slice(start, stop) for leaf, (start, stop) in zip(sizes, edges, strict=True)}


def _describe(leaves: Mapping[str, gym.Space]) -> str:
    return ", ".join(f"{leaf}: {space}" for leaf, space in leaves.items())


class ActionRange(nn.Module):
    """Bounds of a float Box, as tensors.

    As one of an algorithm's networks it moves to their device; checkpoints do not contain it.

    Args:
        action_space: the module's action space.
        algorithm: name of the algorithm, for messages.
        is_recurrent: whether the policy is recurrent, for messages.

    Attributes:
        low, high: the bounds, `[*shape]` float32.
        half_range: (high - low) / 2, `[*shape]` float32.

    Raises:
        SpecError: the space is not a float Box, or has no bounds.
    """

    low: Tensor
    high: Tensor
    half_range: Tensor

    def __init__(self, action_space: gym.Space, algorithm: str, *, is_recurrent: bool = False) -> None:
        super().__init__()
        if problem := action_problem(algorithm, "continuous", action_space, is_recurrent=is_recurrent):
            raise SpecError(f"{problem}.", field="spec.algorithm")
        assert isinstance(action_space, gym.spaces.Box)
        low, high = (
            torch.from_numpy(bound.astype(np.float32)) for bound in (action_space.low, action_space.high)
        )
        for name, values in {"low": low, "high": high, "half_range": (high - low) / 2}.items():
            self.register_buffer(name, values, persistent=False)

    def clamp(self, actions: Tensor) -> Tensor:
        """Clamp actions to the bounds."""
        return actions.clamp(self.low, self.high)

    def to_unit(self, actions: Tensor) -> Tensor:
        """Scale `[..., *shape]` actions to `[..., D]` values with the bounds at ±1."""
        values = (actions - self.low) / self.half_range - 1.0
        return values.reshape(*values.shape[: values.dim() - self.low.dim()], -1)

    def from_unit(self, values: Tensor) -> Tensor:
        """Invert `to_unit`; values beyond ±1 become the bound."""
        actions = values.clamp(-1.0, 1.0).reshape(*values.shape[:-1], *self.low.shape)
        return self.clamp(self.low + (actions + 1.0) * self.half_range)

    def draw_uniform(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw `[count, *shape]` actions uniformly from the range."""
        fractions = torch.rand((count, *self.low.shape), generator=generator, device=self.low.device)
        return self.low + 2.0 * self.half_range * fractions

    def log_density(self) -> Tensor:
        """Return the log-density of the actions of `draw_uniform`, a scalar: -Σ log(high - low)."""
        return -(2.0 * self.half_range).log().sum()
