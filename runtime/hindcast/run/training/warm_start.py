"""Start of a training, or of an expert's training, from an `initialCheckpoint`."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

from torch import Tensor

from hindcast.api.model import ModelOptions
from hindcast.errors import DataError, SpecError
from hindcast.learn.checkpoint import Checkpoint, find_checkpoint
from hindcast.learn.learner import Learner
from hindcast.models.policy import Policy
from hindcast.pipeline.window import select_prefix
from hindcast.run.claim import CHECKPOINTS_FOLDER
from hindcast.run.training.model_mismatch import kind_mismatch, option_mismatch, shape_mismatch
from hindcast.storage.location import resolve

FIELD: Final = "spec.initialCheckpoint"
FIELD_OF_EXPERTS: Final = "spec.policy.train.initialCheckpoint"


def load_initial_policy(path: str, model: ModelOptions, field: str = FIELD) -> Policy:
    """Load the policy that a training with this model starts from.

    Raises:
        DataError: there is no policy at the path.
    """
    try:
        return Policy.load(path, allow_classes=[model.module_class] if model.module_class else ())
    except DataError as error:
        error.locate(field)
        raise


def warm_start(policy: Policy, learner: Learner, path: str, field: str = FIELD) -> None:
    """Load the policy at the path, and the networks of its checkpoint whose names and shapes the learner has too.

    A target network that the checkpoint lacks starts as a copy of its network.

    Args:
        policy: policy to initialise.
        learner: learner that will train it.
        path: a checkpoint, a run folder, or a `module` folder, which contains only a policy.
        field: field that contains the path, for messages.

    Raises:
        SpecError: the policy has another model.
        DataError: there is no policy at the path, or its checkpoint is damaged.
    """
    saved_policy = load_initial_policy(path, policy.module.model_config, field)
    checkpoint = _checkpoint_or_none(path)
    trained_by = None if checkpoint is None else checkpoint.training.algorithm
    if problem := kind_mismatch(policy, saved_policy, learner.algorithm, trained_by) or option_mismatch(
        policy, saved_policy
    ):
        raise SpecError(f"{path} {problem}.", field=field)
    try:
        policy.load_weights(saved_policy, f"the policy at {path}")
    except DataError as error:
        problem = shape_mismatch(policy, saved_policy)
        raise SpecError(f"{path} {problem}." if problem else str(error), field=field) from error
    tensors = {} if checkpoint is None else checkpoint.learner_state().tensors
    learner.reset_target_networks("policy")
    # Target networks come last in `nets`, so that a saved one replaces its fresh copy.
    for name, net in learner.nets.items():
        saved_tensors, state = select_prefix(f"nets/{name}.", tensors), net.state_dict()
        if name != "policy" and _shapes(saved_tensors) == _shapes(state):
            net.load_state_dict(saved_tensors)
            learner.reset_target_networks(name)


def _checkpoint_or_none(path: str) -> Checkpoint | None:
    """Return the checkpoint at the path, the best (else latest) one of a run folder, or None for a policy alone."""
    for location in (path, resolve(path).child(CHECKPOINTS_FOLDER)):
        with suppress(DataError):
            return find_checkpoint(location)
    return None


def _shapes(tensors: dict[str, Tensor]) -> dict[str, Any]:
    return {name: tensor.shape for name, tensor in tensors.items()}
