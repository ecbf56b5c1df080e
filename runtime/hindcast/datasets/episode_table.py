"""A table with one row per episode, to select episodes by its fields."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hindcast.api.input import FilterTerm
from hindcast.episodes.block import I64, Block, Bool
from hindcast.episodes.columns import Columns
from hindcast.errors import DataError, SpecError
from hindcast.formats.tables.filters import OPERATORS

RETURN_FIELD = "return"
EPISODE_FIELDS = (RETURN_FIELD, "length", "terminated", "truncated", "eps_id")


class EpisodeTable(NamedTuple):
    """Episodes in their dataset's order.

    Attributes:
        eps_id: `[N]` object array of `str`.
        length: `[N]` number of timesteps.
        terminated: `[N]` whether the environment ended the episode.
        truncated: `[N]` whether the episode was cut off.
        returns: `[N]` float64, sums of rewards; None if not requested.
    """

    eps_id: NDArray[np.object_]
    length: I64
    terminated: Bool
    truncated: Bool
    returns: NDArray[np.float64] | None

    @classmethod
    def from_block(cls, block: Block, with_returns: bool) -> EpisodeTable:
        """Make the table of a block's episodes, in order.

        Raises:
            DataError: returns are requested, and rewards have more than one number per timestep.
        """
        returns = compute_returns(block) if with_returns else None
        return cls(block.eps_id, block.length, block.terminated, block.truncated, returns)

    @classmethod
    def concat(cls, tables: Iterable[EpisodeTable], with_returns: bool) -> EpisodeTable:
        """Concatenate tables, in order; without tables, the result has no rows."""
        empty_flags = np.zeros(0, dtype=np.bool_)
        empty_table = cls(
            empty_flags.astype(object),
            empty_flags.astype(np.int64),
            empty_flags,
            empty_flags,
            np.zeros(0) if with_returns else None,
        )
        *columns, returns = zip(empty_table, *tables, strict=True)
        eps_id, length, terminated, truncated = map(np.concatenate, columns)
        return cls(eps_id, length, terminated, truncated, np.concatenate(returns) if with_returns else None)

    def take(self, episodes: I64 | Bool | slice) -> EpisodeTable:
        """Return the rows of some episodes, in this order."""
        columns: list[Any] = [None if column is None else column[episodes] for column in self]
        return EpisodeTable(*columns)

    def satisfies(self, term: FilterTerm) -> Bool:
        """Compare one of `EPISODE_FIELDS` and return `[N]` True for episodes that satisfy the term.

        Raises:
            SpecError: the value cannot be compared with the field.
        """
        values = self.returns if term.column == RETURN_FIELD else getattr(self, term.column)
        assert values is not None
        expected_values = term.value if term.op == "in" else [term.value]
        for value in expected_values:
            _check_comparable(term, value)
        if term.op == "in":
            return np.isin(values, expected_values)
        return OPERATORS[term.op](values, term.value).astype(np.bool_)

    def shuffled_order(self, seed: int) -> I64:
        """Return `[N]` episode indices in a random order that depends on the seed and the ids, not on the storage."""
        last_occurrence: dict[str, int] = {}
        keys = []
        for eps_id in self.eps_id.tolist():
            occurrence = last_occurrence[eps_id] = last_occurrence.get(eps_id, -1) + 1
            keys.append(_sort_key("sample", seed, occurrence, eps_id))
        return np.array(sorted(range(len(keys)), key=keys.__getitem__), dtype=np.int64)

    def split_mask(self, num_episodes: int, seed: int) -> Bool:
        """Return `[N]` a mask of about `num_episodes` random episodes; it depends on the seed and the ids only.

        Episodes with the same id are all in the mask, or none of them is.
        """
        ids, id_index, sizes = np.unique(self.eps_id, return_inverse=True, return_counts=True)
        keys = [_sort_key("split", seed, 0, eps_id) for eps_id in ids.tolist()]
        order = np.array(sorted(range(len(keys)), key=keys.__getitem__), dtype=np.int64)
        cumulative_counts = np.append(0, np.cumsum(sizes[order]))
        is_chosen = np.zeros(len(ids), dtype=np.bool_)
        is_chosen[order[: int(np.argmin(np.abs(cumulative_counts - num_episodes)))]] = True
        return is_chosen[id_index]


def _sort_key(purpose: str, seed: int, occurrence: int, eps_id: str) -> bytes:
    """Return the sort key of an episode.

    Args:
        purpose: "sample" or "split", so that the two orders are independent.
        seed: seed of the order.
        occurrence: number of earlier episodes with the same id.
        eps_id: the episode's id.
    """
    # A hash rather than a random generator, whose numbers would depend on the order of the episodes.
    return hashlib.sha256(f"{purpose} {seed} {occurrence} {eps_id}".encode()).digest()


def compute_returns(block: Block) -> NDArray[np.float64]:
    """Return `[N]` the sum of each episode's rewards.

    Raises:
        DataError: rewards have more than one number per timestep.
    """
    rewards = block.columns[Columns.REWARDS].astype(np.float64)
    if rewards.ndim > 1:
        raise DataError(f"the rewards have the shape {list(rewards.shape[1:])}, so there is no return")
    return np.bincount(block.episode_of_step, rewards, block.num_episodes).astype(np.float64)


def _check_comparable(term: FilterTerm, value: Any) -> None:
    is_flag = term.column in ("terminated", "truncated")
    if is_flag:
        is_comparable, expected = isinstance(value, bool), "true or false"
    elif term.column == "eps_id":
        is_comparable, expected = isinstance(value, str), "text"
    else:
        is_comparable, expected = isinstance(value, int | float) and not isinstance(value, bool), "a number"
    if not is_comparable:
        raise SpecError(f"{term.column!r} of an episode is compared with {value!r}: expected {expected}")
    if is_flag and term.op not in ("==", "!=", "in"):
        raise SpecError(f"{term.column!r} of an episode is true or false: compare it with == or !=")
