"""Estimate the return of a trained policy from recorded episodes alone, and play it to measure the true return."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from tasks import GREEDY, JUDGES, Environment, Piece
from training import train_algorithm

from hindcast.datasets.opening import open_dataset
from hindcast.episodes.block import Block
from hindcast.evaluate.fitted_q import FittedQOptions
from hindcast.evaluate.offline import OfflineOptions, evaluate_offline
from hindcast.models.policy import Policy
from hindcast.record.seeding import reset_seed

GAMMA = 0.99
FIT = FittedQOptions(updates=4_000, members=3, samples=2, hiddens=(64, 64), tau=0.1)
"""Smaller than the default, like the board's networks."""

SEED = 0
STEPS = 500
"""Length of the episodes that are played for the true return. They are longer than the recorded ones, since models also
value the steps that would have followed; 500 steps leave out a hundredth of the return."""


def judge(piece: Piece, environment: Environment, folder: Path) -> dict[str, Any]:
    """Return estimates of a policy's discounted return, the verdict, and the truth about both.

    The policy samples its actions if they have a density, so that importance sampling applies, and takes the mode
    otherwise, both for the truth and for the estimates. The recorded episodes are of the same policy as the training
    data, and no piece is trained on them.

    Args:
        piece: a piece of Hindcast.
        environment: environment of the piece.
        folder: folder of the data.

    Returns:
        The piece's fields; `gamma`; `explore`; `truth`: mean discounted return of episodes that are played from the
        initial states of the recorded ones, and its standard error `truth_error`; `verdict` as in JSON; `difference`:
        what the verdict estimates, the truth minus the return of the recorded episodes that the policy continues to the
        same length, and its standard error `difference_error`; `estimates`, `signals`, `effective_episodes` as in
        `hindcast evaluate --data --json`, with signals of the algorithm's critics; `cpu_seconds` after the training.
    """
    explore = piece.algorithm_class not in GREEDY
    data = folder / piece.environment / f"{piece.data}{JUDGES}"
    with train_algorithm(piece, folder, data, explore) as algorithm:
        start_time = time.process_time()
        policy = algorithm.get_policy()
        critic_signals = algorithm.evaluate_offline()["signals"]
    options = OfflineOptions(gamma=GAMMA, explore=explore, seed=SEED, fit=FIT)
    dataset = open_dataset(str(data))
    report = evaluate_offline(policy, dataset, data.name, options).to_json()
    report["signals"] = critic_signals | report["signals"]
    block = Block.concat([dataset.read(unit) for unit in dataset.units])
    returns, recorded_returns = _play_returns(policy, environment, explore, block)
    truths = {"truth": returns, "difference": returns - recorded_returns}
    kept_keys = ("verdict", "estimates", "signals", "effective_episodes")
    return {
        **piece._asdict(),
        "gamma": GAMMA,
        "explore": explore,
        **{name: float(values.mean()) for name, values in truths.items()},
        **{
            f"{name}_error": float(values.std(ddof=1) / np.sqrt(len(values)))
            for name, values in truths.items()
        },
        **{name: report[name] for name in kept_keys},
        "cpu_seconds": round(time.process_time() - start_time, 1),
    }


def _play_returns(
    policy: Policy, environment: Environment, explore: bool, block: Block
) -> tuple[np.ndarray, np.ndarray]:
    """Play from the first and from the last states of recorded episodes.

    Args:
        policy: the policy.
        environment: its environment.
        explore: True to sample actions.
        block: the recorded episodes.

    Returns:
        Discounted returns over `STEPS` steps `[N]`: of the policy from the first states, and of the recorded episodes,
        which the policy continues.
    """
    obs, rewards, starts = block.columns["obs"], block.columns["rewards"].astype(np.float64), block.obs_start
    recorded = np.add.reduceat(GAMMA**block.t * rewards, block.start)
    # Episodes that terminated do not go on.
    discounts = np.where(block.terminated, 0.0, GAMMA**block.length)
    num_steps = np.full_like(block.length, STEPS)
    returns = _play_from(policy, environment, explore, obs[starts], num_steps)
    continuations = _play_from(
        policy, environment, explore, obs[starts + block.length], num_steps - block.length
    )
    return returns, recorded + discounts * continuations


def _play_from(
    policy: Policy, environment: Environment, explore: bool, obs: np.ndarray, num_steps: np.ndarray
) -> np.ndarray:
    """Play one episode from the state of each observation `[N, O]`; return the discounted returns `[N]`.

    Args:
        policy: the policy.
        environment: the environment.
        explore: True to sample actions.
        obs: the observations.
        num_steps: `[N]` length of each episode, unless it terminates.
    """
    assert environment.restore is not None
    games = [gym.make(environment.id, max_episode_steps=STEPS) for _ in obs]
    for index, (game, state) in enumerate(zip(games, obs, strict=True)):
        game.reset(seed=reset_seed(SEED, "judging", index))
        environment.restore(game, state)
    generator = np.random.default_rng(SEED)
    current, returns, runs = obs.copy(), np.zeros(len(obs)), num_steps > 0
    for t in range(STEPS):
        noise = policy.draw_noise(generator, len(obs)) if explore else None
        actions = policy.act(current, noise, np.full(len(obs), t == 0)).env_actions
        for index in np.flatnonzero(runs):
            current[index], reward, is_terminated, _, _ = games[index].step(actions[index])
            returns[index] += GAMMA**t * float(reward)
            runs[index] = not is_terminated and t + 1 < num_steps[index]
    for game in games:
        game.close()
    return returns
