"""Tables in the form of one tool: they have the right values, or are refused with a remedy."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import prepare_kit as kit
import pyarrow as pa
import pytest
from tool_tables import (
    ACTIONS,
    DONE,
    EPISODE,
    NEXT_OBS,
    OBS,
    REWARDS,
    STEP,
    assert_steps,
    make_steps,
    open_tool,
    write,
)

from hindcast.datasets.validate import check_block
from hindcast.errors import DataError


def lists(value_type: pa.DataType, rows: Any = OBS) -> pa.Array:
    return pa.array([row.astype(value_type.to_pandas_dtype()) for row in rows], pa.list_(value_type))


READABLE: dict[str, dict[str, Any]] = {
    "arrow-types/large_list": {"obs": pa.array(OBS.tolist(), pa.large_list(pa.float32()))},
    "arrow-types/dict_ints": {"action": pa.array(ACTIONS).dictionary_encode()},
    "arrow-types/date_t": {"step": pa.array(STEP.astype(np.int32)).cast(pa.date32())},
    "arrow-types/map_extra": {"tags": pa.array([[("a", 1.0)]] * 15, pa.map_(pa.string(), pa.float64()))},
    "arrow-types/bin_extra": {"blob": [b"\x00\x01"] * 15},
    "arrow-types/uint64_id": {"episode": pa.array([2**63 + int(i) for i in EPISODE], pa.uint64())},
    "daily-files-drift/nulltype": {"comment": pa.nulls(15)},
    "hf-datasets/Array2D": {"obs": OBS[:, None].tolist(), "next_obs": NEXT_OBS[:, None].tolist()},
}


@pytest.mark.parametrize("case", READABLE)
def test_table_of_tool_has_the_right_steps(tmp_path, case):
    path = write(tmp_path / "data", make_steps(**READABLE[case]))
    block = assert_steps(open_tool(path))
    assert block.terminated.all()
    assert block.columns["actions"].tolist() == ACTIONS.tolist()
    assert block.columns.keys() == {"obs", "actions", "rewards"}


def test_half_floats_have_their_values(tmp_path):
    table = make_steps(obs=lists(pa.float16()), next_obs=lists(pa.float16(), NEXT_OBS))
    block = kit.read_block(open_tool(write(tmp_path / "data", table)))
    assert block.columns["obs"][block.obs_row].tolist() == OBS.astype(np.float16).tolist()


def test_struct_of_observation_has_a_leaf_for_each_field(tmp_path):
    structs = {
        name: pa.array([{"pos": row[0], "vel": row[1]} for row in rows])
        for name, rows in (("obs", OBS), ("next_obs", NEXT_OBS))
    }
    block = kit.read_block(open_tool(write(tmp_path / "data", make_steps(**structs))))
    assert block.columns["obs/pos"][block.obs_row].tolist() == OBS[:, 0].tolist()
    assert block.columns["obs/vel"][block.obs_row].tolist() == OBS[:, 1].tolist()


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "arrow-types/null_done": (
        {"done": [True if done else None for done in DONE]},
        r"row 0: 'done' is null: expected true or false; fix it",
    ),
    "arrow-types/null_reward_end": (
        {"reward": [None if done else reward for done, reward in zip(DONE, REWARDS, strict=True)]},
        r"row 4: 'rewards' is null; fix it, or remove its episode",
    ),
    "arrow-types/nan_id": (
        {"episode": [float("nan") if episode == 1 else float(episode) for episode in EPISODE]},
        r"row 5: 'episode' is null: every row requires the id",
    ),
    "arrow-types/float_t": ({"step": STEP * 0.5}, r"row 1: 'step' is 0\.5: expected a whole number"),
    "csv-excel-eu/flags": (
        {"done": ["WAHR" if done else "FALSCH" for done in DONE]},
        r"row 0: 'done' is 'FALSCH': expected true or false; fix it.*in another language, replace them by true and",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_table_of_tool_is_refused_with_its_row(tmp_path, case):
    columns, message = REFUSED[case]
    path = write(tmp_path / "data", make_steps(**columns))
    with pytest.raises(DataError, match=rf"steps\.parquet, {message}"):
        open_tool(path)


def test_actions_counted_from_one_are_refused_with_the_remedy(tmp_path):
    """Case action-forms/offbyone."""
    dataset = open_tool(write(tmp_path / "data", make_steps(action=ACTIONS + 1)))
    block = kit.read_block(dataset)
    with pytest.raises(
        DataError, match=r"'actions' has 2, expected an integer in \[0, 1\].*; .*space's n and start"
    ):
        check_block(block, dataset.spec, None, gym.spaces.Discrete(2), lambda _: ("steps.parquet", 0))
