"""RLlib's code examples 1 to 3, one after the other, as their user would run them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from hindcast.api import EnvironmentSpec, load_resources
from hindcast.evaluate.environment import evaluate_policy
from hindcast.models.policy import Policy
from support import leftovers, read_all

ROOT = Path(__file__).parents[2]
CARTPOLE = EnvironmentSpec(id="CartPole-v1")


def run(name: str, folder: Path) -> str:
    """The last line that an example prints."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / name), str(folder)],
        cwd=folder.parent,
        env={**os.environ, "PYTHONPATH": str(ROOT / "runtime")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout.strip().splitlines()[-1]


@pytest.mark.docs
@pytest.mark.ray
@pytest.mark.timeout(900)
def test_expert_is_trained_recorded_and_cloned(tmp_path: Path) -> None:
    folder = tmp_path / "examples"
    best_checkpoint = run("01_train_expert.py", folder)
    assert (folder / "best_checkpoint").read_text() == best_checkpoint
    expert = Policy.load(best_checkpoint)
    assert np.mean(evaluate_policy(expert, CARTPOLE, duration=20).returns) >= 450

    run("02_record_expert.py", folder)
    data = folder / "docs_rllib_offline_recording"
    block = read_all(data)
    assert len(set(block.eps_id)) == block.num_episodes == 500
    assert block.columns["rewards"].sum() / 500 >= 400
    rows = [pq.ParquetFile(file).metadata.num_rows for file in data.glob("*.parquet")]
    assert rows == [25] * 20
    assert leftovers(data) == []

    clone = Policy.load(run("03_train_from_recording.py", folder))
    assert np.mean(evaluate_policy(clone, CARTPOLE, duration=20).returns) >= 400


def test_yaml_is_the_demo() -> None:
    packaged = (ROOT / "runtime" / "hindcast" / "cli" / "demo.yaml").read_text()
    expected = packaged.replace("FOLDER/cartpole.yaml", "examples/cartpole.yaml").replace("FOLDER", "demo")
    assert (ROOT / "examples" / "cartpole.yaml").read_text() == expected
    assert [entry.resource.kind for entry in load_resources(ROOT / "examples" / "cartpole.yaml")] == [
        "OfflineRecording",
        "OfflineTraining",
    ]
