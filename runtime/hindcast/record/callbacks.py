"""`Callbacks`: a user's own code, called as a training progresses and as episodes are played."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from hindcast.episodes.episode import SingleAgentEpisode
    from hindcast.pipeline.metrics_logger import MetricsLogger

FIELD: Final = "spec.callbacks"
UNSUPPORTED_HOOKS: Final = {
    "on_env_runners_recreated": "runners that die are replaced automatically; on_environment_created is called for "
    "new ones",
    "on_offline_eval_runners_recreated": "there are no such runners",
    "on_learn_on_batch": "a connector of scope batch sees every batch",
    "on_postprocess_trajectory": "a connector sees every recorded episode, and on_episode_end every played one",
    "on_create_policy": "on_algorithm_init is called once there is a policy",
    "on_sub_environment_created": "it is called on_environment_created",
    "on_trainer_init": "it is called on_algorithm_init",
}
"""RLlib's callback methods that are not supported, and what to do instead."""
EPISODE_HOOKS: Final = (
    "on_environment_created",
    "on_episode_created",
    "on_episode_start",
    "on_episode_step",
    "on_episode_end",
    "on_sample_end",
)
"""The methods that are called where environments are."""
TRAINING_HOOKS: Final = (
    "on_algorithm_init",
    "on_checkpoint_loaded",
    "on_train_result",
    "on_evaluate_start",
    "on_evaluate_end",
    "on_evaluate_offline_start",
    "on_evaluate_offline_end",
)
"""The methods that are called in the process that drives training."""


class Callbacks:
    """Base of a user's callbacks, with RLlib's methods (`RLlibCallback`); a subclass overrides those that it wants.

    Those of a training are called in the process that decides, of several learners the first one's, one after the
    other; training waits for them. Those of what is played (`on_episode_…`, `on_environment_created`, `on_sample_end`)
    are called where the environments are: in evaluation, in recordings, and where a policy learns from what it plays.
    An instance is made for each process, and for each set of environments in it: what it keeps in attributes is not in
    checkpoints, and others do not see it.

    All arguments come by name. `algorithm` is what trains: it has `iteration`, `get_policy()` and `get_module()`; built
    in Python it is the `RunningAlgorithm`. Numbers that `metrics_logger` logs are in the next result, those of what is
    played among its `env_runners`. Methods must take `**kwargs`, for arguments to come.

    Those of what is played get `env_runner`, `env_index` (the environment's place), `env` (`env.envs[env_index]` is the
    environment), `rl_module` (the policy's network; None for a random policy) and `episode`. It costs objects for each
    timestep, in processes where one of them is overridden.
    """

    def on_algorithm_init(self, *, algorithm: Any, metrics_logger: MetricsLogger, **kwargs: Any) -> None:
        """Networks and data are there, and nothing is trained."""

    def on_checkpoint_loaded(self, *, algorithm: Any, metrics_logger: MetricsLogger, **kwargs: Any) -> None:
        """Training resumes from a checkpoint."""

    def on_train_result(
        self, *, algorithm: Any, result: dict[str, Any], metrics_logger: MetricsLogger, **kwargs: Any
    ) -> None:
        """An iteration has ended.

        Args:
            algorithm: see above.
            result: nested as `train()` returns it. What is added, as JSON, is in `results.jsonl` and in the report.
            metrics_logger: what it logs is in this result.
            kwargs: none yet.
        """

    def on_evaluate_start(self, *, algorithm: Any, metrics_logger: MetricsLogger, **kwargs: Any) -> None:
        """An evaluation begins, between iterations or in parallel to training."""

    def on_evaluate_end(
        self,
        *,
        algorithm: Any,
        evaluation_metrics: dict[str, Any],
        metrics_logger: MetricsLogger,
        **kwargs: Any,
    ) -> None:
        """An evaluation has ended.

        Args:
            algorithm: see above.
            evaluation_metrics: `training_iteration`, whose weights they are, and `env_runners`.
            metrics_logger: see above.
            kwargs: none yet.
        """

    def on_evaluate_offline_start(
        self, *, algorithm: Any, metrics_logger: MetricsLogger, **kwargs: Any
    ) -> None:
        """An evaluation by held-out episodes begins."""

    def on_evaluate_offline_end(
        self,
        *,
        algorithm: Any,
        evaluation_metrics: dict[str, Any],
        metrics_logger: MetricsLogger,
        **kwargs: Any,
    ) -> None:
        """An evaluation by held-out episodes has ended; `evaluation_metrics` is `evaluation/offline` of the results."""

    def on_environment_created(
        self,
        *,
        env_runner: Any,
        metrics_logger: MetricsLogger,
        env: Any,
        env_context: dict[str, Any],
        **kwargs: Any,
    ) -> None:
        """A set of environments was made; `env.envs` has all, `env_context` is their keyword arguments."""

    def on_episode_created(
        self, *, episode: SingleAgentEpisode, env_runner: Any, metrics_logger: MetricsLogger, **kwargs: Any
    ) -> None:
        """An episode is about to begin: its environment is not reset yet."""

    def on_episode_start(
        self, *, episode: SingleAgentEpisode, env_runner: Any, metrics_logger: MetricsLogger, **kwargs: Any
    ) -> None:
        """The environment was reset, and the episode has its first observation."""

    def on_episode_step(
        self, *, episode: SingleAgentEpisode, env_runner: Any, metrics_logger: MetricsLogger, **kwargs: Any
    ) -> None:
        """A step was made, the episode's last so far; on_episode_end is called too where it ends the episode."""

    def on_episode_end(
        self, *, episode: SingleAgentEpisode, env_runner: Any, metrics_logger: MetricsLogger, **kwargs: Any
    ) -> None:
        """The episode is done. What is changed in it is changed in this copy alone."""

    def on_sample_end(
        self,
        *,
        env_runner: Any,
        metrics_logger: MetricsLogger,
        samples: list[SingleAgentEpisode],
        **kwargs: Any,
    ) -> None:
        """So many episodes were played: an evaluation's part, a range of a recording, a rollout."""


@cache
def callbacks_from_function(hook: str, function: Callable[..., Any]) -> type[Callbacks]:
    """Callbacks with one method, a function of its arguments by name."""
    name = getattr(function, "__name__", type(function).__name__)
    return type(name, (Callbacks,), {hook: staticmethod(function), "__module__": "__main__"})


def __getattr__(name: str) -> Any:
    """`on_episode_end.package.module.name`: callbacks that call that function, so that a resource can name it."""
    hook, _, path = name.partition(".")
    if hook not in (*EPISODE_HOOKS, *TRAINING_HOOKS) or "." not in path:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, function = path.rpartition(".")
    return callbacks_from_function(hook, getattr(importlib.import_module(module), function))
