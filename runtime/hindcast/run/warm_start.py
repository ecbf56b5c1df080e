"""Where a training, of an expert too, starts that has an `initialCheckpoint`."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

from torch import Tensor

from hindcast.api.model import ModelSpec
from hindcast.errors import DataError, SpecError
from hindcast.learn.checkpoint import Checkpoint, find_checkpoint
from hindcast.learn.learner import Learner
from hindcast.models.policy import Policy
from hindcast.pipeline.window import select_prefix
from hindcast.run.claim import CHECKPOINTS_FOLDER
from hindcast.run.model_mismatch import kind_mismatch, option_mismatch, shape_mismatch
from hindcast.storage.location import resolve

FIELD: Final = "spec.initialCheckpoint"
FIELD_OF_EXPERTS: Final = "spec.policy.train.initialCheckpoint"


def initial_policy(path: str, model: ModelSpec, field: str = FIELD) -> Policy:
    """The policy that a training of this model starts from.

    Raises:
        DataError: there is none at the path.
    """
    try:
        return Policy.load(path, allow_classes=[model.module_class] if model.module_class else ())
    except DataError as error:
        raise DataError(f"{field}: {error}") from error


def warm_start(policy: Policy, learner: Learner, path: str, field: str = FIELD) -> None:
    """Begin with the policy at the path; and with the other networks of its checkpoint whose name and shapes are equal.

    A target network that the checkpoint does not have begins as a copy again.

    Args:
        path: of a checkpoint or a run folder; of a `module` folder, which is the policy alone.

    Raises:
        SpecError: the policy is of another model.
        DataError: there is none at the path, or its checkpoint is damaged.
    """
    saved = initial_policy(path, policy.module.model_config, field)
    checkpoint = _checkpoint_of(path)
    maker = None if checkpoint is None else checkpoint.training.algorithm
    if problem := kind_mismatch(policy, saved, learner.algorithm, maker) or option_mismatch(policy, saved):
        raise SpecError(f"{field}: {path} {problem}.")
    try:
        policy.load_weights(saved, f"the policy at {path}")
    except DataError as error:
        problem = shape_mismatch(policy, saved)
        raise SpecError(f"{field}: {path} {problem}." if problem else f"{field}: {error}") from error
    tensors = {} if checkpoint is None else checkpoint.learner_state().tensors
    learner.reset_target_networks("policy")
    for name, net in learner.nets.items():  # target networks last
        found, now = select_prefix(f"nets/{name}.", tensors), net.state_dict()
        if name != "policy" and _shapes(found) == _shapes(now):
            net.load_state_dict(found)
            learner.reset_target_networks(name)


def _checkpoint_of(path: str) -> Checkpoint | None:
    """That of the policy there: the path, or of a run folder the best."""
    for place in (path, resolve(path).child(CHECKPOINTS_FOLDER)):
        with suppress(DataError):
            return find_checkpoint(place)
    return None


def _shapes(tensors: dict[str, Tensor]) -> dict[str, Any]:
    return {name: tensor.shape for name, tensor in tensors.items()}
