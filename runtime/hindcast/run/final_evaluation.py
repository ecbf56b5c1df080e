"""Final evaluation of a checkpoint on episodes that were set aside while it was trained and selected."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from hindcast.api import OfflineTraining, validate_resource
from hindcast.datasets.dataset import Dataset
from hindcast.datasets.hooks import NO_HOOKS, Hooks
from hindcast.errors import SpecError
from hindcast.evaluate.action_comparison import ActionComparison
from hindcast.learn.algorithm import needs_for
from hindcast.learn.checkpoint import Checkpoint
from hindcast.pipeline.offline_data import Source
from hindcast.report.results import Result
from hindcast.run.checkpoint_evaluation import enclosing_resources
from hindcast.run.claim import title
from hindcast.run.evaluation.held_out_evaluation import FitProgress, HeldOutEvaluator, select_set_aside
from hindcast.run.execute import FileReferences
from hindcast.run.inputs import make_sources, open_inputs, resolve_inputs
from hindcast.run.training.algorithm import make_algorithm
from hindcast.run.training.offline_trainer import make_offline_trainer
from hindcast.run.training.trainer import Trainer
from hindcast.storage.location import resolve


def evaluate_set_aside(
    resource: OfflineTraining,
    sources: Sequence[Source],
    checkpoint: Checkpoint,
    progress: FitProgress = lambda *_: None,
) -> tuple[Result, ActionComparison | None]:
    """Evaluate a checkpoint on the episodes of `evaluation.offline.setAside`.

    Returns:
        The result of `HeldOutEvaluator.evaluate`, and the comparison of the policy's actions with the recorded ones.

    Raises:
        SpecError: too few episodes are set aside, or an estimate can never be computed.
        DataError: the checkpoint is damaged, or the data are invalid.
    """
    with _open_evaluator(resource, sources) as (trainer, evaluator):
        trainer.load(checkpoint)
        return evaluator.evaluate(trainer.iteration, progress), evaluator.compare_actions()


def load_set_aside(path: str | Path, data: Sequence[str] = (), hooks: Hooks = NO_HOOKS) -> Dataset:
    """Load the episodes that the run of a checkpoint set aside.

    Args:
        path: a checkpoint in the run's folder.
        data: current paths of the run's inputs, one each; required if an input refers to a recording.

    Raises:
        SpecError: the path is not in the folder of a run with `evaluation.offline.setAside`, or `data` is required.
        DataError: the data cannot be opened.
    """
    for document in enclosing_resources(resolve(path)):
        resource = validate_resource(document)
        offline = resource.spec.offline if isinstance(resource, OfflineTraining) else None
        if isinstance(resource, OfflineTraining) and offline is not None and offline.set_aside is not None:
            resource = _with_data(resource, data)
            inputs = open_inputs(resource, resolve_inputs(resource, FileReferences({})), check=hooks.check)
            return select_set_aside(make_sources(inputs), offline)
    raise SpecError(
        f"{path} is not in the folder of a run with evaluation.offline.setAside: omit --set-aside."
    )


def _with_data(resource: OfflineTraining, data: Sequence[str]) -> OfflineTraining:
    """Return the training with only its recorded inputs, at the paths in `data`.

    Without `data`, it is returned unchanged, which requires that each recorded input has a path.
    """
    recorded_inputs = resource.spec.recorded_inputs
    if not data and all(source.path is not None for source in recorded_inputs):
        return resource
    if len(data) != len(recorded_inputs):
        raise SpecError(
            f"--set-aside needs the data that {title(resource)} was trained on: name the dataset of each of its inputs "
            f"({len(recorded_inputs)}) with --data."
        )
    sources = [
        source.model_copy(update={"path": path, "recording_ref": None})
        for source, path in zip(recorded_inputs, data, strict=True)
    ]
    return resource.model_copy(update={"spec": resource.spec.model_copy(update={"input": sources})})


def check_set_aside(resource: OfflineTraining, sources: Sequence[Source]) -> None:
    """Refuse a resource that the training or `evaluate_set_aside` would refuse later.

    Raises:
        UserError: see these functions.
    """
    with _open_evaluator(resource, sources):
        pass


@contextmanager
def _open_evaluator(
    resource: OfflineTraining, sources: Sequence[Source]
) -> Iterator[tuple[Trainer, HeldOutEvaluator]]:
    """Yield a trainer of the resource, and an evaluator of its policy on the set-aside episodes."""
    assert resource.spec.offline is not None
    with closing(make_offline_trainer(resource, sources)) as trainer:
        algorithm = make_algorithm(resource)
        evaluator = HeldOutEvaluator(
            resource,
            select_set_aside(sources, resource.spec.offline),
            algorithm=algorithm,
            needs=needs_for(algorithm, trainer.policy.module),
            learner=trainer.learner,
            policy=trainer.policy,
            field="setAside",
        )
        with closing(evaluator):
            yield trainer, evaluator
