"""Checkpoints: folders of safetensors and JSON files; an incomplete folder does not count.

```
checkpoint-000000100/
    module/               the policy (`Policy.load` accepts this folder and the one above it)
    learner.safetensors   the other networks, optimisers, generators, metrics not yet collected, targets in use
    checkpoint.json       everything else, and the checksum of each file; written last
```

A folder without `checkpoint.json` is left from an interrupted save and is not treated as a checkpoint.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from hindcast.errors import DataError
from hindcast.formatting import natural_sort_key
from hindcast.learn.checkpoint_record import (
    BEST_FILE,
    FOLDER_NAME,
    FORMAT_VERSION,
    RECORD_FILE,
    Best,
    CheckpointRecord,
    FileRecord,
    TrainingState,
    dump,
    folder_name,
    parse,
)
from hindcast.learn.learner import LearnerState
from hindcast.models.policy import Policy
from hindcast.models.policy_files import WEIGHTS
from hindcast.names import EPISODE_RETURN_MEAN
from hindcast.storage.location import Location, resolve

__all__ = ["Checkpoint", "CheckpointStore", "TrainingState", "find_checkpoint"]

LEARNER_FILE, MODULE = "learner.safetensors", "module"
_WEIGHTS = f"{MODULE}/{WEIGHTS}"
_POLICY_PREFIX = "nets/policy."
_REVISION: Final = re.compile(r"r\d+")
"""Name of the run folder of a training's revision."""


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint. Get one with `find_checkpoint` or from a `CheckpointStore`.

    Attributes:
        location: the checkpoint's folder.
        record: the content of its `checkpoint.json`.
    """

    location: Location
    record: CheckpointRecord

    @property
    def updates(self) -> int:
        """Number of updates made when it was saved."""
        return self.record.updates

    @property
    def training(self) -> TrainingState:
        """State of the training besides the learner: iteration, options, feed position, metrics."""
        return self.record.training

    @property
    def module(self) -> Location:
        """Folder of the policy."""
        return self.location.child(MODULE)

    def learner_state(self) -> LearnerState:
        """Read the learner's state, for `Learner.load`.

        Raises:
            DataError: a file is missing, damaged, or not safetensors.
        """
        # All files are verified, not only the two that are parsed; these two must be in the record.
        files = {name: self._read_file(name) for name in {*self.record.files, LEARNER_FILE, _WEIGHTS}}
        policy = self._parse_tensors(_WEIGHTS, files[_WEIGHTS])
        tensors = self._parse_tensors(LEARNER_FILE, files[LEARNER_FILE])
        tensors |= {f"{_POLICY_PREFIX}{name}": tensor for name, tensor in policy.items()}
        return LearnerState(tensors, self.record.learner)

    def _parse_tensors(self, name: str, data: bytes) -> dict[str, Tensor]:
        try:
            return safetensors.torch.load(data)
        except SafetensorError as error:
            raise DataError(
                f"{self.location.child(name)} is not a safetensors file ({error}). Checkpoints are read from "
                "safetensors only, never from pickles; use another checkpoint"
            ) from error

    def _read_file(self, name: str) -> bytes:
        file, expected = self.location.child(name), self.record.files.get(name)
        if expected is None or not file.exists():
            raise DataError(f"the checkpoint {self.location} has no file {name}: use another checkpoint")
        data = file.read_bytes()
        if _sha256(data) != expected.sha256:
            raise DataError(
                f"{file} is damaged: its checksum differs from the one in {RECORD_FILE} "
                f"({len(data)} bytes, {expected.bytes} expected); use another checkpoint"
            )
        return data


class CheckpointStore:
    """The checkpoints of one run.

    Args:
        location: folder of the checkpoints; created by the first save.
        keep: number of newest checkpoints to keep, in addition to the best one.
    """

    def __init__(self, location: Location, keep: int = 3) -> None:
        self.location = location
        self._keep = keep

    def save(
        self,
        policy: Policy,
        learner: LearnerState,
        training: TrainingState,
        protect: Collection[int] = (),
    ) -> Checkpoint:
        """Write a checkpoint, then delete the checkpoints that are no longer kept.

        If a checkpoint with the same files exists, only `checkpoint.json` is rewritten.

        Args:
            policy: the policy, with the learner's current weights.
            learner: state from `Learner.state`.
            training: all other state.
            protect: updates of checkpoints to keep regardless of their age, because they are being evaluated.

        Raises:
            StorageError: the storage fails or denies access; an incomplete folder may remain.
        """
        files = _checkpoint_files(policy, learner)
        record = CheckpointRecord(
            format_version=FORMAT_VERSION,
            updates=learner.meta["updates"],
            timesteps=learner.meta["timesteps"],
            training=training.model_copy(update={"metrics": _replace_non_finite(training.metrics)}),
            learner=learner.meta,
            files={name: FileRecord(sha256=_sha256(data), bytes=len(data)) for name, data in files.items()},
        )
        folder = self._folder(record.updates)
        existing = _open_if_complete(folder)
        if existing is None or existing.record.files != record.files:
            # The folder is left from an interrupted save, or has other weights. The record is written last, as a
            # commit.
            folder.delete()
            for name, data in files.items():
                folder.child(name).write_bytes(data)
        folder.child(RECORD_FILE).write_bytes(dump(record))
        self._prune({record.updates, *protect})
        return Checkpoint(folder, record)

    def remove_incomplete(self) -> None:
        """Delete the folders that interrupted saves left. Call it only while no process saves here."""
        for updates in self._saved_updates():
            if self._checkpoint_at(updates) is None:
                self.location.child(folder_name(updates)).delete()

    def all(self) -> list[Checkpoint]:
        """Return the complete checkpoints, oldest first."""
        return [
            checkpoint for updates in self._saved_updates() if (checkpoint := self._checkpoint_at(updates))
        ]

    def latest(self) -> Checkpoint | None:
        """Return the complete checkpoint with the most updates, or None."""
        return next(
            (
                checkpoint
                for updates in reversed(self._saved_updates())
                if (checkpoint := self._checkpoint_at(updates))
            ),
            None,
        )

    def best(self) -> Checkpoint | None:
        """Return the checkpoint that is marked as the best, or None if it was deleted or none is marked."""
        best = self._read_mark()
        return self._checkpoint_at(best.updates) if best else None

    def best_score(self, metric: str = EPISODE_RETURN_MEAN, method: str | None = None) -> float | None:
        """Return the score of the checkpoint that is marked as the best; None if there is no comparable score.

        Scores are comparable if they are of the same metric and method. A method of None, here or in the mark, matches
        every method.
        """
        best = self._read_mark()
        if best is None or best.metric != metric:
            return None
        return best.score if None in (method, best.method) or best.method == method else None

    def mark_best(
        self,
        checkpoint: Checkpoint,
        score: float,
        metric: str = EPISODE_RETURN_MEAN,
        method: str | None = None,
        *,
        at_end: bool = False,
    ) -> bool:
        """Mark a checkpoint as the best if its score beats the best so far.

        Args:
            checkpoint: the checkpoint that was evaluated.
            score: higher is better.
            metric: name of the metric; scores of different metrics are not compared.
            method: identifies how the score was measured; scores of different methods are not compared.
            at_end: True if the checkpoint was evaluated only because the run ended here, see `revert_end_mark`.

        Returns:
            True if the checkpoint is now marked as the best.
        """
        best = self.best_score(metric, method)
        if not math.isfinite(score) or (best is not None and score <= best):
            return False
        previous = self._mark_before_end() if at_end else None
        self._write_mark(
            Best(
                updates=checkpoint.updates,
                score=score,
                metric=metric,
                method=method,
                at_end=at_end,
                previous=previous,
            )
        )
        return True

    def revert_end_mark(self) -> None:
        """Restore the mark from before the run's end, when the run continues; do nothing if the end set no mark."""
        best = self._read_mark()
        if best is None or not best.at_end:
            return
        if best.previous is None:
            self.location.child(BEST_FILE).delete()
        else:
            self._write_mark(best.previous)

    def _mark_before_end(self) -> Best | None:
        """Return the mark that the run's end did not set: the current one, or the one that the end replaced."""
        best = self._read_mark()
        return best.previous if best is not None and best.at_end else best

    def _write_mark(self, best: Best) -> None:
        self.location.child(BEST_FILE).write_bytes(dump(best))

    def _read_mark(self) -> Best | None:
        file = self.location.child(BEST_FILE)
        return parse(file, Best) if file.exists() else None

    def _checkpoint_at(self, updates: int) -> Checkpoint | None:
        return _open_if_complete(self._folder(updates))

    def _folder(self, updates: int) -> Location:
        return self.location.child(folder_name(updates))

    def _saved_updates(self) -> list[int]:
        """Return the updates of all checkpoint folders, complete or not, in ascending order."""
        names = (
            FOLDER_NAME.match(entry.relative_path) for entry in self.location.list() if not entry.is_file
        )
        return sorted(int(name[1]) for name in names if name)

    def _prune(self, protected: Collection[int]) -> None:
        """Delete checkpoints that are neither among the newest, nor protected, nor marked; also incomplete ones."""
        best, saved_updates = self._read_mark(), self._saved_updates()
        complete = [updates for updates in saved_updates if self._folder(updates).child(RECORD_FILE).exists()]
        marks = [] if best is None else [best, best.previous]
        marked_updates = {mark.updates for mark in marks if mark is not None}
        kept_updates = {*complete[-self._keep :], *protected, *marked_updates}
        for updates in saved_updates:
            if updates not in kept_updates:
                folder = self._folder(updates)
                # The record goes first: without it a partly deleted folder is not a checkpoint.
                folder.child(RECORD_FILE).delete()
                folder.delete()


def find_checkpoint(path: str | Path | Location) -> Checkpoint:
    """Open a checkpoint. Files other than `checkpoint.json` are read and verified by `Checkpoint.learner_state`.

    Args:
        path: a checkpoint's folder; or a folder of checkpoints, of which the best is opened, or the latest if none is
            marked as the best.

    Raises:
        DataError: the folder contains no checkpoint, or the checkpoint has a newer format or is damaged.
    """
    location = resolve(path)
    if checkpoint := _open_if_complete(location):
        return checkpoint
    store = CheckpointStore(location)
    if checkpoint := store.best() or store.latest():
        return checkpoint
    if not location.exists():
        raise DataError(f"there is no checkpoint at {location}: the path does not exist")
    if location.child("rllib_checkpoint.json").exists():
        raise DataError(
            f"{location} is an RLlib checkpoint. RLlib stores pickles, which Hindcast never opens. "
            "Record with its policy in RLlib and train on the recording"
        )
    names = [entry.relative_path for entry in location.list()]
    if revisions := [name for name in names if _REVISION.fullmatch(name)]:
        latest = max(revisions, key=natural_sort_key)
        raise DataError(
            f"{location} is not a run, but contains one for each revision: name {location.child(latest)}"
        )
    content = ", ".join(names[:5]) or "nothing"
    raise DataError(
        f"there is no complete checkpoint at {location}: {RECORD_FILE} is missing (the folder contains {content})"
    )


def _checkpoint_files(policy: Policy, learner: LearnerState) -> dict[str, bytes]:
    """Return the files of a checkpoint by name; the policy's weights are stored once, in the policy's files."""
    tensors = {
        name: tensor for name, tensor in learner.tensors.items() if not name.startswith(_POLICY_PREFIX)
    }
    files = {f"{MODULE}/{name}": data for name, data in policy.to_files().items()}
    return {**files, LEARNER_FILE: safetensors.torch.save(tensors)}


def _open_if_complete(folder: Location) -> Checkpoint | None:
    file = folder.child(RECORD_FILE)
    return Checkpoint(folder, parse(file, CheckpointRecord)) if file.exists() else None


def _replace_non_finite(metrics: Mapping[str, float | None]) -> dict[str, float | None]:
    return {
        name: value if value is not None and math.isfinite(value) else None for name, value in metrics.items()
    }


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
