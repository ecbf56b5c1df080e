"""What a module keeps in attributes of Python from one call to the next: no checkpoint holds it."""

from __future__ import annotations

import ast
import inspect
import textwrap
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
from torch import Tensor, nn

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_TORCHS = frozenset(vars(nn.Module()))
_BUILDING = ("__init__", "setup")
_DEPTH = 4


@dataclass(frozen=True)
class Place:
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


def python_state(module: nn.Module) -> dict[Place, Any]:
    """Of all attributes that a checkpoint does not hold, something that is equal as long as they do not change."""
    found: dict[Place, Any] = {}
    for part in module.modules():
        if type(part).__module__.startswith("torch."):
            continue
        kept = {name: value for name, value in vars(part).items() if name not in _TORCHS}
        kept |= {name: part._buffers[name] for name in part._non_persistent_buffers_set}
        for name, value in kept.items():
            place = Place(type(part), name)
            found[place] = (found.get(place), _mark(value))
    return found


def changed(before: dict[Place, Any], after: dict[Place, Any]) -> list[Place]:
    """The attributes that are not what they were."""
    return [place for place, mark in after.items() if before.get(place) != mark]


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
                    if isinstance(node, ast.Attribute) and node.attr == name and _is_self(node.value):
                        rank = (method.name in _BUILDING, not isinstance(node.ctx, ast.Store))
                        places.append((rank, f"{inspect.getsourcefile(owner)}:{start + node.lineno - 1}"))
    return min(places, key=lambda place: place[0])[1] if places else None


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


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
