"""One Ray for all tests of a process that are marked `ray`; other tests cannot start one."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from hindcast.ray_session import QUIET_OPTIONS, start_ray
from warm_python import WarmPython, fork_ray_workers

TESTS = Path(__file__).parent
POOL = {"hindcast.dev/pool": "learner"}
_FOLDER_VARIABLE = "RAY_TMPDIR"
# By default Ray looks twice a second for logs to print; tests print none.
os.environ["LOG_NAME_UPDATE_INTERVAL_S"] = "60"


@cache
def _folder() -> str:
    """Create the folder for the files of tests' Rays; its path is short enough for names of sockets."""
    return tempfile.mkdtemp(prefix="ray-", dir="/tmp")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let Ray fail to start in tests without the mark `ray`, and in processes that they start."""
    os.environ[_FOLDER_VARIABLE] = (
        _folder() if item.get_closest_marker("ray") else "/dev/null/test-not-marked-ray"
    )


def pytest_unconfigure() -> None:
    """Remove the files of all Rays."""
    if _folder.cache_info().currsize:
        shutil.rmtree(_folder(), ignore_errors=True)


@pytest.fixture(scope="session")
def ray_here(tmp_path_factory: pytest.TempPathFactory, warm: WarmPython) -> Iterator[Path]:
    """Start Ray with 4 CPUs, 2 advertised GPUs, and the label of the pool `learner`.

    Its workers can import the test modules, and are forked from a warm Python. Yields the folder of the files that toy
    environments look for: `kill`, `slow`.
    """
    toys = tmp_path_factory.mktemp("toys")
    paths = [TESTS, *filter(Path.is_dir, TESTS.iterdir()), *sys.path]
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        patch.setenv("PYTHONPATH", os.pathsep.join(map(str, paths)))
        patch.setenv("TOY_KILL_ONCE", str(toys / "kill"))
        patch.setenv("TOY_SLOW", str(toys / "slow"))
        fork_ray_workers(str(warm.folder / "python"))
        start_ray(num_cpus=4, num_gpus=2, labels=POOL, object_store_memory=200 << 20, **QUIET_OPTIONS)
    yield toys
    import ray

    ray.shutdown()
