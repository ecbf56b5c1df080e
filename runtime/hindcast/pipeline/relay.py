"""One stream of blocks for all learners of a group: the first reads, the others receive the same references.

The blocks stay where the data workers made them; each learner's node fetches its own copy.
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

_MOST_WAITING = 1000

Key = tuple[int, int]
"""A stream: number of the dataset, and which stream over it."""


class Relay:
    """An actor that passes references on. It ends with the learner that made it.

    Args:
        followers: learners other than the first; what all of them have taken is released.
    """

    def __init__(self, followers: int) -> None:
        self._followers = followers
        self._news = asyncio.Condition()
        self._posts: defaultdict[Key, dict[int, Any]] = defaultdict(dict)
        self._taken: Counter[tuple[Key, int]] = Counter()
        self._left: Counter[Key] = Counter()

    async def post(self, key: Key, place: int, found: list[Any] | UserError) -> None:
        """Publish an item of a stream: a list with one reference, or the error in its place."""
        async with self._news:
            if self._left[key] < self._followers:
                self._posts[key][place] = found
                self._news.notify_all()

    async def take(self, key: Key, place: int) -> list[Any] | UserError:
        """Wait for an item of a stream."""
        async with self._news:
            await self._news.wait_for(lambda: place in self._posts[key])
            found: list[Any] | UserError = self._posts[key][place]
            self._taken[key, place] += 1
            if self._taken[key, place] == self._followers:
                del self._posts[key][place], self._taken[key, place]
            return found

    async def leave(self, key: Key) -> None:
        """A follower stops reading a stream."""
        async with self._news:
            self._left[key] += 1
            if self._left[key] == self._followers:
                self._posts.pop(key, None)


def open_relay(followers: int) -> tuple[Any, str]:
    """A new relay on this node, and the name by which the others find it."""
    import ray

    name = f"hindcast-relay-{uuid.uuid4().hex}"
    here = {"ray.io/node-id": ray.get_runtime_context().get_node_id()}
    options = {"name": name, "num_cpus": 0, "max_concurrency": _MOST_WAITING, "label_selector": here}
    return ray.remote(Relay).options(**options).remote(followers), name


def find_relay(name: str) -> Any:
    """The relay of that name."""
    import ray

    return ray.get_actor(name)


class LeaderExecutor(Executor):
    """The executor of the first learner: posts what it reads."""

    def __init__(self, executor: DataWorkers, relay: Any) -> None:
        self._executor = executor
        self._relay = relay
        self._streams: defaultdict[int, Iterator[int]] = defaultdict(count)

    def stream(self, source: int, work: Iterable[UnitInEpoch], prelearn: PreLearn) -> Iterator[Block]:
        key = source, next(self._streams[source])
        posted = 0
        try:
            for reference in self._executor.references(work, prelearn):
                self._relay.post.remote(key, posted, [reference])
                posted += 1
                yield fetch_block(reference)
        except WorkerLost as error:
            self._relay.post.remote(key, posted, error)
            raise


class FollowerExecutor(Executor):
    """The executor of the others: takes what the first one posts."""

    def __init__(self, relay: Any) -> None:
        self._relay = relay
        self._streams: defaultdict[int, Iterator[int]] = defaultdict(count)

    def stream(self, source: int, work: Iterable[UnitInEpoch], prelearn: PreLearn) -> Iterator[Block]:  # noqa: ARG002
        import ray

        key = source, next(self._streams[source])
        try:
            for place, _ in enumerate(work):
                found: list[Any] | UserError = ray.get(self._relay.take.remote(key, place))
                yield fetch_block(unwrap(found)[0])
        finally:
            self._relay.leave.remote(key)
