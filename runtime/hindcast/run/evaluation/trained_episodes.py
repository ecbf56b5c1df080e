"""The record of the episodes that a run is trained on, which keeps evaluations away from them."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hindcast.datasets.dataset import Dataset
from hindcast.episodes.columns import Columns
from hindcast.errors import SpecError
from hindcast.formatting import plural
from hindcast.storage.location import Location

TRAINED_EPISODES_FILE: Final = "trained-episodes.npy"
_FIELDS: Final = np.dtype([("id", "<u8"), ("length", "<i8"), ("return", "<f8")])
"""Digest of the id, number of timesteps and sum of rewards (0 without rewards) of an episode."""


class EpisodeKeys(NamedTuple):
    """The episodes of a dataset, as far as they are told apart by.

    Attributes:
        rows: `[N]` of id, number of timesteps and return.
        is_finished: `[N]` True for episodes that terminated or were truncated.
    """

    rows: NDArray[Any]
    is_finished: NDArray[np.bool_]

    def digests(self) -> list[int]:
        """Return a digest of 64 bits of each episode."""
        # Returns may differ in the last digits if the data are stored in another form.
        return [_digest(f"{row['id']} {row['length']} {row['return']:.6g}") for row in self.rows]


class UntrainedEpisodes(NamedTuple):
    """Episodes of a dataset that a run was not trained on.

    Attributes:
        dataset: the episodes.
        num_trained: number of the dataset's other episodes.
    """

    dataset: Dataset
    num_trained: int


def record_trained_episodes(folder: Location, datasets: Sequence[Dataset]) -> None:
    """Write the record of a run that is trained on all episodes of the datasets."""
    file = folder.child(TRAINED_EPISODES_FILE)
    if file.exists() or not datasets:
        return
    buffer = io.BytesIO()
    np.save(buffer, np.unique(np.concatenate([describe_episodes(dataset).rows for dataset in datasets])))
    file.write_bytes(buffer.getvalue())


def find_trained(file: Location, episodes: EpisodeKeys) -> NDArray[np.bool_]:
    """Return `[N]` True for episodes that a run was trained on; `file` is its record."""
    return _contains(np.load(io.BytesIO(file.read_bytes()), allow_pickle=False), episodes.rows)


def exclude_trained_episodes(file: Location, dataset: Dataset, name: str) -> UntrainedEpisodes:
    """Return the episodes that a run was not trained on.

    Two episodes are the same if their ids, numbers of timesteps and returns are.

    Args:
        file: the run's record, `TRAINED_EPISODES_FILE` in its folder.
        dataset: any dataset.
        name: name of the data in messages.

    Raises:
        SpecError: fewer than two remain.
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
    rewards = dataset.spec.leaves.get(Columns.REWARDS)
    table = dataset.episode_table(with_returns=rewards is not None and rewards.shape == ())
    rows = np.zeros(len(table.length), _FIELDS)
    rows["id"] = list(map(_digest, table.eps_id.tolist()))
    rows["length"] = table.length
    if table.returns is not None:
        rows["return"] = table.returns
    return EpisodeKeys(rows, table.terminated | table.truncated)


def _contains(known: NDArray[Any], rows: NDArray[Any]) -> NDArray[np.bool_]:
    """Return `[N]` True for rows that `known` contains, with returns that are equal up to the order of their sums."""
    order = np.argsort(known, order=["id", "length", "return"])
    known = known[order]
    first = np.searchsorted(known["id"], rows["id"], side="left")
    last = np.searchsorted(known["id"], rows["id"], side="right")
    return np.array(
        [
            bool(
                (
                    (known["length"][low:high] == row["length"])
                    & np.isclose(
                        known["return"][low:high], row["return"], rtol=1e-5, atol=1e-6, equal_nan=True
                    )
                ).any()
            )
            for low, high, row in zip(first, last, rows, strict=True)
        ],
        dtype=bool,
    )
