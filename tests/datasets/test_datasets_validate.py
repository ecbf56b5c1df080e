"""Checks of recorded values and of a dataset's spec against spaces."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from hindcast.datasets.units import EpisodeLocation
from hindcast.datasets.validate import check_block, check_spec, find_faults
from hindcast.episodes.block import Block
from hindcast.errors import DataError
from hindcast.formats.spec import DataSpec, Leaf
from user_errors import raises_user_error

LENGTHS = [3, 0, 5]


def make_block(**columns: np.ndarray) -> Block:
    """Make three episodes of 3, 0 and 5 steps; the last starts at t = 100. In a column's name, __ stands for /."""
    return Block(
        columns={name.replace("__", "/"): column for name, column in columns.items()},
        length=np.array(LENGTHS),
        eps_id=np.array(["e0", "e1", "e2"], dtype=object),
        t_started=np.array([0, 0, 100]),
        terminated=np.ones(3, dtype=bool),
        truncated=np.zeros(3, dtype=bool),
    )


def locate(episode: int) -> EpisodeLocation:
    """Return the location of an episode, as `Dataset.locate` does."""
    return EpisodeLocation("data/x.parquet", 40 + episode)


def check(block: Block, obs=None, actions=None, **options) -> None:
    """Check a block against the spaces of observations and actions."""
    check_block(block, DataSpec.from_block(block), obs, actions, locate, **options)


def test_valid_values_pass():
    block = make_block(
        obs=np.zeros((11, 2), np.float32), actions=np.array([0, 1, 2] * 2 + [0, 1]), rewards=np.zeros(8)
    )
    check(block, spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(3))
    check(block)


@pytest.mark.parametrize("invalid", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    ("name", "row", "place"),
    [
        ("obs", 0, {"row": 40, "episode": "e0", "step": 0}),
        ("obs", 3, {"row": 40, "episode": "e0", "step": 3}),
        ("obs", 4, {"row": 41, "episode": "e1", "step": 0}),
        ("obs", 10, {"row": 42, "episode": "e2", "step": 105}),
        ("actions", 2, {"row": 40, "episode": "e0", "step": 2}),
        ("rewards", 3, {"row": 42, "episode": "e2", "step": 100}),
        ("rewards", 7, {"row": 42, "episode": "e2", "step": 104}),
    ],
)
def test_values_that_are_not_finite_are_located(name, row, place, invalid):
    columns = {"obs": np.zeros((11, 2), np.float32), "actions": np.zeros((8, 2)), "rewards": np.zeros(8)}
    columns[name].reshape(len(columns[name]), -1)[row, -1] = invalid
    place |= {"path": "data/x.parquet"}
    with raises_user_error(DataError, f"'{name}' has {invalid}, expected a finite number", **place):
        check(make_block(**columns))


@pytest.mark.parametrize("invalid", [1e300, -1e39])
@pytest.mark.parametrize("name", ["obs", "actions", "rewards"])
def test_values_beyond_float32_are_located(name, invalid):
    columns = {"obs": np.zeros((11, 2)), "actions": np.zeros((8, 2)), "rewards": np.zeros(8)}
    columns[name].reshape(len(columns[name]), -1)[[1, 2], -1] = invalid, -invalid  # their sum is finite
    message = rf"'{name}' has {invalid}, expected a finite number within float32's range \(±3\.4e38\)"
    with raises_user_error(DataError, message.replace("+", r"\+"), step=1):
        check(make_block(**columns))


@pytest.mark.parametrize("invalid", [-0.5, np.nan])
def test_duration_that_is_negative_or_missing_is_located(invalid):
    durations = np.arange(8.0)
    durations[3] = invalid
    with raises_user_error(
        DataError,
        f"'delta_t' has {invalid}, expected a duration of 0 or more",
        row=42,
        episode="e2",
        step=100,
    ):
        check(make_block(obs=np.zeros((11, 2)), delta_t=durations))


def test_nan_is_reported_before_values_beyond_float32():
    rewards = np.array([0, 1e300, np.nan, 0, 0, 0, 0, 0])
    first_fault, second_fault = find_faults("rewards", rewards, None)
    assert (first_fault.kind, np.flatnonzero(first_fault.mask).tolist()) == ("not-finite", [2])
    assert (second_fault.kind, np.flatnonzero(second_fault.mask).tolist()) == ("not-finite", [1])


def test_other_columns_are_not_checked():
    check(make_block(vf_preds=np.full(8, np.nan), infos=np.full(11, "NaN", dtype=object)))


def test_values_whose_sum_overflows_are_finite():
    check(make_block(obs=np.full((11, 2), 3e38, np.float32), rewards=np.full(8, 60_000, np.float16)))
    check(make_block(rewards=np.full(8, 3e38)))


@pytest.mark.parametrize(
    ("space", "valid", "invalid", "message"),
    [
        (spaces.Discrete(3), 2, 3, r"has 3, expected an integer in \[0, 2\]"),
        (spaces.Discrete(3), 0, -1, r"has -1, expected an integer in \[0, 2\]"),
        (spaces.Discrete(3, start=-5), -3, 0, r"has 0, expected an integer in \[-5, -3\]"),
        (spaces.MultiDiscrete([2, 4]), [1, 3], [2, 0], r"has 2, expected .*MultiDiscrete\(\[2 4\]\)"),
        (spaces.MultiDiscrete([2, 4], start=[1, 1]), [1, 4], [1, 5], r"has 5, expected"),
        (spaces.MultiBinary(2), [0, 1], [0, 2], r"has 2, expected 0 or 1 of shape \[2\]"),
        (spaces.Box(-2, 2, (2,), np.float64), [2.0, -2.0], [0.0, 2.1], r"has 2\.1, expected Box\(-2\.0, 2"),
        (spaces.Box(0, 9, (2,), np.int64), [0, 9], [10, 0], r"has 10, expected Box\(0, 9"),
    ],
)
def test_actions_outside_the_space_are_located(space, valid, invalid, message):
    actions = np.array([valid] * 8)
    check(make_block(actions=actions), None, space)
    actions[5] = invalid
    with raises_user_error(DataError, f"'actions' {message}", row=42, episode="e2", step=102):
        check(make_block(actions=actions), None, space)


def test_bounds_have_a_tolerance_and_may_be_infinite():
    space = spaces.Box(np.array([-1, -np.inf], np.float32), np.array([1, np.inf], np.float32))
    actions = np.tile(np.array([1.00001, 1e30], np.float32), (8, 1))
    check(make_block(actions=actions), None, space)
    actions[0, 0] = 1.01
    with raises_user_error(DataError, r"'actions' has 1\.01", step=0):
        check(make_block(actions=actions), None, space)


def test_normalised_box_actions_have_no_bounds():
    check(make_block(actions=np.full((8, 1), 7.0)), None, spaces.Box(-2, 2, (1,)), normalized_actions=True)
    with pytest.raises(DataError, match="has 7"):
        check(make_block(actions=np.full(8, 7)), None, spaces.Discrete(3), normalized_actions=True)


def test_box_observations_are_only_checked_for_finiteness():
    check(make_block(obs=np.full((11, 1), 99.0)), spaces.Box(-1, 1, (1,)))
    obs = np.zeros(11, np.int64)
    obs[10] = 16
    with raises_user_error(DataError, r"'obs' has 16, expected an integer in \[0, 15\]", step=105):
        check(make_block(obs=obs), spaces.Discrete(16))


def test_leaves_of_dict_and_tuple_spaces_are_checked():
    actions = spaces.Dict({"move": spaces.Box(-1, 1, (1,)), "fire": spaces.Tuple([spaces.Discrete(2)])})
    columns = {"actions__move": np.zeros((8, 1), np.float32), "actions__fire__0": np.zeros(8, np.int64)}
    check(make_block(**columns), None, actions)
    columns["actions__fire__0"][7] = 2
    with pytest.raises(DataError, match=r"'actions/fire/0' has 2, expected an integer in \[0, 1\]"):
        check(make_block(**columns), None, actions)


def test_empty_block_passes():
    empty = make_block(obs=np.zeros((11, 2)), actions=np.zeros(8, np.int64)).take([])
    check_block(empty, DataSpec.from_block(empty), spaces.Box(-1, 1, (2,)), spaces.Discrete(2), locate)


# --- checks of the spec, before any value is read

SPEC = DataSpec(
    {
        "obs": Leaf(np.dtype("float32"), (4,)),
        "actions": Leaf(np.dtype("int64")),
        "rewards": Leaf(np.dtype("f8")),
    }
)


def test_spec_that_fits_passes():
    check_spec(SPEC, spaces.Box(-1, 1, (4,)), spaces.Discrete(2), "data")
    check_spec(SPEC, None, None, "data")
    text = DataSpec({name: Leaf(None, (), "text") for name in ("obs", "actions")})
    check_spec(text, spaces.Text(5), None, "data")
    with pytest.raises(DataError, match=r"'actions' is text, but .*; replace each text by an integer"):
        check_spec(text, spaces.Text(5), spaces.Discrete(2), "data")


@pytest.mark.parametrize(
    ("obs", "actions", "message"),
    [
        (spaces.Box(-1, 1, (3,)), None, r"data: 'obs' is float32 \[4\], but the space has Box\(.* \[3\]"),
        (spaces.Discrete(3), None, r"data: 'obs' is float32 \[4\], but the space has an integer in \[0, 2\]"),
        (None, spaces.Box(-1, 1, (1,)), r"data: 'actions' is int64 \[\], but the space has Box"),
        (None, spaces.MultiDiscrete([2, 2]), r"'actions' is int64 \[\], but the space has MultiDiscrete"),
        (spaces.Text(5), None, "but the space has a string"),
        (
            spaces.Dict({"a": spaces.Discrete(2)}),
            None,
            r"data: 'obs' has the columns \['obs'\], but the space .* requires \['obs/a'\]",
        ),
    ],
)
def test_spec_that_does_not_fit_is_refused(obs, actions, message):
    with pytest.raises(DataError, match=message):
        check_spec(SPEC, obs, actions, "data")


def test_discrete_space_requires_integers():
    spec = DataSpec({"actions": Leaf(np.dtype("float32"))})
    with pytest.raises(DataError, match=r"'actions' is float32 \[\], but the space has an integer"):
        check_spec(spec, None, spaces.Discrete(2), "data")
    with pytest.raises(DataError, match=r"data: 'actions' has the columns none"):
        check_spec(DataSpec({}), None, spaces.Discrete(2), "data")
