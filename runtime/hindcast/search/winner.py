"""Copies the winner's checkpoint, or trains its settings again on all episodes."""

from __future__ import annotations

from pathlib import Path

from hindcast.api.training import StopSpec
from hindcast.errors import OutputConflict, SpecError
from hindcast.learn.checkpoint import find_checkpoint
from hindcast.learn.checkpoint_record import RECORD_FILE
from hindcast.report.events import DistinctNotes, Outcome, Reporter
from hindcast.run.execute import FileReferences, execute_training
from hindcast.run.inputs import resolve_inputs
from hindcast.run.interruption import catch_signals
from hindcast.search.results import Run, Search
from hindcast.search.trials import with_evaluation
from hindcast.storage.location import resolve


def take(search: Search, folder: str | Path) -> str:
    """Copy the checkpoint that a search chose; `Policy.load` opens the copy.

    Args:
        search: the search.
        folder: folder of the copy; a path or a URI.

    Returns:
        The folder.

    Raises:
        SpecError: no trial has a value.
        OutputConflict: the folder contains other files.
    """
    checkpoint = find_checkpoint(str(_best_run(search).checkpoint))
    target = resolve(folder)
    record = checkpoint.location.child(RECORD_FILE).read_bytes()
    record_file = target.child(RECORD_FILE)
    if record_file.exists() and record_file.read_bytes() == record:
        return str(target)  # an earlier call has copied the checkpoint
    if target.list():
        raise OutputConflict(
            f"{target} is not empty: choose another folder for the winner's checkpoint (--take)."
        )
    for entry in checkpoint.location.files(recursive=True):
        if entry.relative_path != RECORD_FILE:
            target.child(entry.relative_path).write_bytes(entry.location.read_bytes())
    record_file.write_bytes(record)  # last, because a folder without this file is not a checkpoint
    return str(target)


def retrain(
    search: Search, folder: str | Path, reporter: Reporter | None = None, name: str = "winner"
) -> Outcome:
    """Train the winner's settings again on all episodes, for as many updates as the chosen checkpoint had.

    Args:
        search: the search.
        folder: the run folder is `<folder>/<name>/r<revision>`.
        reporter: receives progress and notes.
        name: name of the training.

    Returns:
        The training's outcome.

    Raises:
        SpecError: no trial has a value.
        UserError: any error of a training.
    """
    run = _best_run(search)
    assert search.training is not None
    training = with_evaluation(search.training, None)
    checkpoint = training.spec.checkpoint.model_copy(update={"path": str(folder)})
    # No episodes are left to evaluate a stop criterion on, so the chosen checkpoint's number of updates is the stop.
    spec = training.spec.model_copy(update={"stop": StopSpec(updates=run.updates), "checkpoint": checkpoint})
    metadata = training.metadata.model_copy(update={"name": name})
    resource = training.model_copy(update={"spec": spec, "metadata": metadata})
    inputs = resolve_inputs(resource, FileReferences({}))
    with catch_signals() as interruption:
        return execute_training(resource, inputs, DistinctNotes(reporter), interruption)


def _best_run(search: Search) -> Run:
    if search.run is None:
        # The sentence may end with the full stop of an error.
        raise SpecError(f"{search.sentence}.".replace("..", "."))
    return search.run
