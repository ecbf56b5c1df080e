"""Updates a second of each algorithm: ours, d3rlpy's, RLlib's, and the bare arithmetic, in one run.

    python benchmarks/updates.py --rllib PYTHON [--algorithms IQL CQL] [--compiled] [--device cuda]

All have the same batches of 256, the same networks of two layers of 256, ReLU, and one thread; d3rlpy 2.8.1 (in
PYTHON's environment) all of its defaults, and ours their counterparts; RLlib 2.60 its own defaults. What is timed is
updates of batches that are ready. `bare_updates.py` is the bare arithmetic; it runs in our process, whose allocator
keeps what is freed. They take turns; printed are medians of the turns, and of their ratios. On the CPU it is the
process's time that counts, so that others on the machine do not.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch
from bare_updates import ACTIONS, HIDDEN, OBSERVATIONS, UPDATES, Batch, capture_update
from measuring import Rival, report, take_turns

from hindcast.algorithms import REGISTRY, build
from hindcast.api.model import ModelSpec
from hindcast.learn.algorithm import ModelInputs, new_networks
from hindcast.learn.compiling import compile_losses
from hindcast.learn.learner import Learner

BATCHES, BATCH, GAMMA = 8, 256, 0.99
ALIKE = {"dueling": False, "tau": 1.0, "targetNetworkUpdateFreq": 8000}
CONFIGS = {
    "BC": {},
    "IQL": {},
    "TD3BC": {},
    "SAC": {},
    "DQN": ALIKE,
    "DiscreteCQL": ALIKE,
    "CQL": {"lagrangian": True},
}
"""Ours, where they are not our defaults."""
UPDATES_OF_TURN = {"BC": 150, "IQL": 40, "TD3BC": 60, "SAC": 40, "DQN": 100, "DiscreteCQL": 100, "CQL": 4}
OF_A_GPU = {"cpu": 1, "cuda": 10}
"""As many times as many updates make a turn there."""
NAMES = [name for name in CONFIGS if name in REGISTRY]
DISCRETE = ("DQN", "DiscreteCQL")
BARE, D3RLPY, RLLIB = "bare arithmetic", "d3rlpy", "RLlib"
AIMS = {BARE: 0.9, D3RLPY: 1.5, RLLIB: 10}
FLOORS = {"cpu": {"IQL": 60, "CQL": 5}, "cuda": {"IQL": 10_000, "CQL": 1_500}}
"""Updates a second that are to be reached, on one core and on an H200."""
RIVALS = {D3RLPY: NAMES, RLLIB: ("BC", "IQL", "CQL", "SAC", "DQN")}
"""The algorithms that each rival has. It is `rivals/<name>_updates.py`."""


def columns() -> dict[str, np.ndarray]:
    """`[BATCHES, BATCH, ...]` of noise in the shape of HalfCheetah's; `chosen` are discrete actions."""
    rng = np.random.default_rng(0)
    lead = (BATCHES, BATCH)
    return {
        "obs": rng.standard_normal((*lead, OBSERVATIONS), dtype=np.float32),
        "new_obs": rng.standard_normal((*lead, OBSERVATIONS), dtype=np.float32),
        "actions": rng.uniform(-1, 1, (*lead, ACTIONS)).astype(np.float32),
        "chosen": rng.integers(ACTIONS, size=lead),
        "rewards": rng.standard_normal(lead, dtype=np.float32),
        "terminals": (rng.random(lead) < 0.01).astype(np.float32),
    }


def batches_of(drawn: dict[str, np.ndarray], discrete: bool, device: str) -> list[Batch]:
    """As our feeds give them."""
    tensors = {name: torch.from_numpy(column).to(device) for name, column in drawn.items()}
    tensors["discounts"] = GAMMA * (1.0 - tensors.pop("terminals"))
    actions = tensors.pop("chosen")
    if discrete:
        tensors["actions"] = actions
    return [{name: column[number] for name, column in tensors.items()} for number in range(BATCHES)]


def hindcast_update(name: str, device: str, compiled: bool = False) -> Callable[[Batch], object]:
    """A learner's update."""
    actions = (
        gym.spaces.Discrete(ACTIONS) if name in DISCRETE else gym.spaces.Box(-1, 1, (ACTIONS,), np.float32)
    )
    observations = gym.spaces.Box(-np.inf, np.inf, (OBSERVATIONS,), np.float32)
    model = ModelSpec(fcnet_hiddens=[HIDDEN, HIDDEN], fcnet_activation="relu")
    algorithm = build(name, CONFIGS[name])
    if compiled:
        compile_losses(algorithm)
    return Learner(
        algorithm, new_networks(algorithm, ModelInputs(observations, actions, model), seed=0), device
    ).update


def turns(
    update: Callable[[Batch], object], batches: list[Batch], count: int, device: str
) -> Callable[[], float]:
    """Updates a second of a turn."""
    clock = time.process_time if device == "cpu" else time.perf_counter

    def turn() -> float:
        start_time = clock()
        for batch in itertools.islice(itertools.cycle(batches), count):
            update(batch)
        if device != "cpu":
            torch.cuda.synchronize()
        return count / (clock() - start_time)

    return turn


def main() -> None:
    """Measure and print a table for each algorithm."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rllib", help="the Python that has the rivals; without it, they are left out")
    parser.add_argument("--rivals", nargs="*", default=list(RIVALS), choices=RIVALS)
    parser.add_argument("--algorithms", nargs="+", default=NAMES, choices=NAMES)
    parser.add_argument(
        "--compiled", action="store_true", help="also with learners.compile, where there is such"
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    arguments = parser.parse_args()
    device = arguments.device
    torch.set_num_threads(1)
    drawn = columns()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        file = Path(folder) / "batches.npz"
        np.savez(file, **drawn)
        others = {}
        for rival in arguments.rivals if arguments.rllib else ():
            process = Rival(f"{rival.lower()}_updates.py", arguments.rllib, str(file), device)
            others[rival] = stack.enter_context(process)
        for name in arguments.algorithms:
            batches, count = (
                batches_of(drawn, name in DISCRETE, device),
                UPDATES_OF_TURN[name] * OF_A_GPU[device],
            )
            bare = UPDATES[name](device)
            rivals = {
                "Hindcast": turns(hindcast_update(name, device), batches, count, device),
                BARE: turns(
                    bare if device == "cpu" else capture_update(bare, batches), batches, count, device
                ),
            }
            if arguments.compiled and REGISTRY[name].compiled_methods:
                rivals["Hindcast, compiled"] = turns(
                    hindcast_update(name, device, compiled=True), batches, count, device
                )
            for rival, process in others.items():
                if name in RIVALS[rival]:
                    rivals[rival] = partial(process, f"{name} {count}")
            results = take_turns(rivals, arguments.rounds)
            report(name, "updates/s", results, "Hindcast", AIMS, floor=FLOORS[device].get(name))


if __name__ == "__main__":
    main()
