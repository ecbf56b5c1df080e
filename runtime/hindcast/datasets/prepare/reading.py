"""`Reading`, the paths to read and the options for reading them."""

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
    """The paths to read and the options for reading them: the fields of an `InputSource` that say what is read.

    Attributes:
        paths: files, folders and globs; rows of one episode may be in several of them.
        format: name of the format, see `InputSource.format`.
        options: options for the format's reader.
        prepare: how rows become complete episodes.
        actions_normalized: whether Box actions are in [-1, 1]; None for what the data's format or manifest says.
        filesystem: file system that contains the paths, unless they are URIs.
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
        mapper_training: Mapping[str, Any] | None = None,
    ) -> Reading:
        """Make a reading from a training's input.

        Args:
            source: the input.
            path: path of the input, or of the dataset that it refers to.
            mapper: import path of the user's pre-learner; None if the training uses the default one.
            mapper_kwargs: the pre-learner's keyword arguments.
            mapper_training: the training as JSON values, for the pre-learner.
        """
        options = ReadOptions(
            schema=source.schema_map,
            time=source.time,
            columns=source.columns,
            filter=source.filter,
            compress_columns=source.compress_columns,
            ignore_final_observation=source.ignore_final_observation,
            options=source.read_options,
            mapper=mapper,
            mapper_kwargs=mapper_kwargs or {},
            mapper_training=mapper_training or {},
        )
        return cls((path,), source.format, options, source.prepare, source.actions_normalized)

    @property
    def name(self) -> str:
        """Name of the data in messages: the paths."""
        return ", ".join(map(str, self.paths))

    @property
    def locations(self) -> list[Location]:
        """Locations of the paths; globs are not expanded."""
        return [resolve(path, self.filesystem) for path in self.paths]

    @property
    def can_open_directly(self) -> bool:
        """True if complete episodes need not be prepared, unless `actions_normalized` contradicts their manifest."""
        return (
            self.format in ("Auto", "Parquet")
            and not self.options.filter
            and not self.options.schema
            and self.options.time is None
            and self.prepare.unfinished == "Keep"
        )

    @property
    def maps_episodes(self) -> bool:
        """True if the user's class maps the rows of Parquet files; it then also maps complete episodes in them."""
        return (
            self.format == "RayData"
            and self.options.mapper is not None
            and self.options.options.get("method") == "read_parquet"
        )
