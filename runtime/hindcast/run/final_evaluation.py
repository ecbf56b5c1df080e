"""One last evaluation of a checkpoint: on episodes that were set aside when it was trained and chosen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from hindcast.api import OfflineTraining, validate_resource
from hindcast.datasets.dataset import Dataset
from hindcast.datasets.hooks import NO_HOOKS, Hooks
from hindcast.errors import SpecError
from hindcast.learn.algorithm import needs_for
from hindcast.learn.checkpoint import Checkpoint
from hindcast.pipeline.offline_data import Source
from hindcast.report.results import Result
from hindcast.run.checkpoint_evaluation import enclosing_resources
from hindcast.run.claim import title
from hindcast.run.execute import FileReferences
from hindcast.run.held_out_evaluation import HeldOutEvaluator, Progress, select_set_aside
from hindcast.run.inputs import inputs_of, open_inputs, sources_of
from hindcast.run.offline_trainer import make_algorithm, make_offline_trainer
from hindcast.run.trainer import Trainer
from hindcast.storage.location import resolve


def evaluate_set_aside(
    resource: OfflineTraining,
    sources: Sequence[Source],
    checkpoint: Checkpoint,
    progress: Progress = lambda *_: None,
) -> Result:
    """What the episodes of `evaluation.offline.setAside` say of a checkpoint, as `HeldOut.result`.

    Raises:
        SpecError: too few episodes are set aside, or an estimate can never be computed.
        DataError: a damaged checkpoint, or data that are not as they should be.
    """
    with _opened(resource, sources) as (trainer, aside):
        trainer.load(checkpoint)
        return aside.evaluate(trainer.iteration, progress)


def load_set_aside(path: str | Path, data: Sequence[str] = (), hooks: Hooks = NO_HOOKS) -> Dataset:
    """The episodes that the run of a checkpoint set aside.

    Args:
        data: where the run's inputs are now, one for each; needed for those that refer to a recording.

    Raises:
        SpecError: it is not in the folder of a run with `evaluation.offline.setAside`, or `data` are needed.
        DataError: the data cannot be opened.
    """
    for document in enclosing_resources(resolve(path)):
        run = validate_resource(document)
        offline = run.spec.offline if isinstance(run, OfflineTraining) else None
        if isinstance(run, OfflineTraining) and offline is not None and offline.set_aside is not None:
            run = _with_data(run, data)
            inputs = open_inputs(run, inputs_of(run, FileReferences({})), check=hooks.check)
            return select_set_aside(sources_of(inputs), offline)
    raise SpecError(
        f"{path} is not in the folder of a run with evaluation.offline.setAside: leave --set-aside out."
    )


def _with_data(run: OfflineTraining, data: Sequence[str]) -> OfflineTraining:
    recorded = run.spec.recorded
    if not data and all(source.path is not None for source in recorded):
        return run
    if len(data) != len(recorded):
        raise SpecError(
            f"--set-aside needs the data that {title(run)} was trained on: name the dataset of each of its inputs "
            f"({len(recorded)}) with --data."
        )
    sources = [
        source.model_copy(update={"path": path, "recording_ref": None})
        for source, path in zip(recorded, data, strict=True)
    ]
    return run.model_copy(update={"spec": run.spec.model_copy(update={"input": sources})})


def check_set_aside(resource: OfflineTraining, sources: Sequence[Source]) -> None:
    """Refuse what `evaluate_set_aside`, or the training, would refuse, before anything is trained.

    Raises:
        UserError: as of these.
    """
    with _opened(resource, sources):
        pass


@contextmanager
def _opened(
    resource: OfflineTraining, sources: Sequence[Source]
) -> Iterator[tuple[Trainer, HeldOutEvaluator]]:
    assert resource.spec.offline is not None
    with closing(make_offline_trainer(resource, sources)) as trainer:
        algorithm = make_algorithm(resource)
        aside = HeldOutEvaluator(
            resource,
            select_set_aside(sources, resource.spec.offline),
            algorithm=algorithm,
            needs=needs_for(algorithm, trainer.policy.module),
            learner=trainer.learner,
            policy=trainer.policy,
            field="setAside",
        )
        with closing(aside):
            yield trainer, aside
