"""RLlib 2.60 and Hindcast read each other's recordings: equal value by value, and MessagePack byte by byte."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import msgpack
import numpy as np
import pyarrow.parquet as pq
import pytest

from episode_kit import read_block
from hindcast.api import EnvironmentSpec
from hindcast.datasets.curate.operations import convert_data
from hindcast.datasets.opening import open_dataset
from hindcast.datasets.prepare.opening import open_data
from hindcast.datasets.prepare.reading import Reading
from hindcast.datasets.target import Target
from hindcast.datasets.writer import BlockWriter
from hindcast.episodes.block import Block
from hindcast.formats.messagepack.layout import MESSAGEPACK_EPISODES
from hindcast.storage.location import resolve
from support import CARTPOLE, make_policy, record, recording

RunScript = Callable[..., str]
CASES = ("box", "float64", "image", "discrete", "multi", "dict", "tuple")
OUTPUTS = {
    "episodes": {"encoding": "MessagePack"},
    "columns": {"format": "Columns"},
    "batches": {"format": "SampleBatch"},
}

pytestmark = [pytest.mark.ray, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def rllib_recordings(run_script: RunScript, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with RLlib's recordings (`<case>/<format>/…`) and what RLlib reads (`<case>/<format>.npz`)."""
    folder = tmp_path_factory.mktemp("recorded")
    run_script("rllib_record.py", folder)
    for kind, other_kind in (("episodes", "episodes-repeated"), ("columns", "columns-packed")):
        folders = [folder / case / name for case in CASES for name in (kind, other_kind)]
        paths = [path for source in folders for path in (source, f"{source}.npz")]
        run_script("rllib_read.py", kind, *paths)
    return folder


def flatten_episodes(block: Block) -> dict[str, np.ndarray]:
    """Return `<id>|<leaf>` -> array, as in the files of `rllib_read.py`."""
    columns = {}
    for i, eps_id in enumerate(block.eps_id):
        for name, column in block.columns.items():
            if name != "infos":
                columns[f"{eps_id}|{name}"] = column[block.rows_of(name, i)]
        columns[f"{eps_id}|flags"] = np.array([block.terminated[i], block.truncated[i]])
    return columns


def timestep_rows(block: Block) -> set[tuple[object, ...]]:
    """Return each timestep as a tuple of all its bytes."""
    terminated, truncated = block.step_flags(block.terminated), block.step_flags(block.truncated)
    rows = set()
    for t, (episode, obs_row) in enumerate(zip(block.episode_of_step, block.obs_row, strict=True)):
        values = {
            name: (column[obs_row : obs_row + 2] if name.startswith("obs") else column[t : t + 1])
            for name, column in block.columns.items()
        }
        values["flags"] = np.array([terminated[t], truncated[t]])
        rows.add(make_row(str(block.eps_id[episode]), values))
    return rows


def make_row(eps_id: str, values: dict[str, np.ndarray]) -> tuple[object, ...]:
    leaves = ((name, str(leaf.dtype), leaf.shape, leaf.tobytes()) for name, leaf in sorted(values.items()))
    return (eps_id, *leaves)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("format_name", ["episodes", "episodes-repeated"])
def test_rllib_episodes_are_read_as_rllib_reads_them(
    rllib_recordings: Path, case: str, format_name: str
) -> None:
    dataset = open_dataset(rllib_recordings / case / format_name)
    expected = dict(np.load(rllib_recordings / case / f"{format_name}.npz"))
    actual = flatten_episodes(read_block(dataset))
    assert actual.keys() == expected.keys()
    for name, leaf in expected.items():
        assert actual[name].dtype == leaf.dtype, name
        np.testing.assert_array_equal(actual[name], leaf)
    assert bool(dataset.notes) == (format_name == "episodes-repeated")
    assert dataset.spec.observation_space is not None
    assert {"action_logp", "vf_preds", "weights_seq_no"} <= dataset.spec.leaves.keys()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("format_name", ["columns", "columns-packed"])
def test_rllib_columns_are_read_as_rllib_reads_them(
    rllib_recordings: Path, tmp_path: Path, case: str, format_name: str
) -> None:
    """RLlib makes an episode of each row, also of repeated rows; Hindcast assembles episodes, and reads each once."""
    dataset = open_data(rllib_recordings / case / format_name, cache=tmp_path)
    rows: dict[str, dict[str, np.ndarray]] = {}
    for key, leaf in np.load(rllib_recordings / case / f"{format_name}.npz").items():
        episode_index, eps_id, name = key.split("|")
        rows.setdefault(f"{episode_index}|{eps_id}", {})[name] = leaf
    expected = {make_row(key.split("|")[1], values) for key, values in rows.items()}
    block = read_block(dataset)
    assert timestep_rows(block) == expected
    assert dataset.num_steps == len(expected)
    assert dataset.num_episodes == 4
    assert any(note.startswith("3 stored episodes repeat others") for note in dataset.notes)


def test_rllib_infos_are_read(rllib_recordings: Path) -> None:
    block = read_block(open_dataset(rllib_recordings / "float64" / "episodes"))
    texts = [json.loads(text) for text in block.columns["infos"]]
    # `RandomEnv`: episode number n, which the reset returns as "seed", has 4 + n timesteps.
    assert texts[0] == {"seed": block.length[0] - 4}
    assert texts[1] == {"t": 1, "x": 2.5, "v": [0, 1]}
    assert len(texts) == block.num_steps + block.num_episodes


@pytest.mark.parametrize("case", CASES)
def test_bytes_written_by_hindcast_equal_rllibs(
    run_script: RunScript, rllib_recordings: Path, tmp_path: Path, case: str
) -> None:
    """Hindcast writes RLlib's recording, RLlib reads and packs it again, and Hindcast reads RLlib's file."""
    dataset = open_dataset(rllib_recordings / case / "episodes")
    block = read_block(dataset)
    with BlockWriter(resolve(tmp_path), dataset.spec, "hindcast", layout=MESSAGEPACK_EPISODES) as writer:
        writer.write(block)
    hindcast_file = tmp_path / "hindcast-000.parquet"
    num_steps = int(run_script("rllib_repack.py", hindcast_file, tmp_path / "rllib.parquet"))
    cells = [pq.read_table(path)["item"].to_pylist() for path in (hindcast_file, tmp_path / "rllib.parquet")]
    assert cells[0] == cells[1]
    assert num_steps == block.num_steps
    reread_block = read_block(open_dataset(tmp_path / "rllib.parquet"))
    reread_leaves, leaves = flatten_episodes(reread_block), flatten_episodes(block)
    assert reread_leaves.keys() == leaves.keys()
    assert all(reread_leaves[name].tobytes() == leaf.tobytes() for name, leaf in leaves.items())


@pytest.mark.parametrize("intermediate_formats", [(), ("Episodes",), ("Columns", "JSON")])
def test_details_of_rllib_episodes_are_written_back_byte_for_byte(
    run_script: RunScript, tmp_path: Path, intermediate_formats: tuple[str, ...]
) -> None:
    """Hindcast reads ids, times and custom data, converts them through other formats, and packs them again."""
    source = tmp_path / "rllib"
    source.mkdir()
    run_script("rllib_details.py", source / "rllib.parquet")
    expected = read_cells(source)
    for format_name in (*intermediate_formats, "MessagePack"):
        convert_data(Reading((str(source),)), Target(resolve(tmp_path / format_name), format_name))
        source = tmp_path / format_name
    actual = read_cells(source)
    assert actual == expected
    run_script("rllib_repack.py", next(source.glob("*.parquet")), tmp_path / "again.parquet")
    assert set(pq.read_table(tmp_path / "again.parquet")["item"].to_pylist()) == set(expected.values())


def read_cells(folder: Path) -> dict[str, bytes]:
    """Return episode id -> packed cell."""
    cells = [cell for path in folder.glob("*.parquet") for cell in pq.read_table(path)["item"].to_pylist()]
    return {msgpack.unpackb(cell)["id_"]: cell for cell in cells}


@pytest.mark.parametrize("output_kind", OUTPUTS)
def test_rllib_trains_on_hindcast_recordings(run_script: RunScript, tmp_path: Path, output_kind: str) -> None:
    make_policy(CARTPOLE).save(tmp_path / "policy")
    resource = recording(
        tmp_path / "data",
        environment=EnvironmentSpec.model_validate(CARTPOLE).model_dump(by_alias=True, exclude_defaults=True),
        policy={"checkpoint": {"path": str(tmp_path / "policy")}},
        duration={"episodes": 60},
        output=OUTPUTS[output_kind],
    )
    record(resource)
    losses = json.loads(run_script("rllib_train.py", output_kind, tmp_path / "data"))
    assert np.mean(losses[-3:]) < 0.68  # without learning, the loss is ln 2 = 0.693


@pytest.mark.parametrize("packed_columns", [[], ["obs"], ["obs", "new_obs", "actions", "rewards"]])
def test_rllib_reads_hindcast_sample_batches(
    run_script: RunScript, tmp_path: Path, packed_columns: list[str]
) -> None:
    """RLlib's JSON reader, and its mapping to episodes, return the recorded values; unpacked numbers are float64.

    RLlib's mapping to episodes cannot read a packed `new_obs`, not even RLlib's own.
    """
    output = {**OUTPUTS["batches"], "compressColumns": packed_columns}
    record(recording(tmp_path / "data", environment=CARTPOLE, output=output))
    record(recording(tmp_path / "arrow", environment=CARTPOLE))
    files = [
        tmp_path / "reader.npz",
        *([tmp_path / "episodes.npz"] if "new_obs" not in packed_columns else []),
    ]
    run_script("rllib_batches.py", tmp_path / "data", *files)
    block = read_block(open_dataset(tmp_path / "arrow"))
    # Ids begin with eight characters of the spec's hash, in which the two recordings differ.
    episodes = {name[8:]: leaf for name, leaf in flatten_episodes(block).items()}
    for format_name in (file.stem for file in files):
        actual = dict(np.load(tmp_path / f"{format_name}.npz"))
        actual = {name[8:]: leaf for name, leaf in actual.items()}
        expected = {name: leaf for name, leaf in episodes.items() if "infos" not in name}
        assert actual.keys() == expected.keys(), format_name
        for name, leaf in expected.items():
            np.testing.assert_array_equal(actual[name], leaf, err_msg=name)
            if name.endswith("|rewards"):
                assert actual[name].dtype == (leaf.dtype if "rewards" in packed_columns else np.float64)
