"""Files of episodes in all forms that RLlib writes, and damaged files."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import msgpack
import msgpack_numpy
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from table_reading import PickleBomb

from damaged_files import check_truncations, count_refusals
from episode_kit import read_block
from hindcast.datasets.inspection.summarising import summarise
from hindcast.datasets.opening import open_dataset
from hindcast.episodes.block import Block
from hindcast.episodes.convert import block_to_episodes
from hindcast.episodes.episode import SingleAgentEpisode
from hindcast.episodes.episode_state import episode_to_state
from hindcast.episodes.nested import flatten, unflatten
from hindcast.episodes.spaces import space_struct
from hindcast.errors import DataError
from hindcast.formats.parquet import opening as parquet
from layers import examples
from random_data import any_space, columns_of
from user_errors import raises_user_error

OBS = spaces.Box(-10, 10, (2,), np.float32)


def pack_state(state) -> bytes:
    return msgpack.packb(state, default=msgpack_numpy.encode)


def make_state(eps_id="e", num_steps=3, lookback=0, first_timestep=0, space=OBS, **changes) -> dict:
    """Return an episode's state as RLlib's recorder makes it; observation t is [t, t + 0.5].

    Args:
        eps_id: id of the episode.
        num_steps: number of timesteps after the lookback.
        lookback: number of timesteps in the lookback buffer.
        first_timestep: first timestep after the lookback.
        space: observation space.
        **changes: fields of the state to replace.
    """
    values = range(first_timestep - lookback, first_timestep + num_steps + 1)
    episode = SingleAgentEpisode(
        eps_id,
        observations=[np.array([t, t + 0.5], dtype=np.float32) for t in values],
        observation_space=space,
        actions=[np.int32(t % 3) for t in values[:-1]],
        action_space=spaces.Discrete(3),
        rewards=[float(t) for t in values[:-1]],
        extra_model_outputs={"action_logp": [np.float32(-t) for t in values[:-1]]},
        terminated=True,
        t_started=first_timestep,
        len_lookback_buffer=lookback,
    )
    return {**episode_to_state(episode), **changes}


def make_state_with_info(reward: np.float32, keys: list[str]) -> dict:
    """Return the state of an episode with one step and an info that has the keys in this order."""
    episode = SingleAgentEpisode(
        "e",
        observations=[np.zeros(2, np.float32), np.ones(2, np.float32)],
        observation_space=OBS,
        actions=[np.int32(0)],
        action_space=spaces.Discrete(3),
        rewards=[reward],
        infos=[{}, dict.fromkeys(keys, 1)],
        terminated=True,
        len_lookback_buffer=0,
    )
    return episode_to_state(episode)


def write_states(path: Path, *states, rows_per_file: int | None = None) -> Path:
    """Write states, or packed cells, into files named as RLlib's recorder names them; return `path`."""
    rows = [state if isinstance(state, bytes | None) else pack_state(state) for state in states]
    size = rows_per_file or len(rows) or 1
    folder = path / "cartpoleenv" / "run-000001-00004"
    folder.mkdir(parents=True, exist_ok=True)
    for i, start in enumerate(range(0, max(1, len(rows)), size)):
        table = pa.table({"item": pa.array(rows[start : start + size], pa.binary())})
        pq.write_table(table, folder / f"uid_{i:06d}-0.parquet")
    return path


def read_all(folder) -> Block:
    return read_block(open_dataset(folder))


def first_values(block: Block) -> list[float]:
    """Return the first number of each observation."""
    return block.columns["obs"][:, 0].tolist()


def test_recorded_episodes_are_read(tmp_path):
    states = [make_state("a", 3), make_state("b", 5), make_state("c", 2)]
    folder = write_states(tmp_path, *states, rows_per_file=2)
    dataset = open_dataset(folder)
    block = dataset.read(dataset.units[0])
    assert (dataset.num_episodes, dataset.num_steps, len(dataset.units), dataset.notes) == (3, 10, 1, ())
    assert block.eps_id.tolist() == ["a", "b", "c"]
    assert first_values(block) == [0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 0, 1, 2]
    assert block.columns["actions"].dtype == np.int32
    assert block.columns["rewards"].tolist() == [0, 1, 2, 0, 1, 2, 3, 4, 0, 1]
    assert block.columns["action_logp"].dtype == np.float32
    assert "infos" not in block.columns
    assert block.terminated.all()
    assert (dataset.spec.observation_space, dataset.spec.action_space) == (OBS, spaces.Discrete(3))
    last_file = f"{folder}/cartpoleenv/run-000001-00004/uid_000001-0.parquet"
    assert dataset.locate(dataset.units[0], 2) == (last_file, 0)


@pytest.mark.parametrize("max_rows", [1, 2])
def test_index_in_small_tables_gives_same_episodes_and_error_rows(tmp_path, monkeypatch, max_rows):
    monkeypatch.setattr(parquet, "_MAX_TABLE_ROWS", max_rows)
    episodes = [make_state("a", 3), make_state("b", 5), make_state("c", 2)]
    block = read_all(write_states(tmp_path / "good", *episodes))
    assert (block.eps_id.tolist(), block.length.tolist()) == (["a", "b", "c"], [3, 5, 2])
    with raises_user_error(DataError, "is damaged", path="uid_000000-0.parquet", row=3):
        open_dataset(write_states(tmp_path / "bad", *episodes, b"no state"))


def test_lookback_is_dropped(tmp_path):
    state_with_lookback = make_state("a", 3, lookback=2, first_timestep=5)
    block = read_all(write_states(tmp_path, state_with_lookback, make_state("b", 4)))
    assert first_values(block) == [5, 6, 7, 8, 0, 1, 2, 3, 4]
    assert block.t_started.tolist() == [5, 0]
    assert block.length.tolist() == [3, 4]


def test_file_with_arrays_and_lists_is_read(tmp_path):
    list_episode, array_episode = (
        SingleAgentEpisode.from_state(make_state(name, 3, lookback=1, first_timestep=1)) for name in "ab"
    )
    array_state = episode_to_state(array_episode.to_numpy())
    assert array_state["observations"]["finalized"]
    block = read_all(write_states(tmp_path, episode_to_state(list_episode), array_state))
    assert first_values(block) == [1, 2, 3, 4, 1, 2, 3, 4]
    assert block.columns["obs"].dtype == np.float32
    np.testing.assert_array_equal(block.columns["action_logp"][:3], block.columns["action_logp"][3:])


@pytest.mark.parametrize("flag", [np.True_, True])
def test_numpy_and_plain_flags_are_read(tmp_path, flag):
    block = read_all(write_states(tmp_path, make_state(is_terminated=type(flag)(False), is_truncated=flag)))
    assert (block.terminated.tolist(), block.truncated.tolist()) == ([False], [True])


def test_plain_lists_and_numbers_are_read(tmp_path):
    """Observations are lists of Python floats; actions and rewards are Python integers."""
    episode_state = make_state("a", 3)
    episode_state["observations"]["data"] = [[float(t), 0.5] for t in range(4)]
    episode_state["actions"]["data"] = [0, 1, 300]
    episode_state["rewards"]["data"] = [1, 2, 3]
    second_state = make_state("b", 2)
    second_state["observations"]["data"] = [[0.0, 1.0]] * 3
    second_state["actions"]["data"] = [-5, 2]
    second_state["rewards"]["data"] = [1.5, 2]
    block = read_all(write_states(tmp_path, episode_state, second_state))
    assert block.columns["obs"].tolist() == [[0, 0.5], [1, 0.5], [2, 0.5], [3, 0.5], [0, 1], [0, 1], [0, 1]]
    assert block.columns["actions"].tolist() == [0, 1, 300, -5, 2]
    assert block.columns["rewards"].tolist() == [1, 2, 3, 1.5, 2]
    assert (block.columns["actions"].dtype, block.columns["rewards"].dtype) == (np.int64, np.float64)


def test_list_is_read_as_tuple_when_space_is_tuple(tmp_path):
    space = spaces.Tuple((spaces.Discrete(3), spaces.Discrete(4)))
    episode_state = make_state("a", 2)
    episode_state["observations"]["data"] = [[0, 1], [1, 2], [2, 3]]
    episode_state["_observation_space"] = {
        "space": "tuple",
        "spaces": [{"space": "discrete", "n": n, "start": 0} for n in (3, 4)],
    }
    dataset = open_dataset(write_states(tmp_path, episode_state))
    assert dataset.spec.observation_space == space
    assert dataset.read(dataset.units[0]).columns["obs/1"].tolist() == [1, 2, 3]


def test_infos_are_read_as_json(tmp_path):
    episode_state = make_state("a", 2)
    episode_state["infos"]["data"] = [{}, {"x": np.float32(1.5), "v": np.arange(2)}, {"n": None}]
    block = read_all(write_states(tmp_path, episode_state, make_state("b", 1)))
    assert block.columns["infos"].tolist() == ["", '{"x":1.5,"v":[0,1]}', '{"n":null}', "", ""]


def test_unsupported_space_is_unknown(tmp_path):
    space = {"space": "simplex", "shape": [2], "concentration": None, "dtype": "<f4"}
    episode_state = make_state("a", 2, _action_space=space)
    assert open_dataset(write_states(tmp_path, episode_state)).spec.action_space is None


@st.composite
def any_episodes(draw):
    space, steps, lookback = draw(any_space()), draw(st.integers(1, 6)), draw(st.integers(0, 3))
    leaves = columns_of(space, "obs", steps + lookback + 1, draw(st.integers(0, 5)))
    observations = [
        unflatten({name: column[t] for name, column in leaves.items()}, "obs", space_struct(space))
        for t in range(steps + lookback + 1)
    ]
    episode = SingleAgentEpisode(
        "e",
        observations=observations,
        observation_space=space,
        actions=[np.int64(t) for t in range(steps + lookback)],
        rewards=[0.5] * (steps + lookback),
        truncated=draw(st.booleans()),
        t_started=lookback,
        len_lookback_buffer=lookback,
    )
    return episode.to_numpy() if draw(st.booleans()) else episode


@examples(80)
@given(any_episodes())
def test_episode_of_any_space_and_mode_is_read(tmp_path_factory, episode):
    folder = tmp_path_factory.mktemp("f")
    block = read_all(write_states(folder, episode_to_state(episode)))
    (episode_read,) = block_to_episodes(block, episode.observation_space)
    leaves = flatten(episode_read.get_observations(), "obs")
    for name, leaf in flatten(episode.to_numpy().get_observations(), "obs").items():
        assert leaves[name].tolist() == leaf.tolist()
        assert leaf.dtype.kind in "OU" or leaves[name].dtype == leaf.dtype
    assert (episode_read.t_started, len(episode_read)) == (episode.t_started, len(episode))
    assert episode_read.is_truncated == episode.is_truncated


class TestDuplicates:
    """Unless its number of rows per file is set, RLlib's recorder writes its whole buffer in every write."""

    def test_duplicates_count_once(self, tmp_path):
        first_states = [make_state("a", 3), make_state("b", 2)]
        states = [*first_states, *first_states, make_state("c", 1), *first_states]
        dataset = open_dataset(write_states(tmp_path, *states, rows_per_file=2))
        assert (dataset.num_episodes, dataset.num_steps) == (3, 6)
        assert read_block(dataset).eps_id.tolist() == ["a", "b", "c"]
        (note,) = dataset.notes
        assert note.startswith("4 stored episodes repeat others (the same id and the same content)")
        assert note in [problem.message for problem in summarise(dataset).problems]

    def test_another_episode_with_the_same_id_is_kept(self, tmp_path):
        states = [make_state("a", num_steps) for num_steps in (3, 4, 3)]
        dataset = open_dataset(write_states(tmp_path, *states))
        assert [unit.lengths.tolist() for unit in dataset.units] == [[3, 4]]
        assert dataset.locate(dataset.units[0], 1)[1] == 1

    def test_infos_in_other_order_and_other_nan_are_duplicates(self, tmp_path):
        """Episodes that differ only in the bytes of equal values are duplicates, as in `merge`."""
        nan = np.array([0x7FC00000, 0xFFC00000], dtype=np.uint32).view(np.float32)
        states = [make_state_with_info(nan[0], ["x", "y"]), make_state_with_info(nan[1], ["y", "x"])]
        folder = write_states(tmp_path, *states)
        dataset = open_dataset(folder)
        assert (dataset.num_episodes, dataset.num_repeated) == (1, 1)

    def test_duplicate_row_before_others_counts_once(self, tmp_path):
        states = [make_state("a", 3), make_state("a", 3), make_state("b", 1)]
        dataset = open_dataset(write_states(tmp_path, *states))
        assert dataset.read(dataset.units[0]).eps_id.tolist() == ["a", "b"]
        assert dataset.locate(dataset.units[0], 1)[1] == 2


def test_fragments_in_adjacent_files_are_joined(tmp_path):
    fragments = [make_state("a", 3, is_terminated=False), make_state("a", 2, first_timestep=3, lookback=1)]
    block = read_all(write_states(tmp_path, *fragments, make_state("b", 1), rows_per_file=1))
    assert first_values(block) == [0, 1, 2, 3, 4, 5, 0, 1]
    assert block.length.tolist() == [5, 1]
    assert block.terminated.tolist() == [True, True]


class TestCache:
    def test_second_open_uses_cache(self, tmp_path, monkeypatch):
        folder = write_states(tmp_path, make_state("a", 3), make_state("b", 2), rows_per_file=1)
        digest = open_dataset(folder).digest
        monkeypatch.setattr(
            "hindcast.datasets.file_index.index_file", lambda *_: pytest.fail("the file is decoded again")
        )
        dataset = open_dataset(folder)
        assert (dataset.digest, dataset.num_steps, dataset.spec.observation_space) == (digest, 5, OBS)

    def test_changed_file_is_decoded_again(self, tmp_path):
        folder = write_states(tmp_path, make_state("a", 3))
        open_dataset(folder)
        write_states(tmp_path, make_state("a", 4))
        assert open_dataset(folder).num_steps == 4

    def test_damaged_or_unwritable_cache_is_ignored(self, tmp_path, monkeypatch):
        (tmp_path / "cache").write_text("a file, not a folder")
        monkeypatch.setenv("HINDCAST_CACHE", str(tmp_path / "cache"))
        folder = write_states(tmp_path / "d", make_state("a", 3))
        assert open_dataset(folder).num_steps == 3
        monkeypatch.setenv("HINDCAST_CACHE", str(tmp_path / "other"))
        open_dataset(folder)
        for file in (tmp_path / "other").rglob("*.json"):
            file.write_text("{")
        assert open_dataset(folder).num_steps == 3


class TestUntrustedValues:
    def test_object_array_raises(self, tmp_path):
        created_file = tmp_path / "exploded"
        bomb_array = np.empty(2, dtype=object)
        bomb_array[:] = [PickleBomb(created_file), PickleBomb(created_file)]
        for field in ("observations", "actions", "infos"):
            episode_state = make_state("a", 1)
            episode_state[field]["data"] = bomb_array
            with raises_user_error(DataError, "object array, which is", path="uid_000000-0.parquet", row=0):
                read_all(write_states(tmp_path / field, episode_state))
        for case in ("all items", "last item"):
            episode_state = make_state("a", 3)
            item = {b"nd": True, b"type": "|O", b"kind": b"O", b"shape": [2], b"data": bomb_array.dumps()}
            valid_item = episode_state["observations"]["data"][0]
            episode_state["observations"]["data"] = [item if case == "all items" else valid_item] * 3 + [item]
            with pytest.raises(DataError, match="object array, which is a pickle"):
                read_all(write_states(tmp_path / case, episode_state))
        assert not created_file.exists()

    def test_extension_type_raises(self, tmp_path):
        episode_state = make_state("a", 1)
        episode_state["infos"]["data"] = [{"x": msgpack.ExtType(42, b"abc")}, {}]
        with pytest.raises(DataError, match="a MessagePack extension of type 42 with 3 bytes"):
            read_all(write_states(tmp_path / "x", episode_state))
        episode_state = make_state("a", 1)
        episode_state["actions"]["data"] = [msgpack.ExtType(7, b"")]
        with pytest.raises(DataError, match="a MessagePack extension of type 7"):
            read_all(write_states(tmp_path / "y", episode_state))

    @pytest.mark.parametrize("dtype", ["<M8[ns]", "|V8", "|S4", "f4, i8", "|O", [["a", "<f4"]], "garbage", 5])
    def test_dtype_without_binary_form_raises(self, tmp_path, dtype):
        episode_state = make_state("a", 1)
        episode_state["actions"]["data"] = [
            {b"nd": True, b"type": dtype, b"kind": b"", b"shape": [1], b"data": bytes(8)}
        ]
        with raises_user_error(DataError, "an array of the dtype|object array", row=0):
            read_all(write_states(tmp_path, episode_state))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"t": 9}, "'obs' with 4 items: expected 10"),
        ({"t": -1}, "an episode from timestep 0 to -1"),
        ({"t_started": "x"}, "an episode from timestep 'x'"),
        ({"is_terminated": 3}, "terminated: 3"),
        ({"rewards": None}, "it is not the state of an episode"),
        ({"observations": {"data": [], "lookback": 5}}, "a lookback of 5"),
        ({"extra_model_outputs": {"obs": None}}, "an extra model output named 'obs'"),
    ],
)
def test_invalid_state_raises(tmp_path, change, message):
    folder = write_states(tmp_path, make_state("a", 3), make_state("b", 3, **change))
    with raises_user_error(DataError, re.escape(message), path="uid_000000-0.parquet", row=1):
        open_dataset(folder)


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        (None, "'item' is null: expected an episode"),
        (b"", "0 bytes, which end before the episode does"),
        (b"\x80", "a map without id_"),
        (b"\xc1garbage", "it is not the state of an episode"),
        (pickle.dumps({"a": 1}), "it"),
        (pack_state([1, 2]), "it is not the state of an episode"),
        (pack_state(make_state("b", 3))[:-40], "which end before the episode does"),
        (pack_state(make_state("b", 3)) + b"\x00", "1 bytes after the end of the episode"),
        (b"\x81\xacobservations\x81\xa4data\xdd\xff\xff\xff\xff", "it"),
    ],
)
def test_cell_without_state_raises(tmp_path, cell, message):
    folder = write_states(tmp_path, make_state("a", 3), cell)
    with raises_user_error(DataError, re.escape(message), path="uid_000000-0.parquet", row=1):
        open_dataset(folder)


def test_episodes_with_other_shape_outputs_or_space_raise(tmp_path):
    other_shape = make_state("b", 3)
    other_shape["observations"]["data"] = [np.zeros(3, dtype=np.float32)] * 4
    with raises_user_error(DataError, r"'obs' is float32 \[3\] here and float32 \[2\] in others", row=2):
        open_dataset(write_states(tmp_path / "shape", make_state("a"), make_state("c"), other_shape))
    no_outputs = make_state("b", extra_model_outputs=None)
    with raises_user_error(DataError, "episode b has no 'action_logp', which others have", row=1):
        open_dataset(write_states(tmp_path / "outputs", make_state("a"), no_outputs))
    other_space = make_state("b", space=spaces.Box(-1, 1, (2,), np.float32))
    with raises_user_error(DataError, r"the observation space of episode b is Box\(-1", row=1):
        open_dataset(write_states(tmp_path / "space", make_state("a"), other_space))
    with pytest.raises(DataError, match=r"uid_000001.* cannot be one dataset: .*observation space"):
        open_dataset(write_states(tmp_path / "files", make_state("a"), other_space, rows_per_file=1))


def test_file_without_rows_or_mixed_layouts_raises(kit, tmp_path):
    with pytest.raises(DataError, match=r"uid_000000-0\.parquet: it holds no episode with a timestep"):
        open_dataset(write_states(tmp_path / "none"))
    folder = write_states(tmp_path / "mixed", make_state("a"))
    kit.write(folder, kit.block())
    with pytest.raises(DataError, match=r"mixes layouts: .*000000-a1-000\.parquet is episodes/arrow"):
        open_dataset(folder)


@pytest.mark.slow
def test_flipped_byte_is_reported_or_harmless(tmp_path):
    """Without checksums, a changed number may go unnoticed, but no row is lost and nothing crashes."""
    states = [make_state(f"e{i}", 3 + i) for i in range(4)]
    folder = write_states(tmp_path, *states)
    path = next(folder.rglob("*.parquet"))
    pq.write_table(pq.read_table(path), path, compression="none", use_dictionary=False)

    def check_rows(block: Block) -> None:
        assert block.num_episodes == 4

    assert count_refusals(path, lambda: read_all(folder), check_rows, times=400) > 100
    check_truncations(path, lambda: read_all(folder), every=61)
