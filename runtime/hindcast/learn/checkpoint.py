"""Checkpoints: safetensors and JSON in a folder, complete or not there.

```
checkpoint-000000100/
    module/               the policy (`Policy.load` opens it, and the folder above it)
    learner.safetensors   the other networks, optimisers, randomness, metrics not yet collected, targets in use
    checkpoint.json       everything else, and the checksum of each file; written last
```

A folder without `checkpoint.json` is what an interrupted save left behind: it does not exist for any reader
here.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from hindcast.errors import DataError
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

LEARNER, MODULE = "learner.safetensors", "module"
_WEIGHTS = f"{MODULE}/{WEIGHTS}"
_POLICY = "nets/policy."


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint. Get one with `find_checkpoint` or from a `CheckpointStore`."""

    location: Location
    record: CheckpointRecord

    @property
    def updates(self) -> int:
        """Updates made when it was saved."""
        return self.record.updates

    @property
    def training(self) -> TrainingState:
        """Iteration, options, feed position, metrics."""
        return self.record.training

    @property
    def module(self) -> Location:
        """Folder of the policy."""
        return self.location.child(MODULE)

    def learner_state(self) -> LearnerState:
        """The learner as it was saved, for `Learner.load`.

        Raises:
            DataError: a file is missing, damaged, or not safetensors.
        """
        files = {name: self._read(name) for name in {*self.record.files, LEARNER, _WEIGHTS}}
        policy = self._tensors(_WEIGHTS, files[_WEIGHTS])
        tensors = self._tensors(LEARNER, files[LEARNER])
        tensors |= {f"{_POLICY}{name}": tensor for name, tensor in policy.items()}
        return LearnerState(tensors, self.record.learner)

    def _tensors(self, name: str, data: bytes) -> dict[str, Tensor]:
        try:
            return safetensors.torch.load(data)
        except SafetensorError as error:
            raise DataError(
                f"{self.location.child(name)} is not a safetensors file ({error}); nothing else is read from "
                "a checkpoint, and no pickles ever"
            ) from error

    def _read(self, name: str) -> bytes:
        file, expected = self.location.child(name), self.record.files.get(name)
        if expected is None or not file.exists():
            raise DataError(f"the checkpoint {self.location} lacks its file {name}: use another checkpoint")
        data = file.read_bytes()
        if _sha256(data) != expected.sha256:
            raise DataError(
                f"{file} is damaged: its checksum is not the one written in {RECORD_FILE} "
                f"({len(data)} bytes, {expected.bytes} expected); use another checkpoint"
            )
        return data


class CheckpointStore:
    """The checkpoints of one run.

    Args:
        location: folder that holds them; made on the first save.
        keep: how many of the newest are kept, in addition to the best.
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
        """Write a checkpoint, then remove those no longer kept.

        Where the same weights are there already, only `checkpoint.json` is rewritten.

        Args:
            policy: with the learner's policy weights at this moment.
            learner: from `Learner.state`.
            training: the rest.
            protect: updates of checkpoints to keep whatever their age (an evaluation of them is under way).

        Raises:
            StorageError: the store refused; no checkpoint of these updates exists then.
        """
        files = _contents(policy, learner)
        record = CheckpointRecord(
            format_version=FORMAT_VERSION,
            updates=learner.meta["updates"],
            timesteps=learner.meta["timesteps"],
            training=training.model_copy(update={"metrics": _finite(training.metrics)}),
            learner=learner.meta,
            files={name: FileRecord(sha256=_sha256(data), bytes=len(data)) for name, data in files.items()},
        )
        folder = self._folder(record.updates)
        existing = _open(folder)
        if existing is None or existing.record.files != record.files:
            folder.delete()
            for name, data in files.items():
                folder.child(name).write_bytes(data)
        folder.child(RECORD_FILE).write_bytes(dump(record))
        self._prune({record.updates, *protect})
        return Checkpoint(folder, record)

    def remove_incomplete(self) -> None:
        """Delete what interrupted saves left behind; only while nobody saves here."""
        for updates in self._numbers():
            if self._at(updates) is None:
                self.location.child(folder_name(updates)).delete()

    def all(self) -> list[Checkpoint]:
        """The complete checkpoints, oldest first."""
        return [found for updates in self._numbers() if (found := self._at(updates))]

    def latest(self) -> Checkpoint | None:
        """The complete checkpoint with the most updates."""
        return next((found for updates in reversed(self._numbers()) if (found := self._at(updates))), None)

    def best(self) -> Checkpoint | None:
        """The checkpoint that is marked as the best, while it is there."""
        best = self._best()
        return self._at(best.updates) if best else None

    def best_score(self, metric: str = EPISODE_RETURN_MEAN, method: str | None = None) -> float | None:
        """Its score; None where it is another figure's than `by`, or was measured in another way."""
        best = self._best()
        if best is None or best.by != metric:
            return None
        return best.score if None in (method, best.measured) or best.measured == method else None

    def mark_best(
        self,
        checkpoint: Checkpoint,
        score: float,
        metric: str = EPISODE_RETURN_MEAN,
        method: str | None = None,
        *,
        at_end: bool = False,
    ) -> bool:
        """Note an evaluation's score; True if it beats the best so far, which this checkpoint then is.

        Args:
            checkpoint: that was evaluated.
            score: more is better.
            by: name of the figure; scores of another figure are not compared.
            measured: a word for how it was measured; scores measured in another way are not compared either.
            at_end: it would not have been evaluated if the run had not ended here, see `go_on`.
        """
        best = self.best_score(metric, method)
        if not math.isfinite(score) or (best is not None and score <= best):
            return False
        before = self._before_end() if at_end else None
        self._mark(
            Best(
                updates=checkpoint.updates,
                score=score,
                by=metric,
                measured=method,
                at_end=at_end,
                before=before,
            )
        )
        return True

    def revert_end_mark(self) -> None:
        """Forget what was marked at the end of the run, which now goes on: the best is what it was before."""
        best = self._best()
        if best is None or not best.at_end:
            return
        if best.before is None:
            self.location.child(BEST_FILE).delete()
        else:
            self._mark(best.before)

    def _before_end(self) -> Best | None:
        best = self._best()
        return best.before if best is not None and best.at_end else best

    def _mark(self, best: Best) -> None:
        self.location.child(BEST_FILE).write_bytes(dump(best))

    def _best(self) -> Best | None:
        file = self.location.child(BEST_FILE)
        return parse(file, Best) if file.exists() else None

    def _at(self, updates: int) -> Checkpoint | None:
        return _open(self._folder(updates))

    def _folder(self, updates: int) -> Location:
        return self.location.child(folder_name(updates))

    def _numbers(self) -> list[int]:
        names = (
            FOLDER_NAME.match(entry.relative_path) for entry in self.location.list() if not entry.is_file
        )
        return sorted(int(name[1]) for name in names if name)

    def _prune(self, protected: Collection[int]) -> None:
        best, numbers = self._best(), self._numbers()
        complete = [updates for updates in numbers if self._folder(updates).child(RECORD_FILE).exists()]
        marked = {mark.updates for mark in (best, best and best.before) if mark is not None}
        kept = {*complete[-self._keep :], *protected, *marked}
        for updates in numbers:
            if updates not in kept:
                folder = self._folder(updates)
                folder.child(RECORD_FILE).delete()
                folder.delete()


def find_checkpoint(path: str | Path | Location) -> Checkpoint:
    """Open a checkpoint.

    Args:
        path: a checkpoint's folder, or a folder of checkpoints: its best, else its latest.

    Raises:
        DataError: there is none, it is of a newer format, or it is damaged.
    """
    location = resolve(path)
    if found := _open(location):
        return found
    store = CheckpointStore(location)
    if found := store.best() or store.latest():
        return found
    if not location.exists():
        raise DataError(f"there is no checkpoint at {location}: nothing is there")
    if location.child("rllib_checkpoint.json").exists():
        raise DataError(
            f"{location} is a checkpoint of RLlib, whose parts are pickles; these are never opened. "
            "Record with its policy in RLlib and train on the recording"
        )
    names = ", ".join(entry.relative_path for entry in location.list()[:5]) or "nothing"
    raise DataError(
        f"there is no complete checkpoint at {location}: {RECORD_FILE} is missing (the folder holds {names})"
    )


def _contents(policy: Policy, learner: LearnerState) -> dict[str, bytes]:
    """The files of a checkpoint; the policy's weights are stored once, by the policy."""
    own = {name: tensor for name, tensor in learner.tensors.items() if not name.startswith(_POLICY)}
    files = {f"{MODULE}/{name}": data for name, data in policy.to_files().items()}
    return {**files, LEARNER: safetensors.torch.save(own)}


def _open(folder: Location) -> Checkpoint | None:
    file = folder.child(RECORD_FILE)
    return Checkpoint(folder, parse(file, CheckpointRecord)) if file.exists() else None


def _finite(metrics: Mapping[str, float | None]) -> dict[str, float | None]:
    return {
        name: value if value is not None and math.isfinite(value) else None for name, value in metrics.items()
    }


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
