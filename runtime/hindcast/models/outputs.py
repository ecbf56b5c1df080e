"""Check the outputs of custom modules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from hindcast.episodes.columns import Columns
from hindcast.formatting import describe_type


def output_problem(outputs: Any, expected_shapes: Mapping[str, tuple[int, ...]]) -> str | None:
    """Describe a problem with the names, shapes or dtypes of outputs, or return None; values are not checked.

    The description continues a sentence after "returns".

    Args:
        outputs: outputs of a forward pass.
        expected_shapes: name -> shape; all outputs except states must be floats.
    """
    if not isinstance(outputs, Mapping):
        return f"{_describe(outputs)}, expected a dictionary with {', '.join(map(repr, expected_shapes))}"
    for name, shape in expected_shapes.items():
        if name not in outputs:
            return f"{', '.join(map(repr, outputs)) or 'nothing'}, but no {name!r} of shape {[*shape]}"
        value = outputs[name]
        if not isinstance(value, Tensor) or tuple(value.shape) != shape:
            return f"{name!r} as {_describe(value)}, expected shape {[*shape]}"
        if not value.is_floating_point() and not name.startswith(Columns.STATE_OUT):
            return f"{name!r} of {value.dtype}, expected floats"
    return None


def _describe(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {[*value.shape]}"
    return "None" if value is None else describe_type(value)
