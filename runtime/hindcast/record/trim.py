"""Ends a recording by timesteps: keeps the shortest prefix of episodes that reaches them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping

import numpy as np

from hindcast.api.quantity import parse_bytes
from hindcast.episodes.block import Block
from hindcast.record.recorder import Task
from hindcast.store.commits import COMMITS, Commit, file_stem, write_commit
from hindcast.store.episode_dataset import EpisodeDataset
from hindcast.store.filesystem import Location
from hindcast.store.footers import Indexed
from hindcast.store.writer import EpisodeWriter


def keep_prefix(task: Task, commits: Mapping[int, Commit], timesteps: int) -> dict[int, Commit]:
    """Drop what lies behind the episode with which the recording reaches `timesteps`.

    It may be interrupted at any point and done again. The files dropped are still there, uncommitted.

    Returns:
        The commits that stay, by number.
    """
    folder = task.location
    missing, kept = timesteps, {}
    for number in sorted(commits):
        commit = commits[number]
        if missing <= 0:
            folder.child(COMMITS, f"{number:06d}.json").delete()
            continue
        lengths = _lengths(commit)
        episodes = int(np.searchsorted(np.cumsum(lengths), missing)) + 1
        if episodes < len(lengths):
            commit = _shortened(folder, task, commit, episodes)
        kept[number] = commit
        missing -= commit.timesteps
    return kept


def _lengths(commit: Commit) -> list[int]:
    """Steps of each episode, fragments joined."""
    lengths: list[int] = []
    for group in (group for file in commit.files for group in file.row_groups):
        for row, length in enumerate(group.lengths):
            if row in group.continued:
                lengths[-1] += length
            else:
                lengths.append(length)
    return lengths


def _shortened(folder: Location, task: Task, commit: Commit, episodes: int) -> Commit:
    """The range again, with its first episodes only."""
    writer = EpisodeWriter(
        folder,
        task.data,
        file_stem(commit.range, uuid.uuid4().hex[:8]),
        max_rows_per_file=task.output.max_rows_per_file,
        max_file_bytes=parse_bytes(task.output.max_file_size),
        compression=task.output.compression,
        layout=task.layout,
    )
    with writer:
        for block in _first(folder, task, commit, episodes):
            writer.write(block)
        files = writer.close()
    shorter = Commit(
        range=commit.range,
        files=files,
        episodes=episodes,
        timesteps=sum(file.timesteps for file in files),
        first=commit.first,
    )
    write_commit(folder, shorter)
    return shorter


def _first(folder: Location, task: Task, commit: Commit, episodes: int) -> Iterator[Block]:
    dataset = EpisodeDataset(
        task.data, [Indexed(folder.child(file.path), file, task.data, task.layout) for file in commit.files]
    )
    for unit in dataset.units:
        block = dataset.read(unit)
        yield block.take(range(min(episodes, block.num_episodes)))
        episodes -= block.num_episodes
        if episodes <= 0:
            return
