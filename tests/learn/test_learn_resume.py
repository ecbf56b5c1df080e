import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

WORKER = Path(__file__).with_name("learn_resume_worker.py")


def run(folder, first, last):
    command = [sys.executable, "-W", "error", str(WORKER), str(folder), str(first), str(last)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    straight, parted = tmp_path_factory.mktemp("straight"), tmp_path_factory.mktemp("parted")
    run(parted, 0, 50)
    return run(straight, 0, 100), run(parted, 50, 100)


@pytest.mark.parametrize("algorithm", ["BC", "ActorCritic"])
@pytest.mark.parametrize("part", ["digest", "meta", "metrics"])
def test_100_updates_are_50_a_checkpoint_a_new_process_and_50(outcomes, algorithm, part):
    """Bit for bit: weights, targets, optimisers, generators; the metrics span the checkpoint."""
    straight, parted = outcomes
    assert straight[algorithm][part] == parted[algorithm][part]
