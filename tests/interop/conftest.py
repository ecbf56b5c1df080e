"""Run scripts with RLlib or d3rlpy in a separate environment, if HINDCAST_RLLIB_PYTHON names its interpreter.

CONTRIBUTING.md says how to make it.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from warm_python import warm_python

THIS_FOLDER = Path(__file__).parent
RunScript = Callable[..., str]
SLOW_IMPORTS = (
    "ray.rllib.algorithms.bc",
    "ray.rllib.algorithms.ppo",
    "ray.rllib.offline.json_reader",
    "ray.rllib.offline.offline_prelearner",
)


@pytest.fixture(scope="session")
def run_script(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunScript]:
    """`run_script("script.py", *arguments)` runs a script of this folder, and returns its last line of output."""
    python = os.environ.get("HINDCAST_RLLIB_PYTHON")
    if not python:
        reason = "HINDCAST_RLLIB_PYTHON names no interpreter with RLlib 2.60"
        pytest.skip(f"{reason} (CONTRIBUTING.md says how to make one)")
    folder = tmp_path_factory.mktemp("rllib")
    environment = {
        **os.environ,
        "PYTHONPATH": "",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
        "RAY_DATA_USE_DATASOURCE_V2": "0",  # its new reader starts 32 processes
        "RAY_worker_niceness": "0",
    }

    with warm_python(tmp_path_factory.mktemp("warm"), python, SLOW_IMPORTS, environment) as warm:

        def run(script: str, *arguments: object) -> str:
            command = [str(warm.folder / "python"), str(THIS_FOLDER / script), *map(str, arguments)]
            options = {"env": environment, "cwd": folder, "timeout": 900}
            process = subprocess.run(command, capture_output=True, text=True, check=False, **options)
            output = f"{process.stdout[-2000:]}\n{process.stderr[-4000:]}"
            assert process.returncode == 0, f"{script} failed:\n{output}"
            return process.stdout.strip().splitlines()[-1]

        yield run
