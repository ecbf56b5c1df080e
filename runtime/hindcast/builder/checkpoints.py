"""The checkpoint that `save_to_path` writes, one folder with the config as JSON, and what is restored from one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import orjson

from hindcast.api.sentences import nearest
from hindcast.builder.config import AlgorithmConfig
from hindcast.builder.option_values import space_to_field
from hindcast.builder.user_objects import environment_id, import_path_of
from hindcast.errors import DataError, SpecError
from hindcast.learn.checkpoint import Checkpoint, CheckpointStore, TrainingState, find_checkpoint
from hindcast.learn.learner import LearnerState
from hindcast.models.policy import Policy
from hindcast.models.policy_files import DESCRIPTION
from hindcast.names import COMPONENT_LEARNER, COMPONENT_LEARNER_GROUP, COMPONENT_RL_MODULE, DEFAULT_MODULE_ID
from hindcast.storage.location import Location, resolve

CONFIG_KEY = "config"
"""Among the counters of a checkpoint's training state."""
CheckpointPart = Literal["everything", "learner", "policy"]

_OF_VALUES = "vf_share_layers"


class SingleCheckpointStore(CheckpointStore):
    """A store that is itself the one checkpoint in it.

    Args:
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
        names = [entry.relative_path for entry in self.location.list()]
        if names and not self.location.child("checkpoint.json").exists():
            raise DataError(
                f"{self.location} holds {', '.join(names[:3])} and is not a checkpoint: give save_to_path() a new "
                "or empty folder, or an earlier checkpoint."
            )
        counted = training.model_copy(update={"counters": {**training.counters, **self._counters}})
        return super().save(policy, learner, counted, protect)

    def _folder(self, updates: int) -> Location:  # noqa: ARG002
        return self.location

    def _saved_updates(self) -> list[int]:
        return []  # evaluations mark none of them as best, and none is removed


def load_config(checkpoint: Checkpoint) -> AlgorithmConfig:
    """The config that a checkpoint was written with.

    Raises:
        DataError: the config is missing or incomplete.
    """
    state = checkpoint.training
    saved = state.counters.get(CONFIG_KEY)
    lacks = ["config"] if saved is None else saved["leftOut"]
    if saved is None or lacks:
        raise DataError(
            f"{checkpoint.location} has no {' and no '.join(lacks)}: pass the config, "
            "from_checkpoint(path, config), or call config.build_algo() and restore_from_path(path)."
        )
    return AlgorithmConfig(state.algorithm).update_from_dict(saved["options"])


def config_to_json(options: Mapping[str, Any]) -> dict[str, Any]:
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
    if path := import_path_of(value):
        return path
    if hasattr(value, "contains") and hasattr(value, "sample"):
        return space_to_field(value)
    raise TypeError


def parse_component(component: str | None) -> CheckpointPart:
    """What a component's name means: None is everything.

    Raises:
        SpecError: a checkpoint has no such component.
    """
    if component is None:
        return "everything"
    steps = [step for step in component.replace(os.sep, "/").split("/") if step]
    if steps[-1:] == [DEFAULT_MODULE_ID]:
        steps.pop()
    if steps[-1:] == [COMPONENT_RL_MODULE]:
        return "policy"
    if steps and set(steps) <= {COMPONENT_LEARNER_GROUP, COMPONENT_LEARNER}:
        return "learner"
    known = (COMPONENT_RL_MODULE, COMPONENT_LEARNER, COMPONENT_LEARNER_GROUP)
    raise SpecError(
        f"component is {component!r}, which checkpoints do not have{nearest(component, known)}: the policy is "
        f"{COMPONENT_RL_MODULE!r}, the policy with its optimisers {COMPONENT_LEARNER!r}; None restores everything."
    )


def load_policy(policy: Policy, path: str | Path) -> str | None:
    """Give `policy` the weights and filters of a checkpoint's.

    Args:
        path: a checkpoint, a folder of checkpoints, or a `module` folder.

    Returns:
        A note if the current value head is kept because the checkpoint has none.

    Raises:
        DataError: there is no policy at the path, or it has other spaces or another model.
    """
    location = resolve(path)
    if not location.child(DESCRIPTION).exists():
        location = find_checkpoint(location).module
    saved = Policy.load(location)
    where = f"the policy at {path}"
    _same_spaces(where, policy, saved)
    _same_model(where, policy, saved)
    has_no_value_head = policy.load_weights(saved, where)
    return f"{where} has no value head; the current one is kept" if has_no_value_head else None


def _same_spaces(where: str, policy: Policy, saved: Policy) -> None:
    for what, own, given in (
        ("observations", policy.observation_space, saved.observation_space),
        ("actions", policy.action_space, saved.action_space),
    ):
        if own != given:
            raise DataError(
                f"{where} has {what} {given}, this policy has {own}: it belongs to another environment."
            )


def _same_model(where: str, policy: Policy, saved: Policy) -> None:
    """Activations and filters leave no trace in the weights' shapes, so options are compared, not shapes alone."""
    own, given = policy.module.model_config, saved.module.model_config
    both_value = policy.module.value and saved.module.value
    for name in type(own).model_fields:
        if (name == _OF_VALUES and not both_value) or name == "dropout" or name.endswith("_initializer"):
            continue
        if getattr(own, name) != getattr(given, name):
            raise DataError(
                f"{where} was trained with {name}={getattr(given, name)!r}, this config has "
                f"{getattr(own, name)!r}: give rl_module() the model_config that it was trained with."
            )
    ours, theirs = policy.preprocessing.to_json(), saved.preprocessing.to_json()
    for name in ours:
        if ours[name] != theirs.get(name):
            raise DataError(
                f"{where} was trained with {name} {theirs.get(name)!r} between environment and module, this "
                f"config has {ours[name]!r}: give environment() the options that it was trained with."
            )
