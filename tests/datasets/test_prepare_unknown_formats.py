"""Errors for named files of unknown formats say what the file is, and which formats can be read."""

from __future__ import annotations

import bz2
import json
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import feather

from hindcast.datasets.prepare.opening import open_data
from hindcast.datasets.prepare.reading import Reading
from hindcast.errors import DataError
from hindcast.formats.dataset_folder.folder_owner import write_owner
from hindcast.formats.format import ReadOptions
from hindcast.storage.location import resolve

STEP = {"eps_id": "e", "t": 0, "obs": 0.5, "new_obs": 1.5, "actions": 0, "rewards": 1.0, "terminateds": True}
LINE = json.dumps(STEP).encode() + b"\n"


def open_refused(path: Path) -> str:
    """Open data that are refused, and return the error's message."""
    with pytest.raises(DataError) as caught:
        open_data(path, cache=path.parent / "cache")
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.jsonl.zst", pa.Codec("zstd").compress(LINE, asbytes=True), "compressed with zstd: decompress it"),
        ("a.jsonl.bz2", bz2.compress(LINE), "compressed with bzip2: decompress it"),
        ("a.pkl", b"\x80\x05\x95", "a pickle"),
        ("a.jsonl", b"\xff\xfe" + LINE.decode().encode("utf-16-le"), "UTF-16 text: save it as UTF-8"),
        ("a.txt", b"eps_id,t\ne,0\n", "text of an unknown format: set `format`"),
        ("a.jsonl", b"# my log\n" + LINE, "text that begins with '# my log': JSON begins with"),
        ("a.bin", b"\x00\x01\x02\xff", r"begins with b'\x00\x01\x02\xff', unlike any known format"),
    ],
)
def test_file_of_unknown_format_is_described(tmp_path, name, content, expected):
    (tmp_path / name).write_bytes(content)
    message = open_refused(tmp_path / name)
    assert expected in message
    assert "supported are Minari, HDF5 (robomimic, LIBERO, d3rlpy 2), D4RL, Parquet, Arrow (IPC)" in message


def test_folder_of_a_run_is_refused(tmp_path):
    folder = tmp_path / "runs" / "clone" / "r1"
    folder.mkdir(parents=True)
    write_owner(resolve(folder), {"resource": "OfflineTraining/clone", "specHash": "0", "spec": {}})
    (folder / "results.jsonl").write_text('{"training_iteration": 1}\n')
    message = f"{folder} is a run of OfflineTraining/clone, not data: name a dataset"
    for run_folder in (folder, folder.parent):
        assert message in open_refused(run_folder)


def test_arrow_and_numpy_files_are_described(tmp_path):
    feather.write_feather(pa.table({"obs": [0.5]}), tmp_path / "a.arr", compression="uncompressed")
    np.savez(tmp_path / "a.npz", obs=np.zeros(3))
    assert "an Arrow file: name it *.arrow, or write it as Parquet" in open_refused(tmp_path / "a.arr")
    assert "a ZIP archive or NumPy's .npz" in open_refused(tmp_path / "a.npz")


def test_flat_hdf5_with_names_like_minari_is_not_minari(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["observations"] = np.zeros((4, 2), np.float32)
        file["actions"] = np.zeros(4, np.int64)
        file["rewards"] = np.zeros(4)
        file["terminals"] = np.array([0, 1, 0, 0])
        file["episode_terminals"] = np.array([0, 1, 0, 1])
    message = open_refused(tmp_path / "a.h5")
    assert "Minari" not in message
    assert "no 'timeouts'" in message
    assert "--schema truncateds=episode_terminals" in message
    options = ReadOptions(schema={"truncateds": "episode_terminals"}, ignore_final_observation=True)
    dataset = open_data(Reading((str(tmp_path / "a.h5"),), options=options), cache=tmp_path / "cache")
    assert (dataset.num_episodes, dataset.num_steps) == (2, 4)


def test_unreachable_web_address_is_reported(tmp_path):
    pytest.importorskip("aiohttp")
    with pytest.raises(
        DataError, match=r"https://127.0.0.1:9/a.parquet .*download it and name the local file"
    ):
        open_data("https://127.0.0.1:9/a.parquet", cache=tmp_path / "cache")
