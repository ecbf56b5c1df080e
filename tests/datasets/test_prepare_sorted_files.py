"""Scrambled rows are grouped through sorted files, with the same result as in memory."""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from dataclasses import fields
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import prepare_kit as kit
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hindcast.datasets.assembly.steps import Steps
from hindcast.datasets.prepare import preparer
from hindcast.datasets.prepare.job import Job, Progress
from hindcast.datasets.prepare.opening import open_data
from hindcast.datasets.prepare.partitions import make_partition
from hindcast.datasets.prepare.sorted_files import read_sorted_files, write_sorted_file
from hindcast.datasets.prepare.source_files import PREPARATION_VERSION
from hindcast.episodes.block import Block
from hindcast.errors import Interrupted
from layers import examples
from random_data import recordings

GROUP = 3
"""Number of partitions that are read at once."""


FIELDS_OF_VERSION = {
    8: (
        "columns episode episode_ids t terminated truncated next_missing is_obs_only part row left_out has_zone",
        "columns length eps_id t_started terminated truncated details logged_metrics",
    )
}
"""Version of prepared data -> fields of `Steps` and `Block`, which interrupted preparations store."""


def prepare_through_files(job: Job, _: Progress, num_operations: int = 1 << 60) -> None:
    """Prepare rows as tasks of Ray do, and interrupt it after a number of files and groups."""
    runs = [partial(write_sorted_file, job, run) for run in range(len(job.run_bounds) - 1)]
    firsts = range(0, job.num_partitions, GROUP)
    groups = [partial(make_group, job, range(job.num_partitions)[first : first + GROUP]) for first in firsts]
    for operation in [*runs, *groups][:num_operations]:
        operation()
    if num_operations < len(runs) + len(groups):
        raise Interrupted("asked to stop")


def make_group(job: Job, numbers: range) -> None:
    for number, contents in read_sorted_files(job, numbers):
        make_partition(job, number, contents)


def write_unlike_files(folder: Path, table: pa.Table, num_files: int) -> str:
    """Write rows to files in their order; not all files have the same columns and dtypes."""
    bounds = np.linspace(0, len(table), num_files + 1).astype(int)
    for index, (first, stop) in enumerate(pairwise(bounds)):
        rows = table.slice(first, stop - first)
        if index % 2:
            rows = kit.replace_column(rows, "rewards", rows["rewards"].to_numpy().astype(np.float32))
        if index % 3:
            rows = rows.append_column("extra", pa.array(range(len(rows))))
        kit.write_files(folder / f"{index}", rows)
    return str(folder)


@examples(40)
@given(recordings(), st.integers(0, 99), st.integers(1, 6), st.sampled_from([1, 1 << 8, 1 << 11]))
def test_rows_grouped_through_files_give_the_same_data(recording, seed, num_files, run_bytes):
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr("hindcast.datasets.prepare.job.PARTITION_BYTES", 1 << 8)
        patch.setattr("hindcast.datasets.prepare.job.RUN_BYTES", run_bytes)
        # Rows that happen to be in order are grouped, too.
        patch.setattr(preparer, "_read_or_record_order", lambda *_: False)
        folder = Path(name)
        table = kit.make_table(kit.without_empty_infos(recording[0]), folder / "table", recording[1])
        rows = kit.scramble_rows(table.replace_schema_metadata(None), seed)
        path = write_unlike_files(folder / "rows", rows, min(num_files, len(rows)))
        in_memory = open_data(path, cache=folder / "memory")
        patch.setattr(preparer, "prepare_in_process", prepare_through_files)
        through_files = open_data(path, cache=folder / "files")
        assert through_files.digest == in_memory.digest
        assert through_files.notes == in_memory.notes
        assert not [*(folder / "files").rglob("_hindcast/sorted")]


def test_chunks_with_other_fields_have_another_version():
    """Regression: a preparation resumed from files without `has_zone`, and refused times that all had a zone."""
    names = tuple(" ".join(field.name for field in fields(kind)) for kind in (Steps, Block))
    assert FIELDS_OF_VERSION[PREPARATION_VERSION] == names


def test_preparation_interrupted_between_any_files_resumes(tmp_path, monkeypatch):
    monkeypatch.setattr("hindcast.datasets.prepare.job.PARTITION_BYTES", 1 << 11)
    monkeypatch.setattr("hindcast.datasets.prepare.job.RUN_BYTES", 1 << 11)
    table = kit.make_table(kit.make_block([4, 7, 3, 9, 1, 6, 2, 8] * 4), tmp_path / "table")
    path = kit.write_files(tmp_path / "rows", kit.scramble_rows(table), 8)
    expected_digest = open_data(path, cache=tmp_path / "memory").digest
    reads = []
    read = Job.read
    monkeypatch.setattr(Job, "read", lambda job, index: reads.append(index) or read(job, index))
    for num_operations in itertools.count():
        interrupted = partial(prepare_through_files, num_operations=num_operations)
        monkeypatch.setattr(preparer, "prepare_in_process", interrupted)
        reads.clear()
        with contextlib.suppress(Interrupted):
            open_data(path, cache=tmp_path / f"{num_operations}")
            break
        monkeypatch.setattr(preparer, "prepare_in_process", prepare_through_files)
        assert open_data(path, cache=tmp_path / f"{num_operations}").digest == expected_digest
        assert sorted(reads) == list(range(8)), "each part is read once"
    assert num_operations > 6
