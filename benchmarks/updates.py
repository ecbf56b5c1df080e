"""Updates per second of each algorithm in Hindcast, d3rlpy and RLlib, and of the bare arithmetic, in one run.

    python benchmarks/updates.py --rllib PYTHON [--algorithms IQL CQL] [--compiled] [--device cuda]

All have the same batches of 256, the same networks of two layers of 256, ReLU, and one thread. d3rlpy 2.8.1 (in
PYTHON's environment) has its default options, Hindcast their counterparts, and RLlib 2.60 its defaults. Only updates
with prepared batches are timed. `bare_updates.py` is the bare arithmetic; it runs in Hindcast's process, and shares its
allocator. They take turns; the medians of the turns and of their ratios are printed. On the CPU the time is CPU time of
each process, so that other programs do not count.
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
from bare_updates import ACTIONS, HIDDEN, OBSERVATIONS, UPDATE_FACTORIES, Batch, capture_update
from measuring import Rival, report, take_turns

from hindcast.algorithms import REGISTRY, build
from hindcast.api.model import ModelSpec
from hindcast.learn.algorithm import ModelInputs, new_networks
from hindcast.learn.compiling import compile_losses
from hindcast.learn.group import Group
from hindcast.learn.learner import Learner

BATCHES, BATCH, GAMMA = 8, 256, 0.99
DQN_OPTIONS = {"dueling": False, "tau": 1.0, "targetNetworkUpdateFreq": 8000}
CONFIGS = {
    "BC": {},
    "IQL": {},
    "TD3BC": {},
    "SAC": {},
    "EDAC": {"numCritics": 10, "diversity": 1.0},
    "DQN": DQN_OPTIONS,
    "DiscreteCQL": DQN_OPTIONS,
    "CQL": {"lagrangian": True},
}
"""Hindcast's options that differ from its defaults."""
UPDATES_PER_TURN = {
    "BC": 150,
    "IQL": 40,
    "TD3BC": 60,
    "SAC": 40,
    "EDAC": 8,
    "DQN": 100,
    "DiscreteCQL": 100,
    "CQL": 4,
}
DEVICE_FACTORS = {"cpu": 1, "cuda": 10}
"""Factor of the number of updates per turn."""
CLASSES = {"EDAC": "SAC"}
"""Name -> class of the algorithm where the two differ."""
DISCRETE = ("DQN", "DiscreteCQL")
BARE, D3RLPY, RLLIB = "bare arithmetic", "d3rlpy", "RLlib"
TARGETS = {BARE: 0.9, D3RLPY: 1.5, RLLIB: 10}
MIN_RATES = {"cpu": {"IQL": 60, "CQL": 5}, "cuda": {"IQL": 10_000, "CQL": 1_500}}
"""Minimum updates per second, on one core and on an H200."""
RIVALS = {
    D3RLPY: [name for name in CONFIGS if name not in CLASSES],
    RLLIB: ("BC", "IQL", "CQL", "SAC", "DQN"),
}
"""The algorithms of each rival; its script is `rivals/<name>_updates.py`."""


def make_columns() -> dict[str, np.ndarray]:
    """Make columns of noise in HalfCheetah's shape, `[BATCHES, BATCH, ...]`; `chosen` are discrete actions."""
    rng = np.random.default_rng(0)
    leading_shape = (BATCHES, BATCH)
    return {
        "obs": rng.standard_normal((*leading_shape, OBSERVATIONS), dtype=np.float32),
        "new_obs": rng.standard_normal((*leading_shape, OBSERVATIONS), dtype=np.float32),
        "actions": rng.uniform(-1, 1, (*leading_shape, ACTIONS)).astype(np.float32),
        "chosen": rng.integers(ACTIONS, size=leading_shape),
        "rewards": rng.standard_normal(leading_shape, dtype=np.float32),
        "terminals": (rng.random(leading_shape) < 0.01).astype(np.float32),
    }


def make_batches(columns: dict[str, np.ndarray], is_discrete: bool, device: str) -> list[Batch]:
    """Return the batches as Hindcast's feeds deliver them."""
    tensors = {name: torch.from_numpy(column).to(device) for name, column in columns.items()}
    tensors["discounts"] = GAMMA * (1.0 - tensors.pop("terminals"))
    actions = tensors.pop("chosen")
    if is_discrete:
        tensors["actions"] = actions
    return [{name: column[index] for name, column in tensors.items()} for index in range(BATCHES)]


def make_hindcast_update(
    name: str, device: str, is_compiled: bool = False, group: Group | None = None
) -> Callable[..., object]:
    """Return the update of a learner, of a single one without a group."""
    actions = (
        gym.spaces.Discrete(ACTIONS) if name in DISCRETE else gym.spaces.Box(-1, 1, (ACTIONS,), np.float32)
    )
    observations = gym.spaces.Box(-np.inf, np.inf, (OBSERVATIONS,), np.float32)
    model = ModelSpec(fcnet_hiddens=[HIDDEN, HIDDEN], fcnet_activation="relu")
    algorithm = build(CLASSES.get(name, name), CONFIGS[name])
    if is_compiled:
        compile_losses(algorithm)
    return Learner(
        algorithm,
        new_networks(algorithm, ModelInputs(observations, actions, model), seed=0),
        device,
        group=group,
    ).update


def make_turn(
    update: Callable[[Batch], object], batches: list[Batch], count: int, device: str
) -> Callable[[], float]:
    """Return a function that runs a turn of `count` updates, and returns updates per second."""
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
    parser.add_argument("--algorithms", nargs="+", default=list(CONFIGS), choices=CONFIGS)
    parser.add_argument(
        "--compiled", action="store_true", help="also with learners.compile, for algorithms that support it"
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    arguments = parser.parse_args()
    device = arguments.device
    torch.set_num_threads(1)
    columns = make_columns()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        file = Path(folder) / "batches.npz"
        np.savez(file, **columns)
        rival_processes = {}
        for rival in arguments.rivals if arguments.rllib else ():
            process = Rival(f"{rival.lower()}_updates.py", arguments.rllib, str(file), device)
            rival_processes[rival] = stack.enter_context(process)
        for name in arguments.algorithms:
            batches, count = (
                make_batches(columns, name in DISCRETE, device),
                UPDATES_PER_TURN[name] * DEVICE_FACTORS[device],
            )
            bare_update = UPDATE_FACTORIES[name](device)
            rivals = {
                "Hindcast": make_turn(make_hindcast_update(name, device), batches, count, device),
                BARE: make_turn(
                    bare_update if device == "cpu" else capture_update(bare_update, batches),
                    batches,
                    count,
                    device,
                ),
            }
            if arguments.compiled and REGISTRY[CLASSES.get(name, name)].compiled_methods:
                rivals["Hindcast, compiled"] = make_turn(
                    make_hindcast_update(name, device, is_compiled=True), batches, count, device
                )
            for rival, process in rival_processes.items():
                if name in RIVALS[rival]:
                    rivals[rival] = partial(process, f"{name} {count}")
            results = take_turns(rivals, arguments.rounds)
            report(name, "updates/s", results, "Hindcast", TARGETS, floor=MIN_RATES[device].get(name))


if __name__ == "__main__":
    main()
