"""Beside another Ray on the machine a process has one of its own, and a job joins its cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_here")]

ASKS = """
import json
import os

import ray

from hindcast.ray_session import connect, connected
from hindcast.cluster.driver import connect_to_ray


def address():
    return ray.get_runtime_context().gcs_address


own = {}
with connected(num_cpus=1):
    own["process"] = address()
    own["task"] = ray.get(ray.remote(address).remote())
is_left_running = ray.is_initialized()

others = {}
del os.environ["RAY_ADDRESS"]
os.environ["RAY_JOB_CONFIG_JSON_ENV_VAR"] = "{}"
connect()
others["job"] = address()
with connected(num_cpus=1):
    others["connected already"] = address()
others["connected still"] = address()
ray.shutdown()
connect_to_ray()
others["driver"] = address()
print(json.dumps([own, others, is_left_running]))
"""


@pytest.fixture
def other() -> Iterator[str]:
    """The address of a Ray that runs here, noted where `ray start` notes it down."""
    import ray

    address: str = ray.get_runtime_context().gcs_address
    note = Path(os.environ["RAY_TMPDIR"]) / "ray/ray_current_cluster"
    note.write_text(address)
    yield address
    note.unlink()


def test_a_process_has_its_own_and_a_job_joins(other: str) -> None:
    environment = {**os.environ, "RAY_ADDRESS": other}
    done = subprocess.run(
        [sys.executable, "-c", ASKS], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    own, others, is_left_running = json.loads(done.stdout.splitlines()[-1])
    assert other not in own.values()
    assert len(set(own.values())) == 1
    assert set(others.values()) == {other}
    assert not is_left_running
