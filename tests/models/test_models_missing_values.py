"""Missing values of observations: episodes at once, steps of slots, and the exported policy fill them alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hindcast.api.input import MissingRule
from hindcast.api.model import ModelSpec
from hindcast.api.training import RewardsSpec
from hindcast.episodes.block import Block
from hindcast.episodes.spaces import NamedBox, space_from_json, space_to_json
from hindcast.errors import DataError, SpecError
from hindcast.models.exported_policy import ExportedPolicy
from hindcast.models.mean_std import MeanStdFilter
from hindcast.models.missing_values import MissingValues, SlotValues
from hindcast.models.policy import Policy
from hindcast.models.preprocessing import Preprocessing
from hindcast.models.rl_module import build_module

NAMES = ("heart_rate", "spo2", "pain")
SPACE = NamedBox(Box(-np.inf, np.inf, (3,), np.float32), NAMES)
RULES: dict[str, MissingRule] = {"heart_rate": "CarryForward", "spo2": "Median", "pain": 2.5}


def make_rows(seed: int, count: int, missing_share: float = 0.4) -> NDArray[np.float32]:
    generator = np.random.default_rng(seed)
    rows = generator.normal(size=(count, 3)).astype(np.float32)
    rows[generator.random(rows.shape) < missing_share] = np.nan
    return rows


def make_block(rows: NDArray[np.float32]) -> Block:
    """Return one episode with an observation for each row, and a last one that no statistic may count."""
    last = np.full((1, 3), 1e6, np.float32)
    return Block(
        columns={"obs": np.concatenate([rows, last])},
        length=np.array([len(rows)]),
        eps_id=np.array(["e"], dtype=object),
        t_started=np.zeros(1, np.int64),
        terminated=np.ones(1, np.bool_),
        truncated=np.zeros(1, np.bool_),
    )


def make_preprocessing(rules: dict[str, MissingRule] | None = None, **options: Any) -> Preprocessing:
    preprocessing = Preprocessing(SPACE, Discrete(2), missing=RULES if rules is None else rules, **options)
    preprocessing.fit([make_block(make_rows(0, 50)), make_block(make_rows(1, 30))])
    return preprocessing


def make_policy(**options: Any) -> Policy:
    preprocessing = make_preprocessing(**options)
    model = ModelSpec(fcnet_hiddens=[8])
    spaces = (preprocessing.observation_space, preprocessing.action_space)
    return Policy(build_module(*spaces, model), preprocessing, SPACE, Discrete(2))


@settings(max_examples=30, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    share=st.sampled_from([0.0, 0.3, 0.9, 1.0]),
    has_filter=st.booleans(),
    has_indicators=st.booleans(),
    frame_stack=st.integers(1, 2),
)
def test_steps_of_slots_and_whole_episodes_are_filled_alike(
    lengths: list[int], share: float, has_filter: bool, has_indicators: bool, frame_stack: int
) -> None:
    preprocessing = make_preprocessing(
        observation_filter="meanStd" if has_filter else "none",
        missing_indicators=has_indicators,
        frame_stack=frame_stack,
    )
    episodes = [make_rows(seed + 2, length, share) for seed, length in enumerate(lengths)]
    starts = np.cumsum([0, *lengths[:-1]])
    at_once = preprocessing.process_episodes({"obs": np.concatenate(episodes)}, starts)["obs"]
    width = at_once.shape[1]
    for episode, start in zip(episodes, starts, strict=True):
        for t, row in enumerate(episode):
            seen = preprocessing.observe({"obs": row[None]}, np.array([t == 0]))["obs"]
            np.testing.assert_array_equal(seen[0, -width:], at_once[start + t])
    assert np.isfinite(at_once).all()
    assert preprocessing.observation_space.shape == (width * frame_stack,)


def test_value_is_carried_forward_only_within_its_episode() -> None:
    nan = np.nan
    rows = np.array([[1, nan, 0], [nan, 5, nan], [nan, nan, 0], [3, nan, 0]], np.float32)
    preprocessing = make_preprocessing()
    filled = preprocessing.process_episodes({"obs": rows}, np.array([0, 2]))["obs"]
    median = np.nanmedian(np.concatenate([make_rows(0, 50), make_rows(1, 30)]), axis=0)
    np.testing.assert_allclose(filled[:, 0], [1, 1, median[0], 3])
    np.testing.assert_allclose(filled[:, 1], [median[1], 5, median[1], median[1]])
    np.testing.assert_allclose(filled[:, 2], [0, 2.5, 0, 0])


def test_indicators_tell_which_values_were_missing() -> None:
    preprocessing = make_preprocessing({"pain": "Mean", "heart_rate": 70}, missing_indicators=True)
    rows = np.array([[np.nan, 1, 1], [1, 1, np.nan]], np.float32)
    seen = preprocessing.process_episodes({"obs": rows}, np.array([0]))["obs"]
    np.testing.assert_array_equal(seen[:, 3:], [[1, 0], [0, 1]])
    assert seen[0, 0] == 70


def test_filter_counts_only_values_that_are_there() -> None:
    first, second, third = make_rows(0, 20), make_rows(1, 1), make_rows(2, 30, 0.0)
    whole, merged, other = MeanStdFilter((3,)), MeanStdFilter((3,)), MeanStdFilter((3,))
    rows = np.concatenate([first, second, third]).astype(np.float64)
    for part in (first, second, third):
        whole.update(part)
    merged.update(first)
    other.update(second)
    other.update(third)
    merged.merge([other])
    restored = MeanStdFilter((3,))
    restored.load(whole.state())
    for mean_std in (whole, merged, restored):
        np.testing.assert_allclose(mean_std.mean, np.nanmean(rows, axis=0))
        np.testing.assert_allclose(mean_std.std, np.nanstd(rows, axis=0, ddof=1))


@pytest.mark.parametrize("options", [{}, {"missing_indicators": True, "observation_filter": "meanStd"}])
def test_saved_and_exported_policies_act_alike_on_missing_values(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    policy = make_policy(**options)
    policy.save(tmp_path)
    loaded_policy = Policy.load(tmp_path)
    exported_policy = ExportedPolicy(policy)
    state = torch.from_numpy(exported_policy.inputs["last_in/obs"].start[None])  # type: ignore[index]
    policy.reset()
    for row in make_rows(5, 8):
        named_row = dict(zip(NAMES, [None if np.isnan(value) else value for value in row], strict=True))
        outputs = exported_policy(torch.from_numpy(row[None]), state)
        results = dict(zip(exported_policy.outputs, outputs, strict=True))
        state = results["last_out/obs"]
        assert policy(row) == loaded_policy(named_row) == results["actions"].item()
    assert loaded_policy.digest == policy.digest


@pytest.mark.parametrize(
    ("options", "num_read"),
    [
        ({"missing": {"*": 0.0}, "rewards": RewardsSpec(scale=4.0)}, 0),
        ({"missing": {"*": "CarryForward"}}, 1),
        ({"rewards": RewardsSpec(normalize="std")}, 1),
    ],
)
def test_fit_reads_data_only_for_what_is_fitted(options: dict[str, Any], num_read: int) -> None:
    blocks = iter([make_block(make_rows(0, 50))])
    Preprocessing(SPACE, Discrete(2), **options).fit(blocks)
    assert len(list(blocks)) == 1 - num_read


def test_fill_after_a_whole_number_is_not_truncated() -> None:
    """Regression: an application's `{"temp": 37}` made the next missing value 36 where the median is 36.6."""
    rules = MissingValues({0: "Median"}, ["temp"], (1,))
    rules.fit(np.array([[36.6]]))
    slot_values = SlotValues(rules)
    slot_values.fill(np.array([[37]]), np.array([True]))
    filled = slot_values.fill(np.array([[np.nan]], np.float32), None)
    assert filled[0, 0] == pytest.approx(36.6)


def test_named_observation_without_a_rule_is_refused_if_a_value_is_missing() -> None:
    policy = make_policy(rules={"pain": 0.0})
    assert policy({"heart_rate": 80, "spo2": 97}) in (0, 1)
    with pytest.raises(DataError, match=r"the observation has no spo2 \(NaN\)"):
        policy({"heart_rate": 80, "pain": 3})
    with pytest.raises(DataError, match="has no element 'heartrate'; did you mean 'heart_rate'"):
        policy({"heartrate": 80})


def test_indicators_without_rules_are_refused() -> None:
    with pytest.raises(SpecError, match="missing has no rule"):
        Preprocessing.from_specs(Box(-1, 1, (2,)), Discrete(2), ModelSpec(), missing_indicators=True)


def test_unknown_name_and_column_without_values_are_refused() -> None:
    with pytest.raises(SpecError, match=r"names 'hart_rate'.*did you mean 'heart_rate'"):
        make_preprocessing({"hart_rate": "Median"})
    preprocessing = Preprocessing(SPACE, Discrete(2), missing={"*": "Median"})
    rows = make_rows(0, 10)
    rows[:, 1] = np.nan
    with pytest.raises(DataError, match="spo2 has no value in the training data"):
        preprocessing.fit([make_block(rows)])


def test_policy_without_rules_has_the_files_of_earlier_versions() -> None:
    preprocessing = Preprocessing(SPACE, Discrete(2))
    assert set(preprocessing.to_json()) == {
        "observationFilter",
        "frameStack",
        "normalizeActions",
        "clipActions",
    }


def test_names_are_part_of_a_space_and_its_json() -> None:
    restored = space_from_json(space_to_json(SPACE))
    assert isinstance(restored, NamedBox)
    assert restored.names == NAMES
    assert restored == SPACE
    with pytest.raises(ValueError, match="each element of a vector requires one name"):
        NamedBox(Box(0, 1, (3,)), ("a", "b"))
