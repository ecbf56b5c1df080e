"""Compare many rows at a time, to find repeated rows, and chains of rows that follow each other."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hindcast.datasets.assembly.steps import Steps
from hindcast.datasets.content import canonicalise, compute_leaf_digests, find_repeats
from hindcast.episodes.block import I64, Bool
from hindcast.episodes.columns import Columns, leaves_of, next_leaf

Array = NDArray[Any]
_MAX_COMPARED_ROWS = 1 << 16
"""Number of rows that are compared at once, which limits the memory for their copies."""


def with_flags(steps: Steps) -> dict[str, Array]:
    """Return the columns, including `terminateds` and `truncateds`."""
    flags = {Columns.TERMINATEDS: steps.terminated, Columns.TRUNCATEDS: steps.truncated}
    return {**steps.columns, **flags}


def rows_equal(steps: Steps, first_rows: I64, second_rows: I64) -> Bool:
    """Return `[n]` True for pairs of rows with the same content (see `canonicalise`), including flags."""
    is_equal = np.ones(len(first_rows), dtype=np.bool_)
    for name, column in with_flags(steps).items():
        is_equal &= values_equal(column, first_rows, column, second_rows, partial(canonicalise, name))
    return is_equal


def follows(steps: Steps, first_rows: I64, second_rows: I64) -> Bool:
    """Return `[n]` True for pairs whose first row's next observation is the second row's observation, or is missing.

    If the data have no next observations, all pairs are True.
    """
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
    is_equal = np.empty(len(rows_a), dtype=np.bool_)
    for first in range(0, len(rows_a), _MAX_COMPARED_ROWS):
        rows = slice(first, first + _MAX_COMPARED_ROWS)
        values_a, values_b = convert(a[rows_a[rows]]), convert(b[rows_b[rows]])
        if a.dtype == object:
            is_equal[rows] = values_a == values_b
        else:
            is_equal[rows] = (_view_as_integers(values_a) == _view_as_integers(values_b)).all(axis=1)
    return is_equal


def _view_as_integers(rows: Array) -> Array:
    """View the bytes of each row as unsigned integers `[n, num_integers]`, the widest that divide the row's size."""
    size = rows.itemsize * int(np.prod(rows.shape[1:], dtype=np.int64))
    if not size or not len(rows):
        return np.zeros((len(rows), 0), dtype=np.uint8)
    width = next(width for width in (8, 4, 2, 1) if size % width == 0)
    return np.ascontiguousarray(rows).reshape(len(rows), -1).view(np.uint8).view(f"u{width}")


def hash_rows(columns: list[Array]) -> NDArray[np.uint64]:
    """Return `[R]` a 64-bit hash of each row over all columns."""
    hash_values = np.full(len(columns[0]), 0x9E3779B97F4A7C15, dtype=np.uint64)
    for column in columns:
        integers = _hash_texts(column) if column.dtype == object else _view_as_integers(column)
        for i in range(integers.shape[1]):
            hash_values = mix_bits(hash_values ^ integers[:, i].astype(np.uint64))
    return hash_values


def mix_bits(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mix bits by splitmix64's finaliser: each bit of the result depends on all bits of the value."""
    value = value + np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def _hash_texts(column: Array) -> NDArray[np.uint64]:
    # Python's hash differs from process to process, but these hashes never leave the process.
    return np.array([[hash(text) & 0xFFFFFFFFFFFFFFFF] for text in column], dtype=np.uint64).reshape(-1, 1)


def find_repeated_segments(steps: Steps, index: I64, is_segment_start: Bool) -> Bool:
    """Return `[K]` True for rows of segments that equal an earlier segment of their episode, row for row.

    Args:
        steps: all rows.
        index: `[K]` index into the steps; rows of an episode are adjacent.
        is_segment_start: `[K]` True for the first row of a segment.
    """
    starts = np.flatnonzero(is_segment_start)
    stops = np.append(starts[1:], len(index))

    def compute_contents(segment_indices: Sequence[int]) -> Mapping[int, Hashable]:
        segments = [index[starts[i] : stops[i]] for i in segment_indices]
        return dict(zip(segment_indices, _digest_segments(steps, segments), strict=True))

    repeats = find_repeats(dict(enumerate(steps.episode[index[starts]].tolist())), compute_contents)
    is_repeated = np.zeros(len(starts), dtype=np.bool_)
    is_repeated[repeats.duplicates] = True
    return is_repeated[np.cumsum(is_segment_start) - 1]


def drop_equal_rows(steps: Steps, rows: I64) -> I64:
    """Drop rows with the content of an earlier row of their episode; there must be at least one row."""
    content_hashes = hash_rows(
        [canonicalise(name, column[rows]) for name, column in with_flags(steps).items()]
    )
    hash_values = mix_bits(content_hashes ^ mix_bits(steps.episode[rows].astype(np.uint64)))
    # Sorting by hashes makes equal rows neighbours; content is compared only where hashes are equal.
    order = np.argsort(hash_values, kind="stable")
    sorted_rows = rows[order]
    earlier, later = sorted_rows[:-1], sorted_rows[1:]
    is_repeat = hash_values[order][1:] == hash_values[order][:-1]
    is_repeat[is_repeat] = (steps.episode[earlier] == steps.episode[later])[is_repeat] & rows_equal(
        steps, earlier[is_repeat], later[is_repeat]
    )
    return np.sort(sorted_rows[np.append(True, ~is_repeat)])


def _digest_segments(steps: Steps, segments: Sequence[I64]) -> list[Hashable]:
    """Compute a tuple of digests for each segment of rows: one digest per column."""
    index = np.concatenate(segments)
    stops = np.cumsum([len(segment) for segment in segments])
    # All segments get the same id, which is part of a digest, so that equal segments have equal digests.
    row_ranges = [
        ("", stop - len(segment), stop) for segment, stop in zip(segments, stops.tolist(), strict=True)
    ]
    columns = with_flags(steps).items()
    return list(
        zip(*(compute_leaf_digests(name, column[index], row_ranges) for name, column in columns), strict=True)
    )


class Chains(NamedTuple):
    """Rows sorted by episode, chain and position in the chain. Shape suffix: K = rows without duplicates.

    Attributes:
        rows: `[K]` index into the steps.
        chain: `[K]` number of the row's chain in its episode, by the order of the chains' first stored rows.
        is_ambiguous: `[K]` True for all rows of an episode in which an observation occurs twice, two rows have the same
            successor, or rows form a cycle.
    """

    rows: I64
    chain: I64
    is_ambiguous: Bool


def has_next_obs(steps: Steps) -> bool:
    """Return True if the data have next observations."""
    return bool(leaves_of(Columns.NEXT_OBS, steps.columns))


def find_chainable_episodes(steps: Steps, episodes: I64) -> tuple[I64, I64]:
    """Find the episodes whose rows form one unambiguous chain in which only the last row may end the episode.

    Returns:
        The episodes, and the index of their rows, ordered by episode and chain; equal rows occur once.
    """
    chains = find_chains(steps, np.flatnonzero(np.isin(steps.episode, episodes)))
    episode = steps.episode[chains.rows]
    is_last = np.append(episode[1:] != episode[:-1], True)
    is_doubtful = chains.is_ambiguous | (chains.chain > 0) | (steps.is_end[chains.rows] & ~is_last)
    chainable_episodes = np.setdiff1d(episodes, episode[is_doubtful])
    return chainable_episodes, chains.rows[np.isin(episode, chainable_episodes)]


def find_chains(steps: Steps, rows: I64) -> Chains:
    """Find the chains that some rows form in each episode; equal rows count once."""
    # Equal rows would make their episode ambiguous.
    rows = drop_equal_rows(steps, rows)
    chain, position, is_ambiguous = _link_rows(steps.take(rows))
    order = np.lexsort((position, chain, steps.episode[rows]))
    return Chains(rows[order], chain[order], is_ambiguous[order])


def _link_rows(steps: Steps) -> tuple[I64, I64, Bool]:
    """Return, `[R]` each, a row's chain, its position in the chain, and whether it is ambiguous; see `Chains`."""
    # Observations are compared by 64-bit hashes only: an equal hash counts as an equal observation.
    count = len(steps)
    names = leaves_of(Columns.OBS, steps.columns)
    episode_hash = mix_bits(steps.episode.astype(np.uint64))
    obs_hash = mix_bits(hash_rows([steps.columns[name] for name in names]) ^ episode_hash)
    next_obs_hash = mix_bits(hash_rows([steps.columns[next_leaf(name)] for name in names]) ^ episode_hash)
    obs_order = np.argsort(obs_hash, kind="stable")
    sorted_hashes = obs_hash[obs_order]
    match_position = np.minimum(np.searchsorted(sorted_hashes, next_obs_hash), count - 1)
    has_successor = (sorted_hashes[match_position] == next_obs_hash) & ~steps.is_end & ~steps.next_missing
    successor = np.where(has_successor, obs_order[match_position], np.arange(count))

    is_ambiguous = np.zeros(count, dtype=np.bool_)
    is_repeat = sorted_hashes[1:] == sorted_hashes[:-1]
    is_ambiguous[obs_order[1:][is_repeat]] = True
    is_ambiguous |= np.bincount(successor[has_successor], minlength=count) > 1
    distance, end, is_circular = _find_chain_ends(successor, has_successor)
    is_ambiguous |= is_circular
    is_ambiguous = np.isin(steps.episode, steps.episode[is_ambiguous])

    first_row = np.full(count, count, dtype=np.int64)
    np.minimum.at(first_row, end, np.arange(count))
    chain_length = np.zeros(count, dtype=np.int64)
    np.maximum.at(chain_length, end, distance)
    return _number_chains(steps.episode, first_row[end]), chain_length[end] - distance, is_ambiguous


def _find_chain_ends(successor: I64, has_successor: Bool) -> tuple[I64, I64, Bool]:
    """Return, `[R]` each, a row's distance from the end of its chain, that end, and whether the chain has no end."""
    # Pointer doubling: log2(R) passes over arrays instead of a walk from row to row.
    distance, end = has_successor.astype(np.int64), successor
    for _ in range(math.ceil(math.log2(len(successor) + 1))):
        if (end == end[end]).all():
            break
        distance, end = distance + distance[end], end[end]
    return distance, end, has_successor[end]


def _number_chains(episode: I64, first_row: I64) -> I64:
    """Return `[R]` the number of each row's chain in its episode, from 0, by the chains' first stored rows."""
    order = np.lexsort((first_row, episode))
    is_first = np.append(True, episode[order][1:] != episode[order][:-1])
    is_new_chain = np.append(False, first_row[order][1:] != first_row[order][:-1])
    chain_number = np.cumsum(is_new_chain | is_first)  # over all episodes
    first_number = np.maximum.accumulate(np.where(is_first, chain_number, 0))
    numbers = np.empty(len(episode), dtype=np.int64)
    numbers[order] = chain_number - first_number
    return numbers
