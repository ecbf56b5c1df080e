"""Dry-run a custom module before training, so that mistakes show immediately rather than after hours."""

from __future__ import annotations

import ast
import inspect
import random
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

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
_IMMUTABLE_TYPES = (bool, int, float, complex, str, bytes, type(None))
_TORCH_ATTRIBUTES = frozenset(vars(nn.Module()))
_BUILD_METHODS = ("__init__", "setup")
_MAX_DEPTH = 4
"""Depth up to which containers and objects in attributes are compared."""


def dry_run(module: RLModule) -> list[Problem]:
    """Call a copy of a custom module, of the same class and options, with random observations.

    Args:
        module: the module. It is not changed, and neither are the generators of torch, NumPy and Python.

    Returns:
        A note on each attribute whose weights do not affect the outputs; none for Hindcast's own modules.

    Raises:
        UserCodeError: the module raised; or its outputs have wrong names, shapes or dtypes; or it keeps state in Python
            attributes, or draws from generators, that checkpoints do not save.
    """
    module_class = type(module)
    if not is_user_class(module_class) or module.model_config.module_class is None:
        return []
    with torch.random.fork_rng(devices=[]), _preserve_generators() as find_used_generators:
        copy = build_module(
            module.observation_space, module.action_space, module.model_config, module.value, module_class
        )
        unused_attributes = _unused_attributes(copy)
        # Attributes that the first call sets may be a cache. What the second call changes, checkpoints would lose.
        # Only the first problem is reported.
        first_state = _run_passes(copy, 1)
        for attribute in changed_attributes(first_state, _run_passes(copy, 2)):
            raise UserCodeError(
                f"{attribute} changes from call to call, but checkpoints do not save it: make it a buffer "
                "(register_buffer), or a state (get_initial_state).",
                field=_FIELD,
            )
        for generator in find_used_generators():
            raise UserCodeError(
                f"{module_class.__name__} ({definition_location(module_class)}) draws from {generator} "
                "global generator, which checkpoints do not save: draw from torch's.",
                field=_FIELD,
            )
    what = "{} has weights that do not affect the module's outputs in training: they are never trained."
    return [Problem(parse_path(_FIELD), what.format(attribute)) for attribute in unused_attributes]


def _run_passes(module: RLModule, seed: int) -> dict[Attribute, object]:
    """Run all three forward passes in the modes that a training uses; return the Python state after them."""
    module.train()
    with torch.no_grad():
        module.forward_train(_random_batch(module, seed, in_training=True))
    module.eval()
    with torch.no_grad():
        module.forward_exploration(_random_batch(module, seed + 10))
        module.forward_inference(_random_batch(module, seed + 20))
    return python_state(module)


def _unused_attributes(module: RLModule) -> list[Attribute]:
    """Return the attributes whose weights do not affect any output of the training pass."""
    batch = _random_batch(module.train(), 0, in_training=True)
    outputs = list(module.forward_train(batch).values())
    if module.value:
        outputs.append(_compute_values(module, batch))
    scalars = [output.sum() for output in outputs if isinstance(output, Tensor) and output.requires_grad]
    trainable = {name: weights for name, weights in module.named_parameters() if weights.requires_grad}
    # No gradients at all if no output depends on weights: then all attributes are unused.
    gradients = torch.autograd.grad(scalars, list(trainable.values()), allow_unused=True) if scalars else ()
    used_attributes = {
        _root_attribute(name)
        for name, gradient in zip(trainable, gradients, strict=False)
        if gradient is not None
    }
    return [
        Attribute(type(module), name)
        for name in dict.fromkeys(map(_root_attribute, trainable))
        if name not in used_attributes
    ]


def _root_attribute(name: str) -> str:
    """Return the attribute of the module that contains a weight of this name."""
    return name.partition(".")[0]


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


@contextmanager
def _preserve_generators() -> Iterator[Callable[[], list[str]]]:
    """Yield a function that returns the global generators used in the block; restore them afterwards."""
    numpy_rng_state, python_rng_state = np.random.get_state(legacy=False), random.getstate()

    def find_used_generators() -> list[str]:
        has_numpy_changed = str(np.random.get_state(legacy=False)) != str(numpy_rng_state)
        return [
            *(["NumPy's"] if has_numpy_changed else []),
            *(["Python's"] if random.getstate() != python_rng_state else []),
        ]

    try:
        yield find_used_generators
    finally:
        np.random.set_state(numpy_rng_state)
        random.setstate(python_rng_state)


@dataclass(frozen=True)
class Attribute:
    """An attribute of a class; as a string, with the line that uses it."""

    owner: type
    name: str

    def __str__(self) -> str:
        location = find_attribute_line(self.owner, self.name)
        return f"{self.owner.__name__}.{self.name}" + (f" ({location})" if location else "")


@dataclass(frozen=True, eq=False)
class _IdentityMark:
    """Compares by identity and version; keeps the value alive, so that no other value can reuse its address."""

    value: Any
    version: Any = None

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _IdentityMark) and self.value is other.value and self.version == other.version
        )

    __hash__ = None  # type: ignore[assignment]


def python_state(module: nn.Module) -> dict[Attribute, Any]:
    """Return a mark of each attribute that checkpoints do not save; equal marks mean an unchanged attribute."""
    marks: dict[Attribute, Any] = {}
    for submodule in module.modules():
        if type(submodule).__module__.startswith("torch."):
            continue
        attributes = {name: value for name, value in vars(submodule).items() if name not in _TORCH_ATTRIBUTES}
        attributes |= {name: submodule._buffers[name] for name in submodule._non_persistent_buffers_set}
        for name, value in attributes.items():
            attribute = Attribute(type(submodule), name)
            # Submodules of one class share the key; the mark then contains the marks of all of them.
            marks[attribute] = (marks.get(attribute), _mark(value))
    return marks


def changed_attributes(
    state_before: dict[Attribute, Any], state_after: dict[Attribute, Any]
) -> list[Attribute]:
    """Return the attributes that changed between two calls of `python_state`."""
    return [attribute for attribute, mark in state_after.items() if state_before.get(attribute) != mark]


def find_attribute_line(cls: type, name: str) -> str | None:
    """Return file:line where a method uses `self.<name>`, preferably an assignment outside `__init__` and `setup`."""
    locations = []
    for owner in cls.__mro__:
        try:
            lines, start = inspect.getsourcelines(owner)
        except (OSError, TypeError):  # built in, or typed at a prompt
            continue
        for method in ast.walk(ast.parse(textwrap.dedent("".join(lines)))):
            if isinstance(method, ast.FunctionDef):
                for node in ast.walk(method):
                    if isinstance(node, ast.Attribute) and ast.unparse(node) == f"self.{name}":
                        rank = (method.name in _BUILD_METHODS, not isinstance(node.ctx, ast.Store))
                        locations.append((rank, f"{inspect.getsourcefile(owner)}:{start + node.lineno - 1}"))
    return min(locations, key=lambda location: location[0])[1] if locations else None


def _mark(value: Any, depth: int = _MAX_DEPTH) -> Any:
    """Return a copy or an `_IdentityMark` of a value, equal to a later mark if the value has not changed.

    Only `depth` levels of containers are compared element by element; at the next level only their lengths are.
    """
    if isinstance(value, _IMMUTABLE_TYPES):
        return value
    if isinstance(value, set | frozenset):
        return set(value)
    if isinstance(value, list | tuple):
        return [_mark(element, depth - 1) for element in value] if depth else len(value)
    if isinstance(value, dict):
        return {key: _mark(element, depth - 1) for key, element in value.items()} if depth else len(value)
    return _IdentityMark(value, _version(value, depth))


def _version(value: Any, depth: int) -> Any:
    """Return a value that changes when `value` is changed in place; None if this cannot be detected."""
    if isinstance(value, Tensor):
        return None if value.is_inference() else value._version
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if not depth or isinstance(value, type | FunctionType | ModuleType | nn.Module):
        return None
    return {name: _mark(attribute, depth - 1) for name, attribute in getattr(value, "__dict__", {}).items()}
