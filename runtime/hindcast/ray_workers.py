"""`RayWorkers`: what `WorkerProcesses` are on this machine, in the pods of a cluster."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import BrokenExecutor, Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, Generic

import ray
from ray.exceptions import RayActorError

from hindcast.worker_processes import Arguments, Context, Result, Value, end_with_parent


class RayWorkers(Generic[Context]):
    """Ray actors that call functions on an object that each keeps between calls; Ray is connected already.

    Args:
        count: how many.
        kept: sent to each of them once.
        options: Ray's for an actor: where it lands, with how many CPUs.
    """

    def __init__(self, num_workers: int, context: Context, options: Mapping[str, Any]) -> None:
        self.num_workers = num_workers
        self._class = ray.remote(_WorkerActor).options(**options)
        self._kept = ray.put(context)
        self._actors = {self._class.remote(self._kept) for _ in range(num_workers)}
        self._idle: SimpleQueue[Any] = SimpleQueue()
        for actor in self._actors:
            self._idle.put(actor)
        self._threads = ThreadPoolExecutor(num_workers, thread_name_prefix="hindcast-workers")
        self._changing = threading.Lock()
        self._closed = False

    def submit(
        self, function: Callable[[Context, *Arguments], Result], *arguments: *Arguments
    ) -> Future[Result]:
        """See `Workers`; an actor that dies is replaced, and only its call fails."""
        return self._threads.submit(self._call, function, arguments)

    def share(self, value: Value) -> Value:
        """See `Workers`; it is in the object store once."""
        reference: Any = ray.put(value)
        return reference  # Ray passes the value itself to what is called

    def close(self) -> None:
        """Stop the actors, at work or not."""
        with self._changing:
            self._closed = True
            for actor in self._actors:
                ray.kill(actor)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _call(self, function: Callable[..., Result], arguments: Any) -> Result:
        actor = self._idle.get()
        try:
            result: Result = ray.get(actor.call.remote(function, *arguments))
        except RayActorError as error:
            actor = self._replace(actor)
            raise BrokenExecutor(str(error)) from error
        finally:
            self._idle.put(actor)
        return result

    def _replace(self, actor: Any) -> Any:
        with self._changing:
            if not self._closed:
                self._actors.remove(actor)
                actor = self._class.remote(self._kept)
                self._actors.add(actor)
            return actor


class _WorkerActor:
    """The actor."""

    def __init__(self, kept: Any) -> None:
        end_with_parent(os.getppid())  # Ray itself sees that its node is gone only where init takes over
        self._kept = kept

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(self._kept, *arguments)
