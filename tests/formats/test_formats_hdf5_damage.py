"""HDF5 files that are damaged or refer to other files: the error names the file."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
from table_reading import find_format

from hindcast.errors import DataError
from hindcast.formats import hdf5
from hindcast.formats.format import ReadOptions
from hindcast.storage.location import resolve

NUM_ROWS = 200


def write_valid_file(path: Path) -> Path:
    with h5py.File(path, "w") as file:
        for name in ("observations", "next_observations"):
            file.create_dataset(name, data=np.zeros((NUM_ROWS, 3)), chunks=(20, 3), compression="gzip")
        file["actions"] = np.zeros((NUM_ROWS, 1))
        file["rewards"] = np.zeros(NUM_ROWS)
        file["terminals"] = np.arange(NUM_ROWS) % 10 == 9
        file["timeouts"] = np.zeros(NUM_ROWS, dtype=bool)
    return path


def count_rows(path: Path | str) -> int:
    """Read a file with the detected format; return its number of rows."""
    file_format = find_format(path)
    pieces = file_format.list_pieces(resolve(path), ReadOptions())
    return sum(len(rows) for piece in pieces for rows in file_format.read(piece, ReadOptions()))


def _put_external_link(file: h5py.File, other_path: Path) -> None:
    file["rewards"] = h5py.ExternalLink(str(other_path), "/rewards")


def _put_soft_link(file: h5py.File, other_path: Path) -> None:
    file["other_file"] = h5py.ExternalLink(str(other_path), "/")
    file["rewards"] = h5py.SoftLink("/other_file/rewards")


def _put_virtual_dataset(file: h5py.File, other_path: Path) -> None:
    layout = h5py.VirtualLayout(shape=(NUM_ROWS,), dtype=float)
    layout[:] = h5py.VirtualSource(str(other_path), "rewards", shape=(NUM_ROWS,))
    file.create_virtual_dataset("rewards", layout)


def _put_external_storage(file: h5py.File, other_path: Path) -> None:
    file.create_dataset("rewards", (NUM_ROWS,), dtype=float, external=[(str(other_path), 0, 8 * NUM_ROWS)])


def _put_references(file: h5py.File, other_path: Path) -> None:
    file.create_dataset("rewards", (NUM_ROWS,), dtype=h5py.ref_dtype)


def _put_compound_dataset(file: h5py.File, other_path: Path) -> None:
    file.create_dataset("rewards", (NUM_ROWS,), dtype=[("a", float), ("b", int)])


def _put_ragged_array(file: h5py.File, other_path: Path) -> None:
    file.create_dataset("rewards", (NUM_ROWS,), dtype=h5py.vlen_dtype(np.float64))


def _put_empty_dataset(file: h5py.File, other_path: Path) -> None:
    file["rewards"] = h5py.Empty("f")


@pytest.mark.parametrize(
    "put",
    [
        _put_external_link,
        _put_soft_link,
        _put_virtual_dataset,
        _put_external_storage,
        _put_references,
        _put_compound_dataset,
        _put_ragged_array,
        _put_empty_dataset,
    ],
)
def test_node_that_is_not_a_plain_array_raises(
    tmp_path: Path, put: Callable[[h5py.File, Path], None]
) -> None:
    other_path, path = write_valid_file(tmp_path / "other.hdf5"), write_valid_file(tmp_path / "in.hdf5")
    with h5py.File(path, "a") as file:
        del file["rewards"]
        put(file, other_path)
    with pytest.raises(DataError, match=r"in\.hdf5.*/(rewards|other_file)"):
        count_rows(path)


def test_cycle_of_groups_raises(tmp_path: Path) -> None:
    path = write_valid_file(tmp_path / "in.hdf5")
    with h5py.File(path, "a") as file:
        file.create_group("infos/a")
        file["infos/a/again"] = file["infos"]
    with pytest.raises(DataError, match="deep"):
        count_rows(path)


@pytest.mark.parametrize("fraction", [0.0, 0.001, 0.3, 0.7, 0.999])
def test_truncated_file_raises(tmp_path: Path, fraction: float) -> None:
    path = write_valid_file(tmp_path / "in.hdf5")
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * fraction)])
    with pytest.raises(DataError, match=r"in\.hdf5"):
        count_rows(path)


def test_flipped_byte_is_reported_or_harmless(tmp_path: Path) -> None:
    """Without checksums, a changed number may go unnoticed, but no row is lost."""
    data = write_valid_file(tmp_path / "in.hdf5").read_bytes()
    rng = np.random.default_rng(0)
    num_refused = 0
    for i in range(60):
        damaged_data = bytearray(data)
        damaged_data[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
        path = tmp_path / f"in{i}.hdf5"
        path.write_bytes(damaged_data)
        try:
            assert count_rows(path) == NUM_ROWS
        except DataError as error:
            num_refused += 1
            assert path.name in str(error)
    assert num_refused


def test_robomimic_file_without_actions_raises(tmp_path: Path) -> None:
    path = tmp_path / "robot.hdf5"
    with h5py.File(path, "w") as file:
        file["data/demo_0/obs/image"] = np.zeros((4, 2))
    with pytest.raises(DataError, match=r"robot\.hdf5 has no /data/demo_0/actions"):
        count_rows(path)


def test_remote_file_is_read_through_its_file_system(tmp_path: Path, memory_path: str) -> None:
    path = f"{memory_path}/a.hdf5"
    resolve(path).write_bytes(write_valid_file(tmp_path / "a.hdf5").read_bytes())
    assert count_rows(path) == NUM_ROWS


def test_missing_h5py_raises_error_that_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_valid_file(tmp_path / "in.hdf5")
    monkeypatch.setitem(sys.modules, "h5py", None)
    with (
        pytest.raises(DataError, match=r"requires h5py.*pip install 'hindcast-rl\[hdf5\]'"),
        hdf5.open_file(resolve(path)),
    ):
        pass
