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


def test_a_spec_survives_json():
    assert DataSpec.from_json(json.loads(json.dumps(SPEC.to_json()))) == SPEC


def test_big_endian_is_the_same_as_little_endian():
    assert Leaf(np.dtype(">f4"), (2,)) == Leaf(np.dtype("<f4"), (2,))
    assert Leaf(np.dtype(">i2")).dtype == np.dtype("<i2")


def test_the_size_of_an_element():
    assert SPEC.leaves["obs"].itemsize == 84 * 84
    assert SPEC.leaves["rewards"].itemsize == 8
    assert SPEC.leaves["prompt"].itemsize == 0


@pytest.mark.parametrize("dtype", [object, "U3", "S3", "datetime64[s]", [("a", "f4")]])
def test_dtypes_without_a_fixed_binary_form_are_refused(dtype):
    with pytest.raises(DataError, match="cannot be stored: allowed are booleans"):
        Leaf(np.dtype(dtype))


def test_a_spec_of_a_block(kit):
    spec = DataSpec.from_block(kit.block())
    assert {name: str(leaf) for name, leaf in spec.leaves.items()} == {
        "obs": "float32 [4]",
        "actions": "int64 []",
        "rewards": "float32 []",
    }


def test_differences_are_named():
    leaves = {"obs": Leaf(np.dtype("float32"), (3,)), "actions": Leaf(np.dtype("int64"))}
    base = DataSpec(leaves, None, spaces.Discrete(2))
    assert base.difference(base) is None
    assert base.difference(DataSpec({**leaves, "infos": Leaf(None, (), "json")})) is None
    wider = DataSpec({**leaves, "obs": Leaf(np.dtype("float32"), (4,))})
    assert base.difference(wider) == "'obs' is float32 [3] in one and float32 [4] in the other"
    assert "columns" in str(base.difference(DataSpec({"obs": leaves["obs"]})))
    assert "action space is Discrete(2)" in str(base.difference(DataSpec(leaves, None, spaces.Discrete(3))))


def test_merging_keeps_what_either_knows():
    leaves = {"obs": Leaf(np.dtype("float32"), (3,))}
    infos = {"infos": Leaf(None, (), "json")}
    merged = DataSpec(leaves, None, spaces.Tuple([]), "A").merge(
        DataSpec({**leaves, **infos}, spaces.Discrete(2), spaces.Tuple([]), "B")
    )
    assert merged == DataSpec({**leaves, **infos}, spaces.Discrete(2), spaces.Tuple([]), None)


@pytest.mark.parametrize(
    "data", [{}, {"leaves": {"obs": {}}}, {"leaves": 3}, {"leaves": {"obs": {"dtype": "x"}}}]
)
def test_json_that_is_no_spec_is_a_sentence(data):
    with pytest.raises(DataError, match="the description of the data cannot be read"):
        DataSpec.from_json(data)
