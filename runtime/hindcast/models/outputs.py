"""What is wrong with what a module of the user's own puts out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from hindcast.episodes.columns import Columns


def output_problem(outputs: Any, expected_shapes: Mapping[str, tuple[int, ...]]) -> str | None:
    """What is wrong with the outputs' names, shapes and dtypes, to stand behind "returns"; values are not looked at.

    Args:
        outputs: of a forward pass.
        wanted: name -> shape; all but states are floats.
    """
    if not isinstance(outputs, Mapping):
        return f"{_described(outputs)}, expected a dictionary with {', '.join(map(repr, expected_shapes))}"
    for name, shape in expected_shapes.items():
        if name not in outputs:
            return f"{', '.join(map(repr, outputs)) or 'nothing'}, and no {name!r} of shape {[*shape]}"
        value = outputs[name]
        if not isinstance(value, Tensor) or tuple(value.shape) != shape:
            return f"{name!r} as {_described(value)}, expected shape {[*shape]}"
        if not value.is_floating_point() and not name.startswith(Columns.STATE_OUT):
            return f"{name!r} of {value.dtype}, expected floats"
    return None


def _described(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {[*value.shape]}"
    return "None" if value is None else f"a {type(value).__name__}"
