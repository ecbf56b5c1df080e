"""Execute the resources of YAML files on this machine, each after the resources that it refers to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from typing import Any, NamedTuple

from hindcast.api import LoadedResource, OfflineRecording, OfflineTraining
from hindcast.api.metadata import Reference
from hindcast.errors import DataError, Interrupted, Problem, SpecError, UserError
from hindcast.learn.checkpoint import CheckpointStore, find_checkpoint
from hindcast.models.rl_module import module_class_of
from hindcast.record.environments import (
    close_unplayed_environments,
    environment_spaces,
    keep_environments,
)
from hindcast.record.episode_callbacks import callback_class
from hindcast.report.events import Outcome, Reporter
from hindcast.report.writing import write_recording_report, write_training_report
from hindcast.run.claim import CHECKPOINTS_FOLDER, refuse_other_run, run_folder, title
from hindcast.run.inputs import Input, References, data_by_name, make_sources, open_inputs, resolve_inputs
from hindcast.run.interruption import Interruption, catch_signals
from hindcast.run.placement import LOCAL, Placement
from hindcast.run.recording.recording_run import RecordingRun
from hindcast.run.spaces import declared_spaces
from hindcast.run.training.algorithm import make_algorithm
from hindcast.run.training.trainer import Networks, build_networks
from hindcast.run.training.training_run import SUCCESS_FILE, TrainingRun, read_success
from hindcast.run.training.warm_start import load_initial_policy

Resources = Mapping[str, OfflineRecording | OfflineTraining]
"""Title (`Kind/name`) -> resource."""


Train = Callable[
    [OfflineTraining, Sequence[Input], Reporter, Interruption, Networks | None],
    tuple[Outcome, Sequence[Input]],
]
"""Executes a training, as `train_locally` does."""


class FileReferences:
    """Resolves references among the resources of the given files."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources

    def dataset(self, recording: str) -> str | None:
        """Return the folder that the recording writes to, or None if the files do not define it."""
        resource = self._resources.get(f"OfflineRecording/{recording}")
        return resource.spec.output.path if isinstance(resource, OfflineRecording) else None

    def policy(self, training: str) -> str:
        """Return the location of the best checkpoint in the training's run folder."""
        resource = self._resources[f"OfflineTraining/{training}"]
        assert isinstance(resource, OfflineTraining)
        return str(find_checkpoint(run_folder(resource).child(CHECKPOINTS_FOLDER)).location)


def execute(
    items: Sequence[LoadedResource],
    reporter: Reporter,
    placement: Placement = LOCAL,
    train: Train | None = None,
) -> list[Outcome]:
    """Record and train; skip finished work and resume unfinished work.

    Args:
        items: the resources, in any order.
        reporter: receives progress, notes and outcomes.
        placement: starts the processes that record.
        train: executes a training; None is `train_locally`.

    Returns:
        Outcomes in the order of execution.

    Raises:
        Interrupted: a stop was requested; completed work is kept.
        UserError: a resource failed; the message is one sentence.
    """
    with keep_environments():
        return _check_and_execute(sort_by_reference(items), reporter, placement, train)


def _check_and_execute(
    items: Sequence[LoadedResource], reporter: Reporter, placement: Placement, train: Train | None
) -> list[Outcome]:
    items_by_title = {title(item.resource): item for item in items}
    references = FileReferences({name: item.resource for name, item in items_by_title.items()})
    checks: dict[str, EarlyCheck] = {}
    # All resources are checked first: an error in the last one must not surface after hours of earlier work.
    for name, item in items_by_title.items():
        with _add_location(item, is_only_resource=len(items_by_title) == 1):
            checks[name] = check_early(item.resource, references)
    outcomes: list[Outcome] = []
    with catch_signals() as interruption:
        for name, item in items_by_title.items():
            with _add_location(item, is_only_resource=len(items_by_title) == 1):
                if isinstance(item.resource, OfflineRecording):
                    outcome = execute_recording(item.resource, references, reporter, interruption, placement)
                else:
                    inputs, networks = checks.pop(name)
                    outcome = execute_training(
                        item.resource, inputs, reporter, interruption, networks, train=train
                    )
            reporter.finished(outcome)
            outcomes.append(outcome)
    return outcomes


@contextmanager
def _add_location(item: LoadedResource, *, is_only_resource: bool) -> Iterator[None]:
    """Add file, line and resource to the problems of a user's error.

    Args:
        item: resource that is being checked or executed.
        is_only_resource: no other resource is executed, so problems that name no field do not need its name.
    """
    try:
        yield
    except Interrupted:
        raise
    except UserError as error:
        error.problems = tuple(
            _locate(problem, item) if problem.field or not is_only_resource else problem
            for problem in error.problems
        )
        raise


def _locate(problem: Problem, item: LoadedResource) -> Problem:
    field = problem.field
    if field[0:1] in (("algorithm",), ("model",)):  # code below `run` does not know the section
        section = ("spec",) if item.resource.kind == "OfflineTraining" else ("spec", "policy", "train")
        field = (*section, *field)
    line = item.document.line_of(field)
    return replace(problem, field=field, file=item.file, line=line, resource=title(item.resource))


class EarlyCheck(NamedTuple):
    """Inputs and networks that the check of a resource has created, for its execution.

    Attributes:
        inputs: a training's inputs, not yet open; empty for a recording.
        networks: a training's networks; None if only the data determine their spaces, and for a recording.
    """

    inputs: Sequence[Input] = ()
    networks: Networks | None = None


def check_early(resource: OfflineRecording | OfflineTraining, references: References) -> EarlyCheck:
    """Check what can be checked before the first resource has run for minutes.

    Raises:
        UserError: the resource would fail later.
    """
    if isinstance(resource, OfflineTraining):
        algorithm, spec = make_algorithm(resource), resource.spec
        inputs = resolve_inputs(resource, references)
        if (spaces := declared_spaces(resource)) is None:
            return EarlyCheck(inputs)
        networks = build_networks(
            algorithm, spaces, spec.model, spec.environment, seed=spec.seed, rewards=spec.rewards
        )
        networks.make_policy_and_learner()  # refuses invalid options of optimisers
        return EarlyCheck(inputs, networks)
    if resource.spec.policy.train is not None:
        module_class_of(resource.spec.policy.train.model.module_class)
    for path in resource.spec.callbacks:
        callback_class(path)
    environment_spaces(resource.spec.environment)  # refuses an environment that cannot be created
    return EarlyCheck()


def prepare_inputs(
    resource: OfflineTraining,
    inputs: Sequence[Input],
    reporter: Reporter,
    interruption: Interruption,
    ray_options: Mapping[str, Any] | None = None,
) -> Sequence[Input]:
    """Open the data of a training's inputs, preparing them if necessary; return a finished training's inputs unopened.

    Args:
        ray_options: options of the Ray tasks that prepare large data.

    Raises:
        OutputConflict: the run folder holds another, finished training.
        DataError: there is no policy at `spec.initialCheckpoint`, and the training has no checkpoint of its own.
        UserError: something else keeps the training from starting.
    """
    initial, folder = resource.spec.initial_checkpoint, run_folder(resource)
    if initial is not None and CheckpointStore(folder.child(CHECKPOINTS_FOLDER)).latest() is None:
        # Loaded only for its errors: they appear in moments, while preparing the data may take hours.
        load_initial_policy(initial, resource.spec.model)
    if folder.child(SUCCESS_FILE).exists():
        refuse_other_run(folder, resource, has_progress=True)
    if read_success(resource, folder) is not None:
        return inputs
    return open_inputs(resource, inputs, reporter, interruption.check, ray_options)


def execute_recording(
    resource: OfflineRecording,
    references: References,
    reporter: Reporter,
    interruption: Interruption,
    placement: Placement = LOCAL,
) -> Outcome:
    """Record and write the report."""
    checkpoint = _checkpoint_of(resource, references)
    run = RecordingRun(resource, reporter, interruption, checkpoint, placement)
    outcome = run.execute()
    return replace(outcome, report=write_recording_report(resource, outcome))


def execute_training(
    resource: OfflineTraining,
    inputs: Sequence[Input],
    reporter: Reporter,
    interruption: Interruption,
    networks: Networks | None = None,
    *,
    train: Train | None = None,
) -> Outcome:
    """Train and write the report; `train` is `train_locally` if None."""
    outcome, inputs = (train or train_locally)(resource, inputs, reporter, interruption, networks)
    return replace(
        outcome,
        report=write_training_report(
            resource, outcome, data_by_name(inputs), [input_.reading for input_ in inputs]
        ),
    )


def train_locally(
    resource: OfflineTraining,
    inputs: Sequence[Input],
    reporter: Reporter,
    interruption: Interruption,
    networks: Networks | None = None,
) -> tuple[Outcome, Sequence[Input]]:
    """Train in this process; return the outcome and the inputs with their data.

    Args:
        networks: the resource's networks, from `check_early`; None builds them.
    """
    evaluation = resource.spec.evaluation_in_environment
    is_evaluated_here = evaluation is not None and not evaluation.num_runners
    if not is_evaluated_here and resource.spec.sampler is None:
        close_unplayed_environments()  # a simulator may hold memory that this training can use
    inputs = prepare_inputs(resource, inputs, reporter, interruption)
    run = TrainingRun(resource, make_sources(inputs), reporter, interruption, networks=networks)
    return run.execute(), inputs


def _checkpoint_of(resource: OfflineRecording, references: References) -> str | None:
    """Return the path of the checkpoint of the training that a recording refers to, or None without a reference."""
    reference = resource.spec.policy.training_ref
    if reference is None:
        return None
    try:
        return references.policy(reference.name)
    except DataError as error:
        error.locate("spec.policy.trainingRef", resource=title(resource))
        raise


def sort_by_reference(items: Sequence[LoadedResource]) -> list[LoadedResource]:
    """Return the resources, each after the resources that it refers to; resources without references come first.

    Raises:
        SpecError: a reference names a resource that is not in the files, or references form a cycle.
    """
    items_by_title = {title(item.resource): item for item in items}
    graph = {name: _referenced_titles(item, items_by_title) for name, item in items_by_title.items()}
    try:
        names = list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        raise SpecError(
            f"{' → '.join(error.args[1])}: circular references; each of these resources waits for the next one."
        ) from error
    return [items_by_title[name] for name in names]


def _referenced_titles(item: LoadedResource, items_by_title: dict[str, LoadedResource]) -> list[str]:
    titles: list[str] = []
    for reference, kind, field_path in _list_references(item.resource):
        name = f"{kind}/{reference.name}"
        if name not in items_by_title:
            defined_names = [key.partition("/")[2] for key in items_by_title if key.startswith(kind)]
            definitions = f"the files define {', '.join(defined_names) or 'none'}"
            raise SpecError(
                f"there is no {kind} named {reference.name!r}; {definitions}. Add its file to the command, or use a "
                "path.",
                field_path,
                file=item.file,
                line=item.document.line_of(field_path),
            )
        titles.append(name)
    return titles


def _list_references(
    resource: OfflineRecording | OfflineTraining,
) -> list[tuple[Reference, str, tuple[str | int, ...]]]:
    """Return (reference, kind that it refers to, path of the field) of each reference."""
    if isinstance(resource, OfflineTraining):
        return [
            (source.recording_ref, "OfflineRecording", ("spec", "input", index, "recordingRef"))
            for index, source in enumerate(resource.spec.input)
            if source.recording_ref is not None
        ]
    training = resource.spec.policy.training_ref
    return [] if training is None else [(training, "OfflineTraining", ("spec", "policy", "trainingRef"))]
