"""One row per episode: what episodes are chosen by."""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hindcast.api.input import FilterTerm
from hindcast.datasets.dataset import Dataset
from hindcast.episodes.block import I64, Block, Bool
from hindcast.episodes.columns import Columns
from hindcast.errors import DataError, SpecError

RETURN = "return"
FIELDS = (RETURN, "length", "terminated", "truncated", "eps_id")


class EpisodeTable(NamedTuple):
    """A dataset's episodes in its order.

    Attributes:
        eps_id: `[N]` object array of `str`.
        length: `[N]`.
        terminated: `[N]`.
        truncated: `[N]`.
        returns: `[N]` float64, sums of rewards; None where they were not asked for.
    """

    eps_id: NDArray[np.object_]
    length: I64
    terminated: Bool
    truncated: Bool
    returns: NDArray[np.float64] | None

    def holds(self, term: FilterTerm) -> Bool:
        """`[N]` for which episodes a comparison of one of `FIELDS` holds.

        Raises:
            SpecError: a value that cannot be compared with the field.
        """
        values = self.returns if term.column == RETURN else getattr(self, term.column)
        assert values is not None
        wanted = term.value if term.op == "in" else [term.value]
        for value in wanted:
            _check_comparable(term, value)
        if term.op == "in":
            found: Bool = np.isin(values, np.array(wanted, dtype=values.dtype))
            return found
        return _COMPARE[term.op](values, term.value).astype(np.bool_)

    def shuffled(self, purpose: str, seed: int) -> I64:
        """`[N]` all episodes in an order that depends on the seed and their ids alone, not on how they are stored.

        Args:
            purpose: other purposes have other orders.
            seed: other seeds have too.
        """
        seen: dict[str, int] = {}
        keys = []
        for eps_id in self.eps_id.tolist():
            again = seen[eps_id] = seen.get(eps_id, -1) + 1
            keys.append(hashlib.sha256(f"{purpose} {seed} {again} {eps_id}".encode()).digest())
        return np.array(sorted(range(len(keys)), key=keys.__getitem__), dtype=np.int64)


def tabulate(dataset: Dataset, with_returns: bool = False) -> EpisodeTable:
    """Read a dataset's episodes, without their steps: one pass.

    Args:
        dataset: any.
        with_returns: whether to sum the rewards.

    Raises:
        DataError: returns of data without rewards.
    """
    if with_returns and Columns.REWARDS not in dataset.spec.leaves:
        raise DataError(
            f"the data have no rewards, so no returns: they have {', '.join(dataset.spec.leaves)}"
        )
    leaves = [Columns.REWARDS] if with_returns else []
    parts = [_rows(dataset.read(unit, leaves), with_returns) for unit in dataset.units]
    if not parts:
        none = np.zeros(0, dtype=np.bool_)
        return EpisodeTable(none.astype(object), none.astype(np.int64), none, none, none.astype(np.float64))
    returns = [part.returns for part in parts if part.returns is not None]
    return EpisodeTable(
        np.concatenate([part.eps_id for part in parts]),
        np.concatenate([part.length for part in parts]),
        np.concatenate([part.terminated for part in parts]),
        np.concatenate([part.truncated for part in parts]),
        np.concatenate(returns) if returns else None,
    )


def _rows(block: Block, with_returns: bool) -> EpisodeTable:
    returns = None
    if with_returns:
        rewards = block.columns[Columns.REWARDS].astype(np.float64)
        if rewards.ndim > 1:
            raise DataError(f"the rewards have the shape {list(rewards.shape[1:])}, so there is no return")
        returns = np.bincount(block.episode_of_step, rewards, block.num_episodes).astype(np.float64)
    return EpisodeTable(block.eps_id, block.length, block.terminated, block.truncated, returns)


_COMPARE = {
    "==": np.equal,
    "!=": np.not_equal,
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
}


def _check_comparable(term: FilterTerm, value: Any) -> None:
    is_flag = term.column in ("terminated", "truncated")
    if is_flag:
        fits, expected = isinstance(value, bool), "true or false"
    elif term.column == "eps_id":
        fits, expected = isinstance(value, str), "text"
    else:
        fits, expected = isinstance(value, int | float) and not isinstance(value, bool), "a number"
    if not fits:
        raise SpecError(f"{term.column!r} of an episode is compared with {value!r}: expected {expected}")
    if is_flag and term.op not in ("==", "!=", "in"):
        raise SpecError(f"{term.column!r} of an episode is true or false: compare it with == or !=")
