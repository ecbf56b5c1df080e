"""Putting rows in order by their observations: each row's next observation is the next row's observation."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from hindcast.datasets.assembly.row_comparison import distinct_rows, hashes, mix
from hindcast.datasets.assembly.steps import Steps
from hindcast.episodes.block import I64, Bool
from hindcast.episodes.columns import Columns, leaves_of, next_leaf


class Links(NamedTuple):
    """Chains of rows.

    Attributes:
        chain: `[R]` which chain of its episode the row is in; chains are numbered as their first stored rows are.
        place: `[R]` the row's place in it.
        ambiguous: `[R]` rows of episodes in which an observation occurs twice, or rows form a circle.
    """

    chain: I64
    place: I64
    ambiguous: Bool


class Places(NamedTuple):
    """A rank for some of the rows, which puts those of one episode in order."""

    rows: I64
    rank: I64


def has_next(steps: Steps) -> bool:
    """Whether the data have next observations."""
    return any(True for _ in leaves_of(Columns.NEXT_OBS, list(steps.columns)))


def chained_episodes(steps: Steps, episodes: I64) -> tuple[I64, Places]:
    """Of some episodes those whose rows make one chain, which ends where the episode does; and their order.

    Rows that hold the same as another count once: an episode that came to the same transition twice would be a
    circle, and no chain.
    """
    rows = distinct_rows(steps, np.flatnonzero(np.isin(steps.episode, episodes)))
    chosen = steps.take(rows)
    links = link(chosen)
    last = np.ones(len(chosen), dtype=np.bool_)
    order = np.lexsort((links.place, links.chain, chosen.episode))
    ordered = chosen.episode[order]
    last[order[:-1]] = ordered[1:] != ordered[:-1]
    doubtful = links.ambiguous | (links.chain > 0) | (chosen.ended & ~last)
    good = np.setdiff1d(episodes, chosen.episode[doubtful])
    kept = np.isin(chosen.episode, good)
    return good, Places(rows[kept], links.place[kept])


def link(steps: Steps) -> Links:
    """The chains that the rows of each episode make."""
    count = len(steps)
    names = leaves_of(Columns.OBS, list(steps.columns))
    own = mix(steps.episode.astype(np.uint64))
    now = mix(hashes([steps.columns[name] for name in names]) ^ own)
    then = mix(hashes([steps.columns[next_leaf(name)] for name in names]) ^ own)
    by_now = np.argsort(now, kind="stable")
    ordered = now[by_now]
    found = np.minimum(np.searchsorted(ordered, then), count - 1)
    has_successor = (ordered[found] == then) & ~steps.ended
    successor = np.where(has_successor, by_now[found], np.arange(count))

    ambiguous = np.zeros(count, dtype=np.bool_)
    twice = ordered[1:] == ordered[:-1]
    ambiguous[by_now[1:][twice]] = True
    ambiguous |= np.bincount(successor[has_successor], minlength=count) > 1
    distance, end, circular = _ranked(successor, has_successor)
    ambiguous |= circular
    ambiguous = np.isin(steps.episode, steps.episode[ambiguous])

    first = np.full(count, count, dtype=np.int64)
    np.minimum.at(first, end, np.arange(count))
    longest = np.zeros(count, dtype=np.int64)
    np.maximum.at(longest, end, distance)
    return Links(_numbered(steps.episode, first[end]), longest[end] - distance, ambiguous)


def _ranked(successor: I64, has_successor: Bool) -> tuple[I64, I64, Bool]:
    """`[R]` each: how far a row is from its chain's end, that end, and whether there is none (pointer doubling)."""
    distance, end = has_successor.astype(np.int64), successor
    for _ in range(math.ceil(math.log2(len(successor) + 1))):
        if (end == end[end]).all():
            break
        distance, end = distance + distance[end], end[end]
    return distance, end, has_successor[end]


def _numbered(episode: I64, first: I64) -> I64:
    """`[R]` the number of each row's chain in its episode, by the chains' first rows."""
    order = np.lexsort((first, episode))
    fresh = np.append(True, episode[order][1:] != episode[order][:-1])
    other = np.append(False, first[order][1:] != first[order][:-1])
    count = np.cumsum(other | fresh)
    starts = np.maximum.accumulate(np.where(fresh, count, 0))
    numbers = np.empty(len(episode), dtype=np.int64)
    numbers[order] = count - starts
    return numbers
