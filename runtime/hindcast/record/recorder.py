"""Recording of ranges of episodes into committed files; a range is committed completely or not at all."""

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
from hindcast.record.environments import environment_spaces
from hindcast.record.runner import Actor, EnvRunner, Episode, outputs_to_record, played_episodes_to_block
from hindcast.record.slots import check_spaces, sample_observation
from hindcast.threads import torch_threads

_MIN_CHUNK_BYTES = 8 << 20

OnEpisode = Callable[[Episode], None]


class RangeToRecord(NamedTuple):
    """A range to record: its number, from 0, and the indices of its episodes."""

    number: int
    indices: range


class RecordingTask(NamedTuple):
    """Everything that a runner needs to record any range; small, and equal for all runners.

    Attributes:
        environment: environment to play in.
        width: number of slots of a runner.
        seed: seed of the recording.
        explore: sample actions; False takes the mode of their distribution.
        target: folder and format of the dataset; the folder has the guard that every change must pass.
        prefix: prefix of the episodes' ids.
        spec: leaves and spaces of the dataset.
        records_states: record the policy's recurrent states.
        module_class: import path of the policy's class if it is a custom one.
        callbacks: import paths of the callbacks.
    """

    environment: EnvironmentSpec
    width: int
    seed: int
    explore: bool
    target: Target
    prefix: str
    spec: DataSpec
    records_states: bool = False
    module_class: str | None = None
    callbacks: tuple[str, ...] = ()


def make_runner(task: RecordingTask, policy: Actor) -> EnvRunner:
    """Create the environment runner of a recording."""
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
    """Play, write and commit the episodes of a range.

    Raises:
        StorageError: a file could not be written; nothing of the range is committed.
        UserCodeError: the environment raised an exception.
    """
    # One thread gives the same numbers on any machine. Threads that wait for each other on busy processors also made
    # recording 50 times slower.
    with torch_threads(1):
        chunks = _group_into_chunks(runner.play(work.indices), on_episode)
        return write_range(task, work, (played_episodes_to_block(chunk, task.prefix) for chunk in chunks))


def write_range(task: RecordingTask, work: RangeToRecord, blocks: Iterable[Block]) -> Commit:
    """Write a range's episodes and commit them.

    Raises:
        StorageError: a file could not be written; nothing of the range is committed.
    """
    commit = task.target.write_range(task.spec, work.number, work.indices.start, blocks)
    write_commit(task.target.folder, commit)
    return commit


def _group_into_chunks(episodes: Iterator[Episode], on_episode: OnEpisode) -> Iterator[list[Episode]]:
    """Group episodes into chunks of at least `_MIN_CHUNK_BYTES`, so that memory stays bounded."""
    chunk: list[Episode] = []
    chunk_bytes = 0
    for episode in episodes:
        on_episode(episode)
        chunk.append(episode)
        chunk_bytes += sum(column.nbytes for column in episode.columns.values())
        if chunk_bytes >= _MIN_CHUNK_BYTES:
            yield chunk
            chunk, chunk_bytes = [], 0
    if chunk:
        yield chunk


def describe_columns(
    environment: EnvironmentSpec, policy: Actor, explore: bool, records_states: bool = False
) -> DataSpec:
    """Return the columns that a recording with `policy` writes: the spaces' leaves and the policy's other outputs.

    The policy acts once, on a random observation, to determine them.

    Raises:
        SpecError: recurrent states are requested, and the policy has none.
    """
    spaces = environment_spaces(environment)
    check_spaces(policy, spaces, environment.id)
    observation = sample_observation(spaces.observation)
    noise = policy.draw_noise(np.random.default_rng(0), 1) if explore else None
    actions = policy.act(observation, noise, np.ones(1, dtype=np.bool_))
    if records_states and not actions.state_out:
        raise SpecError("the policy has no recurrent state", field="spec.output.recurrentStates")
    rows = {**observation, **actions.actions, **outputs_to_record(actions, records_states)}
    leaves = {name: infer_leaf(name, row) for name, row in rows.items()}
    leaves[Columns.REWARDS] = Leaf(np.dtype(np.float64))
    leaves[Columns.INFOS] = Leaf(None, (), "json")
    return DataSpec(leaves, spaces.observation, spaces.action, environment.id)
