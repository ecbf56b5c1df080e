"""Train with RLlib 2.60 on a scoreboard's data, and evaluate as for Hindcast.

    python rllib_scores.py DATA.npz TASK

Run by the scoreboard in a separate Python environment; see scoring.py. RLlib's learners get batches of transitions,
drawn uniformly, without RLlib's pipeline of Ray Data. Options that the task does not name are RLlib's defaults, with
two exceptions: CQL has no warm-up, which would never end (RLlib restarts its count in each iteration), and `lr`, whose
default does not pass RLlib's own validation, is not set.
"""

import gymnasium as gym
import numpy as np
import scoring
import torch
from ray.rllib.algorithms.bc import BCConfig
from ray.rllib.algorithms.cql import CQLConfig
from ray.rllib.algorithms.iql import IQLConfig
from ray.rllib.algorithms.sac import SACConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch

CONFIGS = {"BC": BCConfig, "IQL": IQLConfig, "CQL": CQLConfig, "SAC": SACConfig}
RATE_OPTIONS = {
    "BC": ("lr",),
    "IQL": ("actor_lr", "critic_lr", "value_lr"),
    "CQL": ("actor_lr", "critic_lr", "alpha_lr"),
    "SAC": ("actor_lr", "critic_lr", "alpha_lr"),
}
OPTIONS = {"CQL": {"bc_iters": 0, "lr": None}, "SAC": {"lr": None}, "IQL": {"lr": None}}
MODULE = "default_policy"


def make_learner(task, observations, actions):
    """Return a learner with networks and learning rates of the task."""
    name = task["algorithm"]
    model = DefaultModelConfig(fcnet_hiddens=list(task["hidden"]), fcnet_activation="relu")
    config = (
        CONFIGS[name]()
        .environment(observation_space=observations, action_space=actions)
        .rl_module(model_config=model)
        .debugging(seed=task["seed"])
        .training(**{**OPTIONS.get(name, {}), **dict.fromkeys(RATE_OPTIONS[name], task["rate"])})
    )
    return config.build_learner(spaces={MODULE: (observations, actions)})


def make_transitions(columns):
    """Return the transitions that d3rlpy draws: without truncated last steps, whose next observation is missing."""
    rows = np.flatnonzero(~columns["timeouts"])
    next_rows = np.minimum(rows + 1, len(columns["obs"]) - 1)
    terminals = columns["terminals"][rows]
    return {
        "obs": columns["obs"][rows],
        "new_obs": np.where(terminals[:, None], columns["obs"][rows], columns["obs"][next_rows]),
        "actions": columns["actions"][rows],
        "rewards": columns["rewards"][rows],
        "terminateds": terminals,
        "truncateds": np.zeros(len(rows), bool),
        "weights": np.ones(len(rows), np.float32),
        "n_step": np.ones(len(rows), np.float32),
    }


def main():
    task, columns = scoring.load_arguments()
    torch.manual_seed(task["seed"])
    rng = np.random.default_rng(task["seed"])
    transition_columns = {
        name: torch.from_numpy(column) for name, column in make_transitions(columns).items()
    }
    observations = gym.spaces.Box(-np.inf, np.inf, columns["obs"].shape[1:], np.float32)
    actions = gym.spaces.Box(-1, 1, columns["actions"].shape[1:], np.float32)
    learner = make_learner(task, observations, actions)
    module = learner.module[MODULE].unwrapped()
    distribution = module.get_inference_action_dist_cls()
    batch_size, num_transitions = task["batch"], len(transition_columns["obs"])

    def update():
        rows = torch.from_numpy(rng.integers(num_transitions, size=batch_size))
        batch = SampleBatch({name: column[rows] for name, column in transition_columns.items()})
        learner.update(batch=MultiAgentBatch({MODULE: batch}, env_steps=batch_size))

    @torch.no_grad()
    def act(observation):
        outputs = module.forward_inference({"obs": torch.from_numpy(observation[None])})
        return distribution.from_logits(outputs["action_dist_inputs"]).to_deterministic().sample()[0].numpy()

    scoring.train(task, update, act)


if __name__ == "__main__":
    main()
