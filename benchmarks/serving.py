"""Latency of a policy's action, over HTTP and in the application's process, with each decision logged.

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


def small_policy() -> Policy:
    """Two layers of 64 units."""
    model = ModelSpec.model_validate({"fcnetHiddens": [64, 64]})
    preprocessing = Preprocessing.from_specs(_OBSERVATIONS, _ACTIONS, model)
    module = build_module(_OBSERVATIONS, _ACTIONS, model)
    return Policy(module.eval(), preprocessing, _OBSERVATIONS, _ACTIONS)


def play(decides: Any, decisions: int, seed: int) -> list[float]:
    """Seconds that each of `decisions` actions took, in episodes of 50."""
    observations = np.random.default_rng(seed).normal(size=(decisions, 8)).astype(np.float32).tolist()
    latencies = []
    for first in range(0, decisions, _STEPS):
        episode = decides.start_episode()
        for observation in observations[first : first + _STEPS]:
            request_time = time.perf_counter()
            decides.get_action(episode, observation)
            latencies.append(time.perf_counter() - request_time)
            decides.log_returns(episode, 1.0)
        decides.end_episode(episode, observations[first])
    return latencies


def print_latencies(name: str, threads: int, decisions: int, connect: Callable[[], Any]) -> None:
    """Play in some threads, and print how long they waited."""
    latencies: list[float] = []

    def application(seed: int) -> None:
        latencies.extend(play(connect(), decisions // threads, seed))

    running = [threading.Thread(target=application, args=(seed,)) for seed in range(threads)]
    start_time = time.perf_counter()
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    rate = len(latencies) / (time.perf_counter() - start_time)
    p50, p99, p999 = np.percentile(latencies, [50, 99, 99.9]) * 1e3
    print(
        f"{name:>12}, {threads} threads: {rate:7,.0f} decisions/s, p50 {p50:.2f} ms, p99 {p99:.2f} ms, "
        f"p99.9 {p999:.2f} ms, longest {max(latencies) * 1e3:.1f} ms"
    )


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """`hindcast serve` in a process of its own; its address."""
    small_policy().save(folder / "policy")
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
        with PolicyServer(small_policy(), folder / "log") as server:
            for threads in (1, arguments.threads):
                print_latencies("in process", threads, arguments.decisions, lambda: server)
        with serving(folder) as address:
            for threads in (1, arguments.threads):
                print_latencies(
                    "over HTTP", threads, arguments.decisions, lambda: PolicyClient(address, "token")
                )


if __name__ == "__main__":
    main()
