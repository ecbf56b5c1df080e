"""Trains a piece: ours through the Python API, a rival's in a process of its own."""

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
from data import arrays
from tasks import BATCH, BETAS, ENVIRONMENTS, EXPLORING, MODELS, OPTIONS, OURS, RATES, Piece

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
        piece: which.
        folder: of the data.
        rllib: the Python that has RLlib and d3rlpy.

    Returns:
        The piece's fields; `updates`; `device`, a GPU where there is one; `cpu_seconds` of training and evaluating;
        `evaluations`: for each the updates made and the returns of all episodes.
    """
    path = folder / piece.environment / piece.data
    start_time = time.process_time() + _children()
    evaluations = _train_hindcast(piece, path) if piece.who == OURS else _train_rival(piece, path, rllib)
    seconds = time.process_time() + _children() - start_time
    return {
        **piece._asdict(),
        "updates": piece.updates,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "cpu_seconds": round(seconds, 1),
        "evaluations": evaluations,
    }


def train_algorithm(piece: Piece, folder: Path, judges: Path, explore: bool) -> RunningAlgorithm:
    """One of our pieces after its training, to be closed: restored where it was kept in the data's folder, else trained
    now and kept.

    Args:
        piece: which.
        folder: of the data.
        judges: episodes for `evaluate_offline`.
        explore: whether they are to judge the policy as it samples.
    """
    config = _config(piece, folder / piece.environment / piece.data)
    config.evaluation(offline_evaluation_input=str(judges), offline_evaluation_explore=explore)
    place = folder / piece.environment / "trained" / f"{piece.data}-{piece.algorithm}-{piece.seed}"
    algorithm = config.build_algo()
    if place.exists():
        algorithm.restore_from_path(place)
        return algorithm
    for _ in range(piece.updates // piece.every):
        algorithm.train()
    algorithm.save_to_path(place)
    return algorithm


def _train_hindcast(piece: Piece, path: Path) -> list[dict[str, Any]]:
    environment = ENVIRONMENTS[piece.environment]
    evaluations = []
    with _config(piece, path).build_algo() as algorithm:
        for iteration in range(1, piece.updates // piece.every + 1):
            algorithm.train()
            report = evaluate_policy(
                algorithm.get_policy(),
                EnvironmentSpec(id=environment.id),
                duration=environment.episodes,
                seed=EVALUATION_SEED,
                explore=piece.trained in EXPLORING,
            )
            evaluations.append(
                {
                    "updates": iteration * piece.every,
                    "returns": [round(each, 2) for each in report.returns],
                }
            )
    return evaluations


def _config(piece: Piece, path: Path) -> Any:
    environment = ENVIRONMENTS[piece.environment]
    rates = dict.fromkeys(RATES[piece.trained], environment.rate)
    options = {"train_batch_size_per_learner": BATCH, **rates, **OPTIONS.get(piece.algorithm, {})}
    model = {
        "fcnet_hiddens": list(environment.hidden),
        "fcnet_activation": "relu",
        **{**MODELS, **environment.models}.get(piece.trained, {}),
    }
    if piece.trained == "ReBRAC":
        options |= {"actor_beta": BETAS[piece.data], "critic_beta": BETAS[piece.data]}
    return (
        getattr(hindcast, f"{piece.trained}Config")()
        .environment(environment.id)
        .training(**options)
        .rl_module(model_config=model)
        .offline_data(input_=str(path), input_top=piece.top, dataset_num_iters_per_learner=piece.every)
        .debugging(seed=piece.seed)
    )


def _train_rival(piece: Piece, path: Path, rllib: str) -> list[dict[str, Any]]:
    environment = ENVIRONMENTS[piece.environment]
    source = reset_seed(EVALUATION_SEED, "evaluation")
    task = {
        "environment": environment.id,
        "algorithm": piece.trained,
        "seed": piece.seed,
        "hidden": environment.hidden,
        "rate": environment.rate,
        "batch": BATCH,
        "beta": BETAS[piece.data],
        "updates": piece.updates,
        "every": piece.every,
        "resets": [reset_seed(source, "episode", index) for index in range(environment.episodes)],
    }
    with tempfile.TemporaryDirectory() as work:
        data = Path(work) / "data.npz"
        np.savez(data, **arrays(path, piece.top))
        command = [rllib, str(RIVALS / f"{piece.who.lower()}_scores.py"), str(data), json.dumps(task)]
        process = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(process.stdout.splitlines()[-1])


def _children() -> float:
    used = os.times()
    return used.children_user + used.children_system
