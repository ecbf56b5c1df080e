"""Tables in memory as `input_`."""

import gymnasium as gym
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

from hindcast import BCConfig
from hindcast.datasets.prepare.opening import open_data
from hindcast.datasets.prepare.reading import Reading
from hindcast.errors import SpecError, UserError
from hindcast.formats.format import ReadOptions
from hindcast.rllib.batch_io.table_input import TableInput
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


def test_rows_and_episodes_keep_masks_that_only_some_have():
    """Regression: episodes lost their masks, and so did rows if the first one had none."""
    obs = [np.zeros(2), np.ma.masked_array([1.0, 2.0], mask=[True, False])]
    rows = [{"obs": values, "actions": 0} for values in obs]
    assert wrap_tables(rows).table["obs"].to_pylist() == [[0, 0], [None, 2]]
    rewards = [np.arange(3.0), np.ma.masked_array([1.0, 2.0], mask=[False, True])]
    episodes = [{"obs": np.zeros((len(values) + 1, 2)), "rewards": values} for values in rewards]
    assert wrap_tables(episodes).table["rewards"].to_pylist() == [[0, 1, 2], [1, None]]


BIG = 2**53 + 1


@pytest.mark.parametrize("convert", [list, np.array])
@pytest.mark.parametrize(
    ("episodes", "message"),
    [
        (([], [BIG, 0]), None),
        (([BIG, 0], [], [1, 2]), None),
        (([BIG, 0], [2, 1], [0.5, 1.0]), "row 0: 'note' is 9007199254740993"),
        (([0.5, 1.0], [1, 0], [1, BIG]), "row 2: 'note' is 9007199254740993"),
        (([2**64 - 1], [-1, 0]), "row 0: 'note' is 18446744073709551615"),
        (([1, 2], [0.5, 1.5], ["left", "right"]), "row 2: it holds text"),
        (([[1, 2]], [[1, 2, 3]]), r"row 1: .*\[3\]"),
        (([True, False], [1, 0]), None),
        ((["a", "b"], ["left"]), None),
    ],
)
def test_episodes_keep_their_values_or_are_refused(episodes, message, convert):
    """Regression: one type for all episodes rounded integers beside floats, and made text of numbers."""
    entries = [
        {"obs": np.zeros((len(values) + 1, 2)), "rewards": np.zeros(len(values)), "note": convert(values)}
        for values in episodes
    ]
    if message is None:
        assert wrap_tables(entries).table["note"].to_pylist() == list(episodes)
        return
    with pytest.raises(SpecError, match=message):
        wrap_tables(entries)


@pytest.mark.parametrize("values", [[1, "a"], [0.5, BIG], [np.array([0.5]), np.array([BIG])]])
def test_episode_with_values_of_several_types_is_refused(values):
    with pytest.raises(SpecError, match=r"the column 'note' .*row 1: "):
        wrap_tables(
            [{"obs": np.zeros((3, 2)), "rewards": [0.0, 1.0], "note": note} for note in ([1, 2], values)]
        )


def test_tensors_with_gradients_are_read():
    """Regression: NumPy's RuntimeError was raised."""
    tensor = torch.arange(6.0, requires_grad=True).reshape(3, 2)
    forms = (
        {"obs": tensor, "actions": np.zeros(3)},
        [{"obs": cell, "actions": 0} for cell in tensor],
        [{"obs": tensor, "rewards": [0.0, 1.0]}],
        [{"obs": list(tensor), "rewards": [0.0, 1.0]}],
    )
    for form in forms:
        (values,) = np.array(wrap_tables(form).table["obs"].to_pylist()).reshape(1, 3, 2)
        np.testing.assert_array_equal(values, tensor.detach())


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (FRAME.set_axis(["t"] * FRAME.shape[1], axis=1), "cannot be stored .*Duplicate column names"),
        (FRAME["rewards"], "a Series is one column, expected a data frame"),
        ({**ARRAYS, "rewards": np.zeros(NUM_STEPS, complex)}, "the column 'rewards' .*cannot be stored"),
        ({**ARRAYS, "rewards": np.zeros(3)}, r"the array 'rewards' has shape \[3\], expected \[40\]"),
        ({**ARRAYS, "rewards": [0.0, "1"] * 20}, "the column 'rewards' mixes types"),
        ({**ARRAYS, "rewards": 1.0}, "'rewards' is a float: expected an array or a list for each column"),
        (FRAME.assign(rewards=[1, "x"] * 20), "mixes types"),
    ],
)
def test_table_that_cannot_be_stored_is_refused_when_it_is_passed(table, message):
    with pytest.raises(SpecError, match=message):
        BCConfig().offline_data(input_=table)


def test_resource_cannot_contain_a_table():
    with pytest.raises(SpecError, match=r"a table in memory \(40 rows\), which only build_algo\(\) accepts"):
        make_config(FRAME).to_resource()


OBS_FORMS = {
    "number": RNG.normal(size=NUM_STEPS),
    "vector": RNG.normal(size=(NUM_STEPS, 3)).astype(np.float32),
    "image": RNG.integers(0, 256, (NUM_STEPS, 4, 5, 3), dtype=np.uint8),
    "flags": RNG.random((NUM_STEPS, 2, 2)) < 0.5,
    "dictionary": {
        "image": RNG.integers(0, 256, (NUM_STEPS, 2, 3), dtype=np.uint8),
        "speed": np.arange(40.0),
    },
}


def take_row(values, row, convert):
    if isinstance(values, dict):
        return {name: take_row(child, row, convert) for name, child in values.items()}
    return convert(values[row])


def to_lists(values):
    return (
        {name: to_lists(child) for name, child in values.items()}
        if isinstance(values, dict)
        else values.tolist()
    )


def cell_to_list(cell):
    return cell.tolist()


def make_rows(columns, convert=lambda cell: cell):
    return [
        {name: take_row(values, row, convert) for name, values in columns.items()} for row in range(NUM_STEPS)
    ]


TABLE_FORMS = {
    "arrays": lambda columns: columns,
    "lists": lambda columns: {name: to_lists(values) for name, values in columns.items()},
    "rows of arrays": make_rows,
    "rows of lists": lambda columns: make_rows(columns, cell_to_list),
    "frame": lambda columns: pd.DataFrame(make_rows(columns)),
    "frame of lists": lambda columns: pd.DataFrame(make_rows(columns, cell_to_list)),
    "arrow": lambda columns: pa.Table.from_pylist(make_rows(columns, cell_to_list)),
    "record batches": lambda columns: pa.Table.from_pylist(make_rows(columns, cell_to_list)).to_reader(),
}


def read_table(table, folder, **options):
    assert isinstance(table, TableInput), table
    folder.mkdir()
    table.write(str(folder))
    dataset = open_data(
        Reading((str(folder),), options=ReadOptions(ignore_final_observation=True, **options))
    )
    (block,) = (dataset.read(unit) for unit in dataset.units)
    return block


@pytest.mark.parametrize("obs", OBS_FORMS)
def test_table_in_any_form_is_read_with_its_values(obs, tmp_path):
    columns = {**ARRAYS, "obs": OBS_FORMS[obs]}
    leaves = OBS_FORMS[obs] if isinstance(OBS_FORMS[obs], dict) else {"": OBS_FORMS[obs]}
    for form, make_table in TABLE_FORMS.items():
        table = make_table(columns)
        block = read_table(wrap_tables(table), tmp_path / form)
        assert block.length.tolist() == [10] * 4
        for name, values in leaves.items():
            column = block.columns[f"obs/{name}" if name else "obs"][block.obs_row]
            np.testing.assert_array_equal(column.reshape(values.shape), values)
        for name in ("actions", "rewards"):
            np.testing.assert_array_equal(block.columns[name], ARRAYS[name])


EPISODES = [
    {name: values[start : start + 10 + (name == "obs")] for name, values in ARRAYS.items()}
    for start in (0, 10, 20)
]


@pytest.mark.parametrize(
    "convert", [dict, lambda episode: {name: to_lists(episode[name]) for name in episode}]
)
def test_list_of_episodes_with_a_final_observation_is_read(convert, tmp_path):
    block = read_table(wrap_tables(list(map(convert, EPISODES))), tmp_path / "data")
    assert block.length.tolist() == [10] * 3
    np.testing.assert_array_equal(block.columns["obs"].reshape(33, 2)[:11], ARRAYS["obs"][:11])
    np.testing.assert_array_equal(block.columns["actions"], ARRAYS["actions"][:30])


def without_rewards(episode):
    return {name: episode[name] for name in ("obs", "actions")}


def make_episodes(lengths, num_actions=None, *, has_dictionary=False):
    """Make episodes with a final observation, and Discrete actions, or Box actions with `num_actions` numbers."""
    rng = np.random.default_rng(sum(lengths))
    return [
        {
            "obs": {"image": rng.normal(size=(length + 1, 2, 3)), "speed": rng.normal(size=length + 1)}
            if has_dictionary
            else rng.normal(size=(length + 1, 2)),
            "actions": rng.integers(0, 3, length)
            if num_actions is None
            else rng.normal(size=(length, num_actions)),
            "rewards": rng.normal(size=length),
        }
        for length in lengths
    ]


@pytest.mark.parametrize(
    ("has_rewards", "other_columns"),
    [
        (True, {}),
        (False, {}),
        (False, {"terminated": True}),
        (True, {"eps_id": "one", "terminated": True, "truncated": False}),
    ],
)
@pytest.mark.parametrize(
    ("lengths", "options"),
    [
        ((10, 10), {}),
        ((1, 2), {}),
        ((10, 7), {}),
        ((10, 7), {"has_dictionary": True}),
        ((3, 3), {"num_actions": 2, "has_dictionary": True}),
    ],
)
def test_episodes_are_read_without_rewards(lengths, options, has_rewards, other_columns, tmp_path):
    """Regression: without rewards and flags, or where only obs and actions are read, an episode was a timestep."""
    episodes = make_episodes(lengths, **options)
    entries = [
        {
            **(episode if has_rewards else without_rewards(episode)),
            **other_columns,
            **({"eps_id": f"episode {number}"} if "eps_id" in other_columns else {}),
        }
        for number, episode in enumerate(episodes)
    ]
    block = read_table(wrap_tables(entries), tmp_path / "data", columns=("obs", "actions"))
    assert block.length.tolist() == list(lengths)
    actions = np.concatenate([episode["actions"] for episode in episodes])
    np.testing.assert_array_equal(block.columns["actions"], actions)
    leaf = "image" if options.get("has_dictionary") else None
    obs = np.concatenate([episode["obs"][leaf] if leaf else episode["obs"] for episode in episodes])
    np.testing.assert_array_equal(block.columns[f"obs/{leaf}" if leaf else "obs"], obs)


@pytest.mark.parametrize("convert", [np.array, torch.tensor])
def test_rows_with_rewards_of_another_name_are_rows(convert):
    rows = [{"obs": [0.1, 0.2], "actions": convert([0.5]), "r": 1.0}] * 3
    assert wrap_tables(rows).kind == "list of rows"


def test_episodes_of_one_step_and_fragments_of_one_episode_are_read(tmp_path):
    for number, lengths in enumerate([(1, 1), (2, 3)]):
        entries = [{**episode, "run": 1} for episode in make_episodes(lengths)]
        schema = {"eps_id": "run"} if number else {}
        block = read_table(wrap_tables(entries), tmp_path / f"{number}", schema=schema)
        assert block.length.tolist() == ([5] if number else [1, 1])


def test_list_of_tables_is_a_list_of_inputs():
    tables = [{name: values[start:] for name, values in ARRAYS.items()} for start in (0, 20)]
    assert [entry.table.num_rows for entry in wrap_tables(tables)] == [40, 20]


def test_rows_keep_infos_and_missing_cells(tmp_path):
    rows = [
        row | {"infos": {"late": step % 2} if step % 3 else {}} for step, row in enumerate(make_rows(ARRAYS))
    ]
    for form in (rows, pd.DataFrame(rows)):
        assert wrap_tables(form).table["infos"].to_pylist()[:3] == ["", '{"late":1}', '{"late":0}']
    rows[3].pop("rewards")
    assert wrap_tables(rows).table["rewards"].null_count == 1


@pytest.mark.parametrize("missing", [np.nan, None])
@pytest.mark.parametrize("missing_row", [0, 1])
def test_frame_may_lack_infos_in_some_rows(missing, missing_row):
    """Regression: pandas' NaN for a missing info raised an internal error."""
    infos = [{"late": 1}] * NUM_STEPS
    infos[missing_row] = missing
    texts = wrap_tables(FRAME.assign(infos=infos)).table["infos"].to_pylist()
    assert texts[missing_row] == ""
    assert texts.count('{"late":1}') == NUM_STEPS - 1
    with pytest.raises(SpecError, match="expected a dict"):
        wrap_tables(FRAME.assign(infos=[{"late": 1}, [1]] * (NUM_STEPS // 2)))


class Lazy:
    """A lazy frame, as Polars and others have."""

    def collect(self):
        return FRAME


def pass_list(entry):
    return list(entry)


def pass_collected(entry):
    return entry.collect()


def name_columns(entry):
    return {"obs": entry[:, :-2], "actions": entry[:, -2], "rewards": entry[:, -1]}


def stack_rows(rows):
    return {
        "obs": np.stack([row["obs"] for row in rows]),
        "actions": np.stack([row["actions"] for row in rows]),
    }


def add_times(episodes):
    return [{**episode, "t": np.arange(len(episode["actions"]))} for episode in episodes]


def drop_key(rows):
    return [without_rewards(row) for row in rows]


@pytest.mark.parametrize(
    ("make_entry", "message", "remedy"),
    [
        (
            lambda: iter(make_rows(ARRAYS)),
            r"is a list_iterator, .* pass a list, input_=list\(\.\.\.\)",
            pass_list,
        ),
        (
            lambda: (row for row in make_rows(ARRAYS)),
            r"is a generator, which can be read only once",
            pass_list,
        ),
        (Lazy, r"is a Lazy, which does not hold its rows in memory: pass its \.collect\(\)", pass_collected),
        (lambda: np.zeros((5, 4)), r"of shape \[5, 4\]: name its columns in a dictionary", name_columns),
        (
            lambda: {0: [[0.1], [0.2]], 1: [1, 0]},
            "with the key 0: expected the name of each column",
            lambda columns: {"obs": columns[0], "actions": columns[1]},
        ),
        (
            lambda: make_rows(ARRAYS)[0],
            r"in which 'actions' is an int64: .* or a list of rows",
            lambda row: [row],
        ),
        (lambda: [{"obs": [1.0, 2.0], "actions": [1, 0]}] * 3, "may be rows or tables", stack_rows),
        (lambda: [{"obs": [1.0, 2.0], "actions": [0.5]}] * 3, "may be rows or episodes", stack_rows),
        (
            lambda: [{"obs": np.zeros((4, 8, 8)), "actions": np.zeros(3)}],
            "may be rows or episodes",
            add_times,
        ),
        (lambda: [{"obs": [0.5], "actions": 1, 3: 1.0}], "rows with the key 3: expected the name", drop_key),
        (
            lambda: [*make_rows(ARRAYS), None],
            "a list of rows, but contains a NoneType",
            lambda rows: rows[:-1],
        ),
    ],
)
def test_other_form_is_refused_with_a_remedy_that_works(make_entry, message, remedy):
    with pytest.raises(SpecError, match=message):
        BCConfig().offline_data(input_=make_entry())
    assert isinstance(wrap_tables(remedy(make_entry())), TableInput)


@pytest.mark.parametrize(
    ("inputs", "name"),
    [
        (FRAME, "the pandas DataFrame"),
        (ARRAYS, "the dictionary of columns"),
        (make_rows(ARRAYS), "the list of rows"),
        ([FRAME, ARRAYS], "the dictionary of columns"),
    ],
)
def test_messages_name_a_table_as_its_user_does(inputs, name):
    with make_config(inputs).build_algo() as algo:
        notes = "\n".join(algo.notes)
    assert f"{name}: prepared 40 rows" in notes
    assert "/" not in notes.replace("docs/", "")


def test_error_names_the_row_of_a_table():
    frame = FRAME.assign(rewards=[None, *ARRAYS["rewards"][1:]])
    with (
        pytest.raises(UserError, match=r"^the pandas DataFrame, row 0") as error_info,
        make_config(frame).build_algo(),
    ):
        pass
    assert "/" not in str(error_info.value)
