"""`Reading`: what is read and how."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hindcast.api.input import InputSource, PrepareSpec
from hindcast.formats.format import ReadOptions
from hindcast.storage.location import Location, resolve


@dataclass(frozen=True)
class Reading:
    """What is read and how: an `InputSource` without its weight.

    Attributes:
        paths: files, folders and globs; rows of one episode may be in several of them.
        format: as `InputSource.format` names it.
        options: for the format's reader.
        prepare: how rows become complete episodes.
        actions_normalized: whether Box actions are in [-1, 1]; None takes it from the data.
        filesystem: where the paths are, if they do not say it themselves.
    """

    paths: tuple[str | Path | Location, ...]
    format: str = "Auto"
    options: ReadOptions = field(default_factory=ReadOptions)
    prepare: PrepareSpec = field(default_factory=PrepareSpec)
    actions_normalized: bool | None = None
    filesystem: object | None = None

    @classmethod
    def from_input(
        cls,
        source: InputSource,
        path: str,
        mapper: str | None = None,
        mapper_kwargs: Mapping[str, Any] | None = None,
        mapper_given: Mapping[str, Any] | None = None,
    ) -> Reading:
        """What an input of a training describes.

        Args:
            source: the input.
            path: its own, or of the dataset that it refers to.
            mapper: class path of the training's pre-learner.
            mapper_kwargs: the pre-learner's keyword arguments.
            mapper_given: the training, as JSON.
        """
        options = ReadOptions(
            schema=source.schema_map,
            columns=source.columns,
            filter=source.filter,
            compress_columns=source.compress_columns,
            ignore_final_observation=source.ignore_final_observation,
            options=source.read_options,
            mapper=mapper,
            mapper_kwargs=mapper_kwargs or {},
            mapper_training=mapper_given or {},
        )
        return cls((path,), source.format, options, source.prepare, source.actions_normalized)

    @property
    def name(self) -> str:
        """The paths, for messages."""
        return ", ".join(map(str, self.paths))

    @property
    def locations(self) -> list[Location]:
        """Where the paths are."""
        return [resolve(path, self.filesystem) for path in self.paths]

    @property
    def is_plain(self) -> bool:
        """Whether complete episodes can be opened as they are."""
        return (
            self.format in ("Auto", "Parquet")
            and not self.options.filter
            and not self.options.schema
            and self.prepare.unfinished == "Keep"
        )
