"""What a training would do, without doing it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hindcast.api import OfflineRecording, OfflineTraining
from hindcast.errors import SpecError
from hindcast.pipeline.offline_data import OfflineData
from hindcast.run.claim import first_learners, run_folder, title
from hindcast.run.execute import FileReferences
from hindcast.run.inputs import Input, inputs_of, open_inputs, sources_of
from hindcast.run.offline_trainer import make_offline_trainer
from hindcast.storage.location import resolve


def plan(resource: OfflineTraining, others: Sequence[OfflineRecording | OfflineTraining]) -> dict[str, Any]:
    """Dataset, feed, windows, sizes of a training, as JSON. Its data must exist; they are prepared where
    a run would prepare them, and nothing else is written.

    Args:
        others: resources that it may refer to.

    Raises:
        UserError: what would keep it from starting.
    """
    inputs = inputs_of(resource, FileReferences({title(other): other for other in others}))
    _check_recorded(resource, inputs)
    sources = sources_of(open_inputs(resource, inputs))
    learners = first_learners(run_folder(resource), resource)
    trainer = make_offline_trainer(resource, sources, first_learners=learners)
    try:
        assert isinstance(trainer.experience, OfflineData)
        parameters = {
            name: sum(parameter.numel() for parameter in net.parameters())
            for name, net in trainer.learner.nets.items()
        }
        return {
            "algorithm": resource.spec.algorithm,
            "runFolder": str(run_folder(resource)),
            "inputs": [one.path for one in inputs],
            "data": trainer.experience.plan(),
            "parameters": parameters,
        }
    finally:
        trainer.close()


def _check_recorded(resource: OfflineTraining, inputs: Sequence[Input]) -> None:
    """Refuse an input whose recording has not begun: a run would record it first, a plan does not."""
    recorded = [(index, source) for index, source in enumerate(resource.spec.input) if source.sampler is None]
    for (index, source), one in zip(recorded, inputs, strict=True):
        if source.recording_ref is not None and not resolve(one.path).exists():
            raise SpecError(
                f"{title(resource)}: spec.input[{index}].recordingRef: OfflineRecording/{source.recording_ref.name} "
                f"has recorded nothing in {one.path} yet; record it with `hindcast run`, then plan."
            )
