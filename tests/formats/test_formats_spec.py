"""`DataSpec` and `Leaf`."""

from __future__ import annotations

import json

import numpy as np
import pytest
from gymnasium import spaces

from hindcast.errors import DataError
from hindcast.formats.spec import DataSpec, Leaf

SPEC = DataSpec(
    {
        "obs": Leaf(np.dtype("uint8"), (84, 84)),
        "rewards": Leaf(np.dtype("float64")),
        "prompt": Leaf(None, (), "text"),
        "infos": Leaf(None, (), "json"),
    },
    spaces.Box(0, 255, (84, 84), np.uint8),
    spaces.Tuple([]),
    "Pong",
)


def test_spec_json_round_trip():
    assert DataSpec.from_json(json.loads(json.dumps(SPEC.to_json()))) == SPEC


def test_leaf_ignores_byte_order():
    assert Leaf(np.dtype(">f4"), (2,)) == Leaf(np.dtype("<f4"), (2,))
    assert Leaf(np.dtype(">i2")).dtype == np.dtype("<i2")


def test_itemsize_counts_bytes_of_one_value():
    assert SPEC.leaves["obs"].itemsize == 84 * 84
    assert SPEC.leaves["rewards"].itemsize == 8
    assert SPEC.leaves["prompt"].itemsize == 0


@pytest.mark.parametrize("dtype", [object, "U3", "S3", "datetime64[s]", [("a", "f4")]])
def test_leaf_with_dtype_without_binary_form_raises(dtype):
    with pytest.raises(DataError, match="cannot be stored: allowed are booleans"):
        Leaf(np.dtype(dtype))


def test_from_block_describes_columns(kit):
    spec = DataSpec.from_block(kit.block())
    assert {name: str(leaf) for name, leaf in spec.leaves.items()} == {
        "obs": "float32 [4]",
        "actions": "int64 []",
        "rewards": "float32 []",
    }


def test_difference_describes_first_difference():
    leaves = {"obs": Leaf(np.dtype("float32"), (3,)), "actions": Leaf(np.dtype("int64"))}
    spec = DataSpec(leaves, None, spaces.Discrete(2))
    assert spec.difference(spec) is None
    assert spec.difference(DataSpec({**leaves, "infos": Leaf(None, (), "json")})) is None
    wider_spec = DataSpec({**leaves, "obs": Leaf(np.dtype("float32"), (4,))})
    assert spec.difference(wider_spec) == "'obs' is float32 [3] in one and float32 [4] in the other"
    assert "columns" in str(spec.difference(DataSpec({"obs": leaves["obs"]})))
    assert "action space is Discrete(2)" in str(spec.difference(DataSpec(leaves, None, spaces.Discrete(3))))


def test_merge_keeps_spaces_of_either_spec_and_drops_different_environments():
    leaves = {"obs": Leaf(np.dtype("float32"), (3,))}
    infos = {"infos": Leaf(None, (), "json")}
    other_spec = DataSpec({**leaves, **infos}, spaces.Discrete(2), spaces.Tuple([]), "B")
    merged_spec = DataSpec(leaves, None, spaces.Tuple([]), "A").merge(other_spec)
    assert merged_spec == DataSpec({**leaves, **infos}, spaces.Discrete(2), spaces.Tuple([]), None)


@pytest.mark.parametrize(
    "data", [{}, {"leaves": {"obs": {}}}, {"leaves": 3}, {"leaves": {"obs": {"dtype": "x"}}}]
)
def test_from_json_with_invalid_document_raises(data):
    with pytest.raises(DataError, match="the description of the data cannot be read"):
        DataSpec.from_json(data)
