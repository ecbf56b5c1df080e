"""Updates per second of whole trainings (reading, drawing batches, updates, metrics) in Hindcast, d3rlpy and RLlib.

    python benchmarks/whole_training.py --rllib PYTHON [--algorithms IQL CQL]

All read the same Parquet file of rows with next observations in HalfCheetah's shape, draw batches of 256 from all of
it, and have networks of two layers of 256 and one core, including the processes that they start. Hindcast runs the
trainer of `hindcast run`; d3rlpy runs `fitter`, without its log files; RLlib runs `Algorithm.train` with its own
pipeline, once drawing anew in each epoch, as the others do (`materialize_mapped_data=False`), and once as by default,
when it makes its batches once and reuses them. RLlib trains DQN and SAC only in an environment: "SAC/Pendulum-v1" is
online in all three, with one timestep per update. The options are those of updates.py. They take turns of equally
many updates, after one that is not counted; the medians of the turns, by the wall clock, and of their ratios are
printed.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from bare_updates import ACTIONS, HIDDEN, OBSERVATIONS
from measuring import Rival, report, take_turns
from updates import CONFIGS, D3RLPY, DISCRETE, RLLIB, TARGETS

from hindcast.api import OfflineTraining
from hindcast.datasets.prepare.opening import open_data
from hindcast.pipeline.offline_data import Source
from hindcast.run.training.offline_trainer import make_offline_trainer
from hindcast.threads import num_processors

EPISODES, LENGTH, BATCH = 100, 1000, 256
ONLINE = ("SAC/Pendulum-v1", "DQN/CartPole-v1")
RLLIB_SAME_BATCHES = "RLlib, the same batches again"
UPDATES_PER_TURN = {"CQL": 20, "BC": 500, "DQN": 400, "DiscreteCQL": 400} | dict.fromkeys(ONLINE, 400)
"""All other trainings make 100 updates per turn."""
NAMES = [*CONFIGS, *ONLINE]
RIVALS = {D3RLPY: NAMES, RLLIB: ("BC", "IQL", "CQL", *ONLINE), RLLIB_SAME_BATCHES: ("BC", "IQL", "CQL")}
"""The trainings of each rival."""
SCRIPTS = {
    D3RLPY: ("d3rlpy_training.py",),
    RLLIB: ("rllib_training.py",),
    RLLIB_SAME_BATCHES: ("rllib_training.py", "--same-batches"),
}


def write_rows(path: Path, *, is_discrete: bool) -> Path:
    """Write one row of noise per timestep, with RLlib's column names, and return the path."""
    rng, num_rows = np.random.default_rng(0), EPISODES * LENGTH
    observations = rng.standard_normal((EPISODES, LENGTH + 1, OBSERVATIONS), dtype=np.float32)
    actions = (
        rng.integers(ACTIONS, size=num_rows)
        if is_discrete
        else list(rng.uniform(-1, 1, (num_rows, ACTIONS)).astype(np.float32))
    )
    columns = {
        "eps_id": np.repeat([f"e-{index:03d}" for index in range(EPISODES)], LENGTH),
        "obs": list(observations[:, :-1].reshape(num_rows, -1)),
        "actions": actions,
        "rewards": rng.standard_normal(num_rows, dtype=np.float32),
        "new_obs": list(observations[:, 1:].reshape(num_rows, -1)),
        "terminateds": np.zeros(num_rows, bool),
        "truncateds": np.arange(1, num_rows + 1) % LENGTH == 0,
    }
    pq.write_table(pa.table(columns), path)
    return path


def make_hindcast_turn(name: str, path: Path, num_updates: int) -> Callable[[], float]:
    """Return a function that runs the next iteration of a training, and returns updates per second."""
    algorithm, _, environment = name.partition("/")
    spec: dict[str, Any] = {
        "algorithm": algorithm,
        "config": CONFIGS[algorithm] | {"trainBatchSizePerLearner": BATCH},
        "model": {"fcnetHiddens": [HIDDEN, HIDDEN], "fcnetActivation": "relu"},
        "pipeline": {"datasetNumItersPerLearner": num_updates},
        "stop": {"iterations": 1},
    }
    if environment:
        spec |= {"environment": {"id": environment}, "input": [{"sampler": {}}]}
    else:
        discrete = {"type": "Discrete", "n": ACTIONS}
        continuous = {"type": "Box", "low": -1, "high": 1, "shape": [ACTIONS]}
        spec |= {
            "input": [{"path": str(path)}],
            "observationSpace": {"type": "Box", "low": -10, "high": 10, "shape": [OBSERVATIONS]},
            "actionSpace": discrete if algorithm in DISCRETE else continuous,
        }
    resource = OfflineTraining.model_validate({"metadata": {"name": "bench"}, "spec": spec})
    sources = [] if environment else [Source(str(path), open_data(path, cache=path.parent / "cache"))]
    trainer = make_offline_trainer(resource, sources)
    trainer.num_busy_processors = num_processors() - 1

    def run_turn() -> float:
        start_time = time.perf_counter()
        trainer.iterate()
        return num_updates / (time.perf_counter() - start_time)

    return run_turn


def main() -> None:
    """Measure and print a table for each training."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rllib", required=True, help="the Python that has the rivals")
    parser.add_argument("--rivals", nargs="*", default=list(RIVALS), choices=RIVALS)
    parser.add_argument("--algorithms", nargs="+", default=NAMES, choices=NAMES)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder_name, ExitStack() as stack:
        folder = Path(folder_name)
        continuous = write_rows(folder / "continuous.parquet", is_discrete=False)
        discrete = write_rows(folder / "discrete.parquet", is_discrete=True)
        processes = {
            rival: stack.enter_context(
                Rival(script, arguments.rllib, str(continuous), str(discrete), *options)
            )
            for rival, (script, *options) in SCRIPTS.items()
            if rival in arguments.rivals
        }
        for name in arguments.algorithms:
            num_updates = UPDATES_PER_TURN.get(name, 100)
            turns = {
                "Hindcast": make_hindcast_turn(
                    name, discrete if name in DISCRETE else continuous, num_updates
                )
            }
            for rival, process in processes.items():
                if name in RIVALS[rival]:
                    turns[rival] = partial(process, f"{name} {num_updates}")
            results = take_turns(turns, arguments.rounds)
            report(f"{name}, whole training", "updates/s", results, "Hindcast", TARGETS)


if __name__ == "__main__":
    main()
