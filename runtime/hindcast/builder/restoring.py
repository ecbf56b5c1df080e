"""Restores parts of a checkpoint into an existing policy: everything requested, or an error."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from hindcast.api.sentences import nearest
from hindcast.errors import DataError, SpecError
from hindcast.learn.checkpoint import find_checkpoint
from hindcast.models.policy import Policy
from hindcast.models.policy_files import DESCRIPTION
from hindcast.names import COMPONENT_LEARNER, COMPONENT_LEARNER_GROUP, COMPONENT_RL_MODULE, DEFAULT_MODULE_ID
from hindcast.storage.location import resolve

Part = Literal["everything", "learner", "policy"]

_OF_VALUES = "vf_share_layers"


def part_named(component: str | None) -> Part:
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
        policy: as its config made it.
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
    has_no_value_head = policy.take_weights(saved, where)
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
