"""Updates a second of whole trainings: reading, drawing batches, updates, metrics; ours, d3rlpy's, RLlib's, in one run.

    python benchmarks/whole_training.py --rllib PYTHON [--algorithms IQL CQL]

All read the same Parquet file, rows with next observations in HalfCheetah's shape, and have batches of 256 drawn from
all of it, networks of two layers of 256, and one core, which includes what they run beside themselves. Ours is the
trainer of `hindcast run`; d3rlpy's is `fitter`, without its log files; RLlib's is `Algorithm.train`, with its own
pipeline, drawing anew each epoch, as the others do (`materialize_mapped_data=False`), and as it is by default, when it
makes its batches once and takes the same ones from then on. RLlib trains DQN and SAC in an environment alone:
"SAC/Pendulum-v1" is that, a timestep for each update, in all three. The options are those of updates.py.
They take turns of the same updates, after one that is not counted; printed are medians of the turns, by the wall clock,
and of their ratios.
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
from updates import AIMS, CONFIGS, D3RLPY, DISCRETE, RLLIB

from hindcast.api import OfflineTraining
from hindcast.datasets.prepare.opening import open_data
from hindcast.pipeline.offline_data import Source
from hindcast.run.offline_trainer import make_offline_trainer
from hindcast.threads import num_processors

EPISODES, LENGTH, BATCH = 100, 1000, 256
ONLINE = ("SAC/Pendulum-v1", "DQN/CartPole-v1")
DEFAULT = "RLlib, the same batches again"
UPDATES_OF_TURN = {"CQL": 20, "BC": 500, "DQN": 400, "DiscreteCQL": 400} | dict.fromkeys(ONLINE, 400)
"""The others' is 100."""
NAMES = [*CONFIGS, *ONLINE]
RIVALS = {D3RLPY: NAMES, RLLIB: ("BC", "IQL", "CQL", *ONLINE), DEFAULT: ("BC", "IQL", "CQL")}
"""The trainings that each has."""
SCRIPTS = {
    D3RLPY: ("d3rlpy_training.py",),
    RLLIB: ("rllib_training.py",),
    DEFAULT: ("rllib_training.py", "--same-batches"),
}


def write_rows(path: Path, *, discrete: bool) -> Path:
    """A row for each timestep, of noise, with RLlib's names."""
    rng, rows = np.random.default_rng(0), EPISODES * LENGTH
    observations = rng.standard_normal((EPISODES, LENGTH + 1, OBSERVATIONS), dtype=np.float32)
    actions = (
        rng.integers(ACTIONS, size=rows)
        if discrete
        else list(rng.uniform(-1, 1, (rows, ACTIONS)).astype(np.float32))
    )
    columns = {
        "eps_id": np.repeat([f"e-{number:03d}" for number in range(EPISODES)], LENGTH),
        "obs": list(observations[:, :-1].reshape(rows, -1)),
        "actions": actions,
        "rewards": rng.standard_normal(rows, dtype=np.float32),
        "new_obs": list(observations[:, 1:].reshape(rows, -1)),
        "terminateds": np.zeros(rows, bool),
        "truncateds": np.arange(1, rows + 1) % LENGTH == 0,
    }
    pq.write_table(pa.table(columns), path)
    return path


def hindcast_training(name: str, path: Path, updates: int) -> Callable[[], float]:
    """One iteration of a training that goes on from turn to turn."""
    algorithm, _, environment = name.partition("/")
    spec: dict[str, Any] = {
        "algorithm": algorithm,
        "config": CONFIGS[algorithm] | {"trainBatchSizePerLearner": BATCH},
        "model": {"fcnetHiddens": [HIDDEN, HIDDEN], "fcnetActivation": "relu"},
        "pipeline": {"datasetNumItersPerLearner": updates},
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

    def turn() -> float:
        start_time = time.perf_counter()
        trainer.iterate()
        return updates / (time.perf_counter() - start_time)

    return turn


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
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        folder = Path(place)
        continuous = write_rows(folder / "continuous.parquet", discrete=False)
        discrete = write_rows(folder / "discrete.parquet", discrete=True)
        processes = {
            rival: stack.enter_context(
                Rival(script, arguments.rllib, str(continuous), str(discrete), *options)
            )
            for rival, (script, *options) in SCRIPTS.items()
            if rival in arguments.rivals
        }
        for name in arguments.algorithms:
            count = UPDATES_OF_TURN.get(name, 100)
            turns = {"Hindcast": hindcast_training(name, discrete if name in DISCRETE else continuous, count)}
            for rival, process in processes.items():
                if name in RIVALS[rival]:
                    turns[rival] = partial(process, f"{name} {count}")
            results = take_turns(turns, arguments.rounds)
            report(f"{name}, whole training", "updates/s", results, "Hindcast", AIMS)


if __name__ == "__main__":
    main()
