"""On a cluster with pools, data are prepared on the data pool, not on the learners' CPUs."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import prepare_kit as kit
import pytest

from hindcast.api.attempt import POOL_LABEL, Attempt
from hindcast.cluster.pools import Pools
from hindcast.datasets.opening import open_dataset
from hindcast.datasets.prepare import opening, preparer
from hindcast.datasets.prepare.job import Job
from hindcast.datasets.prepare.reading import Reading
from hindcast.errors import SpecError
from hindcast.user_code import register_object
from support import episode_hashes
from warm_python import WarmPython

START = """
import sys
from ray.scripts.scripts import main
from warm_python import fork_ray_workers
fork_ray_workers(sys.argv.pop(1))
main()
"""
ATTEMPT = Attempt(revision=1, number=1, ray_job_name="c", namespace="n", uid="u", spec_hash="-")


class NotedJob(Job):
    """A job that notes the pool of each process that reads parts or makes partitions."""

    def __getattribute__(self, name: str) -> Any:
        if name in ("scatter", "bounds", "spec"):
            import ray

            context = ray.get_runtime_context()
            if context.worker.mode == ray.WORKER_MODE:
                place = Path(os.environ["NOTED"]) / f"{name}-{context.get_node_labels()[POOL_LABEL]}"
                place.touch()
        return super().__getattribute__(name)


@pytest.fixture
def note_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file for these notes; the job is large enough for Ray and has many partitions."""
    folder = tmp_path / "noted"
    folder.mkdir()
    monkeypatch.setenv("NOTED", str(folder))
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.setattr(preparer, "_MAX_LOCAL_BYTES", 0)
    monkeypatch.setattr(preparer, "Job", NotedJob)
    monkeypatch.setattr("hindcast.datasets.prepare.job.PARTITION_BYTES", 1 << 12)
    return folder


@pytest.fixture
def data_worker(ray_here: Path, note_log: Path, warm: WarmPython) -> Iterator[None]:
    """Add a machine with fewer CPUs than the learner's."""
    import ray

    address = ray.get_runtime_context().gcs_address
    pool = ["--num-cpus=2", f"--labels={POOL_LABEL}=data"]
    start = [sys.executable, "-c", START, str(warm.folder / "python"), "start"]
    command = [*start, f"--address={address}", *pool, "--block"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as machine:
        try:
            while sum(node["Alive"] for node in ray.nodes()) < 2:
                assert machine.poll() is None
                time.sleep(0.1)
            yield
        finally:
            machine.terminate()


@pytest.mark.ray
@pytest.mark.filterwarnings("ignore")
def test_preparation_leaves_the_learners_cpus_alone(
    tmp_path: Path, note_log: Path, data_worker: None
) -> None:
    block = kit.make_block(np.arange(1, 40).tolist())
    table = kit.table_of(block, tmp_path / "table")
    scrambled_path = kit.write_files(tmp_path / "rows", kit.scramble_rows(table), files=6)
    in_order = kit.write_files(tmp_path / "runs", table.drop_columns(["eps_id", "t"]), files=6)
    options = Pools(ATTEMPT).options("data", 1)
    (prepared_path,) = opening.open_reading(
        Reading((scrambled_path,)), cache=tmp_path / "cache", ray_options=options
    ).paths
    assert episode_hashes(kit.read_block(open_dataset(prepared_path))) == episode_hashes(block)
    (prepared_path,) = opening.open_reading(
        Reading((in_order,)), cache=tmp_path / "cache", ray_options=options
    ).paths
    assert open_dataset(prepared_path).num_steps == block.num_steps
    assert {place.name for place in note_log.iterdir()} == {"scatter-data", "bounds-data", "spec-data"}


@pytest.mark.ray
@pytest.mark.usefixtures("ray_here", "note_log")
@pytest.mark.filterwarnings("ignore")
def test_class_that_tasks_cannot_import_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its module can be imported only here: Ray would repeat such tasks forever."""
    (tmp_path / "only_here.py").write_text("class Own:\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(preparer, "Job", Job)
    register_object(importlib.import_module("only_here").Own())
    table = kit.table_of(kit.make_block([3, 4]), tmp_path / "table")
    scrambled_path = kit.write_files(tmp_path / "rows", kit.scramble_rows(table), files=2)
    with pytest.raises(SpecError, match="processes that prepare the data cannot import 'only_here'"):
        opening.open_reading(Reading((scrambled_path,)), cache=tmp_path / "cache")
