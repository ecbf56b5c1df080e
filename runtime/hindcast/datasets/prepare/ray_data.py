"""Prepare data on Ray, on all CPUs, even if they are larger than memory. Only this module of the package uses Ray Data.

Rows in stored order need no shuffle: each task makes adjacent partitions, in one pass over their parts. Other rows are
divided, part by part, into one chunk for each partition. Ray Data's hash shuffle brings the chunks of a partition
together, through the object store, which spills to disk; a task then makes the partition. These tasks exchange tables:
each row has the number of a partition, and a cell with a pickled chunk, a pickled user error, or null.
"""

from __future__ import annotations

import logging
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from functools import lru_cache, partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import ray
from ray import cloudpickle

from hindcast.datasets.prepare.job import Job, Progress
from hindcast.datasets.prepare.partitions import (
    find_missing_partitions,
    make_ordered_partitions,
    make_partition,
)
from hindcast.errors import (
    OutOfMemory,
    SpecError,
    UserError,
    WorkerLost,
    catch_user_error,
    first_line,
    unwrap,
)
from hindcast.ray_session import ray_connection
from hindcast.user_code import registered_objects, restore_objects

_NUMBER: Final = "number"
"""Column with the number of a partition; in the first table of a shuffle, with the index of a part."""
_CELL: Final = "cell"
_SCHEMA: Final = pa.schema([(_NUMBER, pa.int64()), (_CELL, pa.large_binary())])
_PROGRESS_INTERVAL_SECONDS: Final = 1.0
_MAX_PARTITIONS_PER_TASK: Final = 64
_CANCEL_TIMEOUT_SECONDS: Final = 10.0

Execution = tuple[Iterator[Any], Callable[[], None]]
"""An iterator over results (never None) or user errors of tasks, as they end; and a function that ends all tasks."""


def prepare_on_ray(job: Job, progress: Progress, ray_options: Mapping[str, Any]) -> None:
    """Make all missing partitions, on the connected Ray cluster, or else on a Ray that is started on this machine.

    Args:
        job: the preparation.
        progress: called once a second with the number of missing partitions made, and the number of all missing ones.
        ray_options: Ray's options for the tasks (`label_selector`, `memory`).

    Raises:
        DataError: rows do not form complete episodes under the rules.
        SpecError: tasks cannot import a user's class or function.
        StorageError: the folder cannot be written.
        WorkerLost: tasks keep dying.
        OutOfMemory: tasks ran out of memory.
    """
    missing = find_missing_partitions(job)
    if not missing:
        return
    job.open_parts.clear()  # iterators cannot be pickled
    with ray_connection(num_cpus=len(os.sched_getaffinity(0))):
        try:
            # The job is sent as bytes, since Ray silently repeats a task forever if its argument cannot be unpickled.
            job_ref = ray.put(cloudpickle.dumps((job, registered_objects())))
            execute = _prepare_in_order if job.is_in_order else _prepare_by_shuffle
            _wait_for_partitions(job, missing, progress, execute(job_ref, job, missing, ray_options))
        except ray.exceptions.RayError as error:
            raise _convert_ray_error(error) from error


def _wait_for_partitions(job: Job, missing: list[int], progress: Progress, execution: Execution) -> None:
    """Wait for all partitions, then end the tasks: an error or a hook's exception leaves some running."""
    results, end = execution
    # Commits are listed once a second, however many results arrive.
    report_time = time.monotonic() + _PROGRESS_INTERVAL_SECONDS
    with ThreadPoolExecutor(1, "hindcast-prepare") as executor:
        try:
            while True:
                future = executor.submit(next, results, None)
                while not wait([future], max(report_time - time.monotonic(), 0.0)).done:
                    progress(len(missing) - len(find_missing_partitions(job)), len(missing))
                    report_time = time.monotonic() + _PROGRESS_INTERVAL_SECONDS
                if (result := future.result()) is None:
                    break
                unwrap(result)
        finally:
            end()
    progress(len(missing), len(missing))


def _prepare_in_order(job_ref: Any, _: Job, missing: list[int], ray_options: Mapping[str, Any]) -> Execution:
    """Start tasks that make adjacent partitions in stored order."""
    # One task per CPU, since the parts between two tasks are read twice; more only if a task would be too long.
    num_tasks = max(int(ray.cluster_resources().get("CPU", 1)), -(-len(missing) // _MAX_PARTITIONS_PER_TASK))
    remote_function = ray.remote(_make_partitions_in_order).options(**{"num_cpus": 1, **ray_options})
    tasks = [
        remote_function.remote(job_ref, numbers.tolist())
        for numbers in np.array_split(missing, num_tasks)
        if len(numbers)
    ]

    def results() -> Iterator[Any]:
        while tasks:
            (task,), _ = ray.wait(tasks)
            tasks.remove(task)
            yield ray.get(task)

    def end() -> None:
        """Cancel the running tasks and wait until they have ended."""
        # Without force: Ray aborts this process if it forces a task to end that has just ended by itself.
        remaining = list(tasks)
        for task in remaining:
            ray.cancel(task)
        if remaining:
            ray.wait(remaining, num_returns=len(remaining), timeout=_CANCEL_TIMEOUT_SECONDS)

    return results(), end


def _make_partitions_in_order(job_bytes: bytes, numbers: list[int]) -> list[int] | UserError:
    """Make the partitions among `numbers` that are missing, and return their numbers."""

    def make_missing() -> list[int]:
        # If this task replaces a task that was lost, some partitions are already committed.
        job = _unpickle_job(job_bytes)
        return list(
            make_ordered_partitions(
                job, [number for number in find_missing_partitions(job) if number in numbers]
            )
        )

    return catch_user_error(make_missing)


def _prepare_by_shuffle(
    job_ref: Any, job: Job, missing: list[int], ray_options: Mapping[str, Any]
) -> Execution:
    """Start a shuffle that makes partitions of rows in any order."""
    import ray.data

    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # failures are raised as well
    map_options = {
        # Ray leaves a reference in a list as it is; a task fetches the job when it needs the job.
        "fn_args": [[job_ref], frozenset(missing)],
        "batch_size": None,
        "batch_format": "pyarrow",
        "zero_copy_batch": True,
        "num_cpus": 1,
        **ray_options,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        part_indices = ray.data.from_blocks(
            [pa.table({_NUMBER: [part_index]}) for part_index in range(len(job.parts))]
        )
        chunks = part_indices.map_batches(_scatter, **map_options)
        _configure(chunks.context)
        partitions = chunks.repartition(len(missing), keys=[_NUMBER]).map_batches(
            _make_shuffled_partitions, **map_options
        )
        _configure(partitions.context)
        bundles, _, executor = partitions._execute_to_iterator(capture_executor=False)

    def results() -> Iterator[Any]:
        for bundle in bundles:
            for table in ray.get(list(bundle.block_refs)):
                if len(table):  # Ray Data returns a table without columns from a task without partitions
                    yield from _unpickle_cells(table)

    return results(), partial(executor.shutdown, force=True)


def _configure(context: Any) -> None:
    """Set Ray Data's options for one data set."""
    context.target_max_block_size = None  # a partition is one block
    context.shuffle_compression = "lz4"
    # By default, chunks wait in the object store until their size is a gigabyte.
    context.shuffle_input_batch_bytes = 0
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.execution_no_progress_timeout_s = -1


@lru_cache(maxsize=1)
def _unpickle_job(job_bytes: bytes) -> Job:
    """Unpickle the job, and register the user's objects in this process; done once for each job.

    Raises:
        SpecError: a user's class or function cannot be imported here.
    """
    try:
        job, objects = cloudpickle.loads(job_bytes)
    except ModuleNotFoundError as error:
        raise SpecError(
            f"processes that prepare the data cannot import {error.name!r}, where a class or function that you passed "
            "is defined: install it there, or put its folder on PYTHONPATH"
        ) from error
    restore_objects(objects)
    return job


def _make_table(rows: Iterable[tuple[int, Any]]) -> pa.Table:
    """Make a table of partitions' numbers and contents; contents are pickled, except None, which becomes null."""
    cells = [(number, None if content is None else cloudpickle.dumps(content)) for number, content in rows]
    numbers, contents = zip(*cells, strict=True) if cells else ((), ())
    return pa.table([list(numbers), list(contents)], schema=_SCHEMA)


def _unpickle_cells(table: pa.Table) -> list[Any]:
    """Unpickle the cells of a table that are not null."""
    return [cloudpickle.loads(cell.as_buffer()) for cell in table[_CELL].drop_null()]


def _scatter(part_indices: pa.Table, job_refs: list[Any], missing: frozenset[int]) -> pa.Table:
    """Divide a part into chunks; if the part cannot be read, return the error for every partition."""
    # Any partition could lack rows of a part that cannot be read, so no partition may be made.
    part_index = part_indices[_NUMBER][0].as_py()
    try:
        job = _unpickle_job(ray.get(job_refs[0]))
        chunks = [(number, chunk) for number, chunk in job.scatter(part_index) if number in missing]
    except UserError as error:
        return _make_table((number, error) for number in missing)
    # The first part names every partition, so that partitions without rows are committed, too.
    empty_chunks = [(number, None) for number in missing] if part_index == 0 else []
    return _make_table([*empty_chunks, *chunks])


def _make_shuffled_partitions(chunks: pa.Table, job_refs: list[Any], _: frozenset[int]) -> pa.Table:
    """Make the partitions of these chunks, and return their numbers or user errors.

    Args:
        chunks: all chunks of the partitions.
        job_refs: a reference to the pickled job.
        _: the missing partitions; Ray Data passes the same arguments as to `_scatter`.
    """

    def make_one(number: int) -> int:
        contents = _unpickle_cells(chunks.filter(pc.equal(chunks[_NUMBER], number)))
        make_partition(_unpickle_job(ray.get(job_refs[0])), number, [unwrap(chunk) for chunk in contents])
        return number

    return _make_table(
        (number, catch_user_error(partial(make_one, number)))
        for number in chunks[_NUMBER].unique().to_pylist()
    )


def _convert_ray_error(error: Exception) -> Exception:
    """Convert an error of Ray to a user error if tasks died; return an exception that a task raised unchanged."""
    reason = first_line(error)
    if isinstance(error, ray.exceptions.OutOfMemoryError):
        return OutOfMemory(f"tasks that prepare the data ran out of memory ({reason})")
    if isinstance(error, ray.exceptions.RayTaskError | ray.exceptions.UserCodeException):
        return error
    return WorkerLost(f"tasks that prepare the data were lost: {reason}")
