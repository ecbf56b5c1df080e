from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pyarrow as pa
import pytest

_RAYS_TYPES = (
    "ray.data.arrow_tensor",
    "ray.data.arrow_tensor_v2",
    "ray.data.arrow_variable_shaped_tensor",
    "ray.data.arrow_pickled_object",
)


@pytest.fixture(autouse=True)
def without_rays_types() -> Iterator[None]:
    """Arrow as it is where Ray Data was never imported; other tests of the process may have done so."""
    known = []
    for name in _RAYS_TYPES:
        with contextlib.suppress(pa.ArrowKeyError):
            pa.unregister_extension_type(name)
            known.append(name)
    yield
    if known:
        from ray.data._internal.object_extensions.arrow import ArrowPythonObjectType
        from ray.data._internal.tensor_extensions import arrow

        for made in (
            arrow.ArrowTensorType((0,), pa.int64()),
            arrow.ArrowTensorTypeV2((0,), pa.int64()),
            arrow.ArrowVariableShapedTensorType(pa.int64(), 0),
            ArrowPythonObjectType(),
        ):
            with contextlib.suppress(pa.ArrowKeyError):
                pa.register_extension_type(made)
