"""`hindcast gate`: decisions from a log that grows, with the state of the run folder."""

from __future__ import annotations

import json
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from hindcast.api import load_resources
from hindcast.errors import DataError, OutputConflict, SpecError
from hindcast.report.events import Reporter
from hindcast.run.execute import execute
from hindcast.run.gate import GATE_FILE, look
from hindcast.serve.episode_writer import EpisodeWriter

SPACES = {"observation_space": gym.spaces.Box(-1, 1, (1,)), "action_space": gym.spaces.Discrete(2)}


def log_visits(folder: Path, name: str, num_episodes: int, *, share: float = 0.5, logp: bool = True) -> str:
    """Log episodes of one step, in which action 1 is taken with probability `share` and has the reward 1."""
    rng = np.random.default_rng(len(name))
    with EpisodeWriter(folder, **SPACES) as log:
        for visit in range(num_episodes):
            episode = log.start_episode(f"{name}-{visit}")
            action = int(rng.random() < share)
            outputs = {"action_logp": np.log(share if action else 1 - share)} if logp else {}
            log.log_action(episode, np.zeros(1, np.float32), action, **outputs)
            log.log_returns(episode, float(action))
            log.end_episode(episode, np.zeros(1, np.float32))
    return str(folder)


def train(tmp_path: Path, data: str, *, updates: int = 40, **gate: object) -> str:
    """Clone the episodes of `data`; return the run folder."""
    spec = {
        "algorithm": "BC",
        "config": {"lr": 0.05},
        "model": {"fcnetHiddens": [8]},
        "input": [{"path": data}],
        "evaluation": {"gate": {"returns": {"low": 0, "high": 1}, **gate}},
        "stop": {"updates": updates},
        "checkpoint": {"path": str(tmp_path / "runs")},
    }
    document = {"apiVersion": "hindcast.dev/v1alpha1", "kind": "OfflineTraining", "spec": spec}
    file = tmp_path / "clone.yaml"
    file.write_text(json.dumps({**document, "metadata": {"name": "clone"}}))
    (outcome,) = execute(load_resources(file), Reporter())
    return outcome.folder


@pytest.fixture
def run(tmp_path: Path) -> str:
    """The folder of a run whose policy always takes action 1, and is tested greedily."""
    return train(tmp_path, log_visits(tmp_path / "expert", "expert", 40, share=0.95))


def test_better_policy_is_promoted_from_growing_log_with_any_looks(tmp_path: Path, run: str) -> None:
    straight, looked = tmp_path / "straight", tmp_path / "looked"
    results = []
    for part in range(6):
        log_visits(straight, "x" * (part + 1), 5)
        results.append(look(run, [log_visits(looked, "x" * (part + 1), 5)]))
    assert [result.num_new for result in results[:2]] == [5, 5]
    assert results[0].test.decision == "undecided"
    assert results[-1].test.decision == "promoted"
    assert results[-1].to_json()["condition"]["status"] == "True"
    state = Path(run, GATE_FILE)
    counted = results[-1].test
    state.unlink()
    assert look(run, [str(straight)]).test.to_json() == counted.to_json()
    assert look(run, [str(straight)]).test.to_json() == counted.to_json()


def test_trained_episodes_are_not_counted(tmp_path: Path, run: str) -> None:
    result = look(run, [str(tmp_path / "expert")])
    assert (result.num_new, result.test.episodes, result.test.decision) == (0, 0, "undecided")


def test_log_without_log_probabilities_is_refused(tmp_path: Path, run: str) -> None:
    with pytest.raises(DataError, match=r"has no action_logp, the log-probabilities of the recorded actions"):
        look(run, [log_visits(tmp_path / "log", "a", 4, logp=False)])


def test_return_outside_of_bounds_is_refused(tmp_path: Path) -> None:
    run = train(
        tmp_path, log_visits(tmp_path / "expert", "expert", 40, share=0.9), returns={"low": 0, "high": 0.5}
    )
    with pytest.raises(
        DataError, match=r"episode a-\d\) has the discounted return 1, outside of spec\.evaluation"
    ):
        look(run, [log_visits(tmp_path / "log", "a", 8)])


def test_another_policy_of_the_run_is_refused(tmp_path: Path, run: str) -> None:
    log = log_visits(tmp_path / "log", "a", 4)
    look(run, [log])
    run = train(tmp_path, str(tmp_path / "expert"), updates=80)
    with pytest.raises(OutputConflict, match="was opened for another policy"):
        look(run, [log])


def test_run_without_gate_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"is not in the folder of a run with evaluation\.gate"):
        look(tmp_path, [str(tmp_path)])
