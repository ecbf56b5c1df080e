"""The checkpoint that `save_to_path` writes and `from_checkpoint` reads: one folder, with the config as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from hindcast.builder.config import AlgorithmConfig
from hindcast.builder.user_objects import class_path, environment_id
from hindcast.builder.values import space
from hindcast.errors import DataError
from hindcast.learn.checkpoint import Checkpoint, CheckpointStore, TrainingState
from hindcast.learn.learner import LearnerState
from hindcast.storage.location import Location

CONFIG = "config"
"""Among the counters of a checkpoint's training state."""


class OneFolder(CheckpointStore):
    """A store that is itself the one checkpoint in it.

    Args:
        location: the checkpoint's folder.
        counters: added to what the checkpoint counts.
    """

    def __init__(self, location: Location, counters: dict[str, Any] | None = None) -> None:
        super().__init__(location)
        self._counters = counters or {}

    def save(
        self, policy: Any, learner: LearnerState, training: TrainingState, protect: Any = ()
    ) -> Checkpoint:
        """Write the folder.

        Raises:
            DataError: it holds something other than a checkpoint.
        """
        names = [entry.relative for entry in self.location.list()]
        if names and not self.location.child("checkpoint.json").exists():
            raise DataError(
                f"{self.location} holds {', '.join(names[:3])} and is not a checkpoint: give save_to_path() a new "
                "or empty folder, or an earlier checkpoint."
            )
        counted = training.model_copy(update={"counters": {**training.counters, **self._counters}})
        return super().save(policy, learner, counted, protect)

    def all(self) -> list[Checkpoint]:
        """Evaluations mark none of them as best."""
        return []

    def _folder(self, updates: int) -> Location:  # noqa: ARG002
        return self.location

    def _numbers(self) -> list[int]:
        return []


def saved_config(checkpoint: Checkpoint) -> AlgorithmConfig:
    """The config that a checkpoint was written with.

    Raises:
        DataError: the config is missing or incomplete.
    """
    state = checkpoint.training
    saved = state.counters.get(CONFIG)
    lacks = ["config"] if saved is None else saved["leftOut"]
    if saved is None or lacks:
        raise DataError(
            f"{checkpoint.location} has no {' and no '.join(lacks)}: pass the config, "
            "from_checkpoint(path, config), or call config.build_algo() and restore_from_path(path)."
        )
    return AlgorithmConfig(state.algorithm).update_from_dict(saved["options"])


def config_json(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as JSON, classes and functions by their path; `leftOut` names those that cannot be written as JSON."""
    written: dict[str, Any] = {}
    for name, value in options.items():
        try:
            written[name] = orjson.loads(
                orjson.dumps(_named(name, value), _plain, orjson.OPT_SERIALIZE_NUMPY)
            )
        except TypeError:
            continue
    return {"options": written, "leftOut": [name for name in options if name not in written]}


def _named(name: str, value: Any) -> Any:
    if name == "env":
        return environment_id(value)
    if name == "input_" and isinstance(value, Mapping):
        return {str(path): weight for path, weight in value.items()}
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if path := class_path(value):
        return path
    if hasattr(value, "contains") and hasattr(value, "sample"):
        return space(value)
    raise TypeError
