"""`Callbacks`: base class of a user's callbacks, called during trainings and while episodes are played."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from hindcast.episodes.episode import SingleAgentEpisode
    from hindcast.metrics_logger import MetricsLogger

FIELD: Final = "spec.callbacks"
EPISODE_HOOKS: Final = (
    "on_environment_created",
    "on_episode_created",
    "on_episode_start",
    "on_episode_step",
    "on_episode_end",
    "on_sample_end",
)
"""Methods that are called in the processes with environments."""
TRAINING_HOOKS: Final = (
    "on_algorithm_init",
    "on_checkpoint_loaded",
    "on_train_result",
    "on_evaluate_start",
    "on_evaluate_end",
    "on_evaluate_offline_start",
    "on_evaluate_offline_end",
)
"""Methods that are called in the process that drives training."""


class Callbacks:
    """Base class of a user's callbacks; subclasses override any of the methods.

    Training methods are called one after the other in the process that drives the training (the first learner);
    training waits for them. Episode methods (`on_episode_…`, `on_environment_created`, `on_sample_end`) are called in
    the processes with environments: in evaluations, recordings and trainings with a sampler. There is one instance
    per process and set of environments. Its attributes are not saved in checkpoints, and other instances do not see
    them.

    All arguments are passed by name. `algorithm` is the training, with `iteration`, `get_policy()` and `get_module()`;
    in Python it is the `RunningAlgorithm`. Metrics that are logged with `metrics_logger` appear in the next result;
    metrics of episode methods appear there under `env_runners`. Methods must accept `**kwargs`, for future arguments.

    Episode methods receive `env_runner`, `env` (`env.envs` are its environments) and `rl_module` (the policy's network;
    None for a random policy); those named `on_episode_…` also receive `episode` and `env_index`, the index of its
    environment in `env.envs`. Overriding an episode method creates Python objects for each timestep, in the processes
    with environments.
    """

    def on_algorithm_init(
        self,
        *,
        algorithm: Any,
        resource: dict[str, Any],
        folder: str | None,
        metrics_logger: MetricsLogger,
        **kwargs: Any,
    ) -> None:
        """Called when networks and data are ready, before training starts or resumes.

        Args:
            algorithm: see the class.
            resource: the resource of the training or recording, as the values of its YAML document.
            folder: path or URI of the run folder; None for a training in Python, which has no run folder.
            metrics_logger: see the class.
            kwargs: none yet.
        """

    def on_checkpoint_loaded(self, *, algorithm: Any, metrics_logger: MetricsLogger, **kwargs: Any) -> None:
        """Called when training resumes from a checkpoint."""

    def on_train_result(
        self, *, algorithm: Any, result: dict[str, Any], metrics_logger: MetricsLogger, **kwargs: Any
    ) -> None:
        """Called when an iteration has ended.

        Args:
            algorithm: see the class.
            result: nested result of `train()`. Added entries (JSON) appear in `results.jsonl` and in the report.
            metrics_logger: metrics that are logged here appear in this result.
            kwargs: none yet.
        """

    def on_evaluate_start(self, *, algorithm: Any, metrics_logger: MetricsLogger, **kwargs: Any) -> None:
        """Called when an evaluation starts, between iterations or in parallel to training."""

    def on_evaluate_end(
        self,
        *,
        algorithm: Any,
        evaluation_metrics: dict[str, Any],
        metrics_logger: MetricsLogger,
        **kwargs: Any,
    ) -> None:
        """Called when an evaluation has ended.

        Args:
            algorithm: see the class.
            evaluation_metrics: `training_iteration` (that of the evaluated weights) and `env_runners`.
            metrics_logger: see the class.
            kwargs: none yet.
        """

    def on_evaluate_offline_start(
        self, *, algorithm: Any, metrics_logger: MetricsLogger, **kwargs: Any
    ) -> None:
        """Called when an evaluation on held-out episodes starts."""

    def on_evaluate_offline_end(
        self,
        *,
        algorithm: Any,
        evaluation_metrics: dict[str, Any],
        metrics_logger: MetricsLogger,
        **kwargs: Any,
    ) -> None:
        """Called when an evaluation on held-out episodes has ended, with its metrics `evaluation/offline`."""

    def on_environment_created(
        self,
        *,
        env_runner: Any,
        metrics_logger: MetricsLogger,
        env: Any,
        env_context: dict[str, Any],
        **kwargs: Any,
    ) -> None:
        """Called when a set of environments, `env.envs`, has been created with the arguments `env_context`."""

    def on_episode_created(
        self, *, episode: SingleAgentEpisode, env_runner: Any, metrics_logger: MetricsLogger, **kwargs: Any
    ) -> None:
        """Called before an episode starts: its environment has not been reset, and the episode is empty."""

    def on_episode_start(
        self, *, episode: SingleAgentEpisode, env_runner: Any, metrics_logger: MetricsLogger, **kwargs: Any
    ) -> None:
        """Called when the environment has been reset and the episode has its first observation."""

    def on_episode_step(
        self, *, episode: SingleAgentEpisode, env_runner: Any, metrics_logger: MetricsLogger, **kwargs: Any
    ) -> None:
        """Called after each step, including the last one, which on_episode_end follows."""

    def on_episode_end(
        self, *, episode: SingleAgentEpisode, env_runner: Any, metrics_logger: MetricsLogger, **kwargs: Any
    ) -> None:
        """Called when the episode has ended. `episode` is a copy: changes do not affect the recorded data."""

    def on_sample_end(
        self,
        *,
        env_runner: Any,
        metrics_logger: MetricsLogger,
        samples: list[SingleAgentEpisode],
        **kwargs: Any,
    ) -> None:
        """Called when a set of episodes has been played: a part of an evaluation or a recording, or a rollout.

        Args:
            env_runner: see the class.
            metrics_logger: see the class.
            samples: the episodes; those of a rollout may be unfinished.
            kwargs: `env` and `rl_module`, see the class.
        """
