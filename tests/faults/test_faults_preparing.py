"""Preparations that are killed at any moment, or run at the same time, give the same episodes."""

from __future__ import annotations

import multiprocessing
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kill_points import arrange_kill_at_point, choose_points
from preparing import PARTITION_BYTES
from processes import Script

from hindcast.datasets.opening import open_dataset
from hindcast.datasets.prepare import job
from hindcast.datasets.prepare.opening import open_reading
from hindcast.datasets.prepare.partitions import read_notes
from hindcast.datasets.prepare.reading import Reading
from hindcast.storage.location import resolve
from layers import repeats
from support import episode_hashes, leftovers, read_all

pytestmark = pytest.mark.soak

KILLS = repeats(1, soak=20)  # at every kind of file operation
RAY_KILLS = repeats(1, soak=4)
LENGTH, EPISODES = 9, 60


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows in random order in 4 files; rewards are integers in half of them, so that partitions differ in dtype."""
    rng = np.random.default_rng(0)
    folder = tmp_path_factory.mktemp("rows")
    obs = rng.normal(size=(EPISODES, LENGTH + 1, 4)).astype(np.float32)
    for file_index in range(4):
        episodes = range(file_index * EPISODES // 4, (file_index + 1) * EPISODES // 4)
        num_rows = len(episodes) * LENGTH
        rewards = rng.integers(0, 9, num_rows) if file_index % 2 else rng.random(num_rows)
        table = pa.table(
            {
                "eps_id": np.repeat([f"e{i}" for i in episodes], LENGTH),
                "t": np.tile(np.arange(LENGTH), len(episodes)),
                "obs": list(obs[episodes, :-1].reshape(num_rows, 4)),
                "new_obs": list(obs[episodes, 1:].reshape(num_rows, 4)),
                "actions": rng.integers(0, 2, num_rows),
                "rewards": rewards,
                "terminateds": np.tile(np.arange(LENGTH) == LENGTH - 1, len(episodes)),
            }
        )
        pq.write_table(table.take(rng.permutation(num_rows)), folder / f"{file_index}.parquet")
    return folder


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HINDCAST_CACHE", str(tmp_path))
    return tmp_path


@pytest.fixture(scope="module")
def reference(rows: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    """The result and the output of an uninterrupted preparation."""
    cache = tmp_path_factory.mktemp("uninterrupted")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HINDCAST_CACHE", str(cache))
        output = Script("preparing.py", rows, "here").finish()
    return read_contents(cache), output


def read_contents(cache: Path) -> dict[str, Any]:
    """Read everything in the cache that must not depend on interruptions."""
    (folder,) = (cache / "prepared").iterdir()
    dataset = open_dataset(folder, verify=True)
    return {
        "digest": dataset.digest,
        "spec": dataset.spec.to_json(),
        "notes": read_notes(resolve(folder)),
        "episodes": episode_hashes(read_all(folder)),
        # A lock file that nobody holds may remain.
        "leftovers": [name for name in leftovers(folder) if name != "_hindcast/lock"],
    }


def is_complete(cache: Path) -> bool:
    """Return True if a preparation has written its notes, which it does last."""
    return any(read_notes(resolve(folder)) is not None for folder in (cache / "prepared").glob("*"))


def num_committed(cache: Path) -> int:
    return len(list(cache.glob("prepared/*/_hindcast/commits/*.json")))


def prepare(rows: Path, cache: Path, kill_at: str | None = None) -> int | None:
    """Prepare in a fork of this process, and return its exit code."""
    child = multiprocessing.get_context("fork").Process(target=_prepare, args=(rows, cache, kill_at))
    child.start()
    child.join()
    return child.exitcode


def _prepare(rows: Path, cache: Path, kill_at: str | None) -> None:
    job.PARTITION_BYTES = PARTITION_BYTES
    arrange_kill_at_point(kill_at, str(cache))
    open_reading(Reading((str(rows),)), cache=cache)


def test_preparation_killed_at_every_kind_of_file_operation_resumes_exactly(
    rows: Path, tmp_path: Path, reference: Any
) -> None:
    """Kill each preparation once, and a second time while it resumes."""
    expected, output = reference
    assert len(expected["episodes"]) == EPISODES
    rng = np.random.default_rng(5)
    for index, kill_point in enumerate(choose_points(output, rng, num_repeats=KILLS)):
        cache = tmp_path / str(index)
        cache.mkdir()
        assert prepare(rows, cache, kill_point) == -signal.SIGKILL, kill_point
        assert not is_complete(cache) or read_contents(cache) == expected
        prepare(rows, cache, choose_points(output, rng)[0])
        assert prepare(rows, cache) == 0
        assert read_contents(cache) == expected


@pytest.mark.ray
def test_preparation_killed_on_ray_resumes_exactly(rows: Path, cache: Path, reference: Any) -> None:
    """Kill the driver; files that its tasks still write do not harm the next preparation."""
    expected, _ = reference
    rng = np.random.default_rng(2)
    num_kills = 0
    while num_kills < RAY_KILLS:
        script = Script("preparing.py", rows, "ray")
        num_before = num_committed(cache)
        num_after = num_before + int(rng.integers(1, 6))
        while script.process.poll() is None and num_committed(cache) < num_after:
            time.sleep(0.005)
        if script.process.poll() is not None:
            break
        script.kill()
        num_kills += 1
        assert not is_complete(cache) or read_contents(cache) == expected
    output = Script("preparing.py", rows, "ray").finish()
    assert "outcome" in output, output
    assert num_kills
    assert read_contents(cache) == expected


@pytest.mark.parametrize(
    "executors", [("here", "here"), pytest.param(("here", "ray"), marks=pytest.mark.ray)], ids=" and ".join
)
def test_two_preparations_at_once_agree(
    rows: Path, cache: Path, reference: Any, executors: tuple[str, str]
) -> None:
    scripts = [Script("preparing.py", rows, executor) for executor in executors]
    outcomes = {script.finish().rpartition("outcome ")[2].split("\n")[0] for script in scripts}
    assert len(outcomes) == 1
    assert read_contents(cache) == reference[0]


def test_preparation_continues_after_the_other_is_killed(rows: Path, cache: Path, reference: Any) -> None:
    kill_point = choose_points(reference[1], np.random.default_rng(0))[0]
    killed_script, other_script = (
        Script("preparing.py", rows, "here", *kill_at) for kill_at in ((kill_point,), ())
    )
    killed_script.finish()
    assert "outcome" in other_script.finish()
    assert read_contents(cache) == reference[0]
