"""Latency of a policy's action over HTTP and within the application's process; every decision is logged.

python benchmarks/serving.py [--decisions 10000] [--threads 4]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from hindcast import PolicyClient, PolicyServer
from hindcast.api import ModelSpec
from hindcast.models.policy import Policy
from hindcast.models.preprocessing import Preprocessing
from hindcast.models.rl_module import build_module

_STEPS = 50
_OBSERVATIONS, _ACTIONS = gym.spaces.Box(-np.inf, np.inf, (8,)), gym.spaces.Discrete(4)


def make_policy() -> Policy:
    """Make a policy with two layers of 64 units."""
    model = ModelSpec.model_validate({"fcnetHiddens": [64, 64]})
    preprocessing = Preprocessing.from_specs(_OBSERVATIONS, _ACTIONS, model)
    module = build_module(_OBSERVATIONS, _ACTIONS, model)
    return Policy(module.eval(), preprocessing, _OBSERVATIONS, _ACTIONS)


def play(policy_service: Any, num_decisions: int, seed: int) -> list[float]:
    """Request actions in episodes of 50 steps, and return the seconds that each one took."""
    observations = np.random.default_rng(seed).normal(size=(num_decisions, 8)).astype(np.float32).tolist()
    latencies = []
    for first in range(0, num_decisions, _STEPS):
        episode = policy_service.start_episode()
        for observation in observations[first : first + _STEPS]:
            request_time = time.perf_counter()
            policy_service.get_action(episode, observation)
            latencies.append(time.perf_counter() - request_time)
            policy_service.log_returns(episode, 1.0)
        policy_service.end_episode(episode, observations[first])
    return latencies


def print_latencies(name: str, num_threads: int, num_decisions: int, connect: Callable[[], Any]) -> None:
    """Play in several threads, and print the latencies of their actions."""
    latencies: list[float] = []

    def run_application(seed: int) -> None:
        latencies.extend(play(connect(), num_decisions // num_threads, seed))

    application_threads = [
        threading.Thread(target=run_application, args=(seed,)) for seed in range(num_threads)
    ]
    start_time = time.perf_counter()
    for thread in application_threads:
        thread.start()
    for thread in application_threads:
        thread.join()
    rate = len(latencies) / (time.perf_counter() - start_time)
    p50, p99, p999 = np.percentile(latencies, [50, 99, 99.9]) * 1e3
    print(
        f"{name:>12}, {num_threads} threads: {rate:7,.0f} decisions/s, p50 {p50:.2f} ms, p99 {p99:.2f} ms, "
        f"p99.9 {p999:.2f} ms, longest {max(latencies) * 1e3:.1f} ms"
    )


@contextmanager
def serve_policy(folder: Path) -> Iterator[str]:
    """Run `hindcast serve` in a separate process, and yield its address."""
    make_policy().save(folder / "policy")
    (folder / "token").write_text("token")
    command = [
        sys.executable,
        "-m",
        "hindcast.cli.main",
        "serve",
        str(folder / "policy"),
        "--json",
        "--port",
        "0",
    ]
    command += ["--log", str(folder / "served"), "--token-file", str(folder / "token")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["address"]
        process.terminate()


def main() -> None:
    """Measure with one thread and with several."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--decisions", type=int, default=10_000)
    parser.add_argument("--threads", type=int, default=4)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with PolicyServer(make_policy(), folder / "log", explore=True) as server:
            for num_threads in (1, arguments.threads):
                print_latencies("in process", num_threads, arguments.decisions, lambda: server)
        with serve_policy(folder) as address:
            for num_threads in (1, arguments.threads):
                print_latencies(
                    "over HTTP", num_threads, arguments.decisions, lambda: PolicyClient(address, "token")
                )


if __name__ == "__main__":
    main()
