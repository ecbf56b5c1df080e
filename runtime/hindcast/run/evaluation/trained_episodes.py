"""The record of the episodes that a run is trained on, by which evaluations leave these episodes out."""

from __future__ import annotations

import hashlib
import io
import math
import tokenize
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hindcast.datasets.dataset import Dataset
from hindcast.datasets.episode_table import compute_returns
from hindcast.datasets.sources import map_in_threads
from hindcast.episodes.block import Block
from hindcast.episodes.columns import Columns, root
from hindcast.errors import DataError, SpecError
from hindcast.formatting import plural
from hindcast.storage.location import Location

TRAINED_EPISODES_FILE: Final = "trained-episodes.npy"
_FIELDS: Final = np.dtype(
    [("id", "<u8"), ("length", "<i8"), ("return", "<f8"), ("start", "<f8"), ("missing", "<i8")]
)
"""The key of an episode: digest of its id, number of timesteps, sum of its rewards, sum of the numbers in its first
observation, and number of missing values there; 0 without rewards or such observations.

The observation is part of the key because ids alone are not unique: in tables that number patients from 0 and reward a
cure, a tenth of the episodes have the same id, length and return as another episode.
"""
_MAX_OBSERVATION_SIZE: Final = 1_000
"""Maximum size of a leaf of observations that is read: images take long to decode, and their episodes rarely have the
ids of others."""


class EpisodeKeys(NamedTuple):
    """The keys by which the episodes of a dataset are recognised in other data.

    Attributes:
        rows: `[N]` of `_FIELDS`.
        is_finished: `[N]` True for episodes that terminated or were truncated.
    """

    rows: NDArray[Any]
    is_finished: NDArray[np.bool_]

    def digests(self) -> list[int]:
        """Return a digest of 64 bits of each episode."""
        # Returns may differ in the last digits if the data are stored in another form.
        return [
            _digest(f"{row['id']} {row['length']} {row['return']:.6g} {row['start']:.6g}")
            for row in self.rows
        ]


class UntrainedEpisodes(NamedTuple):
    """Episodes of a dataset that a run was not trained on.

    Attributes:
        dataset: the episodes.
        num_trained: number of the dataset's other episodes.
    """

    dataset: Dataset
    num_trained: int


def record_trained_episodes(folder: Location, datasets: Sequence[Dataset]) -> None:
    """Write the record of a run that is trained on all episodes of the datasets, unless the run has one already."""
    file = folder.child(TRAINED_EPISODES_FILE)
    if file.exists() or not datasets:
        return
    buffer = io.BytesIO()
    np.save(buffer, np.unique(np.concatenate([describe_episodes(dataset).rows for dataset in datasets])))
    file.write_bytes(buffer.getvalue())


def find_trained(file: Location, episodes: EpisodeKeys) -> NDArray[np.bool_]:
    """Return `[N]` True for episodes that a run was trained on; `file` is its record."""
    return _contains(read_trained_episodes(file), episodes.rows)


def read_trained_episodes(file: Location) -> NDArray[Any]:
    """Return the rows `[N]` (`_FIELDS`) of a run's record.

    Raises:
        DataError: the file is damaged.
    """
    try:
        rows = np.lib.format.read_array(io.BytesIO(file.read_bytes()), allow_pickle=False)
    except (ValueError, SyntaxError, tokenize.TokenError, MemoryError) as error:
        raise DataError(f"is damaged ({error})", path=str(file), remedy="restore it from a copy") from None
    if rows.dtype != _FIELDS or rows.ndim != 1:
        problem = f"has the type {rows.dtype} and the shape {rows.shape}, which no record of episodes has"
        raise DataError(problem, path=str(file), remedy="restore it from a copy")
    return rows


def exclude_trained_episodes(file: Location, dataset: Dataset, name: str) -> UntrainedEpisodes:
    """Return the episodes that a run was not trained on.

    Two episodes are the same if their ids, numbers of timesteps, returns and first observations are.

    Args:
        file: the run's record, `TRAINED_EPISODES_FILE` in its folder.
        dataset: any dataset.
        name: name of the data in messages.

    Raises:
        SpecError: the dataset has at least two, but fewer remain.
    """
    is_trained = find_trained(file, describe_episodes(dataset))
    num_trained = int(is_trained.sum())
    if dataset.num_episodes - num_trained < 2 <= dataset.num_episodes:
        raise SpecError(
            f"{num_trained:,} of {plural(dataset.num_episodes, 'episode')} trained the policy, so estimates on them "
            "are too good",
            path=name,
            remedy="use other episodes, or hold some out of the training (evaluation.offline.heldOut or setAside)",
        )
    if not num_trained:
        return UntrainedEpisodes(dataset, 0)
    return UntrainedEpisodes(dataset.select(np.flatnonzero(~is_trained)), num_trained)


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def describe_episodes(dataset: Dataset) -> EpisodeKeys:
    """Return the keys of a dataset's episodes, for which it is read once."""
    leaves = dataset.spec.leaves
    has_returns = Columns.REWARDS in leaves and leaves[Columns.REWARDS].shape == ()
    observations = [
        leaf
        for leaf, spec in sorted(leaves.items())
        if root(leaf) == Columns.OBS
        and spec.dtype is not None
        and spec.dtype.kind in "biuf"
        and math.prod(spec.shape) <= _MAX_OBSERVATION_SIZE
    ]
    columns = [*observations, Columns.REWARDS] if has_returns else observations

    def describe(block: Block) -> EpisodeKeys:
        rows = np.zeros(block.num_episodes, _FIELDS)
        rows["id"] = list(map(_digest, block.eps_id.tolist()))
        rows["length"] = block.length
        if has_returns:
            rows["return"] = compute_returns(block)
        for leaf in observations:
            # Tables and Hindcast's recordings may have different precisions.
            start = block.columns[leaf][block.obs_start].astype(np.float32)
            start = start.reshape(len(rows), -1)
            rows["start"] += np.nansum(start, 1, dtype=np.float64)
            rows["missing"] += np.isnan(start).sum(1)
        return EpisodeKeys(rows, block.terminated | block.truncated)

    empty = EpisodeKeys(np.zeros(0, _FIELDS), np.zeros(0, dtype=bool))
    keys = map_in_threads(lambda unit: describe(dataset.read(unit, columns)), dataset.units)
    return EpisodeKeys(*map(np.concatenate, zip(empty, *keys, strict=True)))


def _contains(trained_rows: NDArray[Any], rows: NDArray[Any]) -> NDArray[np.bool_]:
    """Return a mask `[N]` of the `rows` that `trained_rows` contains; both have `_FIELDS`.

    Sums count as equal if they differ only by rounding, as sums of the same rewards in another order do.
    """
    trained_rows = np.sort(trained_rows, order="id")
    starts = np.searchsorted(trained_rows["id"], rows["id"], side="left")
    ends = np.searchsorted(trained_rows["id"], rows["id"], side="right")
    mask = np.zeros(len(rows), dtype=bool)
    for index, (start, end, row) in enumerate(zip(starts, ends, rows, strict=True)):
        candidates = trained_rows[start:end]
        has_length = candidates["length"] == row["length"]
        has_return, has_start = (
            np.isclose(candidates[name], row[name], rtol=1e-5, atol=1e-6, equal_nan=True)
            for name in ("return", "start")
        )
        # If only one of the two has missing values, these were replaced when the other one was read, and the sums are
        # not comparable: the other fields decide.
        has_start |= (candidates["missing"] == 0) != (row["missing"] == 0)
        mask[index] = (has_length & has_return & has_start).any()
    return mask
