"""One last evaluation of a checkpoint: on episodes that were set aside when it was trained and chosen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from hindcast.api import OfflineTraining
from hindcast.learn.algorithm import needs_for
from hindcast.learn.checkpoint import Checkpoint
from hindcast.pipeline.offline_data import open_sources
from hindcast.report.results import Result
from hindcast.run.held_out import HeldOut, Progress, those_set_aside
from hindcast.run.offline import Inputs, make_algorithm, offline_trainer
from hindcast.run.trainer import Trainer


def evaluate_set_aside(
    resource: OfflineTraining, inputs: Inputs, checkpoint: Checkpoint, progress: Progress = lambda *_: None
) -> Result:
    """What the episodes of `evaluation.offline.setAside` say of a checkpoint, as `HeldOut.result`.

    Args:
        resource: the training that wrote the checkpoint.
        inputs: its data.
        checkpoint: see above.
        progress: receives the progress of fits.

    Raises:
        SpecError: too few episodes are set aside, or an estimate can never be computed.
        DataError: a damaged checkpoint, or data that are not as they should be.
    """
    with _opened(resource, inputs) as (trainer, aside):
        trainer.load(checkpoint)
        return aside.result(trainer.iteration, progress)


def check_set_aside(resource: OfflineTraining, inputs: Inputs) -> None:
    """Refuse what `evaluate_set_aside`, or the training, would refuse, before anything is trained.

    Raises:
        UserError: as of these.
    """
    with _opened(resource, inputs):
        pass


@contextmanager
def _opened(resource: OfflineTraining, inputs: Inputs) -> Iterator[tuple[Trainer, HeldOut]]:
    assert resource.spec.offline is not None
    with closing(offline_trainer(resource, inputs)) as trainer:
        algorithm = make_algorithm(resource)
        aside = HeldOut(
            resource,
            those_set_aside(open_sources(inputs), resource.spec.offline),
            algorithm=algorithm,
            needs=needs_for(algorithm, trainer.policy.module),
            learner=trainer.learner,
            policy=trainer.policy,
            field="setAside",
        )
        with closing(aside):
            yield trainer, aside
