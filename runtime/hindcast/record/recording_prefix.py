"""Trimming of a recording by timesteps to the shortest sufficient prefix of episodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from hindcast.episodes.block import Block
from hindcast.formats.dataset_folder.commits import Commit, commit_location
from hindcast.record.recorder import RangeToRecord, RecordingTask, write_range


def keep_prefix(task: RecordingTask, commits: Mapping[int, Commit], timesteps: int) -> dict[int, Commit]:
    """Trim a recording to the shortest prefix of episodes with at least `timesteps` timesteps.

    The call may be interrupted at any point and repeated. Dropped files stay on storage, uncommitted.

    Returns:
        The remaining commits, by number.
    """
    num_missing, prefix = timesteps, {}
    # A repeated call changes nothing: a range that an interrupted call has already shortened is just long enough.
    for number in sorted(commits):
        commit = commits[number]
        if num_missing <= 0:
            commit_location(task.target.folder, number).delete()
            continue
        lengths = [length for file in commit.files for length in file.episode_lengths]
        num_episodes = int(np.searchsorted(np.cumsum(lengths), num_missing)) + 1
        if num_episodes < len(lengths):
            commit = _shorten(task, commit, num_episodes)
        prefix[number] = commit
        num_missing -= commit.timesteps
    return prefix


def _shorten(task: RecordingTask, commit: Commit, num_episodes: int) -> Commit:
    """Write and commit the range again with only its first episodes."""
    work = RangeToRecord(commit.range, range(commit.first, commit.first + num_episodes))
    return write_range(task, work, _first_episodes(task, commit, num_episodes))


def _first_episodes(task: RecordingTask, commit: Commit, num_episodes: int) -> Iterator[Block]:
    for block in task.target.read_blocks(task.spec, commit.files):
        yield block.take(range(min(num_episodes, block.num_episodes)))
        num_episodes -= block.num_episodes
        if num_episodes <= 0:
            return
