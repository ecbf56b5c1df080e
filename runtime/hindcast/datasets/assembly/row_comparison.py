"""Compare many rows at a time: which repeat others, and which follow others and so form chains."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hindcast.datasets.assembly.steps import Steps
from hindcast.datasets.content import canonicalise, find_repeats, leaf_digests
from hindcast.episodes.block import I64, Bool
from hindcast.episodes.columns import Columns, leaves_of, next_leaf

Array = NDArray[Any]
_AT_ONCE = 1 << 16


def with_flags(steps: Steps) -> dict[str, Array]:
    """Return the rows' columns, with terminated and truncated as two more."""
    ends = {Columns.TERMINATEDS: steps.terminated, Columns.TRUNCATEDS: steps.truncated}
    return {**steps.columns, **ends}


def rows_equal(steps: Steps, first_rows: I64, second_rows: I64) -> Bool:
    """Return `[n]` True for pairs of rows with the same content (see `canonicalise`), including flags."""
    is_equal = np.ones(len(first_rows), dtype=np.bool_)
    for name, column in with_flags(steps).items():
        is_equal &= values_equal(column, first_rows, column, second_rows, partial(canonicalise, name))
    return is_equal


def follows(steps: Steps, first_rows: I64, second_rows: I64) -> Bool:
    """Return `[n]` True if a row's next observation is the other row's observation, or is not in the data."""
    is_equal = np.ones(len(first_rows), dtype=np.bool_)
    for name in leaves_of(Columns.OBS, steps.columns):
        next_obs = steps.columns.get(next_leaf(name))
        if next_obs is not None:
            is_equal &= values_equal(next_obs, first_rows, steps.columns[name], second_rows)
    return is_equal | steps.next_missing[first_rows]


def values_equal(
    a: Array, rows_a: I64, b: Array, rows_b: I64, convert: Callable[[Array], Array] = np.asarray
) -> Bool:
    """Return `[n]` True for rows of two columns that are equal after conversion, bit for bit: NaN equals NaN."""
    # In parts, so that the copies of the compared rows stay small.
    is_equal = np.empty(len(rows_a), dtype=np.bool_)
    for first in range(0, len(rows_a), _AT_ONCE):
        part = slice(first, first + _AT_ONCE)
        values_a, values_b = convert(a[rows_a[part]]), convert(b[rows_b[part]])
        if a.dtype == object:
            is_equal[part] = values_a == values_b
        else:
            is_equal[part] = (_bits(values_a) == _bits(values_b)).all(axis=1)
    return is_equal


def _bits(rows: Array) -> Array:
    """View `[n, words]` the rows' bytes, in words as wide as their length allows."""
    size = rows.itemsize * int(np.prod(rows.shape[1:], dtype=np.int64))
    if not size or not len(rows):
        return np.zeros((len(rows), 0), dtype=np.uint8)
    width = next(width for width in (8, 4, 2, 1) if size % width == 0)
    return np.ascontiguousarray(rows).reshape(len(rows), -1).view(np.uint8).view(f"u{width}")


def row_hashes(columns: list[Array]) -> NDArray[np.uint64]:
    """Return `[R]` a 64-bit hash of each row over all columns."""
    hash_values = np.full(len(columns[0]), 0x9E3779B97F4A7C15, dtype=np.uint64)
    for column in columns:
        words = _text_hashes(column) if column.dtype == object else _bits(column)
        for i in range(words.shape[1]):
            hash_values = mix(hash_values ^ words[:, i].astype(np.uint64))
    return hash_values


def mix(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mix bits by splitmix64's finaliser: each bit of the result depends on all bits of the value."""
    value = value + np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def _text_hashes(column: Array) -> NDArray[np.uint64]:
    return np.array([[hash(text) & 0xFFFFFFFFFFFFFFFF] for text in column], dtype=np.uint64).reshape(-1, 1)


def repeated_segments(steps: Steps, index: I64, heads: Bool) -> Bool:
    """Return `[K]` True for rows of segments that equal an earlier segment of their episode, row for row.

    Args:
        steps: all rows.
        index: `[K]` index into the steps; rows of an episode are adjacent.
        heads: `[K]` True for the first row of a segment.
    """
    starts = np.flatnonzero(heads)
    stops = np.append(starts[1:], len(index))

    def contents(segment_numbers: Sequence[int]) -> Mapping[int, Hashable]:
        segments = [index[starts[number] : stops[number]] for number in segment_numbers]
        return dict(zip(segment_numbers, _contents(steps, segments), strict=True))

    repeats = find_repeats(dict(enumerate(steps.episode[index[starts]].tolist())), contents)
    is_repeated = np.zeros(len(starts), dtype=np.bool_)
    is_repeated[repeats.duplicates] = True
    return is_repeated[np.cumsum(heads) - 1]


def distinct_rows(steps: Steps, rows: I64) -> I64:
    """Drop rows with the content of an earlier row of their episode; there must be at least one row."""
    content_hashes = row_hashes(
        [canonicalise(name, column[rows]) for name, column in with_flags(steps).items()]
    )
    hash_values = mix(content_hashes ^ mix(steps.episode[rows].astype(np.uint64)))
    # Equal rows become neighbours by their hashes; content is compared only where hashes are equal.
    order = np.argsort(hash_values, kind="stable")
    sorted_rows = rows[order]
    earlier, later = sorted_rows[:-1], sorted_rows[1:]
    is_repeat = hash_values[order][1:] == hash_values[order][:-1]
    is_repeat[is_repeat] = (steps.episode[earlier] == steps.episode[later])[is_repeat] & rows_equal(
        steps, earlier[is_repeat], later[is_repeat]
    )
    return np.sort(sorted_rows[np.append(True, ~is_repeat)])


def _contents(steps: Steps, segments: Sequence[I64]) -> list[Hashable]:
    """Compute digests of the content of segments of rows."""
    index = np.concatenate(segments)
    stops = np.cumsum([len(segment) for segment in segments])
    bounds = [("", stop - len(segment), stop) for segment, stop in zip(segments, stops.tolist(), strict=True)]
    columns = with_flags(steps).items()
    return list(zip(*(leaf_digests(name, column[index], bounds) for name, column in columns), strict=True))


class Chains(NamedTuple):
    """Rows sorted by episode, chain and position in the chain. Shape suffix: K = rows that count.

    Attributes:
        rows: `[K]` index into the steps.
        chain: `[K]` number of the row's chain in its episode, by the order of the chains' first stored rows.
        is_ambiguous: `[K]` True for rows of episodes in which an observation occurs twice, or rows form a circle.
    """

    rows: I64
    chain: I64
    is_ambiguous: Bool


def has_next_obs(steps: Steps) -> bool:
    """Return True if the data have next observations."""
    return bool(leaves_of(Columns.NEXT_OBS, steps.columns))


def chained_episodes(steps: Steps, episodes: I64) -> tuple[I64, I64]:
    """Return those of the episodes whose rows form one chain that ends with the episode, and their rows in order."""
    chains = chains_of(steps, np.flatnonzero(np.isin(steps.episode, episodes)))
    episode = steps.episode[chains.rows]
    is_last = np.append(episode[1:] != episode[:-1], True)
    is_doubtful = chains.is_ambiguous | (chains.chain > 0) | (steps.is_end[chains.rows] & ~is_last)
    chainable = np.setdiff1d(episodes, episode[is_doubtful])
    return chainable, chains.rows[np.isin(episode, chainable)]


def chains_of(steps: Steps, rows: I64) -> Chains:
    """Find the chains that some rows form in each episode; equal rows count once."""
    # An episode that repeats a transition would be a circle, not a chain.
    rows = distinct_rows(steps, rows)
    chain, position, is_ambiguous = _link_rows(steps.take(rows))
    order = np.lexsort((position, chain, steps.episode[rows]))
    return Chains(rows[order], chain[order], is_ambiguous[order])


def _link_rows(steps: Steps) -> tuple[I64, I64, Bool]:
    """Return, `[R]` each, a row's chain, its position in the chain, and whether it is ambiguous; see `Chains`."""
    count = len(steps)
    names = leaves_of(Columns.OBS, steps.columns)
    episode_hash = mix(steps.episode.astype(np.uint64))
    obs_hash = mix(row_hashes([steps.columns[name] for name in names]) ^ episode_hash)
    next_obs_hash = mix(row_hashes([steps.columns[next_leaf(name)] for name in names]) ^ episode_hash)
    obs_order = np.argsort(obs_hash, kind="stable")
    sorted_hashes = obs_hash[obs_order]
    match_position = np.minimum(np.searchsorted(sorted_hashes, next_obs_hash), count - 1)
    has_successor = (sorted_hashes[match_position] == next_obs_hash) & ~steps.is_end & ~steps.next_missing
    successor = np.where(has_successor, obs_order[match_position], np.arange(count))

    is_ambiguous = np.zeros(count, dtype=np.bool_)
    is_repeat = sorted_hashes[1:] == sorted_hashes[:-1]
    is_ambiguous[obs_order[1:][is_repeat]] = True
    is_ambiguous |= np.bincount(successor[has_successor], minlength=count) > 1
    distance, end, is_circular = _rank_in_chain(successor, has_successor)
    is_ambiguous |= is_circular
    is_ambiguous = np.isin(steps.episode, steps.episode[is_ambiguous])

    first = np.full(count, count, dtype=np.int64)
    np.minimum.at(first, end, np.arange(count))
    chain_length = np.zeros(count, dtype=np.int64)
    np.maximum.at(chain_length, end, distance)
    return _number_chains(steps.episode, first[end]), chain_length[end] - distance, is_ambiguous


def _rank_in_chain(successor: I64, has_successor: Bool) -> tuple[I64, I64, Bool]:
    """Return, `[R]` each, a row's distance from the end of its chain, that end, and whether the chain has no end."""
    # Pointer doubling: log2(R) passes over arrays instead of a walk from row to row.
    distance, end = has_successor.astype(np.int64), successor
    for _ in range(math.ceil(math.log2(len(successor) + 1))):
        if (end == end[end]).all():
            break
        distance, end = distance + distance[end], end[end]
    return distance, end, has_successor[end]


def _number_chains(episode: I64, first: I64) -> I64:
    """Return `[R]` the number of each row's chain in its episode, by the chains' first rows."""
    order = np.lexsort((first, episode))
    is_first = np.append(True, episode[order][1:] != episode[order][:-1])
    is_new_chain = np.append(False, first[order][1:] != first[order][:-1])
    count = np.cumsum(is_new_chain | is_first)
    starts = np.maximum.accumulate(np.where(is_first, count, 0))
    numbers = np.empty(len(episode), dtype=np.int64)
    numbers[order] = count - starts
    return numbers
