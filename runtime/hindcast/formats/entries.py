"""Descriptions of data files in commits and manifests, which make it unnecessary to open the files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, field_validator
from pydantic.alias_generators import to_camel


class JsonModel(BaseModel):
    """Base of models that are stored as JSON; names of fields are camelCase in JSON and snake_case in Python."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True, extra="ignore")

    def to_json(self) -> dict[str, Any]:
        """Return the model as a JSON object."""
        return self.model_dump(mode="json", by_alias=True)


class RowGroup(JsonModel):
    """One row group, the smallest part of a file that is read at once.

    A "row" is here a stored episode or fragment, also in layouts in which it takes one table row per timestep.

    Attributes:
        rows: number of rows.
        timesteps: number of timesteps of all rows.
        bytes: size of the encoded columns before compression.
        lengths: number of timesteps of each row.
        continued: indices of the rows that continue the episode of the row before (row 0: of the row group before).
        dropped: indices of the rows that readers skip because they repeat other rows; the other fields count them.
    """

    rows: int
    timesteps: int
    bytes: int
    lengths: tuple[int, ...]
    continued: tuple[int, ...] = ()
    dropped: tuple[int, ...] = ()


class StoredFragment(JsonModel):
    """A row of a file that Hindcast did not write: a whole episode or a fragment.

    Attributes:
        eps_id: id of the episode.
        t_started: timestep at which the row starts.
        ended: whether the episode is terminated or truncated at the end of the row.
    """

    eps_id: str
    t_started: int = 0
    ended: bool = True


class FileEntry(JsonModel):
    """A data file.

    Attributes:
        path: path relative to the dataset's folder.
        rows: number of stored episodes and fragments.
        timesteps: number of timesteps of all rows.
        bytes: size of the file.
        checksum: sha256 (hex) of the content.
        row_groups: row groups, in the file's order.
    """

    path: str
    rows: int
    timesteps: int
    bytes: int
    checksum: str
    row_groups: tuple[RowGroup, ...]

    @classmethod
    def from_row_groups(cls, path: str, nbytes: int, checksum: str, groups: Sequence[RowGroup]) -> FileEntry:
        """Return the entry of a file of `nbytes` with these row groups."""
        return cls(
            path=path,
            rows=sum(group.rows for group in groups),
            timesteps=sum(group.timesteps for group in groups),
            bytes=nbytes,
            checksum=checksum,
            row_groups=tuple(groups),
        )

    @field_validator("path")
    @classmethod
    def _check_path(cls, path: str) -> str:
        """Reject paths outside the dataset's folder: listed files are read, and deleted with their dataset."""
        if path.startswith("/") or ".." in path.split("/"):
            raise ValueError(f"{path!r} points outside the dataset's folder")
        return path

    @property
    def episodes(self) -> int:
        """Number of rows that start an episode, including dropped rows."""
        return self.rows - sum(len(group.continued) for group in self.row_groups)

    @property
    def episode_lengths(self) -> tuple[int, ...]:
        """Number of timesteps of each episode: the sum of its fragments in this file."""
        lengths: list[int] = []
        for group in self.row_groups:
            for row, length in enumerate(group.lengths):
                if row in group.continued:
                    lengths[-1] += length
                else:
                    lengths.append(length)
        return tuple(lengths)
