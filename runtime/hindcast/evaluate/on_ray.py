"""Evaluation in Ray actors: on a cluster the pods of data workers play."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import BrokenExecutor, Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import ray
from ray.exceptions import RayActorError

from hindcast.evaluate.environment import EnvEvaluator
from hindcast.evaluate.parallel import Part, play_share


class RayPlayers:
    """Players that are Ray actors; Ray is connected already. They end with this process.

    Args:
        evaluator: what one evaluation is.
        count: number of actors.
        options: Ray's for an actor: where it lands, with how many CPUs.
    """

    def __init__(self, evaluator: EnvEvaluator, count: int, options: Mapping[str, Any]) -> None:
        actor_class = ray.remote(_Player).options(**options)
        held = ray.put(evaluator)
        self._actors = [actor_class.remote(held) for _ in range(count)]
        self._idle: SimpleQueue[Any] = SimpleQueue()
        for actor in self._actors:
            self._idle.put(actor)
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="hindcast-evaluation")

    def play(self, files: dict[str, bytes], seed: int, shares: Sequence[range | None]) -> list[Future[Part]]:
        """Begin to play the shares; each waits for an actor that has nothing to do."""
        kept = ray.put(files)
        return [self._threads.submit(self._play, kept, seed, share) for share in shares]

    def close(self) -> None:
        """Stop the actors, playing or not."""
        for actor in self._actors:
            ray.kill(actor)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _play(self, files: Any, seed: int, share: range | None) -> Part:
        actor = self._idle.get()
        try:
            part: Part = ray.get(actor.play.remote(files, seed, share))
        except RayActorError as error:
            raise BrokenExecutor(str(error)) from error
        finally:
            self._idle.put(actor)
        return part


class _Player:
    """The actor."""

    def __init__(self, evaluator: EnvEvaluator) -> None:
        self._evaluator = evaluator

    def play(self, files: dict[str, bytes], seed: int, share: range | None) -> Part:
        return play_share(self._evaluator, files, seed, share)
