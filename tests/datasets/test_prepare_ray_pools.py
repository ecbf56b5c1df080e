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
from hindcast.datasets.prepare import opening, preparer
from hindcast.datasets.prepare.job import Job
from hindcast.datasets.prepare.reading import Reading
from hindcast.errors import SpecError
from hindcast.user_code import register_object
from support import episode_hashes
from warm_python import WarmPython

START_RAY_SCRIPT = """
import sys
from ray.scripts.scripts import main
from warm_python import fork_ray_workers
fork_ray_workers(sys.argv.pop(1))
main()
"""
ATTEMPT = Attempt(revision=1, number=1, ray_job_name="c", namespace="n", uid="u", spec_hash="-")


class JobNotingPools(Job):
    """A job that creates a file for each pool with a process that reads parts or makes partitions."""

    def __getattribute__(self, name: str) -> Any:
        # `scatter` is used to read parts, the others to make partitions.
        if name in ("scatter", "bounds", "spec"):
            import ray

            context = ray.get_runtime_context()
            if context.worker.mode == ray.WORKER_MODE:
                note_file = Path(os.environ["NOTED"]) / f"{name}-{context.get_node_labels()[POOL_LABEL]}"
                note_file.touch()
        return super().__getattribute__(name)


@pytest.fixture
def note_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for the files of `JobNotingPools`; all data are prepared on Ray, in many partitions."""
    folder = tmp_path / "noted"
    folder.mkdir()
    monkeypatch.setenv("NOTED", str(folder))
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.setattr(preparer, "_MAX_LOCAL_BYTES", 0)
    monkeypatch.setattr(preparer, "Job", JobNotingPools)
    monkeypatch.setattr("hindcast.datasets.prepare.job.PARTITION_BYTES", 1 << 12)
    return folder


@pytest.fixture
def data_worker(ray_here: Path, note_folder: Path, warm: WarmPython) -> Iterator[None]:
    """Add a machine of the data pool to the cluster, with fewer CPUs than the learner's machine."""
    import ray

    address = ray.get_runtime_context().gcs_address
    pool = ["--num-cpus=2", f"--labels={POOL_LABEL}=data"]
    start = [sys.executable, "-c", START_RAY_SCRIPT, str(warm.folder / "python"), "start"]
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
def test_preparation_runs_only_on_the_data_pool(tmp_path: Path, note_folder: Path, data_worker: None) -> None:
    block = kit.make_block(np.arange(1, 40).tolist())
    table = kit.make_table(block, tmp_path / "table")
    scrambled_path = kit.write_files(tmp_path / "rows", kit.scramble_rows(table), num_files=6)
    ordered_path = kit.write_files(tmp_path / "ordered", table.drop_columns(["eps_id", "t"]), num_files=6)
    options = Pools(ATTEMPT).options("data", 1)
    scrambled, ordered = (
        opening.open_reading(Reading((path,)), ray_options=options).dataset
        for path in (scrambled_path, ordered_path)
    )
    assert episode_hashes(kit.read_block(scrambled)) == episode_hashes(block)
    assert ordered.num_steps == block.num_steps
    assert {file.name for file in note_folder.iterdir()} == {"scatter-data", "bounds-data", "spec-data"}


@pytest.mark.ray
@pytest.mark.usefixtures("ray_here", "note_folder")
@pytest.mark.filterwarnings("ignore")
def test_class_that_tasks_cannot_import_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The class's module can be imported only in this process. Without a check, Ray would repeat the tasks forever."""
    (tmp_path / "only_here.py").write_text("class CustomClass:\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(preparer, "Job", Job)
    register_object(importlib.import_module("only_here").CustomClass())
    table = kit.make_table(kit.make_block([3, 4]), tmp_path / "table")
    scrambled_path = kit.write_files(tmp_path / "rows", kit.scramble_rows(table), num_files=2)
    with pytest.raises(SpecError, match="processes that prepare the data cannot import 'only_here'"):
        opening.open_reading(Reading((scrambled_path,)), cache=tmp_path / "cache")
