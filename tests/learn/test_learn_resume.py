import json
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

WORKER = Path(__file__).with_name("learn_resume_worker.py")


def train_in_process(warm, *arguments):
    command = [str(warm.folder / "python"), str(WORKER), *map(str, arguments)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory, warm):
    """The worker's output after 100 updates in one process, and after 50 updates and 50 in a second process."""
    uninterrupted, resumed = tmp_path_factory.mktemp("uninterrupted"), tmp_path_factory.mktemp("resumed")
    train_in_process(warm, resumed, 0, 50)
    return train_in_process(warm, uninterrupted, 0, 100), train_in_process(warm, resumed, 50, 100)


@pytest.mark.parametrize("algorithm", ["BC", "ActorCritic"])
@pytest.mark.parametrize("item", ["digest", "meta", "metrics"])
def test_resume_in_a_new_process_equals_an_uninterrupted_training(outcomes, algorithm, item):
    """Weights, targets, optimisers and generators are equal to the bit; the metrics span the checkpoint."""
    uninterrupted, resumed = outcomes
    assert uninterrupted[algorithm][item] == resumed[algorithm][item]
