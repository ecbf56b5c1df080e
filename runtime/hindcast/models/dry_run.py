"""Dry-run a custom module before training, so that mistakes show immediately rather than after hours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from hindcast.episodes.batched import batch_dtype
from hindcast.episodes.columns import Columns
from hindcast.episodes.spaces import flatten_space
from hindcast.errors import Problem, UserCodeError, parse_path
from hindcast.models.outputs import output_problem
from hindcast.models.preprocessing import is_float_box
from hindcast.models.rl_module import RLModule, build_module, is_user_class
from hindcast.user_code import calling, definition_location

_NUM_ROWS, _NUM_STEPS = 3, 4
_FIELD = "spec.model.moduleClass"


def dry_run(module: RLModule) -> list[Problem]:
    """Call a copy of a custom module, of the same class and options, once with random observations.

    Args:
        module: the module. It is not changed, and neither is torch's generator.

    Returns:
        A note on each attribute whose weights do not affect the outputs; none for Hindcast's own modules.

    Raises:
        UserCodeError: the module raised, or its outputs have wrong names, shapes or dtypes.
    """
    module_class = type(module)
    if not is_user_class(module_class) or module.model_config.module_class is None:
        return []
    with torch.random.fork_rng(devices=[]):
        copy = build_module(
            module.observation_space, module.action_space, module.model_config, module.value, module_class
        )
        unused_attributes = _run_training_pass(copy.train())
        copy.eval()
        with torch.no_grad():
            copy.forward_exploration(_random_batch(copy, 1))
            copy.forward_inference(_random_batch(copy, 2))
    location = definition_location(module_class)
    return [
        Problem(
            parse_path(_FIELD),
            f"{module_class.__name__}.{name} ({location}) has weights that do not affect the module's outputs in "
            "training: they are never trained.",
        )
        for name in unused_attributes
    ]


def _run_training_pass(module: RLModule) -> list[str]:
    """Run the training pass; return the attributes whose weights do not affect any of its outputs."""
    batch = _random_batch(module, 0, in_training=True)
    outputs = list(module.forward_train(batch).values())
    if module.value:
        outputs.append(_compute_values(module, batch))
    scalars = [output.sum() for output in outputs if isinstance(output, Tensor) and output.requires_grad]
    trainable = {name: weights for name, weights in module.named_parameters() if weights.requires_grad}
    # No gradients at all if no output depends on weights: then all attributes are unused.
    gradients = torch.autograd.grad(scalars, list(trainable.values()), allow_unused=True) if scalars else ()
    used_attributes = {
        name.partition(".")[0]
        for name, gradient in zip(trainable, gradients, strict=False)
        if gradient is not None
    }
    return [
        name
        for name in dict.fromkeys(name.partition(".")[0] for name in trainable)
        if name not in used_attributes
    ]


def _compute_values(module: RLModule, batch: Mapping[str, Tensor]) -> Tensor:
    module_class = type(module)
    with calling(f"{module_class.__name__}.compute_values"):
        values = module.compute_values(batch)
    leading_shape = module.forward_train(batch)[Columns.VF_PREDS].shape
    if problem := output_problem({Columns.VF_PREDS: values}, {Columns.VF_PREDS: tuple(leading_shape)}):
        raise UserCodeError(
            f"{module_class.__name__}.compute_values ({definition_location(module_class.compute_values)}) "
            f"returns {problem}."
        )
    return values


def _random_batch(module: RLModule, seed: int, in_training: bool = False) -> dict[str, Tensor]:
    """Draw a batch of random observations: sequences to train a module with a state, otherwise single steps."""
    leading_shape = (_NUM_ROWS, _NUM_STEPS) if in_training and module.is_stateful() else (_NUM_ROWS,)
    leaves = flatten_space(module.observation_space, Columns.OBS)
    rng = np.random.default_rng(seed)
    numeric_leaves = {leaf: space for leaf, space in leaves.items() if isinstance(space.dtype, np.dtype)}
    return {leaf: _random_rows(space, leading_shape, rng) for leaf, space in numeric_leaves.items()}


def _random_rows(space: gym.Space, leading_shape: tuple[int, ...], rng: np.random.Generator) -> Tensor:
    shape = (*leading_shape, *(space.shape or ()))
    values: Any
    if is_float_box(space):
        values = np.clip(rng.normal(size=shape), space.low, space.high)
    elif isinstance(space, gym.spaces.Box):
        values = rng.integers(space.low, space.high, size=shape, dtype=space.dtype, endpoint=True)
    elif isinstance(space, gym.spaces.MultiDiscrete):
        values = space.start + rng.integers(0, space.nvec, size=shape)
    else:
        start, size = (space.start, space.n) if isinstance(space, gym.spaces.Discrete) else (0, 2)
        values = start + rng.integers(0, size, size=shape)
    return torch.from_numpy(np.asarray(values).astype(batch_dtype(space.dtype)))
