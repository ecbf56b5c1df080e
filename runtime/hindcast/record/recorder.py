"""Makes ranges of episodes into committed files: all of a range, or nothing of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from hindcast.api.environment import EnvironmentSpec
from hindcast.datasets.target import Target
from hindcast.episodes.block import Block
from hindcast.episodes.columns import Columns
from hindcast.errors import SpecError
from hindcast.formats.dataset_folder.commits import Commit, write_commit
from hindcast.formats.spec import DataSpec, Leaf, infer_leaf
from hindcast.record.runner import Actor, EnvRunner, Episode, episodes_to_block, outputs_to_record
from hindcast.record.slots import Slots, check_spaces
from hindcast.threads import torch_threads

_FLUSH_BYTES = 8 << 20

OnEpisode = Callable[[Episode], None]


class RangeToRecord(NamedTuple):
    """One range to record: its number and its episode indices."""

    number: int
    indices: range


class RecordingTask(NamedTuple):
    """All a runner must know to make any range of a recording; small, and the same for every runner.

    The target's folder has the guard that every change is to pass.
    """

    environment: EnvironmentSpec
    width: int
    seed: int
    explore: bool
    target: Target
    prefix: str
    data: DataSpec
    records_states: bool = False
    module_class: str | None = None
    callbacks: tuple[str, ...] = ()


def make_runner(task: RecordingTask, policy: Actor) -> EnvRunner:
    """What plays a recording's episodes."""
    return EnvRunner(
        task.environment,
        policy,
        task.width,
        task.seed,
        task.explore,
        records_states=task.records_states,
        callbacks=task.callbacks,
    )


def record_range(
    task: RecordingTask, runner: EnvRunner, work: RangeToRecord, on_episode: OnEpisode
) -> Commit:
    """Play the range's episodes, write them, commit them.

    The policy computes with one thread, so that its numbers are the same wherever the range is made.

    Raises:
        StorageError: a file could not be written; nothing of the range is counted.
        UserCodeError: the environment raised.
    """
    with torch_threads(1):
        chunks = _chunks(runner.play(work.indices), on_episode)
        return write_range(task, work, (episodes_to_block(chunk, task.prefix) for chunk in chunks))


def write_range(task: RecordingTask, work: RangeToRecord, blocks: Iterable[Block]) -> Commit:
    """Write a range's episodes and commit them.

    Raises:
        StorageError: a file could not be written; nothing of the range is counted.
    """
    commit = task.target.write_range(task.data, work.number, work.indices.start, blocks)
    write_commit(task.target.folder, commit)
    return commit


def _chunks(episodes: Iterator[Episode], on_episode: OnEpisode) -> Iterator[list[Episode]]:
    """Episodes in groups worth writing, so that memory stays flat."""
    group: list[Episode] = []
    size = 0
    for episode in episodes:
        on_episode(episode)
        group.append(episode)
        size += sum(column.nbytes for column in episode.columns.values())
        if size >= _FLUSH_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def describe_columns(
    environment: EnvironmentSpec, policy: Actor, explore: bool, records_states: bool = False
) -> DataSpec:
    """The columns that recording with `policy` writes: the spaces' leaves and the policy's other outputs.

    Found by letting the policy act once, on a first observation.

    Raises:
        SpecError: recurrent `states` are to be written, and the policy has none.
    """
    slots = Slots(environment, width=1)
    check_spaces(policy, slots)
    slots.reset(0, seed=0)
    slots.close()
    noise = policy.draw_noise(np.random.default_rng(0), 1) if explore else None
    acted = policy.act(slots.observation, noise, np.ones(1, dtype=np.bool_))
    if records_states and not acted.state_out:
        raise SpecError("spec.output.recurrentStates: the policy has no recurrent state")
    rows = {**slots.observation, **acted.actions, **outputs_to_record(acted, records_states)}
    leaves = {name: infer_leaf(name, row) for name, row in rows.items()}
    leaves[Columns.REWARDS] = Leaf(np.dtype(np.float64))
    leaves[Columns.INFOS] = Leaf(None, (), "json")
    return DataSpec(leaves, slots.observation_space, slots.action_space, environment.id)
