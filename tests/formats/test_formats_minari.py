"""Datasets that Minari wrote: Hindcast reads the same as Minari."""

from __future__ import annotations

import json
import shutil
import sys
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import h5py
import minari
import numpy as np
import pyarrow as pa
import pytest
from gymnasium import spaces
from minari.data_collector import EpisodeBuffer
from minari.namespace import create_namespace

from hindcast.episodes import nested
from hindcast.episodes.block import Block
from hindcast.episodes.columns import Columns
from hindcast.episodes.convert import info_from_json
from hindcast.errors import DataError
from hindcast.formats.format import ReadOptions
from hindcast.formats.minari import episode_index
from hindcast.formats.registry import FORMATS, detect_format, find_locations
from hindcast.storage.location import Location, resolve

MINARI = FORMATS["Minari"]
DATA_FORMATS = ("hdf5", "arrow", "parquet")
SIMPLE_SPACES = spaces.Box(-1.0, 1.0, (3,), np.float32), spaces.Discrete(4, start=1)
COMPOSITE_SPACES = (
    spaces.Dict(
        {
            "camera": spaces.Box(0, 255, (40, 32, 3), np.uint8),
            "depth": spaces.Box(0, 255, (8, 8), np.uint8),
            "pose": spaces.Tuple((spaces.Box(-1, 1, (2, 3), np.float64), spaces.Discrete(5))),
            "say": spaces.Text(6),
            "bits": spaces.MultiBinary([2, 2]),
            "many": spaces.MultiDiscrete([3, 4]),
        }
    ),
    spaces.Tuple((spaces.Discrete(3), spaces.Dict({"x": spaces.Box(-2, 2, (2,), np.float32)}))),
)


@pytest.fixture(autouse=True)
def _set_datasets_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))


def make_samples(space: spaces.Space, count: int) -> Any:
    """Return `count` samples of a space as Minari buffers them: a list at each leaf."""
    if isinstance(space, spaces.Dict):
        return {key: make_samples(child, count) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(make_samples(child, count) for child in space.spaces)
    return [space.sample() for _ in range(count)]


def make_dataset(
    data_format: str,
    dataset_spaces: tuple[spaces.Space, spaces.Space] = SIMPLE_SPACES,
    lengths: tuple[int, ...] = (3, 1, 5),
    has_infos: bool = False,
    **options: Any,
) -> minari.MinariDataset:
    for space in dataset_spaces:
        space.seed(0)
    buffers = [
        EpisodeBuffer(
            observations=make_samples(dataset_spaces[0], length + 1),
            actions=make_samples(dataset_spaces[1], length),
            # Minari stores rewards as integers if all of an episode are whole numbers
            rewards=[0] * length if data_format == "hdf5" and i == 0 else np.arange(float(length)).tolist(),
            terminations=[False] * (length - 1) + [i % 2 == 0],
            truncations=[False] * (length - 1) + [i % 2 == 1],
            infos=make_infos(length + 1) if has_infos else None,
        )
        for i, length in enumerate(lengths)
    ]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "(`eval_env` is set to|env_spec is) None", UserWarning)
        return minari.create_dataset_from_buffers(
            f"toys/{data_format}-v0",
            buffer=buffers,
            env=None,
            observation_space=dataset_spaces[0],
            action_space=dataset_spaces[1],
            data_format=data_format,
            algorithm_name="random",
            author="we",
            author_email="we@example.com",
            code_permalink="https://example.com",
            description="toys",
            **options,
        )


def make_infos(count: int) -> dict[str, Any]:
    return {
        "goal": [np.full((2, 2), float(step)) for step in range(count)],
        "deep": {"step": list(range(count)), "word": [f"w{step}" for step in range(count)]},
    }


def find_dataset(tmp_path: Path) -> Location:
    """Return the location of the only dataset in a folder."""
    (location,) = find_locations(resolve(tmp_path / "datasets").list(recursive=True))
    return location


def read(location: Location, options: ReadOptions | None = None) -> Block:
    options = options or ReadOptions()
    pieces = MINARI.list_pieces(location, options)
    return Block.concat([block for piece in pieces for block in MINARI.read(piece, options)])


def assert_same(block: Block, dataset: minari.MinariDataset) -> None:
    assert (block.num_episodes, block.num_steps) == (dataset.total_episodes, dataset.total_steps)
    for i, episode in enumerate(dataset.iterate_episodes()):
        expected = {
            **nested.flatten(episode.observations, Columns.OBS),
            **nested.flatten(episode.actions, Columns.ACTIONS),
            Columns.REWARDS: episode.rewards,
        }
        assert expected.keys() == block.columns.keys() - {Columns.INFOS}
        for name, value in expected.items():
            column = block.columns[name][block.rows_of(name, i)]
            expected_column = np.array(value, dtype=object) if isinstance(value, list) else value
            np.testing.assert_array_equal(column, expected_column)
            assert column.dtype == expected_column.dtype or name == Columns.REWARDS
        assert block.terminated[i] == episode.terminations[-1]
        assert block.truncated[i] == episode.truncations[-1]


@pytest.mark.parametrize("data_format", DATA_FORMATS)
@pytest.mark.parametrize("dataset_spaces", [SIMPLE_SPACES, COMPOSITE_SPACES], ids=["plain", "composite"])
def test_dataset_is_read_as_minari_reads_it(tmp_path: Path, data_format: str, dataset_spaces: Any) -> None:
    dataset = make_dataset(data_format, dataset_spaces)
    location = find_dataset(tmp_path)
    assert detect_format(location) is MINARI
    block, spec = read(location), MINARI.describe(location)
    assert_same(block, dataset)
    assert (spec.observation_space, spec.action_space) == dataset_spaces
    assert block.eps_id.tolist() == [f"toys/{data_format}-v0/{number}" for number in range(3)]
    assert block.columns[Columns.REWARDS].dtype == np.float64


@pytest.mark.parametrize("data_format", DATA_FORMATS)
def test_raw_images_are_read(tmp_path: Path, data_format: str) -> None:
    dataset = make_dataset(data_format, COMPOSITE_SPACES, jpeg_encoding=False)
    assert_same(read(find_dataset(tmp_path)), dataset)


@pytest.mark.parametrize("data_format", DATA_FORMATS)
def test_infos_are_read_with_reset_info(tmp_path: Path, data_format: str) -> None:
    make_dataset(data_format, has_infos=True)
    block = read(find_dataset(tmp_path))
    texts = block.columns[Columns.INFOS][block.rows_of(Columns.INFOS, 2)]
    assert [info_from_json(text) for text in texts] == [
        {"goal": [[float(step)] * 2] * 2, "deep": {"step": step, "word": f"w{step}"}} for step in range(6)
    ]
    assert Columns.INFOS not in read(find_dataset(tmp_path), ReadOptions(columns=["obs"])).columns


@pytest.mark.parametrize("data_format", DATA_FORMATS)
def test_pieces_contain_adjacent_episodes(
    tmp_path: Path, data_format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = make_dataset(data_format, lengths=(4,) * 6)
    monkeypatch.setattr(episode_index, "PIECE_BYTES", 100)
    assert len(MINARI.list_pieces(find_dataset(tmp_path), ReadOptions())) > 2
    assert_same(read(find_dataset(tmp_path)), dataset)


def test_environment_is_described_by_its_id(tmp_path: Path) -> None:
    dataset = make_dataset("hdf5")
    metadata = Path(dataset.storage.data_path) / "metadata.json"
    spec = gym.spec("CartPole-v1").to_json()
    metadata.write_text(json.dumps({**json.loads(metadata.read_text()), "env_spec": spec}))
    assert MINARI.describe(find_dataset(tmp_path)).environment == "CartPole-v1"


def test_old_file_with_metadata_in_attributes_is_read(tmp_path: Path) -> None:
    dataset = make_dataset("hdf5")
    folder = Path(dataset.storage.data_path)
    metadata = json.loads((folder / "metadata.json").read_text())
    path = shutil.copy(folder / "main_data.hdf5", tmp_path / "old.hdf5")
    with h5py.File(path, "a") as file:
        for key in ("total_episodes", "total_steps", "observation_space", "action_space", "dataset_id"):
            file.attrs[key] = metadata[key]
    location = resolve(path)
    assert detect_format(location) is MINARI
    assert_same(read(location), dataset)
    assert MINARI.describe(location).action_space == SIMPLE_SPACES[1]


def test_folder_of_several_datasets_has_one_location_each(tmp_path: Path) -> None:
    for data_format in DATA_FORMATS:
        make_dataset(data_format)
    (tmp_path / "datasets" / "toys" / "notes.json").write_text("{}")
    create_namespace("others")
    locations = find_locations(resolve(tmp_path / "datasets").list(recursive=True))
    names = [location.name for location in locations]
    assert sorted(names) == ["main_data.hdf5", "metadata.json", "metadata.json", "notes.json"]


def test_option_without_effect_raises(tmp_path: Path) -> None:
    make_dataset("hdf5")
    with pytest.raises(DataError, match="`schema` names obs, but Minari defines its own columns"):
        read(find_dataset(tmp_path), ReadOptions(schema={"obs": "state"}))
    with pytest.raises(DataError, match="readOptions has 'limit', but Minari has no options"):
        read(find_dataset(tmp_path), ReadOptions(options={"limit": 1}))


def make_hdf5_file(tmp_path: Path) -> Path:
    make_dataset("hdf5", COMPOSITE_SPACES)
    return Path(find_dataset(tmp_path).path)


@pytest.mark.parametrize(
    ("node_path", "value", "message"),
    [
        ("episode_1/rewards", np.zeros(0), "metadata say 9"),
        ("episode_1/actions/_index_0", np.zeros(2, int), "2 values of actions/0, expected 1 for 1 reward"),
        ("episode_1/observations/say", None, "'obs/say'"),
        (
            "episode_1/observations/more",
            np.zeros(2),
            "/episode_1 .* differs from the dataset's spaces: 'more'",
        ),
        ("episode_1/rewards", None, "no array at /episode_1/rewards"),
        ("episode_1/terminations", None, "/episode_1 is damaged.*'terminations'"),
        ("episode_2/terminations", np.arange(5) % 3 == 1, "terminations true at step 1 of 5 and continues"),
        ("episode_1/observations/many", np.zeros((2, 3), dtype=np.int32), "and int32 .3. in the other"),
        (
            "episode_1/observations/camera",
            np.zeros((2, 900), np.uint8),
            "/episode_1 is damaged.*identify image",
        ),
        ("episode_2", None, "holds 2 episodes, but its metadata say 3|4 timesteps"),
        ("notes", np.zeros(2), "holds 'notes'"),
        ("episode_1/rewards", h5py.ExternalLink("other.hdf5", "/rewards"), "a link at /episode_1/rewards"),
    ],
)
def test_invalid_hdf5_file_raises(tmp_path: Path, node_path: str, value: Any, message: str) -> None:
    path = make_hdf5_file(tmp_path)
    with h5py.File(path, "a") as file:
        if node_path in file:
            del file[node_path]
        if value is not None:
            file[node_path] = value
    with pytest.raises(DataError, match=rf"main_data\.hdf5.*({message})"):
        read(resolve(path))


def test_missing_arrow_episode_raises(tmp_path: Path) -> None:
    dataset = make_dataset("arrow")
    shutil.rmtree(Path(dataset.storage.data_path) / "1")
    with pytest.raises(DataError, match="holds 2 episodes, but its metadata say 3"):
        read(find_dataset(tmp_path))


@pytest.mark.parametrize("data_format", ["arrow", "parquet"])
def test_truncated_arrow_file_raises(tmp_path: Path, data_format: str) -> None:
    dataset = make_dataset(data_format)
    (path,) = (Path(dataset.storage.data_path) / "1").glob("part-*")
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(DataError, match=rf"data/1 is damaged.*{data_format}-v0/data/1/part-0\.{data_format}"):
        read(find_dataset(tmp_path))


def test_nulls_in_arrow_raise(tmp_path: Path) -> None:
    dataset = make_dataset("arrow")
    (path,) = (Path(dataset.storage.data_path) / "0").glob("part-*")
    with pa.ipc.open_file(pa.BufferReader(path.read_bytes())) as file:
        table = file.read_all()
    rewards = pa.array([0.0, None, 0.0, 0.0])
    table = table.set_column(table.schema.get_field_index("rewards"), "rewards", rewards)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(DataError, match="data/0 in rewards holds nulls"):
        read(find_dataset(tmp_path))


@pytest.mark.parametrize("data_format", ["arrow", "parquet"])
def test_episode_that_minari_reads_partially_raises(tmp_path: Path, data_format: str) -> None:
    """Minari silently reads only the first batch of an episode."""
    folder = Path(make_dataset(data_format).storage.data_path) / "1"
    (path,) = folder.glob("part-*")
    shutil.copy(path, path.with_name(f"part-1.{data_format}"))
    with pytest.raises(DataError, match="data/1 holds 4 rows, but Minari reads only 2"):
        read(find_dataset(tmp_path))


@pytest.mark.parametrize("data_format", DATA_FORMATS)
def test_remote_dataset_is_copied(tmp_path: Path, data_format: str, memory_path: str) -> None:
    dataset, folder = make_dataset(data_format, COMPOSITE_SPACES, has_infos=True), resolve(memory_path)
    for entry in resolve(tmp_path / "datasets").files(recursive=True):
        folder.child(entry.relative_path).write_bytes(entry.location.read_bytes())
    (location,) = find_locations(folder.list(recursive=True))
    assert_same(read(location), dataset)
    assert read(location).eps_id[0] == f"toys/{data_format}-v0/0"


def test_error_in_remote_dataset_names_the_users_path(tmp_path: Path, memory_path: str) -> None:
    path, location = make_hdf5_file(tmp_path), resolve(f"{memory_path}/main_data.hdf5")
    with h5py.File(path, "a") as file:
        del file["episode_1/terminations"]
    for name in ("main_data.hdf5", "metadata.json"):
        location.parent().child(name).write_bytes(path.with_name(name).read_bytes())
    with pytest.raises(DataError, match=f"^{location} at /episode_1 is damaged"):
        read(location)


def test_main_file_without_metadata_has_stored_structure(tmp_path: Path) -> None:
    dataset = make_dataset("hdf5", COMPOSITE_SPACES, jpeg_encoding=False)
    block = read(resolve(shutil.copy(Path(dataset.storage.data_path) / "main_data.hdf5", tmp_path)))
    assert_same(block, dataset)
    assert block.eps_id[0] == f"{tmp_path.name}/0"


def test_environment_in_metadata_is_never_made(tmp_path: Path) -> None:
    """If a space is missing, Minari would make the environment, and so import untrusted code."""
    dataset = make_dataset("hdf5")
    metadata = Path(dataset.storage.data_path) / "metadata.json"
    document = json.loads(metadata.read_text())
    del document["observation_space"]
    spec = json.dumps({"id": "Stranger-v0", "entry_point": "not_there:Environment"})
    metadata.write_text(json.dumps({**document, "env_spec": spec}))
    assert read(find_dataset(tmp_path)).num_episodes == 3


@pytest.mark.parametrize("missing", ["minari", "PIL"])
def test_missing_package_raises_error_that_names_the_extra(
    tmp_path: Path, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_dataset("arrow")
    location = find_dataset(tmp_path)
    monkeypatch.setitem(sys.modules, missing, None)
    assert detect_format(location) is MINARI
    with pytest.raises(DataError, match=rf"requires {missing}.*pip install 'hindcast-rl\[minari\]'"):
        read(location)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"observation_space": '{"type": "Graph"}'}, "observation_space cannot be read.*Graph"),
        ({"observation_space": "["}, "observation_space cannot be read"),
        ({"data_format": "zarr"}, "stored as 'zarr'"),
        ({"total_steps": -1}, "total_steps is -1"),
    ],
)
def test_invalid_metadata_raise(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    dataset = make_dataset("hdf5")
    metadata = Path(dataset.storage.data_path) / "metadata.json"
    metadata.write_text(json.dumps({**json.loads(metadata.read_text()), **change}))
    with pytest.raises(DataError, match=message):
        read(find_dataset(tmp_path))
