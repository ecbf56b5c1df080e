"""Judges a trained policy by recorded episodes alone, and plays it to see what it is worth: estimate and truth."""

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
"""Smaller than the default, as the board's networks are."""

SEED = 0
EPISODES, STEPS = 100, 500
"""Played for the truth. They are longer than those recorded, since models value what would have followed; beyond 500
steps a hundredth of the return is left."""

WIDTH = 20


def judge(piece: Piece, environment: Environment, folder: Path) -> dict[str, Any]:
    """Estimates of a policy's discounted return, and the return itself.

    The policy acts as it samples where its actions have a density, so that importance sampling applies, and takes its
    mode otherwise; truth and estimates are of the same. The episodes are those of the same behaviour that no piece is
    trained on.

    Args:
        piece: one of ours.
        environment: where it is trained.
        folder: of the data.

    Returns:
        The piece's fields; `gamma`; `explore`; `truth`: mean discounted return of played episodes, and its standard
        error `truth_error`; `estimates`, `signals`, `effective_episodes` as `hindcast evaluate --data
        --json` has them, the signals with those of the algorithm's own critics; `cpu_seconds` after the training.
    """
    explore = piece.trained not in GREEDY
    data = folder / piece.environment / f"{piece.data}{JUDGES}"
    with train_algorithm(piece, folder, data, explore) as algorithm:
        start_time = time.process_time()
        policy = algorithm.get_policy()
        critic_signals = algorithm.evaluate_offline()["signals"]
    options = OfflineOptions(gamma=GAMMA, explore=explore, seed=SEED, fit=FIT)
    report = evaluate_offline(policy, open_dataset(str(data)), data.name, options).to_json()
    report["signals"] = critic_signals | report["signals"]
    played = _play_returns(policy, environment, explore)
    kept_keys = ("estimates", "signals", "effective_episodes")
    return {
        **piece._asdict(),
        "gamma": GAMMA,
        "explore": explore,
        "truth": float(played.mean()),
        "truth_error": float(played.std(ddof=1) / np.sqrt(EPISODES)),
        **{name: report[name] for name in kept_keys},
        "cpu_seconds": round(time.process_time() - start_time, 1),
    }


def _play_returns(policy: Policy, environment: Environment, explore: bool) -> np.ndarray:
    """`[EPISODES]` discounted returns."""
    where = EnvironmentSpec(id=environment.id, max_episode_steps=STEPS)
    runner = EnvRunner(where, policy, WIDTH, reset_seed(SEED, "judging"), explore)
    try:
        episodes = list(runner.play(range(EPISODES)))
    finally:
        runner.close()
    rewards = [episode.columns["rewards"].astype(np.float64) for episode in episodes]
    return np.array([GAMMA ** np.arange(len(each)) @ each for each in rewards])
