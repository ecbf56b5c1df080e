"""`Steps`, rows of many files to be assembled into episodes. Shape suffix: R = rows."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hindcast.episodes.block import I64, Bool
from hindcast.episodes.columns import Columns, root
from hindcast.errors import DataError
from hindcast.formats.lossless import (
    describe_rounded,
    find_rounded_row,
    fit_shape,
    has_exact_dtype,
)
from hindcast.formats.rows import AGENT_COLUMNS, Rows, Timesteps
from hindcast.formats.spec import describe_array, describe_lost_digits, loses_digits

Array = NDArray[Any]
ONLY_SOME_FILES: Final = "not all files have it in one form"
"""Reason for which a column is left out, see `Steps.left_out`."""
NO_EXACT_DTYPE: Final = "it has whole numbers that the common type of its files would round"
"""Reason for which a column is left out, see `Steps.left_out`."""
_REQUIRED_COLUMNS: Final = (
    *(Columns.OBS, Columns.NEXT_OBS, Columns.ACTIONS, Columns.REWARDS),
    *(Columns.DELTA_T, Columns.TIME),
)
_ROW_FIELDS: Final = ("terminated", "truncated", "next_missing", "is_obs_only", "part", "row")


@dataclass(frozen=True, eq=False)
class Steps:
    """Timesteps, each with its episode and the location that it was read from.

    Attributes:
        columns: as `Rows.columns`, `[R, *shape]` each.
        episode: `[R]` index into `episode_ids`.
        episode_ids: object array of distinct `str`.
        t: `[R]` as in `Rows`.
        terminated: `[R]` as in `Rows`.
        truncated: `[R]` as in `Rows`.
        next_missing: `[R]` as in `Rows`.
        is_obs_only: `[R]` as in `Rows`.
        part: `[R]` index of the part that the row was read from; parts are in stored order.
        row: `[R]` index of the row in its file.
        left_out: as in `Rows`.
        has_zone: as in `Rows`.
    """

    columns: dict[str, Array]
    episode: I64
    episode_ids: NDArray[np.object_]
    t: Timesteps | None
    terminated: Bool
    truncated: Bool
    next_missing: Bool
    is_obs_only: Bool
    part: I64
    row: I64
    left_out: Mapping[str, str] = field(default_factory=dict)
    has_zone: bool | None = None

    def __len__(self) -> int:
        return len(self.row)

    @property
    def has_step_index(self) -> bool:
        """True if `t` counts timesteps; False if `t` is missing, or has dates and times, which only order rows."""
        return self.t is not None and self.t.dtype.kind != "M"

    @property
    def is_end(self) -> Bool:
        """`[R]` True for rows that end their episode."""
        return self.terminated | self.truncated

    @classmethod
    def from_rows(cls, rows: Rows, part: int) -> Steps:
        """Make steps from rows that have episode ids; `part` is the index of the part that they were read from."""
        episode, episode_ids = encode_ids(rows.eps_id)
        return cls(
            columns=rows.columns,
            episode=episode,
            episode_ids=episode_ids,
            t=rows.t,
            terminated=rows.terminated,
            truncated=rows.truncated,
            next_missing=rows.next_missing,
            is_obs_only=np.zeros(len(rows), np.bool_) if rows.is_obs_only is None else rows.is_obs_only,
            part=np.full(len(rows), part, dtype=np.int64),
            row=rows.row,
            left_out=rows.left_out,
            has_zone=rows.has_zone,
        )

    def take(self, index: Array | slice) -> Steps:
        """Take rows by indices (in their order), mask or slice; a slice is not copied."""
        arrays: dict[str, Any] = {name: getattr(self, name)[index] for name in ("episode", *_ROW_FIELDS)}
        columns = {name: column[index] for name, column in self.columns.items()}
        return replace(self, columns=columns, t=None if self.t is None else self.t[index], **arrays)

    def signature(self) -> tuple[Any, ...]:
        """Return a value that is equal for chunks that `concat` joins without changing a column."""
        columns = ((name, column.dtype, column.shape[1:]) for name, column in self.columns.items())
        return (*columns, None if self.t is None else self.t.dtype, self.has_zone, *self.left_out.items())

    def split(self, num_partitions: int) -> dict[int, Steps]:
        """Split rows by a hash of their episode's id; return number of a partition -> its rows, at least one.

        Each of `episode_ids` must have a row. The rows of the partitions are views of one copy.
        """
        if num_partitions == 1:
            return {0: self}
        # Not Python's `hash`, which differs from process to process. NumPy sorts 16 bits ten times as fast as 64.
        partition_of_id = np.array(
            [zlib.crc32(name.encode()) % num_partitions for name in self.episode_ids],
            dtype=np.min_scalar_type(num_partitions),
        )
        id_order, id_bounds = _sort_by_partition(partition_of_id, num_partitions)
        index_of_id = np.empty_like(id_order)
        index_of_id[id_order] = np.arange(len(id_order))
        row_order, row_bounds = _sort_by_partition(partition_of_id[self.episode], num_partitions)
        rows = self.take(row_order)
        episode, episode_ids = index_of_id[rows.episode], self.episode_ids[id_order]
        return {
            partition: replace(
                rows.take(slice(row_bounds[partition], row_bounds[partition + 1])),
                episode=episode[row_bounds[partition] : row_bounds[partition + 1]] - id_bounds[partition],
                episode_ids=episode_ids[id_bounds[partition] : id_bounds[partition + 1]],
            )
            for partition in range(num_partitions)
            if row_bounds[partition] < row_bounds[partition + 1]
        }

    @classmethod
    def concat(cls, chunks: Sequence[Steps], paths: Sequence[str]) -> Steps:
        """Concatenate chunks of steps, in order; infos and ids that only some chunks have are "" in the others.

        Other columns that only some chunks have, or that differ, are left out unless every episode requires them.

        Args:
            chunks: at least one chunk; no chunk may be empty.
            paths: path of each part's file.

        Raises:
            DataError: chunks differ in columns, shapes or kinds (numbers or text), or only some have `t`.
        """
        if len(chunks) == 1:
            return chunks[0]
        for name in (Columns.INFOS, *AGENT_COLUMNS):
            if any(name in chunk.columns for chunk in chunks):
                chunks = [chunk._with_text_column(name) for chunk in chunks]
        chunks = _fit_columns(chunks)
        _check_compatible(chunks, paths)
        all_ids = np.concatenate([chunk.episode_ids for chunk in chunks])
        id_index, distinct_ids = encode_ids(all_ids)
        offsets = np.cumsum([0, *(len(chunk.episode_ids) for chunk in chunks)])
        first_chunk = chunks[0]
        arrays: dict[str, Any] = {
            name: np.concatenate([getattr(chunk, name) for chunk in chunks]) for name in _ROW_FIELDS
        }
        return cls(
            columns={
                name: np.concatenate([chunk.columns[name] for chunk in chunks])
                for name in first_chunk.columns
            },
            episode=np.concatenate(
                [id_index[offset + chunk.episode] for offset, chunk in zip(offsets, chunks, strict=False)]
            ),
            episode_ids=distinct_ids,
            t=None
            if first_chunk.t is None
            else np.concatenate([chunk.t for chunk in chunks if chunk.t is not None]),
            left_out={name: reason for chunk in reversed(chunks) for name, reason in chunk.left_out.items()},
            has_zone=first_chunk.has_zone,
            **arrays,
        )

    def _with_text_column(self, name: str) -> Steps:
        """Return the rows with a column of empty text, if they lack the column."""
        if name in self.columns:
            return self
        empty_texts = np.full(len(self), "", dtype=object)
        return replace(self, columns={**self.columns, name: empty_texts})

    def find_scattered_episode(self) -> str | None:
        """Return the id of an episode whose rows are not adjacent; None if there is no such episode."""
        segment_starts = np.flatnonzero(np.append(True, np.diff(self.episode) != 0))
        episodes, counts = np.unique(self.episode[segment_starts], return_counts=True)
        return str(self.episode_ids[episodes[np.argmax(counts > 1)]]) if (counts > 1).any() else None


def _sort_by_partition(partition: Array, num_partitions: int) -> tuple[I64, I64]:
    """Return indices that sort numbers of partitions (stable), and `[num_partitions + 1]` bounds of each among them."""
    order = np.argsort(partition, kind="stable")
    return order, np.cumsum([0, *np.bincount(partition, minlength=num_partitions)])


def encode_ids(ids: NDArray[np.object_] | None) -> tuple[I64, NDArray[np.object_]]:
    """Return `[R]` the index of each id among the distinct ids, and the distinct ids in order of first occurrence."""
    assert ids is not None
    dictionary_array = pa.array(ids, pa.large_string(), from_pandas=False).dictionary_encode()
    distinct_ids = np.array(dictionary_array.dictionary.to_pylist(), dtype=object)
    return dictionary_array.indices.to_numpy().astype(np.int64), distinct_ids


def _fit_columns(chunks: Sequence[Steps]) -> Sequence[Steps]:
    """Fit shapes to the first chunk's; leave out columns that differ, or would be rounded, and are not required."""
    first_columns = chunks[0].columns
    if all(chunk.columns.keys() == first_columns.keys() for chunk in chunks) and all(
        (column.shape[1:], column.dtype) == (first_columns[name].shape[1:], first_columns[name].dtype)
        for chunk in chunks
        for name, column in chunk.columns.items()
    ):
        return chunks
    reasons = {name: reason for chunk in reversed(chunks) for name, reason in chunk.left_out.items()}
    left_out: dict[str, str] = {}
    fitted_columns = [dict(chunk.columns) for chunk in chunks]
    for name in dict.fromkeys(name for chunk in chunks for name in chunk.columns):
        arrays = [chunk.columns.get(name) for chunk in chunks]
        first = next(array for array in arrays if array is not None)
        fitted_arrays = [None if array is None else fit_shape(array, first.shape[1:]) for array in arrays]
        compatible_arrays = [
            array
            for array in fitted_arrays
            if array is not None and (array.dtype == object) == (first.dtype == object)
        ]
        is_exact = is_required(name) or has_exact_dtype(compatible_arrays)
        if len(compatible_arrays) == len(chunks) and is_exact:
            for columns, array in zip(fitted_columns, compatible_arrays, strict=True):
                columns[name] = array
        elif not is_required(name):
            left_out[name] = reasons.get(name, ONLY_SOME_FILES if is_exact else NO_EXACT_DTYPE)
            for columns in fitted_columns:
                columns.pop(name, None)
    return [
        replace(chunk, columns=columns, left_out={**chunk.left_out, **left_out})
        for chunk, columns in zip(chunks, fitted_columns, strict=True)
    ]


def _check_compatible(chunks: Sequence[Steps], paths: Sequence[str]) -> None:
    for chunk in chunks[1:]:
        difference = _describe_difference(chunks[0], chunk)
        if difference:
            files = " and ".join(dict.fromkeys(paths[int(steps.part[0])] for steps in (chunks[0], chunk)))
            raise DataError(f"rows of {files} differ: {difference}")
        if chunk.has_zone != chunks[0].has_zone:
            without_zone = chunks[0] if chunk.has_zone else chunk
            raise DataError(
                "has a time without a zone, but other files have times with a zone, which are in UTC",
                path=paths[int(without_zone.part[0])],
                row=int(without_zone.row[0]),
                remedy="write all times with a zone, such as by pandas' frame[name].dt.tz_localize('UTC'), or none",
            )
    for name in filter(is_required, chunks[0].columns):
        dtypes = {chunk.columns[name].dtype for chunk in chunks}
        for chunk in chunks if len(dtypes) > 1 else ():
            dtype = np.result_type(*dtypes)
            row = find_rounded_row(chunk.columns[name], dtype)
            if row is not None:
                text = describe_rounded(name, chunk.columns[name][row], dtype)
                raise DataError(text, path=paths[int(chunk.part[row])], row=int(chunk.row[row]))


def is_required(name: str) -> bool:
    """Return whether a leaf is needed for training, so that it is never left out."""
    return root(name) in _REQUIRED_COLUMNS


def _describe_difference(first: Steps, second: Steps) -> str | None:
    """Describe why two chunks cannot be concatenated; None if they can."""
    if second.columns.keys() != first.columns.keys():
        return (
            f"they have the columns {sorted(first.columns)} and {sorted(second.columns)}; name those to "
            "read under `columns`"
        )
    if (first.t is None) != (second.t is None):
        return "only one has the column 't'; give each as a separate input"
    if first.t is not None and second.t is not None and first.t.dtype.kind != second.t.dtype.kind:
        return "'t' holds numbers in one and times in the other; give each as a separate input"
    for name, column in first.columns.items():
        other_column = second.columns[name]
        if column.shape[1:] != other_column.shape[1:] or (column.dtype == object) != (
            other_column.dtype == object
        ):
            return (
                f"{name!r} is {describe_array(column)} in one and {describe_array(other_column)} in the "
                "other; all must be the same"
            )
        if is_required(name) and loses_digits(column.dtype, other_column.dtype):
            return describe_lost_digits(name, column.dtype, other_column.dtype)
    return None
