"""Train a piece: Hindcast's through the Python API, a rival's in a separate process."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from data import load_columns
from tasks import BATCH, BETAS, ENVIRONMENTS, MODELS, OPTIONS, OURS, RATES, Piece

import hindcast
from hindcast.api.environment import EnvironmentSpec
from hindcast.evaluate.environment import evaluate_policy
from hindcast.record.seeding import reset_seed
from hindcast.rllib.builder.algorithm import RunningAlgorithm

EVALUATION_SEED = 0
RIVALS = Path(__file__).parents[1] / "rivals"


def train(piece: Piece, folder: Path, rllib: str) -> dict[str, Any]:
    """Train a piece.

    Args:
        piece: the piece.
        folder: folder of the data.
        rllib: the Python that has RLlib and d3rlpy.

    Returns:
        The piece's fields; `updates`; `device`, a GPU if there is one; `cpu_seconds` of training and evaluating;
        `evaluations`: number of updates and returns of all episodes of each evaluation.
    """
    path = folder / piece.data_folder
    start_time = time.process_time() + _children_cpu_seconds()
    evaluations = _train_hindcast(piece, path) if piece.who == OURS else _train_rival(piece, path, rllib)
    seconds = time.process_time() + _children_cpu_seconds() - start_time
    return {
        **piece._asdict(),
        "updates": piece.updates,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "cpu_seconds": round(seconds, 1),
        "evaluations": evaluations,
    }


def train_algorithm(piece: Piece, folder: Path, judges: Path, explore: bool) -> RunningAlgorithm:
    """Return a trained algorithm, for the caller to close: restored from the data's folder, or trained now and stored
    there.

    Args:
        piece: the piece, of Hindcast.
        folder: folder of the data.
        judges: recorded episodes for `evaluate_offline`.
        explore: whether the policy samples its actions in that evaluation.
    """
    config = _make_config(piece, folder / piece.data_folder)
    config.evaluation(offline_evaluation_input=str(judges), offline_evaluation_explore=explore)
    checkpoint_folder = (
        folder / piece.environment / "trained" / f"{piece.data}-{piece.algorithm}-{piece.seed}"
    )
    algorithm = config.build_algo()
    if checkpoint_folder.exists():
        algorithm.restore_from_path(checkpoint_folder)
        return algorithm
    for _ in range(piece.updates // piece.evaluation_interval):
        algorithm.train()
    algorithm.save_to_path(checkpoint_folder)
    return algorithm


def _train_hindcast(piece: Piece, path: Path) -> list[dict[str, Any]]:
    environment = ENVIRONMENTS[piece.environment]
    evaluations = []
    with _make_config(piece, path).build_algo() as algorithm:
        for iteration in range(1, piece.updates // piece.evaluation_interval + 1):
            algorithm.train()
            report = evaluate_policy(
                algorithm.get_policy(),
                EnvironmentSpec(id=environment.id),
                duration=environment.evaluation_episodes,
                seed=EVALUATION_SEED,
            )
            evaluations.append(
                {
                    "updates": iteration * piece.evaluation_interval,
                    "returns": [round(episode_return, 2) for episode_return in report.returns],
                }
            )
    return evaluations


def _make_config(piece: Piece, path: Path) -> Any:
    environment = ENVIRONMENTS[piece.environment]
    config = (
        getattr(hindcast, f"{piece.algorithm_class}Config")()
        .environment(environment.id)
        .offline_data(
            input_=str(path), input_top=piece.top, dataset_num_iters_per_learner=piece.evaluation_interval
        )
        .debugging(seed=piece.seed)
    )
    if environment.has_defaults_only:
        return config
    rate_options = dict.fromkeys(RATES[piece.algorithm_class], environment.learning_rate)
    options = {"train_batch_size_per_learner": BATCH, **rate_options, **OPTIONS.get(piece.algorithm, {})}
    model = {
        "fcnet_hiddens": list(environment.hidden_sizes),
        "fcnet_activation": "relu",
        **{**MODELS, **environment.models}.get(piece.algorithm_class, {}),
    }
    if piece.algorithm_class == "ReBRAC":
        options |= {"actor_beta": BETAS[piece.data], "critic_beta": BETAS[piece.data]}
    return config.training(**options).rl_module(model_config=model)


def _train_rival(piece: Piece, path: Path, rllib: str) -> list[dict[str, Any]]:
    environment = ENVIRONMENTS[piece.environment]
    evaluation_seed = reset_seed(EVALUATION_SEED, "evaluation")
    task = {
        "environment": environment.id,
        "algorithm": piece.algorithm_class,
        "seed": piece.seed,
        "defaults": environment.has_defaults_only,
        "hidden": environment.hidden_sizes,
        "rate": environment.learning_rate,
        "batch": BATCH,
        "beta": BETAS.get(piece.data),
        "updates": piece.updates,
        "every": piece.evaluation_interval,
        "resets": [
            reset_seed(evaluation_seed, "episode", index) for index in range(environment.evaluation_episodes)
        ],
    }
    with tempfile.TemporaryDirectory() as folder_name:
        data = Path(folder_name) / "data.npz"
        np.savez(data, **load_columns(path, piece.top))
        command = [rllib, str(RIVALS / f"{piece.who.lower()}_scores.py"), str(data), json.dumps(task)]
        process = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(process.stdout.splitlines()[-1])


def _children_cpu_seconds() -> float:
    times = os.times()
    return times.children_user + times.children_system
