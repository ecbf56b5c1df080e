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
    uninterrupted, resumed = tmp_path_factory.mktemp("straight"), tmp_path_factory.mktemp("parted")
    run(resumed, 0, 50)
    return run(uninterrupted, 0, 100), run(resumed, 50, 100)


@pytest.mark.parametrize("algorithm", ["BC", "ActorCritic"])
@pytest.mark.parametrize("part", ["digest", "meta", "metrics"])
def test_resume_in_a_new_process_equals_an_uninterrupted_training(outcomes, algorithm, part):
    """Bit for bit: weights, targets, optimisers, generators; the metrics span the checkpoint."""
    uninterrupted, resumed = outcomes
    assert uninterrupted[algorithm][part] == resumed[algorithm][part]
