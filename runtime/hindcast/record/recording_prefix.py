"""The episodes that a recording has written, dropped where there are more than were asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from hindcast.episodes.block import Block
from hindcast.formats.dataset_folder.commits import Commit, commit_location
from hindcast.record.recorder import RangeToRecord, RecordingTask, write_range


def keep_prefix(task: RecordingTask, commits: Mapping[int, Commit], timesteps: int) -> dict[int, Commit]:
    """Keep the shortest prefix of episodes that has `timesteps`, with which a recording by timesteps ends.

    It may be interrupted at any point and repeated. The files dropped are still there, uncommitted.

    Returns:
        The commits that stay, by number.
    """
    missing, kept = timesteps, {}
    for number in sorted(commits):
        commit = commits[number]
        if missing <= 0:
            commit_location(task.target.folder, number).delete()
            continue
        lengths = [length for file in commit.files for length in file.episode_lengths]
        episodes = int(np.searchsorted(np.cumsum(lengths), missing)) + 1
        if episodes < len(lengths):
            commit = _shortened(task, commit, episodes)
        kept[number] = commit
        missing -= commit.timesteps
    return kept


def _shortened(task: RecordingTask, commit: Commit, episodes: int) -> Commit:
    """The range again, with its first episodes only."""
    work = RangeToRecord(commit.range, range(commit.first, commit.first + episodes))
    return write_range(task, work, _first(task, commit, episodes))


def _first(task: RecordingTask, commit: Commit, episodes: int) -> Iterator[Block]:
    for block in task.target.read_blocks(task.data, commit.files):
        yield block.take(range(min(episodes, block.num_episodes)))
        episodes -= block.num_episodes
        if episodes <= 0:
            return
