"""In which order the resources of files are carried out: what is referred to comes first."""

from __future__ import annotations

from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter

from hindcast.api import Loaded, OfflineRecording, OfflineTraining
from hindcast.api.metadata import Reference
from hindcast.errors import SpecError
from hindcast.run.claim import title


def in_order(loaded: Sequence[Loaded]) -> list[Loaded]:
    """The resources, each after those it refers to; otherwise as they are written.

    Raises:
        SpecError: a reference to a resource that is not in the files, or a circle of references.
    """
    by_title = {title(item.resource): item for item in loaded}
    graph = {name: _references(item, by_title) for name, item in by_title.items()}
    try:
        names = list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        raise SpecError(f"{' → '.join(error.args[1])}: each of these waits for the next one.") from error
    return [by_title[name] for name in names]


def _references(item: Loaded, known: dict[str, Loaded]) -> list[str]:
    needed: list[str] = []
    for reference, kind, steps in references_of(item.resource):
        name = f"{kind}/{reference.name}"
        if name not in known:
            others = [other.partition("/")[2] for other in known if other.startswith(kind)]
            has = f"they have {', '.join(others)}" if others else "they have none"
            raise SpecError(
                f"{item.at(*steps)}: {'.'.join(map(str, steps))}: there is no {kind} named "
                f"{reference.name!r} in the files given; {has}. Add its file to the command, or give a path."
            )
        needed.append(name)
    return needed


def references_of(
    resource: OfflineRecording | OfflineTraining,
) -> list[tuple[Reference, str, tuple[str | int, ...]]]:
    """(reference, kind it refers to, path of the field) of each reference."""
    if isinstance(resource, OfflineTraining):
        return [
            (source.recording_ref, "OfflineRecording", ("spec", "input", index, "recordingRef"))
            for index, source in enumerate(resource.spec.input)
            if source.recording_ref is not None
        ]
    training = resource.spec.policy.training_ref
    return [] if training is None else [(training, "OfflineTraining", ("spec", "policy", "trainingRef"))]
