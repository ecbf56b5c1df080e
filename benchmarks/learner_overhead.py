"""Overhead of the learner over a bare torch loop: BC, 17 observations, [256, 256], 6 actions, batch 256, one thread.

    python benchmarks/learner_overhead.py

All run the same networks, batches, threads and fused Adam, in turns of 5 updates. Medians over the turns are printed;
for microseconds the 10 % quantile, since a disturbance takes longer than the overhead. `overhead_us` compares with a
loop of the same arithmetic, which also computes the learner's metrics (loss, entropy, gradient norm) and drops them;
`learner_over_bare` and `overhead_with_metrics_us` compare with a loop without them. On the CPU the time is CPU time of
this process, so that other programs do not count.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import gymnasium as gym
import numpy as np
import torch
from torch import nn

from hindcast.algorithms import build
from hindcast.api.model import ModelSpec
from hindcast.learn.algorithm import Algorithm, ModelInputs, Step, new_networks
from hindcast.learn.learner import Learner
from hindcast.models.rl_module import RLModule

UPDATES_PER_TURN = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    inputs = ModelInputs(
        gym.spaces.Box(-np.inf, np.inf, (17,), np.float32),
        gym.spaces.Box(-1, 1, (6,), np.float32),
        ModelSpec(),
    )
    algorithm = build("BC", {})
    generator = torch.Generator().manual_seed(0)
    batches = [
        {
            "obs": torch.randn(args.batch, 17, generator=generator).to(args.device),
            "actions": torch.randn(args.batch, 6, generator=generator).to(args.device),
        }
        for _ in range(UPDATES_PER_TURN)
    ]
    learner = Learner(algorithm, new_networks(algorithm, inputs, seed=0), args.device)
    full_step = _make_full_step(algorithm, new_networks(algorithm, inputs, seed=0).to(args.device))
    bare_step = _make_bare_step(new_networks(algorithm, inputs, seed=0).to(args.device)["policy"])
    step_functions = {"learner": learner.update, "bare": bare_step, "full": full_step}
    seconds: dict[str, list[float]] = {name: [] for name in step_functions}
    for turn in range(args.turns):
        for name in sorted(step_functions, reverse=bool(turn % 2)):
            seconds[name].append(_measure_seconds(step_functions[name], batches, args.device))
    learner_seconds, bare_seconds, full_seconds = (
        np.array(seconds[name][10:]) / UPDATES_PER_TURN for name in ("learner", "bare", "full")
    )
    learner.metrics()
    print(
        json.dumps(
            {
                "benchmark": "learner_overhead",
                "device": args.device,
                "threads": args.threads,
                "batch": args.batch,
                "bare_ms": round(float(np.median(bare_seconds)) * 1e3, 3),
                "learner_ms": round(float(np.median(learner_seconds)) * 1e3, 3),
                "learner_over_bare": round(float(np.median(learner_seconds / bare_seconds)), 4),
                "overhead_us": _overhead_microseconds(learner_seconds, full_seconds),
                "overhead_with_metrics_us": _overhead_microseconds(learner_seconds, bare_seconds),
            }
        )
    )


def _overhead_microseconds(our_seconds: np.ndarray, their_seconds: np.ndarray) -> float:
    our_quantile, their_quantile = (
        float(np.quantile(seconds, 0.1)) for seconds in (our_seconds, their_seconds)
    )
    return round((our_quantile - their_quantile) * 1e6, 1)


def _make_full_step(algorithm: Algorithm, nets: nn.ModuleDict) -> Callable[[dict[str, torch.Tensor]], None]:
    parameters = list(nets.parameters())
    adam = torch.optim.Adam(parameters, lr=1e-4, fused=True)
    update_step = Step(0, 0, torch.Generator())

    def step(batch: dict[str, torch.Tensor]) -> None:
        losses = algorithm.losses(nets, batch, update_step)
        losses.losses["policy"].backward()
        torch.nn.utils.get_total_norm([parameter.grad for parameter in parameters])
        adam.step()
        adam.zero_grad()

    return step


def _make_bare_step(policy: RLModule) -> Callable[[dict[str, torch.Tensor]], None]:
    adam = torch.optim.Adam(policy.parameters(), lr=1e-4, fused=True)

    def step(batch: dict[str, torch.Tensor]) -> None:
        inputs = policy.forward_train(batch)["action_dist_inputs"]
        loss = -policy.distribution(inputs).logp(batch["actions"]).mean()
        loss.backward()
        adam.step()
        adam.zero_grad()

    return step


def _measure_seconds(
    step: Callable[[dict[str, torch.Tensor]], None], batches: list[dict[str, torch.Tensor]], device: str
) -> float:
    clock = time.process_time if device == "cpu" else time.perf_counter
    start_time = clock()
    for batch in batches:
        step(batch)
    if device != "cpu":
        torch.cuda.synchronize()
    return clock() - start_time


if __name__ == "__main__":
    main()
