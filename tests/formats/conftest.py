"""Fixtures that isolate tests of formats from Ray and from each other's caches."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

_RAY_EXTENSION_NAMES = (
    "ray.data.arrow_tensor",
    "ray.data.arrow_tensor_v2",
    "ray.data.arrow_variable_shaped_tensor",
    "ray.data.arrow_pickled_object",
)


@pytest.fixture(autouse=True)
def unregister_ray_types() -> Iterator[None]:
    """Unregister Ray's Arrow types, which other tests of the process may have registered by importing Ray Data."""
    extension_names = []
    for name in _RAY_EXTENSION_NAMES:
        with contextlib.suppress(pa.ArrowKeyError):
            pa.unregister_extension_type(name)
            extension_names.append(name)
    yield
    if extension_names:
        from ray.data._internal.object_extensions.arrow import ArrowPythonObjectType
        from ray.data._internal.tensor_extensions import arrow

        for extension_type in (
            arrow.ArrowTensorType((0,), pa.int64()),
            arrow.ArrowTensorTypeV2((0,), pa.int64()),
            arrow.ArrowVariableShapedTensorType(pa.int64(), 0),
            ArrowPythonObjectType(),
        ):
            with contextlib.suppress(pa.ArrowKeyError):
                pa.register_extension_type(extension_type)


@pytest.fixture(autouse=True)
def _separate_cache(cache: Path) -> None:
    """Prepare data in a cache of the test's own."""
