"""The JSON of a checkpoint."""

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
    """Of a checkpoint."""
    return f"checkpoint-{updates:09d}"


class _Json(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True)


class TrainingState(_Json):
    """What resuming needs in addition to the learner.

    Attributes:
        iteration: iterations finished.
        algorithm: its name, as in the resource.
        options: the algorithm's options, camelCase.
        spec_hash: of the resource.
        feed: the feed's state: which timestep comes next.
        metrics: latest results, for people; NaN becomes null.
        counters: whatever else the run counts (episodes, environment steps, seconds), JSON.
    """

    iteration: int
    algorithm: str
    options: dict[str, Any]
    spec_hash: str
    feed: dict[str, Any] = {}
    metrics: dict[str, float | None] = {}
    counters: dict[str, Any] = {}


class FileRecord(_Json):
    """One file of a checkpoint."""

    sha256: str
    bytes: int


class CheckpointRecord(_Json):
    """The content of `checkpoint.json`."""

    format_version: int
    updates: int
    timesteps: int
    training: TrainingState
    learner: dict[str, Any]
    files: dict[str, FileRecord]


class Best(_Json):
    """The content of `best.json`: the checkpoint whose evaluation was the best so far.

    Attributes:
        updates: of the checkpoint.
        score: its figure.
        by: name of the figure.
        measured: a word for how it was measured; None of earlier versions, which did not say.
        at_end: it was marked where the run ended, which a run that goes on from there would not have done.
        before: the mark that this one replaced at the end, and that holds again when the run goes on.
    """

    updates: int
    score: float
    by: str = EPISODE_RETURN_MEAN
    measured: str | None = None
    at_end: bool = False
    before: Best | None = None


Record = TypeVar("Record", bound=_Json)


def parse(file: Location, kind: type[Record]) -> Record:
    """Read a record.

    Raises:
        DataError: the file is damaged, or of a newer format than this version reads.
    """
    try:
        content = json.loads(file.read_bytes())
        version = content.get("formatVersion", FORMAT_VERSION)
        if isinstance(version, int) and version > FORMAT_VERSION:
            raise DataError(
                f"{file} has formatVersion {version}, this Hindcast reads up to {FORMAT_VERSION}: "
                "upgrade Hindcast to open it"
            )
        return kind.model_validate(content)
    except (ValueError, AttributeError) as error:
        reason = f"{error.error_count()} wrong fields" if isinstance(error, ValidationError) else str(error)
        raise DataError(f"{file} is damaged ({reason}): use another checkpoint") from error


def dump(record: _Json) -> bytes:
    """The inverse of `parse`."""
    return json.dumps(record.model_dump(by_alias=True), indent=1, allow_nan=False).encode()
