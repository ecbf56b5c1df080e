"""RLlib 2.60 and Hindcast read each other's recordings: equal value by value, and MessagePack byte by byte."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import msgpack
import numpy as np
import pyarrow.parquet as pq
import pytest

from hindcast.api import EnvironmentSpec
from hindcast.datasets.curate.operations import convert_data
from hindcast.datasets.dataset import Dataset
from hindcast.datasets.opening import open_dataset
from hindcast.datasets.prepare.opening import open_data
from hindcast.datasets.prepare.reading import Reading
from hindcast.datasets.target import Target
from hindcast.datasets.writer import BlockWriter
from hindcast.episodes.block import Block
from hindcast.formats.messagepack.layout import MESSAGEPACK_EPISODES
from hindcast.storage.location import resolve
from support import CARTPOLE, make_policy, record, recording

Run = Callable[..., str]
CASES = ("box", "float64", "image", "discrete", "multi", "dict", "tuple")
OUTPUTS = {
    "episodes": {"encoding": "MessagePack"},
    "columns": {"format": "Columns"},
    "batches": {"format": "SampleBatch"},
}

pytestmark = [pytest.mark.ray, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def rllib_recordings(rllib: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """RLlib's recordings: `<case>/<format>/…`, and beside each `<format>.npz`, what RLlib reads in it."""
    folder = tmp_path_factory.mktemp("recorded")
    rllib("rllib_record.py", folder)
    for kind, formats in (
        ("episodes", ("episodes", "episodes-repeated")),
        ("columns", ("columns", "columns-packed")),
    ):
        places = [folder / case / name for case in CASES for name in formats]
        rllib("rllib_read.py", kind, *(part for place in places for part in (place, f"{place}.npz")))
    return folder


def read_all(dataset: Dataset) -> Block:
    return Block.concat([dataset.read(unit) for unit in dataset.units])


def episodes_of(block: Block) -> dict[str, np.ndarray]:
    """Return `<id>|<leaf>` -> array, as in the files of `rllib_read.py`."""
    columns = {}
    for i, eps_id in enumerate(block.eps_id):
        for name, column in block.columns.items():
            if name != "infos":
                columns[f"{eps_id}|{name}"] = column[block.rows_of(name, i)]
        columns[f"{eps_id}|flags"] = np.array([block.terminated[i], block.truncated[i]])
    return columns


def rows_of(block: Block) -> set[tuple[object, ...]]:
    """Return each timestep as a tuple of all its bytes."""
    terminated, truncated = block.step_flags(block.terminated), block.step_flags(block.truncated)
    rows = set()
    for t, (episode, o) in enumerate(zip(block.episode_of_step, block.obs_row, strict=True)):
        values = {
            name: (column[o : o + 2] if name.startswith("obs") else column[t : t + 1])
            for name, column in block.columns.items()
        }
        values["flags"] = np.array([terminated[t], truncated[t]])
        rows.add(as_row(str(block.eps_id[episode]), values))
    return rows


def as_row(eps_id: str, values: dict[str, np.ndarray]) -> tuple[object, ...]:
    leaves = ((name, str(leaf.dtype), leaf.shape, leaf.tobytes()) for name, leaf in sorted(values.items()))
    return (eps_id, *leaves)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("form", ["episodes", "episodes-repeated"])
def test_rllib_episodes_are_read_like_rllib_does(rllib_recordings: Path, case: str, form: str) -> None:
    dataset = open_dataset(rllib_recordings / case / form)
    expected, actual = dict(np.load(rllib_recordings / case / f"{form}.npz")), episodes_of(read_all(dataset))
    assert actual.keys() == expected.keys()
    for name, leaf in expected.items():
        assert actual[name].dtype == leaf.dtype, name
        np.testing.assert_array_equal(actual[name], leaf)
    assert bool(dataset.notes) == (form == "episodes-repeated")
    assert dataset.spec.observation_space is not None
    assert {"action_logp", "vf_preds", "weights_seq_no"} <= dataset.spec.leaves.keys()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("form", ["columns", "columns-packed"])
def test_rllib_columns_are_read_like_rllib_does(
    rllib_recordings: Path, tmp_path: Path, case: str, form: str
) -> None:
    """RLlib reads rows one by one, also repeated ones; Hindcast reads episodes, each once."""
    dataset = open_data(rllib_recordings / case / form, cache=tmp_path)
    rows: dict[str, dict[str, np.ndarray]] = {}
    for key, leaf in np.load(rllib_recordings / case / f"{form}.npz").items():
        number, eps_id, name = key.split("|")
        rows.setdefault(f"{number}|{eps_id}", {})[name] = leaf
    expected = {as_row(key.split("|")[1], values) for key, values in rows.items()}
    block = read_all(dataset)
    assert rows_of(block) == expected
    assert dataset.num_steps == len(expected)
    assert dataset.num_episodes == 4
    assert any(note.startswith("3 stored episodes repeat others") for note in dataset.notes)


def test_rllib_infos_are_read(rllib_recordings: Path) -> None:
    block = read_all(open_dataset(rllib_recordings / "float64" / "episodes"))
    texts = [json.loads(text) for text in block.columns["infos"]]
    assert texts[0] == {"seed": block.length[0] - 4}
    assert texts[1] == {"t": 1, "x": 2.5, "v": [0, 1]}
    assert len(texts) == block.num_steps + block.num_episodes


@pytest.mark.parametrize("case", CASES)
def test_written_bytes_equal_rllibs(rllib: Run, rllib_recordings: Path, tmp_path: Path, case: str) -> None:
    """RLlib's recording, written by Hindcast, read and packed again by RLlib, and read by Hindcast once more."""
    dataset = open_dataset(rllib_recordings / case / "episodes")
    block = read_all(dataset)
    with BlockWriter(resolve(tmp_path), dataset.spec, "ours", layout=MESSAGEPACK_EPISODES) as writer:
        writer.write(block)
    hindcast_file = tmp_path / "ours-000.parquet"
    steps = int(rllib("rllib_repack.py", hindcast_file, tmp_path / "theirs.parquet"))
    cells = [pq.read_table(path)["item"].to_pylist() for path in (hindcast_file, tmp_path / "theirs.parquet")]
    assert cells[0] == cells[1]
    assert steps == block.num_steps
    reread = read_all(open_dataset(tmp_path / "theirs.parquet"))
    assert {name: leaf.tobytes() for name, leaf in episodes_of(reread).items()} == {
        name: leaf.tobytes() for name, leaf in episodes_of(block).items()
    }


@pytest.mark.parametrize("between", [(), ("Episodes",), ("Columns", "JSON")])
def test_details_of_rllib_episodes_are_written_back_byte_for_byte(
    rllib: Run, tmp_path: Path, between: tuple[str, ...]
) -> None:
    """Ids, times and custom data: read by Hindcast, converted through other formats, and packed again."""
    source = tmp_path / "theirs"
    source.mkdir()
    rllib("rllib_details.py", source / "theirs.parquet")
    expected = states_of(source)
    for form in (*between, "MessagePack"):
        convert_data(Reading((str(source),)), Target(resolve(tmp_path / form), form))
        source = tmp_path / form
    actual = states_of(source)
    assert actual.keys() == expected.keys()
    for name, cell in expected.items():
        assert actual[name] == cell, name
    rllib("rllib_repack.py", next(source.glob("*.parquet")), tmp_path / "again.parquet")
    assert set(pq.read_table(tmp_path / "again.parquet")["item"].to_pylist()) == set(expected.values())


def states_of(folder: Path) -> dict[str, bytes]:
    """Return each episode's id and cell."""
    cells = [cell for path in folder.glob("*.parquet") for cell in pq.read_table(path)["item"].to_pylist()]
    return {msgpack.unpackb(cell)["id_"]: cell for cell in cells}


@pytest.mark.parametrize("kind", OUTPUTS)
def test_rllib_trains_on_hindcast_recordings(rllib: Run, tmp_path: Path, kind: str) -> None:
    make_policy(CARTPOLE).save(tmp_path / "policy")
    resource = recording(
        tmp_path / "data",
        environment=EnvironmentSpec.model_validate(CARTPOLE).model_dump(by_alias=True, exclude_defaults=True),
        policy={"checkpoint": {"path": str(tmp_path / "policy")}},
        duration={"episodes": 60},
        output=OUTPUTS[kind],
    )
    record(resource)
    losses = json.loads(rllib("rllib_train.py", kind, tmp_path / "data"))
    assert np.mean(losses[-3:]) < 0.68  # a policy that has learnt nothing has ln 2 = 0.693


@pytest.mark.parametrize("packed", [[], ["obs"], ["obs", "new_obs", "actions", "rewards"]])
def test_rllib_reads_hindcast_sample_batches(rllib: Run, tmp_path: Path, packed: list[str]) -> None:
    """With its JSON reader, and mapped to episodes: the recorded values, plain numbers as doubles.

    Its new stack cannot read a packed `new_obs`, whoever wrote it.
    """
    output = {**OUTPUTS["batches"], "compressColumns": packed}
    record(recording(tmp_path / "data", environment=CARTPOLE, output=output))
    record(recording(tmp_path / "arrow", environment=CARTPOLE))
    places = [tmp_path / "reader.npz", *([tmp_path / "episodes.npz"] if "new_obs" not in packed else [])]
    rllib("rllib_batches.py", tmp_path / "data", *places)
    block = read_all(open_dataset(tmp_path / "arrow"))
    episodes = {name[8:]: leaf for name, leaf in episodes_of(block).items()}
    for form in (place.stem for place in places):
        actual = dict(np.load(tmp_path / f"{form}.npz"))
        actual = {name[8:]: leaf for name, leaf in actual.items()}
        expected = {name: leaf for name, leaf in episodes.items() if "infos" not in name}
        assert actual.keys() == expected.keys(), form
        for name, leaf in expected.items():
            np.testing.assert_array_equal(actual[name], leaf, err_msg=name)
            if name.endswith("|rewards"):
                assert actual[name].dtype == (leaf.dtype if "rewards" in packed else np.float64)
