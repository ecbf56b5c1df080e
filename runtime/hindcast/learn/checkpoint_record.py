"""Schemas of the JSON files of checkpoints."""

from __future__ import annotations

import json
import re
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from hindcast.errors import DataError
from hindcast.names import EPISODE_RETURN_MEAN
from hindcast.storage.location import Location

FORMAT_VERSION = 1
RECORD_FILE, BEST_FILE = "checkpoint.json", "best.json"
FOLDER_NAME = re.compile(r"^checkpoint-(\d{9,})$")


def folder_name(updates: int) -> str:
    """Return the name of a checkpoint's folder."""
    return f"checkpoint-{updates:09d}"


class _JsonModel(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True)


class TrainingState(_JsonModel):
    """State of a training that resuming needs in addition to the learner.

    Attributes:
        iteration: number of iterations finished.
        algorithm: name of the algorithm, as in the resource.
        options: the algorithm's options, camelCase.
        spec_hash: hash of the resource's spec.
        feed: state of the feed, which determines the next batch.
        metrics: latest results, for people; NaN becomes null.
        counters: all other values that resuming needs, JSON: counts of the run (environment steps, seconds), the
            updates of the weights that are being evaluated, and values of the Python builder.
    """

    iteration: int
    algorithm: str
    options: dict[str, Any]
    spec_hash: str
    feed: dict[str, Any] = {}
    metrics: dict[str, float | None] = {}
    counters: dict[str, Any] = {}


class FileRecord(_JsonModel):
    """One file of a checkpoint.

    Attributes:
        sha256: checksum of its content, in hexadecimal digits.
        bytes: its size.
    """

    sha256: str
    bytes: int


class CheckpointRecord(_JsonModel):
    """The content of `checkpoint.json`.

    Attributes:
        format_version: version of the format, see `FORMAT_VERSION`.
        updates: number of updates made.
        timesteps: number of timesteps trained.
        training: the state that resuming needs in addition to the learner.
        learner: `LearnerState.meta`.
        files: path in the folder -> size and checksum, of all other files.
    """

    format_version: int
    updates: int
    timesteps: int
    training: TrainingState
    learner: dict[str, Any]
    files: dict[str, FileRecord]


class Best(_JsonModel):
    """The content of `best.json`: the mark of the checkpoint with the best evaluation so far.

    Attributes:
        updates: number of updates of the checkpoint.
        score: its score; higher is better.
        metric: name of the metric.
        method: identifies how the score was measured; None matches every method.
        at_end: True if the checkpoint was marked only because the run ended there.
        previous: the mark that this one replaced at the run's end, which is restored when the run continues; None if
            there was none, or if `at_end` is False.
    """

    updates: int
    score: float
    metric: str = EPISODE_RETURN_MEAN
    method: str | None = None
    at_end: bool = False
    previous: Best | None = None


Record = TypeVar("Record", bound=_JsonModel)


def parse(file: Location, record_class: type[Record]) -> Record:
    """Read a record.

    Raises:
        DataError: the file is damaged, or has a newer format than this version reads.
    """
    try:
        content = json.loads(file.read_bytes())
        version = content.get("formatVersion", FORMAT_VERSION)
        if isinstance(version, int) and version > FORMAT_VERSION:
            raise DataError(
                f"{file} has formatVersion {version}, but this Hindcast reads up to {FORMAT_VERSION}: "
                "upgrade Hindcast to open it"
            )
        return record_class.model_validate(content)
    except (ValueError, AttributeError) as error:
        reason = f"{error.error_count()} invalid fields" if isinstance(error, ValidationError) else str(error)
        raise DataError(f"{file} is damaged ({reason}): use another checkpoint") from error


def dump(record: _JsonModel) -> bytes:
    """Encode a record; the inverse of `parse`."""
    return json.dumps(record.model_dump(by_alias=True), indent=1, allow_nan=False).encode()
