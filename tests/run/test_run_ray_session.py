"""If another Ray runs on the machine, a process starts its own Ray, and a job joins its cluster."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hindcast.ray_session import start_ray
from warm_python import WarmPython

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_here")]

PROGRAM = """
import json
import os

import ray

from hindcast.ray_session import connect, ray_connection
from hindcast.cluster.driver import connect_to_ray


def address():
    return ray.get_runtime_context().gcs_address


own_addresses = {}
with ray_connection(num_cpus=1):
    own_addresses["process"] = address()
    own_addresses["task"] = ray.get(ray.remote(address).remote())
is_left_running = ray.is_initialized()

joined_addresses = {}
del os.environ["RAY_ADDRESS"]
os.environ["RAY_JOB_CONFIG_JSON_ENV_VAR"] = "{}"
connect()
joined_addresses["job"] = address()
with ray_connection(num_cpus=1):
    joined_addresses["connected already"] = address()
joined_addresses["connected still"] = address()
ray.shutdown()
connect_to_ray()
joined_addresses["driver"] = address()
print(json.dumps([own_addresses, joined_addresses, is_left_running]))
"""


@pytest.fixture
def other_ray() -> Iterator[str]:
    """Address of a running Ray, written to the file in which `ray start` writes it."""
    import ray

    address: str = ray.get_runtime_context().gcs_address
    address_file = Path(os.environ["RAY_TMPDIR"]) / "ray/ray_current_cluster"
    address_file.write_text(address)
    yield address
    address_file.unlink()


def test_process_starts_own_ray_and_job_joins_cluster(other_ray: str, warm: WarmPython) -> None:
    environment = {**os.environ, "RAY_ADDRESS": other_ray}
    command = [str(warm.folder / "python"), "-c", PROGRAM]
    completed = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr[-3000:]
    own_addresses, joined_addresses, is_left_running = json.loads(completed.stdout.splitlines()[-1])
    assert other_ray not in own_addresses.values()
    assert len(set(own_addresses.values())) == 1
    assert set(joined_addresses.values()) == {other_ray}
    assert not is_left_running


@pytest.mark.parametrize(("choice", "expected"), [(None, "0"), ("1", "1")])
def test_own_ray_sends_no_usage_reports_unless_chosen(
    monkeypatch: pytest.MonkeyPatch, choice: str | None, expected: str
) -> None:
    import ray

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", choice or "")
    if choice is None:
        monkeypatch.delenv("RAY_USAGE_STATS_ENABLED")
    values = []
    monkeypatch.setattr(ray, "init", lambda **options: values.append(os.environ["RAY_USAGE_STATS_ENABLED"]))
    start_ray()
    assert values == [expected]
