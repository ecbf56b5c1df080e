"""A module of the user's own is tried out before anything is trained: what is wrong shows at once, not after hours."""

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
from hindcast.errors import UserCodeError
from hindcast.models.outputs import output_problem
from hindcast.models.preprocessing import is_float_box
from hindcast.models.rl_module import RLModule, build_module, is_user_class
from hindcast.user_code import calling, definition_location

_ROWS, _STEPS = 3, 4
_FIELD = "spec.model.moduleClass"
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_TORCHS = frozenset(vars(nn.Module()))
_BUILDING = ("__init__", "setup")
_DEPTH = 4


def dry_run(module: RLModule) -> list[str]:
    """Call another module of the same class and options with random observations.

    Args:
        module: is not changed, and neither are the generators of torch, NumPy and Python.

    Returns:
        A sentence for each attribute whose weights have no part in the outputs.

    Raises:
        UserCodeError: it raised; its outputs do not have the names, shapes and dtypes that they should; it keeps
            something in Python from call to call, or draws from generators, that no checkpoint holds.
    """
    kind = type(module)
    if not is_user_class(kind) or module.model_config.module_class is None:
        return []
    with torch.random.fork_rng(devices=[]), _generators_kept() as drawn:
        twin = build_module(
            module.observation_space, module.action_space, module.model_config, module.value, kind
        )
        unused = _without_a_part(twin)
        before = _call(twin, 1)
        for attribute in changed(before, _call(twin, 2)):
            raise UserCodeError(
                f"{_FIELD}: {attribute} changes from call to call, and no checkpoint holds it: make it a buffer "
                "(register_buffer), or a state (get_initial_state)."
            )
        for generator in drawn():
            raise UserCodeError(
                f"{_FIELD}: {kind.__name__} ({definition_location(kind)}) draws from {generator} "
                "global generator, which no "
                "checkpoint holds: draw from torch's."
            )
    return [
        f"{_FIELD}: {attribute} has weights that nothing depends on which the module returns in training: they are "
        "never trained."
        for attribute in unused
    ]


def _call(module: RLModule, seed: int) -> dict[Attribute, object]:
    """All three ways, as a training does; the attributes after it."""
    module.train()
    with torch.no_grad():
        module.forward_train(_batch(module, seed, in_training=True))
    module.eval()
    with torch.no_grad():
        module.forward_exploration(_batch(module, seed + 10))
        module.forward_inference(_batch(module, seed + 20))
    return python_state(module)


def _without_a_part(module: RLModule) -> list[Attribute]:
    """The attributes that have weights of which no output of training depends on any."""
    batch = _batch(module.train(), 0, in_training=True)
    outputs = list(module.forward_train(batch).values())
    if module.value:
        outputs.append(_values(module, batch))
    reached = [output.sum() for output in outputs if isinstance(output, Tensor) and output.requires_grad]
    trained = {name: weights for name, weights in module.named_parameters() if weights.requires_grad}
    gradients = torch.autograd.grad(reached, list(trained.values()), allow_unused=True) if reached else ()
    used = {_first(name) for name, each in zip(trained, gradients, strict=False) if each is not None}
    return [Attribute(type(module), name) for name in dict.fromkeys(map(_first, trained)) if name not in used]


def _first(name: str) -> str:
    """The attribute of a module that a weight of this name is in."""
    return name.partition(".")[0]


def _values(module: RLModule, batch: Mapping[str, Tensor]) -> Tensor:
    kind = type(module)
    with calling(f"{kind.__name__}.compute_values"):
        values = module.compute_values(batch)
    lead = module.forward_train(batch)[Columns.VF_PREDS].shape
    if problem := output_problem({Columns.VF_PREDS: values}, {Columns.VF_PREDS: tuple(lead)}):
        raise UserCodeError(
            f"{kind.__name__}.compute_values ({definition_location(kind.compute_values)}) returns {problem}."
        )
    return values


def _batch(module: RLModule, seed: int, in_training: bool = False) -> dict[str, Tensor]:
    """Random observations: of a module with a state sequences where it is trained."""
    lead = (_ROWS, _STEPS) if in_training and module.is_stateful() else (_ROWS,)
    leaves = flatten_space(module.observation_space, Columns.OBS)
    rng = np.random.default_rng(seed)
    numbers = {leaf: space for leaf, space in leaves.items() if isinstance(space.dtype, np.dtype)}
    return {leaf: _rows(space, lead, rng) for leaf, space in numbers.items()}


def _rows(space: gym.Space, lead: tuple[int, ...], rng: np.random.Generator) -> Tensor:
    shape = (*lead, *(space.shape or ()))
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
def _generators_kept() -> Iterator[Callable[[], list[str]]]:
    """Gives what tells which generators were drawn from since; leaves them as they were."""
    numpy, python = np.random.get_state(legacy=False), random.getstate()

    def drawn() -> list[str]:
        moved = str(np.random.get_state(legacy=False)) != str(numpy)
        return [*(["NumPy's"] if moved else []), *(["Python's"] if random.getstate() != python else [])]

    try:
        yield drawn
    finally:
        np.random.set_state(numpy)
        random.setstate(python)


@dataclass(frozen=True)
class Attribute:
    """An attribute: the class that has it, and its name."""

    kind: type
    name: str

    def __str__(self) -> str:
        where = line_of_attribute(self.kind, self.name)
        return f"{self.kind.__name__}.{self.name}" + (f" ({where})" if where else "")


@dataclass(frozen=True, eq=False)
class _Same:
    """Compares by identity, and holds the value, so that no other one can have its place in memory."""

    value: Any
    version: Any = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value and self.version == other.version

    __hash__ = None  # type: ignore[assignment]


def python_state(module: nn.Module) -> dict[Attribute, Any]:
    """Of all attributes that a checkpoint does not hold, something that is equal as long as they do not change."""
    found: dict[Attribute, Any] = {}
    for part in module.modules():
        if type(part).__module__.startswith("torch."):
            continue
        kept = {name: value for name, value in vars(part).items() if name not in _TORCHS}
        kept |= {name: part._buffers[name] for name in part._non_persistent_buffers_set}
        for name, value in kept.items():
            attribute = Attribute(type(part), name)
            found[attribute] = (found.get(attribute), _mark(value))
    return found


def changed(before: dict[Attribute, Any], after: dict[Attribute, Any]) -> list[Attribute]:
    """The attributes that are not what they were."""
    return [attribute for attribute, mark in after.items() if before.get(attribute) != mark]


def line_of_attribute(kind: type, name: str) -> str | None:
    """file:line where a method sets `self.<name>`: a method that computes rather than builds, if there is one."""
    places = []
    for owner in kind.__mro__:
        try:
            lines, start = inspect.getsourcelines(owner)
        except (OSError, TypeError):  # built in, or typed at a prompt
            continue
        for method in ast.walk(ast.parse(textwrap.dedent("".join(lines)))):
            if isinstance(method, ast.FunctionDef):
                for node in ast.walk(method):
                    if isinstance(node, ast.Attribute) and ast.unparse(node) == f"self.{name}":
                        rank = (method.name in _BUILDING, not isinstance(node.ctx, ast.Store))
                        places.append((rank, f"{inspect.getsourcefile(owner)}:{start + node.lineno - 1}"))
    return min(places, key=lambda place: place[0])[1] if places else None


def _mark(value: Any, depth: int = _DEPTH) -> Any:
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, set | frozenset):
        return set(value)
    if isinstance(value, list | tuple):
        return [_mark(each, depth - 1) for each in value] if depth else len(value)
    if isinstance(value, dict):
        return {key: _mark(each, depth - 1) for key, each in value.items()} if depth else len(value)
    return _Same(value, _version(value, depth))


def _version(value: Any, depth: int) -> Any:
    """What changes where the value itself stays."""
    if isinstance(value, Tensor):
        return None if value.is_inference() else value._version
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if not depth or isinstance(value, type | FunctionType | ModuleType | nn.Module):
        return None
    return {name: _mark(each, depth - 1) for name, each in getattr(value, "__dict__", {}).items()}
