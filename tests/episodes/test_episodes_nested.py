"""Nested values: leaf names, structure and batches."""

import numpy as np
import pytest
from gymnasium import spaces

from hindcast.episodes import batched, nested
from hindcast.episodes.spaces import space_struct

VALUE = {"pose": (np.array([1.0, 2.0]), 3), "camera": np.zeros((2, 2))}


def test_flatten_names_leaves_by_path_and_refuses_equal_names():
    flat = nested.flatten(VALUE, "obs")
    assert list(flat) == ["obs/pose/0", "obs/pose/1", "obs/camera"]
    assert flat["obs/pose/1"] == 3
    assert nested.flatten(5, "actions") == {"actions": 5}
    assert nested.equal(nested.unflatten(flat, "obs"), VALUE)
    with pytest.raises(ValueError, match="share the leaf name 'obs/a/b'"):
        nested.flatten({"a": {"b": 1}, "a/b": 2}, "obs")


def test_unflatten_uses_structure_of_space():
    space = spaces.Dict({"0": spaces.Discrete(2), "1": spaces.Dict({"x/y": spaces.Discrete(2)})})
    value = {"0": 1, "1": {"x/y": 0}}
    flat = nested.flatten(value, "actions")
    assert nested.unflatten(flat, "actions", space_struct(space)) == value
    assert nested.unflatten(flat, "actions") == (1, {"x": {"y": 0}})
    with pytest.raises(ValueError, match="the leaf 'obs/a' does not exist"):
        nested.unflatten({"obs/b": 1}, "obs", space_struct(spaces.Dict(a=spaces.Discrete(2))))
    with pytest.raises(ValueError, match="the leaf 'obs' does not exist"):
        nested.unflatten({"observation": 1}, "obs")


def test_map_leaves_of_other_structure_raises():
    assert nested.map_leaves(lambda a, b: a + b, {"x": (1, 2)}, {"x": (3, 4)}) == {"x": (4, 6)}
    for second in ({"y": (1, 2)}, {"x": (1,)}, {"x": 1}, 1):
        with pytest.raises(ValueError, match=r"differ in structure: .*\(int, int\)"):
            nested.map_leaves(lambda a, b: a, {"x": (1, 2)}, second)
    with pytest.raises(ValueError, match="differ in structure"):
        nested.map_leaves(lambda a, b: a, 1, (1, 2))


def test_equal_compares_structure_shape_and_values():
    assert nested.equal((np.array([np.nan, 1.0]), "a"), (np.array([np.nan, 1.0]), "a"))
    assert not nested.equal((1, 2), (1, 3))
    assert not nested.equal({"a": 1}, {"b": 1})
    assert not nested.equal(np.zeros(2), np.zeros(3))


def test_stack_and_unstack_round_trip():
    batch = batched.stack([VALUE, VALUE])
    assert batch["pose"][0].shape == (2, 2) and batch["camera"].shape == (2, 2, 2)
    assert nested.equal(batched.unstack(batch)[1], VALUE)
    assert batched.batch_length(batch) == 2 and batched.batch_length({}) == 0
    with pytest.raises(ValueError, match="at least one sample"):
        batched.stack([])
    with pytest.raises(ValueError, match="leading time dimension"):
        batched.batch_length((1, 2))
