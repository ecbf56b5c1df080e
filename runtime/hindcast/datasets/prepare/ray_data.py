"""Preparing on Ray Data: larger than memory, on as many CPUs as there are. Everything specific to Ray Data is here.

Rows in order are read where they are: a task makes several partitions, one after the other. Of other rows each part's
are dealt out into chunks, one for each partition that they go to; a hash shuffle brings the chunks of a partition
together, through the object store, which spills to disk; a task then makes the partition. What travels between tasks
is a table: a partition's number in each row, and in a cell a chunk, a user's mistake, or nothing.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from hindcast.datasets.assembly.steps import Steps
from hindcast.datasets.prepare.in_order import Parts
from hindcast.datasets.prepare.job import Job, Progress
from hindcast.datasets.prepare.partitions import made, make_grouped, make_in_order
from hindcast.episodes.block import Block
from hindcast.errors import OutOfMemory, SpecError, UserError, WorkerLost, caught, first_line
from hindcast.ray_session import connected
from hindcast.user_code import given, take

_NUMBER: Final = "number"
_CELL: Final = "cell"
_SCHEMA: Final = pa.schema([(_NUMBER, pa.int64()), (_CELL, pa.large_binary())])
_LOOK_S: Final = 1.0
_MOST_AT_A_TIME: Final = 8


def make_on_ray(job: Job, progress: Progress, remote_args: Mapping[str, Any]) -> None:
    """Make all partitions that are not made, on the Ray that is connected, else on one of this machine.

    Args:
        job: the preparation.
        progress: called once a second with how many partitions are made.
        remote_args: Ray's options for the tasks (`label_selector`, `memory`).

    Raises:
        DataError: rows that do not form complete episodes under the rules.
        SpecError: a user's class or function that tasks cannot import.
        StorageError: it cannot be written.
        WorkerLost: tasks keep dying.
    """
    import ray

    todo = sorted(set(range(job.partitions)) - made(job.folder))
    if not todo:
        return
    with connected(num_cpus=len(os.sched_getaffinity(0))):
        try:
            _follow(_execute(job, todo, remote_args), len(todo), progress)
        except ray.exceptions.RayError as error:
            raise _lost(error) from error


def _execute(job: Job, todo: list[int], remote_args: Mapping[str, Any]) -> tuple[Iterator[Any], Any]:
    """The numbers of partitions as they are made, and what ends it."""
    import ray
    import ray.data
    from ray import cloudpickle

    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # what fails is raised
    # As bytes: Ray would repeat a task forever whose argument cannot be unpickled, without a word.
    job_of_all = ray.put((frozenset(todo), cloudpickle.dumps((job, given()))))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if job.in_order:
            done = _numbers(todo, _at_a_time(len(todo))).map_batches(
                _make_in_order, **_each(job_of_all, remote_args)
            )
        else:
            chunks = _numbers(range(len(job.parts))).map_batches(_scatter, **_each(job_of_all, remote_args))
            _settle(chunks.context)
            together = chunks.repartition(len(todo), keys=[_NUMBER])
            done = together.map_batches(_make, **_each(job_of_all, remote_args))
        _settle(done.context)
        bundles, _, executor = done._execute_to_iterator(capture_executor=False)
    return bundles, executor


def _numbers(numbers: Sequence[int], at_a_time: int = 1) -> Any:
    import ray.data

    several = [numbers[first : first + at_a_time] for first in range(0, len(numbers), at_a_time)]
    return ray.data.from_blocks([pa.table({_NUMBER: list(own)}) for own in several])


def _at_a_time(partitions: int) -> int:
    """How many partitions in a row a task makes: few tasks read a part twice, and enough of them share the work."""
    import ray

    cpus = int(ray.cluster_resources().get("CPU", 1))
    return max(1, min(_MOST_AT_A_TIME, partitions // (4 * cpus)))


def _each(job_of_all: Any, remote_args: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "fn_args": [[job_of_all]],
        "batch_size": None,
        "batch_format": "pyarrow",
        "zero_copy_batch": True,
        "num_cpus": 1,
        **remote_args,
    }


def _settle(context: Any) -> None:
    context.target_max_block_size = None  # a partition is one block
    context.shuffle_compression = "lz4"
    context.shuffle_input_batch_bytes = 0  # else parts wait in the object store for a gigabyte of them
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.execution_no_progress_timeout_s = -1


def _follow(execution: tuple[Iterator[Any], Any], total: int, progress: Progress) -> None:
    """Wait for all partitions; whatever ends the wait early ends the execution."""
    import ray

    bundles, executor = execution
    done = 0
    with ThreadPoolExecutor(1, "hindcast-prepare") as waiter:
        try:
            while True:
                waiting = waiter.submit(next, bundles, None)
                while not wait([waiting], _LOOK_S).done:
                    progress(done, total)
                bundle: Any = waiting.result()
                if bundle is None:
                    break
                for made_there in ray.get(list(bundle.block_refs)):
                    if len(made_there):  # where no partition went, Ray Data has a table without columns
                        _raise_first(made_there)
                        done += len(made_there)
                progress(min(done, total), total)
        finally:
            executor.shutdown(force=True)


def _job(packed: bytes) -> Job:
    from ray import cloudpickle

    try:
        job, objects = cloudpickle.loads(packed)
    except ModuleNotFoundError as error:
        raise SpecError(
            f"processes that prepare the data cannot import {error.name!r}, where a class or function that you passed "
            "is defined: install it there, or put its folder on PYTHONPATH"
        ) from error
    take(objects)
    return job


def _table(rows: Iterable[tuple[int, Steps | Block | UserError | None]]) -> pa.Table:
    from ray import cloudpickle

    cells = [(number, None if found is None else cloudpickle.dumps(found)) for number, found in rows]
    numbers, packed = zip(*cells, strict=True) if cells else ((), ())
    return pa.table([list(numbers), list(packed)], schema=_SCHEMA)


def _unpacked(table: pa.Table) -> list[Any]:
    """What is in the cells of a table."""
    from ray import cloudpickle

    return [cloudpickle.loads(cell.as_buffer()) for cell in table[_CELL].drop_null()]


def _raise_first(made_there: pa.Table) -> None:
    """Raise the first mistake in a table of partitions; none is fine."""
    for mistake in _unpacked(made_there):
        raise mistake


def _scatter(numbers: pa.Table, job_of_all: list[Any]) -> pa.Table:
    """A part's chunks. Where it cannot be read no partition is made, since rows would be missing from any."""
    import ray

    todo, packed = ray.get(job_of_all[0])
    number = numbers[_NUMBER][0].as_py()
    try:
        chunks = [chunk for chunk in _job(packed).scatter(number) if chunk[0] in todo]
    except UserError as error:
        return _table((partition, error) for partition in todo)
    # The first part names every partition, so that those to which no row goes are made too.
    to_all = [(partition, None) for partition in todo] if number == 0 else []
    return _table([*to_all, *chunks])


def _make(chunks: pa.Table, job_of_all: list[Any]) -> pa.Table:
    """Make the partitions whose chunks these are: all chunks of each are here."""

    def make(job: Job, number: int) -> None:
        found = _unpacked(chunks.filter(pc.equal(chunks[_NUMBER], number)))
        for mistake in found:
            if isinstance(mistake, UserError):
                raise mistake
        make_grouped(job, number, found)

    return _made(sorted(set(chunks[_NUMBER].to_pylist())), job_of_all, lambda job: partial(make, job))


def _make_in_order(numbers: pa.Table, job_of_all: list[Any]) -> pa.Table:
    return _made(numbers[_NUMBER].to_pylist(), job_of_all, lambda job: partial(make_in_order, Parts(job)))


def _made(
    numbers: list[int], job_of_all: list[Any], maker: Callable[[Job], Callable[[int], None]]
) -> pa.Table:
    """The numbers of what was made, with the user's mistake where it could not be."""
    import ray

    _, packed = ray.get(job_of_all[0])
    try:
        make = maker(_job(packed))
    except SpecError as error:
        return _table((number, error) for number in numbers)
    return _table([(number, caught(partial(make, number))) for number in numbers])


def _lost(error: Exception) -> Exception:
    """That tasks died, as a sentence; what is a defect stays as it is."""
    import ray

    reason = first_line(error)
    if isinstance(error, ray.exceptions.OutOfMemoryError):
        return OutOfMemory(f"tasks that prepare the data were killed for memory ({reason})")
    if isinstance(error, ray.exceptions.RayTaskError | ray.exceptions.UserCodeException):
        return error
    return WorkerLost(f"tasks that prepare the data were lost: {reason}")
