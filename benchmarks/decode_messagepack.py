"""Speed of decoding episodes in MessagePack to arrays: one thread, cells in memory, all columns.

    python benchmarks/decode_messagepack.py --rllib PYTHON

Episodes of 500 timesteps as CartPole's are recorded: 4 observations, an action, a reward, 2 logits, a
log-probability. In the same run, in turns: RLlib decoding the same cells with its own classes. CPU time.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from gymnasium import spaces
from measuring import Rival, report, take_turns

from hindcast.datasets.writer import BlockWriter
from hindcast.episodes.block import Block
from hindcast.formats.messagepack.layout import MESSAGEPACK_EPISODES, MessagePackEpisodes
from hindcast.formats.spec import DataSpec
from hindcast.storage.location import resolve

STEPS_PER_EPISODE = 500


def make_block(num_episodes: int) -> Block:
    """Make episodes of random numbers in CartPole's columns."""
    rng, num_steps = np.random.default_rng(0), num_episodes * STEPS_PER_EPISODE
    no_flags = np.zeros(num_episodes, dtype=np.bool_)
    return Block(
        columns={
            "obs": rng.standard_normal((num_steps + num_episodes, 4), dtype=np.float32),
            "actions": rng.integers(0, 2, num_steps),
            "rewards": np.ones(num_steps),
            "action_dist_inputs": rng.standard_normal((num_steps, 2), dtype=np.float32),
            "action_logp": rng.standard_normal(num_steps, dtype=np.float32),
        },
        length=np.full(num_episodes, STEPS_PER_EPISODE),
        eps_id=np.array([f"{i:032x}" for i in range(num_episodes)], dtype=object),
        t_started=np.zeros(num_episodes, dtype=np.int64),
        terminated=~no_flags,
        truncated=no_flags,
    )


def make_decoder(path: Path, spec: DataSpec) -> Callable[[], float]:
    """Return a function that decodes all cells and columns, and returns timesteps per second of CPU time."""
    table, layout, leaves = pq.read_table(path), MessagePackEpisodes(), list(spec.leaves)

    def decode() -> float:
        start_time = time.process_time()
        block = layout.decode(table, spec, leaves)
        return block.num_steps / (time.process_time() - start_time)

    return decode


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rllib", required=True, help="the Python that has RLlib 2.60")
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    block = make_block(arguments.episodes)
    spec = DataSpec.from_block(block, spaces.Box(-9, 9, (4,), np.float32), spaces.Discrete(2))
    with tempfile.TemporaryDirectory() as folder:
        with BlockWriter(resolve(folder), spec, "s", layout=MESSAGEPACK_EPISODES) as writer:
            writer.write(block)
        path = Path(folder) / "s-000.parquet"
        with Rival("rllib_decode.py", arguments.rllib, str(path)) as rival:
            results = take_turns({"Hindcast": make_decoder(path, spec), "RLlib": rival}, arguments.rounds)
    report("decode MessagePack, 500-step episodes", "timesteps/s", results, "Hindcast", {"RLlib": 30})


if __name__ == "__main__":
    main()
