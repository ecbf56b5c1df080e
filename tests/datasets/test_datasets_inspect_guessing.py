"""Guessed spaces contain the data that they were guessed from."""

import numpy as np
import pytest
from gymnasium import spaces

from hindcast.datasets.inspection.summarising import guess_space
from hindcast.formats.spec import DataSpec, Leaf


@pytest.mark.parametrize(
    ("dtype", "largest", "space_class"),
    [
        ("uint8", 255, spaces.Discrete),
        ("int64", 4, spaces.Discrete),
        ("uint64", 4, spaces.Discrete),
        ("int64", 2**63 - 1, spaces.Box),
        ("uint64", 2**64 - 1, spaces.Box),
    ],
)
def test_guessed_space_contains_the_largest_integer(dtype, largest, space_class):
    bounds = np.zeros((), dtype), np.array(largest, dtype)
    spec = DataSpec({"actions": Leaf(np.dtype(dtype), ())})
    space = guess_space(spec, "actions", {"actions": bounds})
    assert isinstance(space, space_class)
    assert space.contains(bounds[0])
    assert space.contains(bounds[1])
