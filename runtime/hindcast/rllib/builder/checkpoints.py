"""Write and restore the checkpoints of `save_to_path`: each is one folder, and contains the config as JSON."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import orjson

from hindcast.api.sentences import nearest
from hindcast.errors import DataError, SpecError
from hindcast.learn.checkpoint import Checkpoint, CheckpointStore, TrainingState, find_checkpoint
from hindcast.learn.learner import LearnerState
from hindcast.models.policy import Policy
from hindcast.models.policy_files import DESCRIPTION
from hindcast.names import COMPONENT_LEARNER, COMPONENT_LEARNER_GROUP, COMPONENT_RL_MODULE, DEFAULT_MODULE_ID
from hindcast.rllib.builder.config import AlgorithmConfig
from hindcast.rllib.builder.option_values import space_to_field
from hindcast.rllib.builder.user_objects import import_path_of, to_environment_id
from hindcast.storage.location import Location, resolve

CONFIG_KEY = "config"
"""Key of the config in `counters` of a checkpoint's training state; see `config_to_json`."""
RestoreScope = Literal["everything", "learner", "policy"]
"""The content of a checkpoint that is restored: everything, all networks with their optimisers, or the policy."""

_VF_SHARE_LAYERS = "vf_share_layers"


class SingleCheckpointStore(CheckpointStore):
    """A checkpoint store with only one checkpoint, whose folder is the store's folder.

    Args:
        location: the folder.
        extra_state: JSON values that are added to `counters` of the checkpoint's training state.
    """

    def __init__(self, location: Location, extra_state: dict[str, Any] | None = None) -> None:
        super().__init__(location)
        self._extra_state = extra_state or {}

    def save(
        self, policy: Any, learner: LearnerState, training: TrainingState, protect: Any = ()
    ) -> Checkpoint:
        """Write the checkpoint to the folder.

        Raises:
            DataError: the folder contains files and is not a checkpoint.
        """
        names = [entry.relative_path for entry in self.location.list()]
        # The folder is the user's choice, so files that are not a checkpoint's must never be overwritten.
        if names and not self.location.child("checkpoint.json").exists():
            raise DataError(
                f"{self.location} contains {', '.join(names[:3])} and is not a checkpoint: pass save_to_path() a new "
                "or empty folder, or an earlier checkpoint."
            )
        state = training.model_copy(update={"counters": {**training.counters, **self._extra_state}})
        return super().save(policy, learner, state, protect)

    def _folder(self, updates: int) -> Location:  # noqa: ARG002
        return self.location

    def _saved_updates(self) -> list[int]:
        return []  # the base class would mark or remove the checkpoints that this lists


def load_config(checkpoint: Checkpoint) -> AlgorithmConfig:
    """Return the config that a checkpoint was written with.

    Raises:
        DataError: the config is missing, or lacks options that JSON could not hold.
    """
    state = checkpoint.training
    config = state.counters.get(CONFIG_KEY)
    missing = ["config"] if config is None else config["leftOut"]
    if config is None or missing:
        raise DataError(
            f"{checkpoint.location} has no {' and no '.join(missing)}: pass the config, "
            "from_checkpoint(path, config), or call config.build_algo() and restore_from_path(path)."
        )
    return AlgorithmConfig(state.algorithm).update_from_dict(config["options"])


def config_to_json(options: Mapping[str, Any]) -> dict[str, Any]:
    """Convert options to JSON, with import paths for classes.

    Returns:
        `{"options": name -> JSON value, "leftOut": names of the options that JSON cannot hold}`.
    """
    json_options: dict[str, Any] = {}
    for name, value in options.items():
        try:
            json_options[name] = orjson.loads(
                orjson.dumps(_replace_objects_by_names(name, value), _to_json, orjson.OPT_SERIALIZE_NUMPY)
            )
        except TypeError:
            continue
    return {"options": json_options, "leftOut": [name for name in options if name not in json_options]}


def _replace_objects_by_names(name: str, value: Any) -> Any:
    """Return an option's value with an id for an environment and strings for the paths of inputs."""
    if name == "env":
        return to_environment_id(value)
    if name == "input_" and isinstance(value, Mapping):
        return {str(path): weight for path, weight in value.items()}
    return value


def _to_json(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if path := import_path_of(value):
        return path
    # A space, recognised without importing Gymnasium.
    if hasattr(value, "contains") and hasattr(value, "sample"):
        return space_to_field(value)
    # orjson's `default` function must raise TypeError for a value that it cannot convert.
    raise TypeError


def parse_component(component: str | None) -> RestoreScope:
    """Return what of a checkpoint a component names; None names everything.

    RLlib's components may be paths, such as `learner_group/learner/rl_module/default_policy`.

    Raises:
        SpecError: the component is unknown.
    """
    if component is None:
        return "everything"
    names = [name for name in component.replace(os.sep, "/").split("/") if name]
    if names[-1:] == [DEFAULT_MODULE_ID]:
        names.pop()
    if names[-1:] == [COMPONENT_RL_MODULE]:
        return "policy"
    if names and set(names) <= {COMPONENT_LEARNER_GROUP, COMPONENT_LEARNER}:
        return "learner"
    components = (COMPONENT_RL_MODULE, COMPONENT_LEARNER, COMPONENT_LEARNER_GROUP)
    raise SpecError(
        f"component is {component!r}, which is not in checkpoints{nearest(component, components)}: the policy is "
        f"{COMPONENT_RL_MODULE!r}, all networks with their optimisers {COMPONENT_LEARNER!r}; None restores everything."
    )


def load_policy(policy: Policy, path: str | Path) -> str | None:
    """Load the weights and filters of a checkpoint's policy into `policy`.

    Args:
        policy: the policy to change.
        path: a checkpoint, a folder of checkpoints, or a `module` folder.

    Returns:
        A note if `policy` has a value head and the checkpoint has none, so that the current one is kept; else None.

    Raises:
        DataError: there is no policy at the path, or its spaces or its model differ.
    """
    location = resolve(path)
    if not location.child(DESCRIPTION).exists():
        location = find_checkpoint(location).module
    saved_policy = Policy.load(location)
    label = f"the policy at {path}"
    _check_spaces(label, policy, saved_policy)
    _check_model(label, policy, saved_policy)
    has_no_value_head = policy.load_weights(saved_policy, label)
    return f"{label} has no value head; the current one is kept" if has_no_value_head else None


def _check_spaces(label: str, policy: Policy, saved_policy: Policy) -> None:
    for subject, current, restored in (
        ("observations", policy.observation_space, saved_policy.observation_space),
        ("actions", policy.action_space, saved_policy.action_space),
    ):
        if current != restored:
            raise DataError(
                f"{label} has {subject} {restored}, but this policy has {current}: it belongs to another environment."
            )


def _check_model(label: str, policy: Policy, saved_policy: Policy) -> None:
    """Check that equal weights compute the same actions in both policies: their models and their preprocessing.

    Raises:
        DataError: an option differs that affects the actions.
    """
    # Equal shapes of the weights would not suffice: they do not depend on activations and observation filters.
    config, saved_config = policy.module.model_config, saved_policy.module.model_config
    both_have_value_heads = policy.module.value and saved_policy.module.value
    for name in type(config).model_fields:
        if (
            # Initialisers and dropout do not change what saved weights compute, nor does sharing layers with a value
            # head that one of the two lacks.
            (name == _VF_SHARE_LAYERS and not both_have_value_heads)
            or name == "dropout"
            or name.endswith("_initializer")
        ):
            continue
        if getattr(config, name) != getattr(saved_config, name):
            raise DataError(
                f"{label} was trained with {name}={getattr(saved_config, name)!r}, but this config has "
                f"{getattr(config, name)!r}: pass rl_module() the model_config that it was trained with."
            )
    preprocessing, saved_preprocessing = policy.preprocessing.to_json(), saved_policy.preprocessing.to_json()
    for name in preprocessing:
        if preprocessing[name] != saved_preprocessing.get(name):
            raise DataError(
                f"{label} was trained with {name} {saved_preprocessing.get(name)!r} between environment and module, "
                f"but this config has {preprocessing[name]!r}: pass environment() the options that it was trained with."
            )
