"""HDF5 files that are damaged, or that refer to other files, raise errors that name the file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from hindcast.errors import DataError
from hindcast.formats import hdf5
from hindcast.formats.format import ReadOptions
from hindcast.formats.registry import FORMATS, detect_format
from hindcast.storage.location import resolve

ROWS = 200


def good(path: Path) -> Path:
    with h5py.File(path, "w") as file:
        for name in ("observations", "next_observations"):
            file.create_dataset(name, data=np.zeros((ROWS, 3)), chunks=(20, 3), compression="gzip")
        file["actions"] = np.zeros((ROWS, 1))
        file["rewards"] = np.zeros(ROWS)
        file["terminals"] = np.arange(ROWS) % 10 == 9
        file["timeouts"] = np.zeros(ROWS, dtype=bool)
    return path


def read_all(path: Path) -> int:
    location = resolve(path)
    form = detect_format(location)
    assert form is not None
    steps = 0
    for piece in form.list_pieces(location, ReadOptions()):
        steps += sum(len(rows) for rows in form.read(piece, ReadOptions()))
    return steps


def _external_link(file: h5py.File, outside: Path) -> None:
    file["rewards"] = h5py.ExternalLink(str(outside), "/rewards")


def _soft_link(file: h5py.File, outside: Path) -> None:
    file["door"] = h5py.ExternalLink(str(outside), "/")
    file["rewards"] = h5py.SoftLink("/door/rewards")


def _virtual(file: h5py.File, outside: Path) -> None:
    layout = h5py.VirtualLayout(shape=(ROWS,), dtype=float)
    layout[:] = h5py.VirtualSource(str(outside), "rewards", shape=(ROWS,))
    file.create_virtual_dataset("rewards", layout)


def _external_storage(file: h5py.File, outside: Path) -> None:
    file.create_dataset("rewards", (ROWS,), dtype=float, external=[(str(outside), 0, 8 * ROWS)])


def _reference(file: h5py.File, outside: Path) -> None:
    file.create_dataset("rewards", (ROWS,), dtype=h5py.ref_dtype)


def _record(file: h5py.File, outside: Path) -> None:
    file.create_dataset("rewards", (ROWS,), dtype=[("a", float), ("b", int)])


def _put_ragged_array(file: h5py.File, outside: Path) -> None:
    file.create_dataset("rewards", (ROWS,), dtype=h5py.vlen_dtype(np.float64))


def _empty(file: h5py.File, outside: Path) -> None:
    file["rewards"] = h5py.Empty("f")


@pytest.mark.parametrize(
    "put",
    [_external_link, _soft_link, _virtual, _external_storage, _reference, _record, _put_ragged_array, _empty],
)
def test_node_that_is_not_a_plain_array_raises(
    tmp_path: Path, put: Callable[[h5py.File, Path], None]
) -> None:
    outside, path = good(tmp_path / "outside.hdf5"), good(tmp_path / "in.hdf5")
    with h5py.File(path, "a") as file:
        del file["rewards"]
        put(file, outside)
    with pytest.raises(DataError, match=r"in\.hdf5.*/(rewards|door)"):
        read_all(path)


def test_cycle_of_groups_raises(tmp_path: Path) -> None:
    path = good(tmp_path / "in.hdf5")
    with h5py.File(path, "a") as file:
        file.create_group("infos/a")
        file["infos/a/again"] = file["infos"]
    with pytest.raises(DataError, match="deep"):
        read_all(path)


@pytest.mark.parametrize("fraction", [0.0, 0.001, 0.3, 0.7, 0.999])
def test_truncated_file_raises(tmp_path: Path, fraction: float) -> None:
    path = good(tmp_path / "in.hdf5")
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * fraction)])
    with pytest.raises(DataError, match=r"in\.hdf5"):
        read_all(path)


def test_flipped_byte_is_reported_or_harmless(tmp_path: Path) -> None:
    """Without checksums a changed number may go unnoticed, but no row is lost."""
    data = good(tmp_path / "in.hdf5").read_bytes()
    rng = np.random.default_rng(0)
    num_refused = 0
    for number in range(60):
        damaged_data = bytearray(data)
        damaged_data[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
        path = tmp_path / f"in{number}.hdf5"
        path.write_bytes(damaged_data)
        try:
            assert read_all(path) == ROWS
        except DataError as error:
            num_refused += 1
            assert path.name in str(error)
    assert num_refused


def test_other_hdf5_file_raises_with_missing_column(tmp_path: Path) -> None:
    path = tmp_path / "robot.hdf5"
    with h5py.File(path, "w") as file:
        file["data/demo_0/obs/image"] = np.zeros((4, 2))
    with pytest.raises(
        DataError, match=r"robot\.hdf5 is neither a D4RL nor a Minari file.*'data/demo_0/obs/image'"
    ):
        read_all(path)


def test_remote_file_is_read_through_its_file_system(tmp_path: Path, memory_path: str) -> None:
    target = resolve(f"{memory_path}/a.hdf5")
    target.write_bytes(good(tmp_path / "a.hdf5").read_bytes())
    pieces = FORMATS["D4RL"].list_pieces(target, ReadOptions())
    assert sum(len(rows) for piece in pieces for rows in FORMATS["D4RL"].read(piece, ReadOptions())) == ROWS


def test_missing_h5py_raises_with_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = good(tmp_path / "in.hdf5")
    monkeypatch.setitem(__import__("sys").modules, "h5py", None)
    with (
        pytest.raises(DataError, match=r"requires h5py.*pip install 'hindcast-rl\[hdf5\]'"),
        hdf5.open_file(resolve(path)),
    ):
        pass
