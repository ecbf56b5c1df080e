"""A relay shares streams of blocks with all learners of a group.

The first learner reads and posts references to the blocks; the others take them. The blocks stay where the data workers
made them, and each learner's node fetches its own copy.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any

from hindcast.episodes.block import Block
from hindcast.errors import UserError, WorkerLost, unwrap
from hindcast.pipeline.data_workers import DataWorkers, fetch_block
from hindcast.pipeline.executors import Executor, PreLearn, UnitInEpoch

_MAX_CONCURRENT_CALLS = 1000

Key = tuple[int, int]
"""Identifies a stream: index of the dataset, and number of the stream over it."""


class Relay:
    """An actor that passes references from the first learner to the others. It ends with the learner that started it.

    Args:
        num_followers: number of the other learners. An item of a stream is released when all of them have taken it.
    """

    def __init__(self, num_followers: int) -> None:
        self._num_followers = num_followers
        self._condition = asyncio.Condition()
        self._items: defaultdict[Key, dict[int, Any]] = defaultdict(dict)
        self._num_taken: Counter[tuple[Key, int]] = Counter()
        self._num_departed: Counter[Key] = Counter()

    async def post(self, key: Key, position: int, item: list[Any] | UserError) -> None:
        """Publish an item of a stream: a list with one reference to a block, or the error in its place."""
        async with self._condition:
            if self._num_departed[key] < self._num_followers:
                self._items[key][position] = item
                self._condition.notify_all()

    async def take(self, key: Key, position: int) -> list[Any] | UserError:
        """Wait for an item of a stream and return it; each follower takes each item once."""
        async with self._condition:
            await self._condition.wait_for(lambda: position in self._items[key])
            item: list[Any] | UserError = self._items[key][position]
            self._num_taken[key, position] += 1
            if self._num_taken[key, position] == self._num_followers:
                del self._items[key][position], self._num_taken[key, position]
            return item

    async def leave(self, key: Key) -> None:
        """Note that a follower stops reading a stream; after the last follower, its items are released."""
        async with self._condition:
            self._num_departed[key] += 1
            if self._num_departed[key] == self._num_followers:
                self._items.pop(key, None)


def open_relay(num_followers: int) -> tuple[Any, str]:
    """Start a relay on this node, and return it with its name."""
    import ray

    name = f"hindcast-relay-{uuid.uuid4().hex}"
    node_selector = {"ray.io/node-id": ray.get_runtime_context().get_node_id()}
    # Each waiting `take` occupies one of the actor's concurrent calls.
    options = {
        "name": name,
        "num_cpus": 0,
        "max_concurrency": _MAX_CONCURRENT_CALLS,
        "label_selector": node_selector,
    }
    return ray.remote(Relay).options(**options).remote(num_followers), name


def find_relay(name: str) -> Any:
    """Return the relay that `open_relay` started under this name."""
    import ray

    return ray.get_actor(name)


class LeaderExecutor(Executor):
    """The executor of the first learner, which posts the blocks that it reads."""

    def __init__(self, executor: DataWorkers, relay: Any) -> None:
        self._executor = executor
        self._relay = relay
        self._streams: defaultdict[int, Iterator[int]] = defaultdict(count)

    def stream(self, source: int, work: Iterable[UnitInEpoch], prelearn: PreLearn) -> Iterator[Block]:
        key = source, next(self._streams[source])
        num_posted = 0
        try:
            for reference in self._executor.references(work, prelearn):
                self._relay.post.remote(key, num_posted, [reference])
                num_posted += 1
                yield fetch_block(reference)
        # A user's error travels in place of the block, which every learner fetches. The loss of a block must be
        # reported to the followers, which would otherwise wait for the block forever.
        except WorkerLost as error:
            self._relay.post.remote(key, num_posted, error)
            raise


class FollowerExecutor(Executor):
    """The executor of the other learners, which takes the blocks that the first one posts."""

    def __init__(self, relay: Any) -> None:
        self._relay = relay
        self._streams: defaultdict[int, Iterator[int]] = defaultdict(count)

    def stream(self, source: int, work: Iterable[UnitInEpoch], prelearn: PreLearn) -> Iterator[Block]:  # noqa: ARG002
        import ray

        key = source, next(self._streams[source])
        try:
            for position, _ in enumerate(work):
                item: list[Any] | UserError = ray.get(self._relay.take.remote(key, position))
                yield fetch_block(unwrap(item)[0])
        finally:
            self._relay.leave.remote(key)
