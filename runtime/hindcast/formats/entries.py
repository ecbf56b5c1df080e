"""Descriptions of data files in commits and manifests, which make it unnecessary to open the files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, InstanceOf, field_validator
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


def row_group_type() -> pa.StructType:
    """Return the type of row groups as columns."""
    rows = pa.list_(pa.field("element", pa.int32(), nullable=False))
    types = {"rows": pa.int32(), "timesteps": pa.int64(), "bytes": pa.int64()}
    types |= dict.fromkeys(("lengths", "continued", "dropped"), rows)
    return pa.struct([pa.field(name, column_type, nullable=False) for name, column_type in types.items()])


class RowGroups(Sequence[RowGroup]):
    """The row groups of one file, as a part of the columns of all files; a `RowGroup` is made when it is indexed.

    Args:
        columns: row groups of several files, of the type `row_group_type()`.
        start: index of the file's first row group.
        stop: index after its last row group.
    """

    __slots__ = ("columns", "start", "stop")

    def __init__(self, columns: pa.StructArray, start: int, stop: int) -> None:
        self.columns, self.start, self.stop = columns, start, stop

    def __len__(self) -> int:
        return self.stop - self.start

    @overload
    def __getitem__(self, index: int) -> RowGroup: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[RowGroup, ...]: ...

    def __getitem__(self, index: int | slice) -> RowGroup | tuple[RowGroup, ...]:
        indices = range(self.start, self.stop)[index]
        if isinstance(indices, range):
            return tuple(map(self._make, indices))
        return self._make(indices)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]

    def _make(self, index: int) -> RowGroup:
        values = self.columns[index].as_py()
        fields: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
        }
        return RowGroup.model_construct(None, **fields)


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


class EpisodeColumns(JsonModel):
    """The episodes of a file that Hindcast wrote, in order; fragments of an episode count once.

    Attributes:
        eps_id: `[N]` ids.
        terminated: `[N]` whether the environment ended the episode.
        truncated: `[N]` whether the episode was cut off.
        returns: `[N]` sums of rewards; None or NaN if there is no such sum.
    """

    eps_id: tuple[str, ...]
    terminated: tuple[bool, ...]
    truncated: tuple[bool, ...]
    returns: tuple[float | None, ...]


class FileEntry(JsonModel):
    """A data file.

    Attributes:
        path: path relative to the dataset's folder.
        rows: number of stored episodes and fragments.
        timesteps: number of timesteps of all rows.
        bytes: size of the file.
        checksum: sha256 (hex) of the content.
        row_groups: row groups, in the file's order.
        episode_columns: its episodes, in commits; manifests have them in an index of their own.
    """

    path: str
    rows: int
    timesteps: int
    bytes: int
    checksum: str
    row_groups: tuple[RowGroup, ...] | InstanceOf[RowGroups]
    episode_columns: EpisodeColumns | None = None

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
        return check_path(path)

    @property
    def episodes(self) -> int:
        """Number of rows that start an episode, including dropped rows."""
        return count_episodes([self])

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


def check_path(path: str) -> str:
    """Return a file's path.

    Raises:
        ValueError: it is outside the dataset's folder.
    """
    if path.startswith("/") or ".." in path.split("/"):
        raise ValueError(f"{path!r} points outside the dataset's folder")
    return path


def row_group_columns(files: Iterable[FileEntry]) -> pa.ChunkedArray:
    """Return the row groups of all files, in order, as columns of the type `row_group_type()`.

    Row groups of an index are columns already: those of adjacent files are slices of them, which are joined again, so
    that no object is made for each row group.
    """
    chunks: list[pa.StructArray] = []
    objects: list[dict[str, Any]] = []
    part: RowGroups | None = None

    def flush() -> None:
        nonlocal objects, part
        if objects:
            chunks.append(pa.array(objects, row_group_type()))
        if part is not None:
            chunks.append(part.columns.slice(part.start, len(part)))
        objects, part = [], None

    for file in files:
        groups = file.row_groups
        if not isinstance(groups, RowGroups):
            if part is not None:
                flush()
            objects += map(vars, groups)
        elif part is not None and part.columns is groups.columns and part.stop == groups.start:
            part = RowGroups(part.columns, part.start, groups.stop)
        else:
            flush()
            part = groups
    flush()
    return pa.chunked_array(chunks, row_group_type())


def row_group_column(row_groups: pa.ChunkedArray, name: str) -> NDArray[Any]:
    """Return a column of row groups; of a column of lists, all values."""
    column = pc.struct_field(row_groups, name)
    return numbers_to_numpy(pc.list_flatten(column) if pa.types.is_list(column.type) else column)


def numbers_to_numpy(column: pa.ChunkedArray) -> NDArray[Any]:
    """Return numbers without nulls as an array."""
    # to_numpy() would import pandas, which takes 30 MiB
    return np.concatenate([np.empty(0, dtype=np.int32), *map(np.from_dlpack, column.chunks)])


def count_episodes(files: Iterable[FileEntry]) -> int:
    """Return the number of rows that start an episode, including dropped rows."""
    row_groups = row_group_columns(files)
    return int(row_group_column(row_groups, "rows").sum()) - len(row_group_column(row_groups, "continued"))
