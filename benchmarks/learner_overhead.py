"""What the learner costs over a bare torch loop: BC, 17 observations, [256, 256], 6 actions, batch 1024.

    python benchmarks/learner_overhead.py

Both run the same networks, batches, threads and fused Adam, in turns of 5 updates; printed is the median
of the ratios of each pair of turns. The learner also makes its metrics (loss, entropy, gradient norm).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import gymnasium as gym
import numpy as np
import torch

from hindcast.algorithms import build
from hindcast.api.model import ModelSpec
from hindcast.learn.algorithm import ModelInputs, new_networks
from hindcast.learn.learner import Learner
from hindcast.models.rl_module import RLModule

TURN = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    inputs = ModelInputs(
        gym.spaces.Box(-np.inf, np.inf, (17,), np.float32),
        gym.spaces.Box(-1, 1, (6,), np.float32),
        ModelSpec(),
    )
    algorithm = build("BC", {})
    source = torch.Generator().manual_seed(0)
    batches = [
        {
            "obs": torch.randn(args.batch, 17, generator=source).to(args.device),
            "actions": torch.randn(args.batch, 6, generator=source).to(args.device),
        }
        for _ in range(TURN)
    ]
    learner = Learner(algorithm, new_networks(algorithm, inputs, seed=0), args.device)
    bare = _bare(new_networks(algorithm, inputs, seed=0).to(args.device)["policy"])
    steps = {"learner": learner.update, "bare": bare}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(args.turns):
        for name in sorted(steps, reverse=bool(turn % 2)):
            seconds[name].append(_seconds(steps[name], batches, args.device))
    ours, theirs = (seconds[name][10:] for name in ("learner", "bare"))
    learner.metrics()
    print(
        json.dumps(
            {
                "benchmark": "learner_overhead",
                "device": args.device,
                "threads": args.threads,
                "batch": args.batch,
                "bare_ms": round(statistics.median(theirs) / TURN * 1e3, 3),
                "learner_ms": round(statistics.median(ours) / TURN * 1e3, 3),
                "learner_over_bare": round(
                    statistics.median(o / t for o, t in zip(ours, theirs, strict=True)), 4
                ),
            }
        )
    )


def _bare(policy: RLModule) -> Callable[[dict[str, torch.Tensor]], None]:
    adam = torch.optim.Adam(policy.parameters(), lr=1e-4, fused=True)

    def step(batch: dict[str, torch.Tensor]) -> None:
        inputs = policy.forward_train(batch)["action_dist_inputs"]
        loss = -policy.distribution(inputs).logp(batch["actions"]).mean()
        loss.backward()
        adam.step()
        adam.zero_grad()

    return step


def _seconds(
    step: Callable[[dict[str, torch.Tensor]], None], batches: list[dict[str, torch.Tensor]], device: str
) -> float:
    started = time.perf_counter()
    for batch in batches:
        step(batch)
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
