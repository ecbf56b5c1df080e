"""Gymnasium spaces as JSON, as state and as structures."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import get_args

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from hindcast.api.spaces import SpaceSpec
from hindcast.episodes.nested import flatten, unflatten
from hindcast.episodes.spaces import (
    KINDS,
    flatten_space,
    space_from_json,
    space_from_state,
    space_from_struct,
    space_struct,
    space_to_json,
    space_to_state,
)
from hindcast.errors import DataError
from layers import examples


def boxes() -> st.SearchStrategy[gym.Space]:
    def make(dtype_name: str, shape: list[int], uniform: bool, seed: int) -> gym.Space:
        rng = np.random.default_rng(seed)
        dtype = np.dtype(dtype_name)
        size = () if uniform else tuple(shape)
        if dtype.kind == "f":
            low, high = -rng.uniform(size=size), rng.uniform(size=size)
            if seed % 3 == 0:
                low = np.where(rng.random(size) < 0.5, -np.inf, low)
        else:
            low, high = rng.integers(0, 5, size), rng.integers(5, 100, size)
        bounds = [np.broadcast_to(bound, shape).astype(dtype) for bound in (low, high)]
        return spaces.Box(*bounds, shape=tuple(shape), dtype=dtype.type)

    dtypes = ["float16", "float32", "float64", "uint8", "int8", "int16", "int32", "int64"]
    shapes = st.lists(st.integers(1, 3), max_size=3)
    return st.builds(make, st.sampled_from(dtypes), shapes, st.booleans(), st.integers(0, 99))


def leaf_spaces() -> st.SearchStrategy[gym.Space]:
    return st.one_of(
        boxes(),
        st.builds(lambda n, start: spaces.Discrete(n, start=start), st.integers(1, 9), st.integers(-3, 3)),
        st.builds(
            lambda nvec, start: spaces.MultiDiscrete(nvec, start=[start] * len(nvec)),
            st.lists(st.integers(1, 5), min_size=1, max_size=3),
            st.integers(-1, 1),
        ),
        st.builds(spaces.MultiBinary, st.one_of(st.integers(1, 4), st.just([2, 3]))),
        st.builds(lambda n: spaces.Text(n, charset="abcäß✓"), st.integers(1, 5)),
    )


def any_spaces() -> st.SearchStrategy[gym.Space]:
    names = st.text("abcxyz", min_size=1, max_size=3)
    return st.recursive(
        leaf_spaces(),
        lambda children: st.one_of(
            st.builds(spaces.Dict, st.dictionaries(names, children, max_size=3)),
            st.builds(spaces.Tuple, st.lists(children, max_size=3)),
        ),
        max_leaves=5,
    )


@examples(100)
@given(any_spaces())
def test_space_round_trip_in_all_forms(space):
    assert space_from_json(json.loads(json.dumps(space_to_json(space)))) == space
    assert space_from_state(json.loads(json.dumps(space_to_state(space)))) == space
    assert space_from_struct(space_struct(space)) == space


@examples(100)
@given(any_spaces())
@example(spaces.Discrete(3, dtype=np.int32))
def test_space_json_is_valid_in_resource(space):
    """Configs in Python write spaces to resources in this form."""
    model = TypeAdapter(SpaceSpec).validate_python(space_to_json(space))
    assert space_from_json(model.model_dump(mode="json", by_alias=True, exclude_none=True)) == space


def test_every_space_kind_has_api_model():
    models = get_args(get_args(SpaceSpec)[0])
    names = [get_args(model.model_fields["type"].annotation) for model in models]
    assert names == [(kind.name,) for kind in KINDS]


@examples(100)
@given(any_spaces(), st.integers(0, 9))
def test_flatten_sample_round_trip(space, seed):
    space.seed(seed)
    value = space.sample()
    leaves = flatten(value, "obs")
    spaces_by_leaf = flatten_space(space, "obs")
    assert leaves.keys() == spaces_by_leaf.keys()
    for name, leaf in leaves.items():
        assert spaces_by_leaf[name].contains(leaf if isinstance(leaf, str) else np.asarray(leaf)), name
    restored_leaves = flatten(unflatten(leaves, "obs", space_struct(space)), "obs")
    assert restored_leaves.keys() == leaves.keys()
    assert all(restored_leaves[name] is leaf for name, leaf in leaves.items())


@pytest.mark.parametrize(
    ("space", "document"),
    [
        (
            spaces.Box(-np.inf, 1, (2,), np.float32),
            {"low": "-inf", "high": 1.0, "shape": [2], "dtype": "float32"},
        ),
        (
            spaces.Box(np.array([0, 1]), np.array([2, 3]), dtype=np.int64),
            {"low": [0, 1], "high": [2, 3], "shape": [2], "dtype": "int64"},
        ),
        (spaces.Discrete(3), {"n": 3, "start": 0}),
        (spaces.MultiDiscrete([2, 3]), {"nvec": [2, 3], "dtype": "int64"}),
        (spaces.Text(5, charset="ab"), {"maxLength": 5, "minLength": 1, "charset": "ab"}),
    ],
    ids=str,
)
def test_space_json_has_documented_form(space, document):
    assert space_to_json(space) == {"type": type(space).__name__, **document}


def test_handwritten_json_with_numbers_lists_and_defaults_is_read():
    box = space_from_json({"type": "Box", "low": ["-inf", 0], "high": "inf", "shape": [2]})
    assert box == spaces.Box(np.array([-np.inf, 0], np.float32), np.array([np.inf, np.inf], np.float32))
    box = space_from_json({"type": "Box", "low": 0.0, "high": 255.0, "shape": [2], "dtype": "uint8"})
    assert box == spaces.Box(0, 255, (2,), np.uint8)
    assert space_from_json({"type": "Text", "maxLength": 3}) == spaces.Text(3)


def test_flatten_space_names_leaves_by_path():
    children = {"b": spaces.Discrete(2), "a": spaces.Tuple([spaces.Discrete(3), spaces.MultiBinary(2)])}
    space = spaces.Dict(children)  # sorts the keys
    assert list(flatten_space(space, "obs")) == ["obs/a/0", "obs/a/1", "obs/b"]
    assert list(flatten_space(spaces.Discrete(2), "actions")) == ["actions"]
    batch = {"a": (np.zeros(4), np.zeros((4, 2))), "b": np.ones(4)}
    leaves = flatten(batch, "obs")
    assert leaves.keys() == {"obs/a/0", "obs/a/1", "obs/b"}
    assert unflatten(leaves, "obs", space_struct(space))["a"][1] is batch["a"][1]


def test_duplicate_leaf_name_raises():
    space = spaces.Dict({"a": spaces.Dict({"b": spaces.Discrete(2)}), "a/b": spaces.Discrete(2)})
    with pytest.raises(DataError, match="share the leaf name 'obs/a/b'"):
        flatten_space(space, "obs")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"type": "Graph"}, "'Graph': allowed are Box, Discrete"),
        ({}, "type None: allowed are Box"),
        ({"type": "Discrete"}, r"the Discrete space .* cannot be read: .*n"),
        ({"type": "Box", "low": "zero", "high": 1, "shape": [1]}, "the Box space .* cannot be read"),
        ({"type": "Box", "low": [0, 1], "high": 1, "shape": [3]}, "the Box space .* cannot be read"),
        ({"type": "Dict", "spaces": [{"type": "Discrete", "n": 2}]}, "the Dict space .* cannot be read"),
        ({"type": "Tuple", "spaces": "ab"}, "the Tuple space .* cannot be read"),
    ],
)
def test_invalid_json_raises(data, message):
    with pytest.raises(DataError, match=message):
        space_from_json(data)


def test_unsupported_kind_raises_with_its_name():
    with pytest.raises(DataError, match=r"Sequence, which cannot be recorded: allowed are Box"):
        space_to_json(spaces.Sequence(spaces.Discrete(2)))


def test_threads_parse_npy_headers_one_at_a_time(monkeypatch):
    active_threads = []
    overlapping_threads = []

    def load(*args, **kwargs):
        overlapping_threads.extend(active_threads)
        active_threads.append(threading.get_ident())
        time.sleep(0.01)
        active_threads.pop()
        return np.array([1, 1], np.float32)

    state = space_to_state(spaces.Box(-1, 1, (2,)))
    monkeypatch.setattr(np, "load", load)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(space_from_state, [state] * 8))
    assert overlapping_threads == []
