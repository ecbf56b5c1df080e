"""`RayWorkers`: the counterpart of `WorkerProcesses` in the pods of a cluster."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import BrokenExecutor, Future, ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Generic

import ray
from ray.exceptions import RayActorError

from hindcast.user_code import registered_objects, restore_objects
from hindcast.worker_processes import Arguments, Context, Result, Value, end_with_parent


class RayWorkers(Generic[Context]):
    """`Workers` that are Ray actors. Ray must already be connected.

    Args:
        num_workers: number of actors.
        context: object that each actor keeps; it is sent once to each.
        options: Ray's options of an actor, such as its pool and CPUs.
    """

    def __init__(self, num_workers: int, context: Context, options: Mapping[str, Any]) -> None:
        self.num_workers = num_workers
        self._actor_class = ray.remote(_WorkerActor).options(**options)
        self._arguments = (ray.put(context), registered_objects(), str(Path.cwd()))
        self._actors = {self._actor_class.remote(*self._arguments) for _ in range(num_workers)}
        self._idle: SimpleQueue[Any] = SimpleQueue()
        for actor in self._actors:
            self._idle.put(actor)
        # Each actor needs its own thread, since a call waits in ray.get.
        self._threads = ThreadPoolExecutor(num_workers, thread_name_prefix="hindcast-workers")
        self._actors_lock = threading.Lock()
        self._is_closed = False

    def submit(
        self, function: Callable[[Context, *Arguments], Result], *arguments: *Arguments
    ) -> Future[Result]:
        """Call the function in an idle actor, see `Workers`. An actor that dies is replaced; only its call fails."""
        return self._threads.submit(self._call, function, arguments)

    def share(self, value: Value) -> Value:
        """Put the value into the object store once, see `Workers`."""
        reference: Any = ray.put(value)
        return reference  # Ray resolves top-level arguments, so the actor receives the value itself

    def close(self) -> None:
        """Kill the actors; running calls are abandoned."""
        with self._actors_lock:
            self._is_closed = True
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
        with self._actors_lock:
            if not self._is_closed:  # an actor created after close() would never be killed
                self._actors.remove(actor)
                actor = self._actor_class.remote(*self._arguments)
                self._actors.add(actor)
            return actor


class _WorkerActor:
    """The class of the actors: an object that keeps the context."""

    def __init__(self, context: Any, objects: dict[str, Any], folder: str) -> None:
        # The parent is the node's Ray process. If that dies, Ray itself ends the worker only once init is its parent.
        end_with_parent(os.getppid())
        restore_objects(objects)
        with contextlib.suppress(OSError):  # relative paths are the parent's, if the file system is shared
            os.chdir(folder)
        self._context = context

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(self._context, *arguments)
