"""Files are read in natural order, and episodes continue in another file only with evidence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import prepare_kit as kit
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hindcast.api.input import FilterTerm, PrepareSpec
from hindcast.datasets.inspection.inspecting import inspect_data
from hindcast.datasets.prepare.opening import open_data
from hindcast.datasets.prepare.reading import Reading
from hindcast.formats.format import ReadOptions

BLOCK = kit.make_block([6] * 8)


def write_log(folder: Path, columns: list[str], *, rows_per_file: int = 4, suffix: str = "csv") -> str:
    """Write the rows of `BLOCK` to `log_1`, `log_2`, …, with these columns and the observation's first dimension."""
    folder.mkdir()
    table = kit.make_table(BLOCK, folder.parent / f"{folder.name} table").to_pandas()
    frame = table.assign(obs=table["obs"].str[0], new_obs=table["new_obs"].str[0])[columns]
    for number, first in enumerate(range(0, len(frame), rows_per_file), 1):
        part, path = frame.iloc[first : first + rows_per_file], folder / f"log_{number}.{suffix}"
        part.to_csv(path, index=False) if suffix == "csv" else part.to_parquet(path)
    return str(folder)


def open_log(path: str, **prepare: str):
    options = ReadOptions(ignore_final_observation=True)
    return open_data(Reading((path,), options=options, prepare=PrepareSpec(**prepare)))


FLAGS = ["terminateds", "truncateds"]


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize(
    "columns", [["obs", *FLAGS], ["obs", "new_obs", *FLAGS], ["obs", "new_obs"], ["t", "obs"]]
)
def test_numbered_files_are_read_in_natural_order(tmp_path, columns, suffix):
    path = write_log(tmp_path / "log", ["actions", "rewards", *columns], suffix=suffix)
    if columns == ["obs", "new_obs"]:
        path = write_log(tmp_path / "other", ["actions", "rewards", *columns], rows_per_file=6, suffix=suffix)
    block = kit.read_block(open_log(path))
    assert block.length.tolist() == BLOCK.length.tolist()
    steps = block.columns["obs"][block.obs_row]
    assert steps.tolist() == pytest.approx(BLOCK.columns["obs"][BLOCK.obs_row][:, 0].tolist())


@pytest.mark.parametrize("has_flags", [False, True])
def test_without_evidence_an_episode_ends_with_its_file(tmp_path, has_flags):
    path = write_log(tmp_path / "log", ["actions", "rewards", "obs"], rows_per_file=4)
    if has_flags:
        for file in Path(path).glob("*.csv"):
            header, *rows = file.read_text().splitlines()
            file.write_text("\n".join([f"{header},done", *(f"{row},0" for row in rows)]))
    dataset = open_log(path)
    assert kit.read_block(dataset).length.tolist() == [4] * 12
    assert any("nothing in the data says where episodes end" in note for note in dataset.notes)
    summary = inspect_data(Reading((path,), options=ReadOptions(ignore_final_observation=True)))
    assert any("nothing in the data" in p.message for p in summary.problems if p.severity == "warning")
    assert not any("nothing" in note for note in open_log(path, episodes="File").notes)


@pytest.mark.parametrize("columns", [["eps_id"], ["eps_id", "t"], ["eps_id", "new_obs"]])
@pytest.mark.parametrize("is_scattered", [False, True])
def test_ids_of_each_file_are_its_own_on_request(tmp_path, columns, is_scattered):
    table = kit.make_table(BLOCK, tmp_path / "table").select([*columns, "obs", "actions", "rewards"])
    halves = [table.slice(0, 24), table.slice(24)]
    ids = halves[0].column("eps_id")
    (tmp_path / "rows").mkdir()
    for number, half in enumerate(halves):
        rows = half.set_column(half.schema.get_field_index("eps_id"), "eps_id", ids)
        order = np.argsort(np.arange(24) % 6, kind="stable") if is_scattered else np.arange(24)
        pq.write_table(rows.take(order), tmp_path / "rows" / f"worker_{number}.parquet")
    block = kit.read_block(open_log(str(tmp_path / "rows"), episodes="File"))
    assert block.length.tolist() == [6] * 8
    assert len(set(block.eps_id.tolist())) == 8


def test_ids_that_alone_join_files_are_a_warning(tmp_path):
    path = write_log(tmp_path / "log", ["eps_id", "actions", "rewards", "obs"])
    dataset = open_log(path)
    assert kit.read_block(dataset).length.tolist() == BLOCK.length.tolist()
    assert any("in another file in 8 places, and only their ids say so" in note for note in dataset.notes)


def make_rlds(rng: np.random.Generator, lengths: list[int]) -> tuple[pa.Table, np.ndarray]:
    """Make steps with RLDS's flags; return them and all observations. Every second episode is truncated."""
    num_rows = sum(lengths) + len(lengths)
    last_rows = np.cumsum(np.array(lengths) + 1) - 1
    is_last = np.isin(np.arange(num_rows), last_rows)
    observations = rng.normal(size=(num_rows, 2))
    table = pa.table(
        {
            "observation": list(observations),
            "action": rng.integers(0, 2, num_rows),
            "reward": np.where(is_last, np.nan, 1.0),
            "is_first": np.append(True, is_last[:-1]),
            "is_last": is_last,
            "is_terminal": np.isin(np.arange(num_rows), last_rows[::2]),
            "discount": np.where(is_last, 0.0, 1.0),
        }
    )
    return table, observations


@pytest.mark.parametrize("seed", range(4))
def test_rlds_flags_end_episodes_with_their_last_observation(tmp_path, seed, monkeypatch):
    monkeypatch.setattr("hindcast.datasets.prepare.job.PARTITION_BYTES", 1 << 9)
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 7, 9).tolist()
    table, observations = make_rlds(rng, lengths)
    path = kit.write_files(tmp_path / "rows", table, num_files=1 + 2 * seed)
    block = kit.read_block(open_data(path))
    assert block.length.tolist() == lengths
    assert block.terminated.tolist() == [i % 2 == 0 for i in range(9)]
    assert block.truncated.tolist() == [i % 2 == 1 for i in range(9)]
    assert block.columns["obs"].tolist() == observations.tolist()
    assert set(block.columns) == {"obs", "actions", "rewards"}


def make_vector_log(rng: np.random.Generator, lengths: list[int], mode: str) -> pa.Table:
    """Make a log of Gymnasium's vector environment with one environment, in an autoreset mode."""
    rows = []
    episodes = [rng.normal(size=(length + 1, 2)) for length in lengths]
    for i, observations in enumerate(episodes):
        start = episodes[i + 1][0] if i + 1 < len(episodes) else observations[0]
        for t in range(lengths[i]):
            is_last = t == lengths[i] - 1
            next_obs = start if is_last and mode == "SAME_STEP" else observations[t + 1]
            rows.append((observations[t], 1, 1.0, next_obs, is_last))
        if mode == "NEXT_STEP" and i + 1 < len(episodes):
            rows.append((observations[-1], 0, 0.0, start, False))
    names = ["obs", "action", "reward", "next_obs", "terminated"]
    return pa.table({name: [row[i] for row in rows] for i, name in enumerate(names)})


@pytest.mark.parametrize("partition_bytes", [1 << 9, 1 << 20])
@pytest.mark.parametrize("seed", range(3))
def test_rows_that_only_reset_are_left_out(tmp_path, monkeypatch, seed, partition_bytes):
    monkeypatch.setattr("hindcast.datasets.prepare.job.PARTITION_BYTES", partition_bytes)
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 9, 12).tolist()
    table = make_vector_log(rng, lengths, "NEXT_STEP")
    path = kit.write_files(tmp_path / "rows", table, num_files=1 + seed)
    dataset = open_data(path)
    assert kit.read_block(dataset).length.tolist() == lengths
    assert any("11 rows that only reset" in note for note in dataset.notes)


@pytest.mark.parametrize("partition_bytes", [1 << 9, 1 << 20])
def test_first_step_of_a_file_is_kept_when_its_reward_is_zero(tmp_path, monkeypatch, partition_bytes):
    monkeypatch.setattr("hindcast.datasets.prepare.job.PARTITION_BYTES", partition_bytes)
    for number in range(4):
        table = make_vector_log(np.random.default_rng(number), [4, 5, 3], "NEXT_STEP")
        rewards = table["reward"].to_numpy().copy()
        rewards[0] = 0.0
        table = kit.replace_column(table, "reward", rewards)
        kit.write_files(tmp_path / "rows", table)
        (tmp_path / "rows" / "part-0.parquet").rename(tmp_path / "rows" / f"run-{number}.parquet")
    dataset = open_data(str(tmp_path / "rows"))
    assert kit.read_block(dataset).length.tolist() == [4, 5, 3] * 4


@pytest.mark.parametrize("kind", ["same step", "cut", "constant"])
def test_other_rows_that_begin_alike_are_kept(tmp_path, kind):
    rng = np.random.default_rng(0)
    lengths = [4, 5, 6, 3]
    table = make_vector_log(rng, lengths, "SAME_STEP")
    if kind == "cut":
        table = kit.replace_column(table, "reward", np.zeros(len(table)))
    if kind == "constant":
        for name in ("obs", "next_obs"):
            table = kit.replace_column(table, name, [[1.0, 1.0]] * len(table))
    dataset = open_data(kit.write_files(tmp_path / "rows", table))
    assert kit.read_block(dataset).length.tolist() == lengths
    notes = [note for note in dataset.notes if "with which the next one begins" in note]
    assert len(notes) == (kind != "constant")


@pytest.mark.parametrize("has_ids", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_filter_leaves_out_observations_lost_in_an_autoreset(tmp_path, seed, has_ids):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(2, 9, 12)
    is_truncated = rng.random(12) < 0.5
    table = make_vector_log(rng, lengths.tolist(), "SAME_STEP")
    is_last = table["terminated"].to_numpy()
    truncated = is_last & np.repeat(is_truncated, lengths)
    table = kit.replace_column(table, "terminated", is_last & ~truncated).append_column(
        "truncated", pa.array(truncated)
    )
    if has_ids:
        table = table.append_column("eps_id", pa.array(np.repeat(np.arange(12), lengths)))
    path = kit.write_files(tmp_path / "rows", table)
    (warning,) = [note for note in open_data(path).notes if "with which the next one begins" in note]
    assert "such as `truncated == false`" in warning
    options = ReadOptions(filter=(FilterTerm(column="truncated", op="==", value=False),))
    dataset = open_data(Reading((path,), options=options))
    block = kit.read_block(dataset)
    assert not [note for note in dataset.notes if "with which the next one begins" in note]
    assert block.length.tolist() == (lengths - is_truncated).tolist()
    assert block.terminated.tolist() == (~is_truncated).tolist()
    starts = np.cumsum(lengths) - lengths
    final_rows = starts + lengths - 1
    final_obs = block.columns["obs"][block.obs_start + block.length]
    # The observation of the step that was left out is the one after the step before it.
    expected = np.array(table["obs"].to_pylist())[final_rows]
    assert final_obs[is_truncated].tolist() == expected[is_truncated].tolist()
