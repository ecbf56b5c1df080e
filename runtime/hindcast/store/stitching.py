"""Putting together what others stored apart: episodes cut at the ends of files, and episodes stored twice."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from hindcast.episodes.block import Block
from hindcast.store.entries import RowGroup, Run
from hindcast.store.episode_dataset import EpisodeDataset
from hindcast.store.footers import Indexed
from hindcast.store.spec import DataSpec

Place = tuple[int, int, int]  # file, row group, stored row


@dataclass(frozen=True)
class Stitched:
    """An episode of files that Hindcast did not write: the stored rows that make it, in order."""

    eps_id: str
    places: list[Place] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)


def stitch(files: Sequence[Indexed]) -> list[Indexed]:
    """The files, with runs marked that go on with the one before, over the ends of row groups and files."""
    stitched: list[Indexed] = []
    before: tuple[Run, int] | None = None
    for file in files:
        groups, runs = [], iter(file.runs)
        for group in file.entry.row_groups:
            continued = set(group.continued)
            for row, length in enumerate(group.lengths if file.runs else ()):
                run = next(runs)
                if before is not None and _follows(run, *before):
                    continued.add(row)
                before = run, length
            groups.append(group.model_copy(update={"continued": tuple(sorted(continued))}))
        if not file.runs:
            before = None
        stitched.append(_with_groups(file, groups))
    return stitched


def stitched_episodes(files: Sequence[Indexed]) -> Iterator[Stitched]:
    """The episodes that count, of those of the files that have runs."""
    episode: Stitched | None = None
    for number, file in enumerate(files):
        runs = iter(file.runs)
        for i, group in enumerate(file.entry.row_groups if file.runs else ()):
            for row in range(group.rows):
                run = next(runs)
                if row in group.dropped:
                    continue
                if row not in group.continued or episode is None:
                    if episode is not None:
                        yield episode
                    episode = Stitched(run.eps_id)
                episode.places.append((number, i, row))
                episode.runs.append(run)
    if episode is not None:
        yield episode


def drop_repeated(files: list[Indexed], spec: DataSpec) -> tuple[list[Indexed], int]:
    """The files with episodes left out that repeat an earlier one: the same id, and all it holds the same.

    Only episodes whose id occurs again are read.

    Returns:
        The files, and how many episodes were left out.
    """
    episodes = list(stitched_episodes(files))
    counts = Counter(episode.eps_id for episode in episodes)
    repeated = [episode for episode in episodes if counts[episode.eps_id] > 1]
    if not repeated:
        return files, 0
    digests = _digests(files, spec, {place for episode in repeated for place in episode.places})
    seen: set[tuple[str, str]] = set()
    dropped: set[Place] = set()
    count = 0
    for episode in repeated:
        key = (episode.eps_id, digests[episode.places[0]])
        if key in seen:
            dropped.update(episode.places)
            count += 1
        seen.add(key)
    return [_without(file, number, dropped) for number, file in enumerate(files)], count


def _follows(run: Run, before: Run, steps: int) -> bool:
    if run.eps_id != before.eps_id or before.ended:
        return False
    return run.t_started == before.t_started + steps


def _digests(files: Sequence[Indexed], spec: DataSpec, wanted: set[Place]) -> dict[Place, str]:
    """What the episodes hold that begin at wanted places."""
    dataset = EpisodeDataset(spec, files)
    numbers = {str(file.location): number for number, file in enumerate(files)}
    digests: dict[Place, str] = {}
    for unit in dataset.units:
        heads = [
            (number, i, row)
            for part in unit.parts
            for number in (numbers[part.path],)
            for i in part.row_groups
            for row in _heads(files[number].entry.row_groups[i])
        ]
        if wanted.isdisjoint(heads):
            continue
        block = dataset.read(unit)
        digests.update({place: _digest(block, n) for n, place in enumerate(heads) if place in wanted})
    return digests


def _heads(group: RowGroup) -> Iterator[int]:
    continued = set(group.continued)
    return (row for row in range(group.rows) if row not in continued)


def _digest(block: Block, episode: int) -> str:
    sha = hashlib.sha256()
    for column in (block.length, block.t_started, block.terminated, block.truncated):
        sha.update(repr(column[episode].item()).encode())
    if block.details is not None:
        sha.update(block.details[episode].encode())
    for name in sorted(block.columns):
        rows = block.columns[name][block.rows_of(name, episode)]
        sha.update(name.encode())
        sha.update(repr(rows.tolist()).encode() if rows.dtype == object else np.ascontiguousarray(rows).data)
    return sha.hexdigest()


def _without(file: Indexed, number: int, dropped: set[Place]) -> Indexed:
    groups = [
        group.model_copy(
            update={"dropped": tuple(row for row in range(group.rows) if (number, i, row) in dropped)}
        )
        for i, group in enumerate(file.entry.row_groups)
    ]
    return _with_groups(file, groups)


def _with_groups(file: Indexed, groups: Sequence[RowGroup]) -> Indexed:
    return file._replace(entry=file.entry.model_copy(update={"row_groups": tuple(groups)}))
