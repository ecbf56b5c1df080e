"""Two learners of one thread each against one, on prepared batches of HalfCheetah's shape.

    python benchmarks/learners.py [--rounds 5] [--updates 40]

The learners are processes that sum their gradients by gloo. Time is CPU time of the slower learner, so that other
programs do not count, and neither does waiting for the other learner. Two ratios of timesteps per second are printed:
if each learner has the batch (`num_learners: 2`, as in RLlib), and if they divide it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from updates import make_hindcast_update

from hindcast.learn.ranks import Ranks

_CASES = (("BC", 4096), ("IQL", 512), ("IQL", 4096))
"""(algorithm, timesteps in the batch)."""
_TARGET = 1.7


def make_batch(num_timesteps: int) -> dict[str, torch.Tensor]:
    """Make a batch of noise."""
    generator = torch.Generator().manual_seed(0)
    return {
        "obs": torch.randn(num_timesteps, 17, generator=generator),
        "new_obs": torch.randn(num_timesteps, 17, generator=generator),
        "actions": torch.rand(num_timesteps, 6, generator=generator) * 2 - 1,
        "rewards": torch.randn(num_timesteps, generator=generator),
        "discounts": torch.full((num_timesteps,), 0.99),
    }


def seconds_per_update(
    update: Callable[..., object], batch: Mapping[str, Any], parts: int, count: int
) -> float:
    """Return the CPU time of an update of a learner on one of `parts` batches of all learners."""
    num_timesteps = parts * len(batch["obs"])
    for _ in range(3):
        update(batch, num_timesteps)
    start_time = time.process_time()
    for _ in range(count):
        update(batch, num_timesteps)
    return (time.process_time() - start_time) / count


def run_learner(rank: int, store: str, num_rounds: int, num_updates: int) -> None:
    """Measure in one of the two processes; the first one prints."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    group = Ranks(torch.device("cpu"))
    for name, num_timesteps in _CASES:
        batch, half = make_batch(num_timesteps), make_batch(num_timesteps // 2)
        ratios = []
        alone, together = make_hindcast_update(name, "cpu"), make_hindcast_update(name, "cpu", group=group)
        for _ in range(num_rounds):
            dist.barrier()
            time_alone = seconds_per_update(alone, batch, 1, num_updates)
            dist.barrier()
            times = [seconds_per_update(together, shard, 2, num_updates) for shard in (batch, half)]
            slowest = [max(values) for values in zip(*group.gather_values(times), strict=True)]
            ratios.append((2 * time_alone / slowest[0], time_alone / slowest[1]))
        if rank == 0:
            whole, divided = (statistics.median(values) for values in zip(*ratios, strict=True))
            print(
                f"{name} {num_timesteps}: {whole:.2f} x one learner (aim {_TARGET}), {divided:.2f} x if they "
                "divide the batch",
                flush=True,
            )
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    """Start both learners."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--updates", type=int, default=40)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        start = (f"{folder}/store", arguments.rounds, arguments.updates)
        context = multiprocessing.get_context("spawn")
        learners = [context.Process(target=run_learner, args=(rank, *start)) for rank in range(2)]
        for learner in learners:
            learner.start()
        for learner in learners:
            learner.join()


if __name__ == "__main__":
    main()
