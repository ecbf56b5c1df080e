"""Estimate the return of a trained policy from recorded episodes alone, and play it to measure the true return."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
from tasks import GREEDY, JUDGES, Environment, Piece
from training import train_algorithm

from hindcast.api.environment import EnvironmentSpec
from hindcast.datasets.opening import open_dataset
from hindcast.evaluate.fitted_q import FittedQOptions
from hindcast.evaluate.offline import OfflineOptions, evaluate_offline
from hindcast.models.policy import Policy
from hindcast.record.runner import EnvRunner
from hindcast.record.seeding import reset_seed

GAMMA = 0.99
FIT = FittedQOptions(updates=4_000, members=3, samples=2, hiddens=(64, 64))
"""Smaller than the default, like the board's networks."""

SEED = 0
EPISODES, STEPS = 100, 500
"""Number and length of the episodes that are played for the true return. They are longer than the recorded ones, since
models also value the steps that would have followed; 500 steps leave out a hundredth of the return."""

WIDTH = 20


def judge(piece: Piece, environment: Environment, folder: Path) -> dict[str, Any]:
    """Return estimates of a policy's discounted return, and the true return.

    The policy samples its actions if they have a density, so that importance sampling applies, and takes the mode
    otherwise, both for the truth and for the estimates. The recorded episodes are of the same policy as the training
    data, and no piece is trained on them.

    Args:
        piece: a piece of Hindcast.
        environment: environment of the piece.
        folder: folder of the data.

    Returns:
        The piece's fields; `gamma`; `explore`; `truth`: mean discounted return of played episodes, and its standard
        error `truth_error`; `estimates`, `signals`, `effective_episodes` as in `hindcast evaluate --data
        --json`, with signals of the algorithm's critics; `cpu_seconds` after the training.
    """
    explore = piece.algorithm_class not in GREEDY
    data = folder / piece.environment / f"{piece.data}{JUDGES}"
    with train_algorithm(piece, folder, data, explore) as algorithm:
        start_time = time.process_time()
        policy = algorithm.get_policy()
        critic_signals = algorithm.evaluate_offline()["signals"]
    options = OfflineOptions(gamma=GAMMA, explore=explore, seed=SEED, fit=FIT)
    report = evaluate_offline(policy, open_dataset(str(data)), data.name, options).to_json()
    report["signals"] = critic_signals | report["signals"]
    returns = _play_returns(policy, environment, explore)
    kept_keys = ("estimates", "signals", "effective_episodes")
    return {
        **piece._asdict(),
        "gamma": GAMMA,
        "explore": explore,
        "truth": float(returns.mean()),
        "truth_error": float(returns.std(ddof=1) / np.sqrt(EPISODES)),
        **{name: report[name] for name in kept_keys},
        "cpu_seconds": round(time.process_time() - start_time, 1),
    }


def _play_returns(policy: Policy, environment: Environment, explore: bool) -> np.ndarray:
    """Play episodes, and return their discounted returns, `[EPISODES]`."""
    environment_spec = EnvironmentSpec(id=environment.id, max_episode_steps=STEPS)
    runner = EnvRunner(environment_spec, policy, WIDTH, reset_seed(SEED, "judging"), explore)
    try:
        episodes = list(runner.play(range(EPISODES)))
    finally:
        runner.close()
    rewards = [episode.columns["rewards"].astype(np.float64) for episode in episodes]
    return np.array(
        [GAMMA ** np.arange(len(episode_rewards)) @ episode_rewards for episode_rewards in rewards]
    )
