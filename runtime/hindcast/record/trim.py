"""Ends a recording by timesteps: keeps the shortest prefix of episodes that reaches them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping

import numpy as np

from hindcast.episodes.block import Block
from hindcast.formats.dataset_folder.commits import COMMITS, Commit, write_commit
from hindcast.record.recorded import recorded_blocks
from hindcast.record.recorder import Task
from hindcast.storage.location import Location


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
        lengths = [length for file in commit.files for length in file.episode_lengths]
        episodes = int(np.searchsorted(np.cumsum(lengths), missing)) + 1
        if episodes < len(lengths):
            commit = _shortened(folder, task, commit, episodes)
        kept[number] = commit
        missing -= commit.timesteps
    return kept


def _shortened(folder: Location, task: Task, commit: Commit, episodes: int) -> Commit:
    """The range again, with its first episodes only."""
    writer_id = uuid.uuid4().hex[:8]
    with task.writer(commit.range, writer_id) as writer:
        for block in _first(task, commit, episodes):
            writer.write(block)
        files = writer.close()
    shorter = Commit(
        range=commit.range,
        files=files,
        episodes=episodes,
        timesteps=sum(file.timesteps for file in files),
        first=commit.first,
        exported=task.exported,
    )
    write_commit(folder, shorter)
    return shorter


def _first(task: Task, commit: Commit, episodes: int) -> Iterator[Block]:
    for block in recorded_blocks(task, commit.files):
        yield block.take(range(min(episodes, block.num_episodes)))
        episodes -= block.num_episodes
        if episodes <= 0:
            return
