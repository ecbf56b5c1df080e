"""`Callbacks`: a user's own code that hears how a training goes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import orjson

from hindcast.report.results import Result
from hindcast.user_code import calling, import_subclass, refuse_uncalled

_FIELD: Final = "spec.callbacks"
_ELSEWHERE: Final = "episodes are played in other processes; on_evaluate_end gets what came of them"
_UNCALLED: Final = {
    **dict.fromkeys(
        ("on_episode_created", "on_episode_start", "on_episode_step", "on_episode_end"), _ELSEWHERE
    ),
    **dict.fromkeys(("on_sample_end", "on_environment_created", "on_env_runners_recreated"), _ELSEWHERE),
    "on_learn_on_batch": "a connector of scope batch sees every batch",
    "on_trainer_init": "it is called on_algorithm_init",
}
"""RLlib's methods of callbacks that have no place here, and what to do instead."""


class Callbacks:
    """Base of a user's callbacks, with RLlib's methods (`RLlibCallback`); a subclass overrides those that it wants.

    They are called in the process that decides, of several learners the first one's, one after the other; training
    waits for them. An instance is made for each process that a training goes on in: what it keeps in attributes is not
    in checkpoints.

    All arguments come by name. `algorithm` is what trains: it has `iteration`, `get_policy()` and `get_module()`; built
    in Python it is the `RunningAlgorithm`. `metrics_logger` is None: what is put into `result` is in the results.
    Methods must take `**kwargs`, for arguments to come.
    """

    def on_algorithm_init(self, *, algorithm: Any, metrics_logger: None = None, **kwargs: Any) -> None:
        """Networks and data are there, and nothing is trained."""

    def on_checkpoint_loaded(self, *, algorithm: Any, metrics_logger: None = None, **kwargs: Any) -> None:
        """It goes on from a checkpoint."""

    def on_train_result(
        self, *, algorithm: Any, result: Result, metrics_logger: None = None, **kwargs: Any
    ) -> None:
        """An iteration has ended.

        Args:
            algorithm: see above.
            result: nested as `train()` returns it. What is added, as JSON, is in `results.jsonl` and in the report.
            metrics_logger: None.
            kwargs: none yet.
        """

    def on_evaluate_start(self, *, algorithm: Any, metrics_logger: None = None, **kwargs: Any) -> None:
        """An evaluation begins, here or beside training."""

    def on_evaluate_end(
        self, *, algorithm: Any, evaluation_metrics: Result, metrics_logger: None = None, **kwargs: Any
    ) -> None:
        """An evaluation has ended.

        Args:
            algorithm: see above.
            evaluation_metrics: `training_iteration`, whose weights they are, and `env_runners`.
            metrics_logger: None.
            kwargs: none yet.
        """


class Called:
    """The callbacks of a training.

    Args:
        paths: "package.module:Class" of each.

    Attributes:
        algorithm: what they are told of.

    Raises:
        SpecError: there is no such class, it is no `Callbacks`, or it overrides what nothing calls.
        UserCodeError: importing or making it raised.
    """

    def __init__(self, paths: Sequence[str] = ()) -> None:
        self.algorithm: Any = None
        self._callbacks = [_made(path) for path in paths]

    def tell(self, event: str, **arguments: Any) -> None:
        """Call the method `event` of each.

        Raises:
            UserCodeError: one raised, or put something into a result that is not JSON.
        """
        for each in self._callbacks:
            with calling(f"{type(each).__name__}.{event}"):
                getattr(each, event)(algorithm=self.algorithm, metrics_logger=None, **arguments)
                orjson.dumps(arguments, option=orjson.OPT_SERIALIZE_NUMPY)  # as results are written


def _made(path: str) -> Callbacks:
    kind = import_subclass(path, Callbacks, _FIELD)
    refuse_uncalled(kind, Callbacks, _UNCALLED)
    with calling(f"making {kind.__name__}"):
        return kind()
