"""One local Ray cluster for all tests of a process that are marked `ray`; other tests cannot start Ray."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
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
# A node counts as dead after five failed checks, by default one every three seconds.
os.environ |= {"RAY_health_check_period_ms": "500"}


@cache
def _folder() -> str:
    """Create the folder for Ray's files; its path is short, because a socket's path has at most 107 bytes."""
    return tempfile.mkdtemp(prefix="ray-", dir="/tmp")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Make Ray fail to start in tests without the mark `ray`, and in processes that they start."""
    os.environ[_FOLDER_VARIABLE] = (
        _folder() if item.get_closest_marker("ray") else "/dev/null/test-not-marked-ray"
    )


def pytest_unconfigure() -> None:
    """Remove Ray's files."""
    if _folder.cache_info().currsize:
        shutil.rmtree(_folder(), ignore_errors=True)


@pytest.fixture(scope="session")
def ray_here(tmp_path_factory: pytest.TempPathFactory, warm: WarmPython) -> Iterator[Path]:
    """Start Ray with 4 CPUs, 2 advertised GPUs, and the label of the pool `learner`.

    Its workers can import the test modules, and are forked from a warm Python. Yields the folder of the files that toy
    environments look for: `kill`, `slow`.
    """
    toys = tmp_path_factory.mktemp("toys")
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        patch.setenv("PYTHONPATH", _module_path())
        patch.setenv("TOY_KILL_ONCE", str(toys / "kill"))
        patch.setenv("TOY_SLOW", str(toys / "slow"))
        fork_ray_workers(str(warm.folder / "python"))
        start_ray(num_cpus=4, num_gpus=2, labels=POOL, object_store_memory=200 << 20, **QUIET_OPTIONS)
    yield toys
    import ray

    ray.shutdown()


@contextmanager
def second_node(num_cpus: int) -> Iterator[int]:
    """Add a node to the cluster of `ray_here`, a raylet on this machine; yields the raylet's process id."""
    import ray
    from ray._private.node import Node
    from ray._private.parameter import RayParams

    parameters = RayParams(
        gcs_address=ray.get_runtime_context().gcs_address,
        num_cpus=num_cpus,
        num_gpus=0,
        object_store_memory=100 << 20,
        include_log_monitor=False,
        env_vars={"PYTHONPATH": _module_path()},
    )
    node = Node(parameters, head=False, shutdown_at_exit=False, spawn_reaper=False)
    try:
        yield node.all_processes["raylet"][0].process.pid
    finally:
        node.kill_all_processes(check_alive=False, allow_graceful=True)
        # Until Ray notices that the node has ended, it would start the next test's actors there.
        while any(
            entry["Alive"] and entry["RayletSocketName"] == node.raylet_socket_name for entry in ray.nodes()
        ):
            time.sleep(0.1)


def _module_path() -> str:
    """Return PYTHONPATH with the folders of the test modules."""
    return os.pathsep.join(map(str, [TESTS, *filter(Path.is_dir, TESTS.iterdir()), *sys.path]))
