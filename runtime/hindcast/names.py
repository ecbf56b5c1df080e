"""RLlib's names of result keys and checkpoint components; all are public names of `hindcast`."""

from typing import Final

EVALUATION_RESULTS: Final = "evaluation"
ENV_RUNNER_RESULTS: Final = "env_runners"
LEARNER_RESULTS: Final = "learners"
TIMERS: Final = "timers"
LEARNER_UPDATE_TIMER: Final = "learner_update_timer"
TRAINING_ITERATION: Final = "training_iteration"
EPISODE_RETURN_MEAN: Final = "episode_return_mean"
EPISODE_RETURN_MIN: Final = "episode_return_min"
EPISODE_RETURN_MAX: Final = "episode_return_max"
EPISODE_LEN_MEAN: Final = "episode_len_mean"
NUM_EPISODES: Final = "num_episodes"
NUM_ENV_STEPS_SAMPLED_LIFETIME: Final = "num_env_steps_sampled_lifetime"
NUM_ENV_STEPS_TRAINED_LIFETIME: Final = "num_env_steps_trained_lifetime"

DEFAULT_POLICY_ID: Final = "default_policy"
DEFAULT_MODULE_ID: Final = DEFAULT_POLICY_ID
DEFAULT_AGENT_ID: Final = "default_agent"
ALL_MODULES: Final = "__all_modules__"

COMPONENT_RL_MODULE: Final = "rl_module"
COMPONENT_OPTIMIZER: Final = "optimizer"
COMPONENT_LEARNER: Final = "learner"
COMPONENT_LEARNER_GROUP: Final = "learner_group"
COMPONENT_ENV_RUNNER: Final = "env_runner"
COMPONENT_EVAL_ENV_RUNNER: Final = "eval_env_runner"
COMPONENT_ENV_TO_MODULE_CONNECTOR: Final = "env_to_module_connector"
COMPONENT_MODULE_TO_ENV_CONNECTOR: Final = "module_to_env_connector"
COMPONENT_METRICS_LOGGER: Final = "metrics_logger"
