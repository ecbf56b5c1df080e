"""Running episodes of a log, and the records that change them. Recovery from a journal uses the same code."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from hindcast.episodes.block import Block
from hindcast.episodes.columns import EMPTY_INFO, Columns, root
from hindcast.episodes.convert import info_from_json, info_to_json
from hindcast.serve.messages import unknown_episode_error
from hindcast.serve.records import Record, Values


class RunningEpisode:
    """The logged steps of an episode, each with an observation, an action, the sum of its rewards and its infos.

    Args:
        id_: the episode's id.
    """

    def __init__(self, id_: str) -> None:
        self.id_ = id_
        self._steps: list[Values] = []
        self._rewards: list[float] = []
        self._infos: dict[int, str] = {}  # index of the observation after the action -> JSON

    def __len__(self) -> int:
        return len(self._steps)

    def apply(self, record: Record) -> None:
        """Apply the record of an action, or of returns, which belong to the last action."""
        if record.kind == "action":
            self._steps.append(record.values)
            self._rewards.append(0.0)
            return
        self._rewards[-1] += record.reward
        if record.info:
            old_info = info_from_json(self._infos.get(len(self), ""))
            self._infos[len(self)] = info_to_json({**old_info, **orjson.loads(record.info)})

    def to_records(self) -> Iterator[Record]:
        """Yield records that recreate the episode when they are applied."""
        yield Record("start", self.id_)
        for t, (values, reward) in enumerate(zip(self._steps, self._rewards, strict=True)):
            yield Record("action", self.id_, values)
            info = self._infos.get(t + 1, "")
            if reward or info:
                yield Record("returns", self.id_, reward=reward, info=info)

    def to_block(self, record: Record | None = None) -> Block:
        """Return the episode's steps.

        Args:
            record: record of the episode's end. None truncates the episode; its last observation is then repeated in
                place of the unknown next observation.
        """
        steps = self._steps
        leaves = [name for name in steps[0] if root(name) == Columns.OBS]
        last_observation = {name: (record.values if record else steps[-1])[name] for name in leaves}
        columns = {name: _stack([step[name] for step in steps]) for name in steps[0] if name not in leaves}
        columns |= {
            name: _stack([*(step[name] for step in steps), last_observation[name]]) for name in leaves
        }
        columns[Columns.REWARDS] = np.array(self._rewards, dtype=np.float64)
        infos = [self._infos.get(t, EMPTY_INFO) for t in range(len(steps) + 1)]
        columns[Columns.INFOS] = np.array(infos, dtype=object)
        return Block(
            columns=columns,
            length=np.array([len(steps)], dtype=np.int64),
            eps_id=np.array([self.id_], dtype=object),
            t_started=np.zeros(1, dtype=np.int64),
            terminated=np.array([record.terminated if record else False]),
            truncated=np.array([record.truncated if record else True]),
        )


class Episodes:
    """The running episodes of a log, and the episodes that have ended since the last `pop_blocks`.

    Attributes:
        running: running episodes by id.
        blocks: a block for each ended episode.
        nbytes: size of `blocks` in memory.
    """

    def __init__(self) -> None:
        self.running: dict[str, RunningEpisode] = {}
        self.blocks: list[Block] = []
        self.nbytes = 0

    def __getitem__(self, id_: str) -> RunningEpisode:
        """Return the running episode with this id.

        Raises:
            UnknownEpisode: the episode is not running.
        """
        if id_ not in self.running:
            raise unknown_episode_error(id_)
        return self.running[id_]

    def apply(self, record: Record) -> None:
        """Apply a record, whose values were checked when it was logged."""
        if record.kind == "start":
            self.running[record.episode] = RunningEpisode(record.episode)
        elif record.kind == "end":
            episode = self.running.pop(record.episode)
            if len(episode):
                self._add_block(episode.to_block(record))
        else:
            self.running[record.episode].apply(record)

    def truncate_all(self) -> None:
        """End all running episodes as truncated."""
        for episode in self.running.values():
            if len(episode):
                self._add_block(episode.to_block())
        self.running = {}

    def pop_blocks(self) -> list[Block]:
        """Return the blocks of the ended episodes and remove them from this object."""
        blocks, self.blocks, self.nbytes = self.blocks, [], 0
        return blocks

    def _add_block(self, block: Block) -> None:
        self.blocks.append(block)
        self.nbytes += block.nbytes


def _stack(values: list[Any]) -> NDArray[Any]:
    return np.array(values, dtype=object) if isinstance(values[0], str) else np.stack(values)
