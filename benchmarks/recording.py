"""Speed of recording the expert: CartPole-v1, one runner, 8 environments, one torch thread.

    python benchmarks/recording.py [--rllib PYTHON]

Hindcast records and commits Parquet files. The bare loop steps the same vectorised environments with the same network
and stores nothing. With --rllib (an interpreter that has ray[rllib]==2.60.0 and msgpack-numpy), RLlib records with the
same weights in the same run, as in its documentation (episode format, one runner).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch
from measuring import report, take_turns

from hindcast.api import EnvironmentSpec, OfflineRecording
from hindcast.api.model import ModelSpec
from hindcast.api.recording import TrainPolicy, TrainStop
from hindcast.datasets.target import Target
from hindcast.evaluate.environment import EnvEvaluator
from hindcast.models.policy import Policy
from hindcast.record.pool import LocalWorkers, Runner, load_actor, record_ranges
from hindcast.record.recorder import RangeToRecord, RecordingTask, describe_columns
from hindcast.run.training.expert import iterate_and_evaluate
from hindcast.run.training.online_trainer import make_online_trainer
from hindcast.storage.location import resolve

CARTPOLE = EnvironmentSpec(id="CartPole-v1")
WIDTH = 8
RLLIB_SCRIPT = Path(__file__).parent / "rivals" / "rllib_record.py"


def train_expert(folder: Path) -> None:
    """Train an expert to return 450, as the demo does, and save it."""
    train = TrainPolicy(
        config={"lr": 3e-4, "numEpochs": 6, "trainBatchSizePerLearner": 4096, "useKlLoss": False},
        model=ModelSpec(fcnet_hiddens=[64, 64]),
        stop=TrainStop(episode_return_mean=450.0),
    )
    spec = {
        "environment": CARTPOLE,
        "policy": {"train": train},
        "duration": {"episodes": 1},
        "output": {"path": "-"},
    }
    resource = OfflineRecording.model_validate({"metadata": {"name": "bench"}, "spec": spec})
    trainer = make_online_trainer(resource, train, WIDTH)
    evaluator = EnvEvaluator(CARTPOLE, train.evaluation.duration, explore=True)
    mean_return = 0.0
    while mean_return < 450:
        result = iterate_and_evaluate(trainer, evaluator, seed=0)
        mean_return = result["evaluation"]["env_runners"]["episode_return_mean"]
    trainer.policy.save(folder)


def record(policy: Path, episodes: int) -> float:
    """Record to a new folder, and return timesteps per second."""
    actor = load_actor(str(policy), CARTPOLE)
    with tempfile.TemporaryDirectory() as folder:
        data = describe_columns(CARTPOLE, actor, explore=True)
        task = RecordingTask(CARTPOLE, WIDTH, 0, True, Target(resolve(folder)), "bench", data)
        ranges = [RangeToRecord(0, range(episodes))]
        start_time = time.perf_counter()
        (recorded_range,) = record_ranges(
            LocalWorkers(Runner(task)), str(policy), lambda _: ranges.pop() if ranges else None
        )
        return recorded_range.commit.timesteps / (time.perf_counter() - start_time)


def run_bare_loop(policy: Policy, num_steps: int) -> float:
    """Run the loop that stores nothing, and return timesteps per second."""
    environments = gym.make_vec(CARTPOLE.id, num_envs=WIDTH, vectorization_mode="sync")
    observation, _ = environments.reset(seed=0)
    start_time = time.perf_counter()
    with torch.inference_mode():
        for _ in range(num_steps):
            dist_inputs = policy.module.forward_exploration({"obs": torch.from_numpy(observation)})[
                "action_dist_inputs"
            ]
            distribution = torch.distributions.Categorical(logits=dist_inputs, validate_args=False)
            observation, *_ = environments.step(distribution.sample().numpy())
    return num_steps * WIDTH / (time.perf_counter() - start_time)


def record_with_rllib(python: str, policy: Policy, folder: Path, episodes: int) -> float:
    """Record with RLlib, in its own process and with our weights, and return timesteps per second."""
    weights = {name: tensor.numpy() for name, tensor in policy.module.state_dict().items()}
    np.savez(folder / "weights.npz", **weights)
    command = [python, str(RLLIB_SCRIPT), str(folder / "weights.npz"), str(episodes)]
    environment = {**os.environ, "RAY_worker_niceness": "0", "PYTHONPATH": ""}
    process = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=folder, check=False
    )
    if process.returncode != 0:
        raise SystemExit(f"RLlib failed:\n{process.stderr[-2000:]}")
    return float(json.loads(process.stdout.strip().splitlines()[-1])["steps_per_s"])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--rllib", type=os.path.abspath, metavar="PYTHON", help="interpreter that has ray[rllib]==2.60.0"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        train_expert(folder / "module")
        policy = Policy.load(folder / "module")
        rivals = {
            "ours": lambda: record(folder / "module", arguments.episodes),
            "bare loop": lambda: run_bare_loop(policy, arguments.episodes * 500 // WIDTH),
        }
        targets = {"bare loop": 0.5}
        if arguments.rllib:
            rivals["rllib"] = lambda: record_with_rllib(arguments.rllib, policy, folder, 24)
            targets["rllib"] = 40
        results = take_turns(rivals, arguments.rounds)
        report("recording with the expert", "timesteps/s", results, "ours", targets)


if __name__ == "__main__":
    main()
