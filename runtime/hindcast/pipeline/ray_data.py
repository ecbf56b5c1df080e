"""`RayData`: units are read by a pool of Ray actors. All that is Ray Data's own stands in this file.

A stream of work is cut into segments, each one execution of Ray Data's. The units of a segment are blocks that
exist already, so that nothing but the pool's actors asks for a CPU. The next segment starts before the one in
use is drained: its actors take over the CPUs as the earlier ones have no more to do.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple

import pyarrow as pa

from hindcast.episodes.block import Block
from hindcast.errors import OutOfMemory, UserError, WorkerLost
from hindcast.memory import oom_kills
from hindcast.pipeline.block_transport import error_table, from_table, to_table
from hindcast.pipeline.executors import PreLearn, Work
from hindcast.user_code import calling
from hindcast.worker_processes import end_with_parent

_SEGMENT = 1024
_AHEAD = 64
_MOST_DEATHS = 3
KILLED_FOR_MEMORY = ("NODE_OUT_OF_MEMORY", "running low on memory")
"""What Ray's messages say of a process that its memory monitor killed."""
_PLACE = "place"
_NEVER = -1


@dataclass(frozen=True)
class RayData:
    """An `Executor` whose data workers are Ray actors; Ray must be connected.

    Blocks are the same, in the same order, for any number of workers, whichever of them die meanwhile.

    Args:
        workers: fewest and most data workers; between them the pool grows and shrinks with the load.
        num_cpus: logical CPUs of each.
        num_gpus: logical GPUs of each.
        remote_args: further options of Ray's for the actors (`label_selector`, `memory`).
        segment: units of one execution.
    """

    workers: tuple[int, int]
    num_cpus: float = 1.0
    num_gpus: float = 0.0
    remote_args: Mapping[str, Any] = field(default_factory=dict)
    segment: int = _SEGMENT

    def stream(self, source: str, work: Iterable[Work], prelearn: PreLearn) -> Iterator[Block]:  # noqa: ARG002
        """See `Executor.stream`.

        Raises:
            UserError: the pre-learner's; `WorkerLost` where data workers keep dying.
        """
        for reference in self.references(work, prelearn):
            yield fetch(reference)

    def references(self, work: Iterable[Work], prelearn: PreLearn) -> Iterator[Any]:
        """As `stream`, as references to the blocks' tables in the object store, for `fetch`.

        Raises:
            WorkerLost: data workers keep dying.
        """
        import ray

        todo = iter(work)

        def start() -> Future[_Segment] | None:
            units = list(islice(todo, self.segment))
            return starter.submit(self._execute, units, prelearn) if units else None

        with ThreadPoolExecutor(1, "hindcast-segments") as starter:
            running, following = start(), None
            try:
                while running is not None:
                    segment = running.result()
                    for place, reference in enumerate(segment.references):
                        if place == max(0, segment.size - _AHEAD):
                            following = start()
                        yield reference
                    running, following = following, None
            except (ray.exceptions.RayActorError, ray.exceptions.OutOfMemoryError) as error:
                raise _lost(error) from error
            finally:
                for begun in (running, following):
                    if begun is not None and begun.exception() is None:
                        begun.result().close()

    def _execute(self, work: Sequence[Work], prelearn: PreLearn) -> _Segment:
        import ray
        import ray.data

        logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # what fails is raised
        job = ray.put((prelearn, work))
        fewest, most = (min(count, len(work)) for count in self.workers)
        units = ray.data.from_blocks([pa.table({_PLACE: [place]}) for place in range(len(work))])
        with (
            warnings.catch_warnings()
        ):  # Ray 2.64 will have another way to say how often actors are restarted
            warnings.simplefilter("ignore", DeprecationWarning)
            blocks = units.map_batches(
                ReadAndPrelearn,
                fn_constructor_args=[[job]],
                batch_size=1,
                batch_format="pyarrow",
                compute=ray.data.ActorPoolStrategy(min_size=fewest, max_size=most),
                num_cpus=self.num_cpus,
                num_gpus=self.num_gpus,
                max_restarts=_MOST_DEATHS,
                max_task_retries=_MOST_DEATHS,
                **self.remote_args,
            )
        context = blocks.context
        context.execution_options.preserve_order = True
        context.execution_no_progress_timeout_s = _NEVER  # a learner may take hours over a window
        context.target_max_block_size = None
        context.enable_progress_bars = False
        context.print_on_execution_start = False
        bundles, _, executor = blocks._execute_to_iterator(capture_executor=False)
        return _Segment(len(work), (found for bundle in bundles for found in bundle.block_refs), executor)


class _Segment(NamedTuple):
    """One execution of Ray Data's, under way."""

    size: int
    references: Iterator[Any]
    executor: Any

    def close(self) -> None:
        """End the data workers now; left alone they would stay until the garbage is collected."""
        self.executor.shutdown(force=True)


class ReadAndPrelearn:
    """What a data worker does.

    Args:
        job: a list with one reference, to the pre-learner and the segment's work.
    """

    def __init__(self, job: list[Any]) -> None:
        end_with_parent(os.getppid())  # Ray itself sees that its node is gone only where init takes over
        self._reference = job[0]
        self._is_killed_for_memory = _is_restarted() and oom_kills() > 0

    def __call__(self, places: pa.Table) -> pa.Table:
        """The block at a place of the segment; a user's mistake as its sentence."""
        try:
            if self._is_killed_for_memory:
                raise OutOfMemory(
                    "a data worker was killed for memory: raise spec.pipeline.dataWorkers.memory"
                )
            prelearn, work = self._job
            return to_table(prelearn(*work[places[_PLACE][0].as_py()]))
        except UserError as error:
            return error_table(error)

    @cached_property
    def _job(self) -> tuple[PreLearn, Sequence[Work]]:
        import ray

        with calling("loading the pre-learner and its connectors on a data worker"):
            job: tuple[PreLearn, Sequence[Work]] = ray.get(self._reference)
        return job


def _is_restarted() -> bool:
    """Whether this actor had a process before, which died."""
    import ray

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return bool(ray.get_runtime_context().was_current_actor_reconstructed)


def fetch(reference: Any) -> Block:
    """The block behind a reference, as a view into the object store.

    Raises:
        UserError: a user's mistake in place of the block.
        WorkerLost: the block was lost with its node, and could not be made again.
    """
    import ray

    try:
        return from_table(ray.get(reference))
    except (ray.exceptions.RayActorError, ray.exceptions.ObjectLostError) as error:
        raise _lost(error) from error


def _lost(error: Exception) -> WorkerLost:
    import ray

    reason = next((line.strip() for line in str(error).splitlines() if line.strip()), "no reason given")
    if isinstance(error, ray.exceptions.OutOfMemoryError) or any(
        sign in str(error) for sign in KILLED_FOR_MEMORY
    ):
        return OutOfMemory(
            f"data workers were killed for memory: raise spec.pipeline.dataWorkers.memory ({reason})"
        )
    return WorkerLost(f"a data worker died {_MOST_DEATHS + 1} times, the last time with: {reason}")
