"""Episodes of a Minari dataset, whichever way they are stored, as one `Block`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from hindcast.episodes.block import Block
from hindcast.episodes.columns import EMPTY_INFO, Columns, per_observation, root
from hindcast.errors import DataError
from hindcast.store.layout import RowError


@dataclass(frozen=True)
class StoredEpisode:
    """One episode as it was stored.

    Attributes:
        eps_id: what it is called in the result.
        where: file and path in it, for sentences.
        columns: the leaves of observations and actions; rewards; infos where there are any.
        terminations: `[T]`.
        truncations: `[T]`.
    """

    eps_id: str
    where: str
    columns: dict[str, NDArray[Any]]
    terminations: NDArray[Any]
    truncations: NDArray[Any]

    @property
    def steps(self) -> int:
        """T."""
        return len(self.columns[Columns.REWARDS])


def check_leaves(found: Sequence[str], spaces: Mapping[str, gym.Space], where: str) -> None:
    """Make sure that observations and actions are built as the dataset's spaces are.

    Raises:
        DataError: a part too many or too few.
    """
    for column in {root(name) for name in spaces}:
        stored = sorted(name for name in found if root(name) == column)
        expected = sorted(name for name in spaces if root(name) == column)
        if stored != expected:
            raise DataError(f"{where} holds {stored}, but the dataset's spaces have {expected}")


def block_of(episodes: Sequence[StoredEpisode]) -> Block:
    """The episodes end to end.

    Raises:
        DataError: wrong lengths, flags in the middle of an episode, episodes of different columns or dtypes.
    """
    for episode in episodes:
        _check_lengths(episode)
    has_infos = any(Columns.INFOS in episode.columns for episode in episodes)
    names = [name for name in episodes[0].columns if name != Columns.INFOS]
    columns = {name: _joined(name, episodes) for name in names}
    if has_infos:
        columns[Columns.INFOS] = np.concatenate([_infos(episode) for episode in episodes])
    return Block(
        columns=columns,
        length=np.array([episode.steps for episode in episodes], dtype=np.int64),
        eps_id=np.array([episode.eps_id for episode in episodes], dtype=object),
        t_started=np.zeros(len(episodes), dtype=np.int64),
        terminated=_ends(episodes, "terminations"),
        truncated=_ends(episodes, "truncations"),
    )


def _check_lengths(episode: StoredEpisode) -> None:
    flags = {"terminations": episode.terminations, "truncations": episode.truncations}
    for name, column in {**episode.columns, **flags}.items():
        expected = episode.steps + per_observation(name)
        if len(column) != expected:
            raise DataError(
                f"{episode.where} has {len(column)} entries of {name}, and {episode.steps} rewards, which ask "
                f"for {expected}"
            )


def _joined(name: str, episodes: Sequence[StoredEpisode]) -> NDArray[Any]:
    first, parts = episodes[0], []
    for episode in episodes:
        if name not in episode.columns or len(episode.columns) - (Columns.INFOS in episode.columns) != len(
            first.columns
        ) - (Columns.INFOS in first.columns):
            raise DataError(
                f"{episode.where} holds {sorted(episode.columns)}, and {first.where} {sorted(first.columns)}"
            )
        column, known = episode.columns[name], first.columns[name]
        if (column.dtype, column.shape[1:]) != (known.dtype, known.shape[1:]):
            raise DataError(
                f"{name} is {column.dtype} {list(column.shape[1:])} in {episode.where}, and {known.dtype} "
                f"{list(known.shape[1:])} in {first.where}"
            )
        parts.append(column)
    return np.concatenate(parts)


def _infos(episode: StoredEpisode) -> NDArray[Any]:
    return episode.columns.get(Columns.INFOS, np.full(episode.steps + 1, EMPTY_INFO, dtype=object))


def _ends(episodes: Sequence[StoredEpisode], flag: str) -> NDArray[np.bool_]:
    ends = np.zeros(len(episodes), dtype=np.bool_)
    for number, episode in enumerate(episodes):
        set_at = np.flatnonzero(getattr(episode, flag))
        if not len(set_at):
            continue
        if set_at[0] != episode.steps - 1:
            raise RowError(
                f"{episode.where} goes on after {flag} is true at step {set_at[0]} of {episode.steps}: "
                "store it as two episodes",
                kind="goes-on",
            )
        ends[number] = True
    return ends
