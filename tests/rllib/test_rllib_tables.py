"""Tables in memory as `input_`."""

import gymnasium as gym
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from hindcast import BCConfig
from hindcast.errors import SpecError
from hindcast.rllib.batch_io.tables import wrap_tables

NUM_STEPS = 40
RNG = np.random.default_rng(0)
ARRAYS = {
    "obs": RNG.normal(size=(NUM_STEPS, 2)).astype(np.float32),
    "actions": RNG.integers(0, 3, NUM_STEPS),
    "rewards": RNG.normal(size=NUM_STEPS),
    "terminateds": np.tile([False] * 9 + [True], NUM_STEPS // 10),
}
FRAME = pd.DataFrame({name: list(values) for name, values in ARRAYS.items()}, index=range(5, NUM_STEPS + 5))


def make_config(table) -> BCConfig:
    spaces = {
        "observation_space": gym.spaces.Box(-np.inf, np.inf, (2,)),
        "action_space": gym.spaces.Discrete(3),
    }
    return (
        BCConfig()
        .environment(**spaces)
        .training(train_batch_size_per_learner=NUM_STEPS)
        .rl_module(model_config={"fcnet_hiddens": [4]})
        .offline_data(input_=table, input_prepare={"cut_off_steps": "Drop"})
    )


def test_same_table_in_any_form_trains_alike():
    losses = []
    for table in (ARRAYS, FRAME, pa.Table.from_pandas(FRAME, preserve_index=False), [FRAME]):
        with make_config(table).build_algo() as algo:
            losses.append(algo.train()["learners"]["default_policy"]["total_loss"])
    assert len(set(losses)) == 1


def test_table_does_not_change_after_it_is_passed():
    frame = FRAME.copy()
    config = make_config(frame)
    frame["rewards"] = "lost"
    with config.build_algo() as algo:
        assert algo.train()["learners"]["default_policy"]["total_loss"] > 0


@pytest.mark.parametrize("names", [["episode"], ["episode", "step"], ["step", None]])
def test_named_levels_of_an_index_are_columns(names):
    levels = [np.arange(4) // 2, np.arange(4) % 2][: len(names)]
    frame = pd.DataFrame({"rewards": np.arange(4.0)}, index=pd.MultiIndex.from_arrays(levels, names=names))
    columns = wrap_tables(frame).table.to_pydict()
    assert columns == {
        **{name: level.tolist() for name, level in zip(names, levels, strict=True) if name},
        "rewards": [0, 1, 2, 3],
    }


@pytest.mark.parametrize("shape", [(4,), (4, 2)])
def test_arrays_keep_their_masks_and_values_in_any_byte_order(shape):
    values = np.arange(np.prod(shape), dtype=">f4").reshape(shape)
    masked = np.ma.masked_array(values, mask=values == 1)
    columns = wrap_tables({"values": values, "masked": masked}).table.to_pydict()
    assert columns == {"values": values.tolist(), "masked": masked.tolist()}


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (FRAME.set_axis(["t"] * FRAME.shape[1], axis=1), "cannot be stored .*Duplicate column names"),
        (FRAME["rewards"], "a Series is one column, expected a data frame"),
        ({**ARRAYS, "rewards": np.zeros(NUM_STEPS, complex)}, "the array 'rewards' cannot be stored"),
        ({**ARRAYS, "rewards": np.zeros(3)}, r"the array 'rewards' has shape \[3\], expected \[40\]"),
        ({**ARRAYS, "obs": np.zeros((NUM_STEPS, 2, 2))}, r"the array 'obs' has shape \[40, 2, 2\]"),
        (FRAME.assign(rewards=[1, "x"] * 20), "mixes types"),
    ],
)
def test_table_that_cannot_be_stored_is_refused_when_it_is_passed(table, message):
    with pytest.raises(SpecError, match=message):
        BCConfig().offline_data(input_=table)


def test_resource_cannot_contain_a_table():
    with pytest.raises(SpecError, match=r"a table in memory \(40 rows\), which only build_algo\(\) accepts"):
        make_config(FRAME).to_resource()
