"""Train with d3rlpy 2.8.1 on a scoreboard's data, and evaluate as for Hindcast.

    python d3rlpy_scores.py DATA.npz TASK

Run by the scoreboard in a separate Python environment; see scoring.py. Options that the task does not name are d3rlpy's
defaults, with two exceptions: on a GPU updates are compiled and captured (compile_graph), and the weight of CQL's
penalty is fixed at the default of both libraries, unless the task asks for defaults.
"""

from dataclasses import replace

import d3rlpy
import numpy as np
import scoring
import structlog
import torch
from d3rlpy.models import VectorEncoderFactory
from d3rlpy.preprocessing import StandardObservationScaler

DEFAULTS = {
    "BC": d3rlpy.algos.BCConfig,
    "TD3BC": d3rlpy.algos.TD3PlusBCConfig,
    "ReBRAC": d3rlpy.algos.ReBRACConfig,
    "IQL": d3rlpy.algos.IQLConfig,
    "CQL": d3rlpy.algos.CQLConfig,
    "SAC": d3rlpy.algos.SACConfig,
    "DQN": d3rlpy.algos.DoubleDQNConfig,
    "DiscreteCQL": d3rlpy.algos.DiscreteCQLConfig,
    "DiscreteSAC": d3rlpy.algos.DiscreteSACConfig,
}


def make_default_config(task, is_discrete):
    """Return the algorithm's config without any option."""
    if is_discrete and task["algorithm"] == "BC":
        return d3rlpy.algos.DiscreteBCConfig()
    return DEFAULTS[task["algorithm"]]()


def make_config(task, encoder):
    """Return the algorithm's config, with networks, learning rates and batch size of the task."""
    rate = task["rate"]
    common_options = {"batch_size": task["batch"]}
    if task["algorithm"] == "BC":
        return d3rlpy.algos.BCConfig(learning_rate=rate, encoder_factory=encoder, **common_options)
    common_options |= {
        "actor_learning_rate": rate,
        "critic_learning_rate": rate,
        "actor_encoder_factory": encoder,
        "critic_encoder_factory": encoder,
    }
    algorithms = d3rlpy.algos
    configs = {
        "TD3BC": lambda: algorithms.TD3PlusBCConfig(
            observation_scaler=StandardObservationScaler(), **common_options
        ),
        "ReBRAC": lambda: algorithms.ReBRACConfig(
            actor_beta=task["beta"],
            critic_beta=task["beta"],
            **common_options | {"critic_encoder_factory": make_encoder(task, use_layer_norm=True)},
        ),
        "IQL": lambda: algorithms.IQLConfig(value_encoder_factory=encoder, **common_options),
        "SAC": lambda: algorithms.SACConfig(temp_learning_rate=rate, **common_options),
        "CQL": lambda: algorithms.CQLConfig(
            temp_learning_rate=rate, conservative_weight=5.0, alpha_learning_rate=0.0, **common_options
        ),
    }
    return configs[task["algorithm"]]()


def make_encoder(task, **options):
    """Return the networks of the task; `options` normalise ReBRAC's critics, as in d3rlpy's reproduction."""
    return VectorEncoderFactory(list(task["hidden"]), activation="relu", **options)


def main():
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    task, columns = scoring.load_arguments()
    d3rlpy.seed(task["seed"])
    is_discrete = columns["actions"].ndim == 1
    kind = d3rlpy.ActionSpace.DISCRETE if is_discrete else d3rlpy.ActionSpace.CONTINUOUS
    data = d3rlpy.dataset.MDPDataset(
        observations=columns["obs"],
        actions=columns["actions"].astype(np.int64)[:, None] if is_discrete else columns["actions"],
        rewards=columns["rewards"],
        terminals=columns["terminals"].astype(np.float32),
        timeouts=columns["timeouts"].astype(np.float32),
        action_space=kind,
    )
    is_on_gpu = torch.cuda.is_available()
    config = (
        make_default_config(task, is_discrete) if task["defaults"] else make_config(task, make_encoder(task))
    )
    config = replace(config, compile_graph=is_on_gpu)
    algorithm = config.create(device="cuda" if is_on_gpu else "cpu")
    algorithm.build_with_dataset(data)
    if config.observation_scaler is not None:
        algorithm.config.observation_scaler.fit_with_trajectory_slicer(data.episodes, data.trajectory_slicer)
    scoring.train(
        task,
        update=lambda: algorithm.update(data.sample_transition_batch(config.batch_size)),
        act=lambda observation: algorithm.predict(observation[None])[0],
    )


if __name__ == "__main__":
    main()
