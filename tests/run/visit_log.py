"""Logs of one-step visits, and trainings with a gate that clone them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from hindcast.api import load_resources
from hindcast.report.events import Reporter
from hindcast.run.execute import execute
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


def train(
    tmp_path: Path, data: str, *, updates: int = 40, fields: dict[str, Any] | None = None, **gate: object
) -> str:
    """Clone the episodes of `data`; return the run folder."""
    tmp_path.mkdir(exist_ok=True)
    spec = {
        "algorithm": "BC",
        "config": {"lr": 0.05},
        "model": {"fcnetHiddens": [8]},
        "input": [{"path": data}],
        "evaluation": {"gate": {"returns": {"low": 0, "high": 1}, **gate}},
        "stop": {"updates": updates},
        **(fields or {}),
        "checkpoint": {"path": str(tmp_path / "runs")},
    }
    document = {"apiVersion": "hindcast.dev/v1alpha1", "kind": "OfflineTraining", "spec": spec}
    file = tmp_path / "clone.yaml"
    file.write_text(json.dumps({**document, "metadata": {"name": "clone"}}))
    (outcome,) = execute(load_resources(file), Reporter())
    return outcome.folder
