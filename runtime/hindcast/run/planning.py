"""Plan of a training: what a run of it would do; nothing is trained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hindcast.api import OfflineRecording, OfflineTraining
from hindcast.datasets.inspection.data_verdict import judge_data
from hindcast.errors import SpecError
from hindcast.formatting import plural
from hindcast.learn.group import Group
from hindcast.models.network_text import describe_networks
from hindcast.pipeline.offline_data import OfflineData, Source
from hindcast.pipeline.shard import Shard
from hindcast.report.results import read_results
from hindcast.run.claim import initial_num_learners, run_folder, title
from hindcast.run.execute import FileReferences
from hindcast.run.inputs import Input, make_sources, open_inputs, resolve_inputs
from hindcast.run.placement import LOCAL
from hindcast.run.stop_criteria import find_nearest_limit
from hindcast.run.training.offline_trainer import make_offline_trainer
from hindcast.storage.location import resolve


def plan(
    resource: OfflineTraining, other_resources: Sequence[OfflineRecording | OfflineTraining]
) -> dict[str, Any]:
    """Return as JSON what a training would do: its run folder, inputs, feed, windows, sizes and networks.

    If its run has results, `measured` has their speed, and the time that the whole run takes at this speed.

    The data must exist. They are prepared if a run would prepare them; nothing else is written.

    Args:
        other_resources: resources that the training may refer to.

    Raises:
        UserError: something would keep the training from starting.
    """
    inputs = resolve_inputs(
        resource, FileReferences({title(candidate): candidate for candidate in other_resources})
    )
    _check_recordings_exist(resource, inputs)
    sources = make_sources(open_inputs(resource, inputs))
    num_learners = initial_num_learners(run_folder(resource), resource)
    group = Group()
    group.shard = Shard(0, LOCAL.num_learners(resource.spec.learners)[0])
    trainer = make_offline_trainer(resource, sources, group=group, initial_num_learners=num_learners)
    try:
        assert isinstance(trainer.experience, OfflineData)
        return {
            "algorithm": resource.spec.algorithm,
            "runFolder": str(run_folder(resource)),
            "inputs": [input_.path for input_ in inputs],
            "learners": group.shard.size,
            "verdicts": [_judge(source) for source in sources],
            "data": trainer.experience.plan(),
            "networks": describe_networks(trainer.learner.nets),
            **_measure(resource),
        }
    finally:
        trainer.close()


def _measure(resource: OfflineTraining) -> dict[str, Any]:
    """Return `measured` of a training's plan, from its results; {} without results."""
    # An evaluation after the last iteration has its own line, without `learners`.
    results = [result for result in read_results(run_folder(resource)) if "learners" in result]
    if not results:
        return {}
    result, seconds = results[-1], results[-1]["time_total_s"]
    amount, total, _ = find_nearest_limit(resource.spec.stop, result)
    shares = result["timers"].get("shares", [])
    return {
        "measured": {
            "by": f"{plural(len(results), 'iteration')} of this run, the last one with "
            f"{plural(max(1, len(shares)), 'learner')}",
            "updatesPerSecond": round(result["num_updates_lifetime"] / seconds, 1),
            "timestepsPerSecond": round(result["num_env_steps_trained_lifetime"] / seconds),
            "dataWaitShare": max((round(share["wait"], 3) for share in shares), default=None),
            "bottleneck": result["timers"].get("bottleneck"),
            "learnerPeakBytes": max(result["timers"].get("peak_memory_bytes", [0])) or None,
            "seconds": round(seconds, 1),
            "wholeRunSeconds": round(seconds * max(1.0, total / amount), 1) if total and amount else None,
        }
    }


def _judge(source: Source) -> dict[str, Any]:
    verdict = judge_data(source.dataset)
    numbers = {name: value for name, value in verdict.to_json().items() if name != "reasons"}
    return {"data": source.name, "verdict": verdict.sentence, **numbers}


def _check_recordings_exist(resource: OfflineTraining, inputs: Sequence[Input]) -> None:
    """Refuse an input whose recording has not started; a run would record it first, but a plan records nothing."""
    recorded_inputs = [
        (index, source) for index, source in enumerate(resource.spec.input) if source.sampler is None
    ]
    for (index, source), input_ in zip(recorded_inputs, inputs, strict=True):
        if source.recording_ref is not None and not resolve(input_.path).exists():
            raise SpecError(
                f"OfflineRecording/{source.recording_ref.name} "
                f"has recorded nothing in {input_.path} yet; record it with `hindcast run`, then plan.",
                field=f"spec.input[{index}].recordingRef",
                resource=title(resource),
            )
