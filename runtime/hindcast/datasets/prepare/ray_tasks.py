"""Prepare data in tasks of Ray, on all CPUs, even if they are larger than memory.

Rows in stored order are not grouped: each task makes adjacent partitions, in one pass over their parts. Others are
grouped through files: tasks write a sorted file for each run of parts, then tasks make partitions from them.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from itertools import groupby
from typing import Any, Final

import numpy as np
import ray
from ray import cloudpickle

from hindcast.datasets.prepare.job import Job, Progress
from hindcast.datasets.prepare.partitions import (
    find_missing_partitions,
    make_ordered_partitions,
    make_partition,
)
from hindcast.datasets.prepare.sorted_files import list_sorted_files, read_sorted_files, write_sorted_file
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

_PROGRESS_INTERVAL_SECONDS: Final = 1.0
_MAX_PARTITIONS_PER_TASK: Final = 64
_MAX_GROUPED_PARTITIONS: Final = 4
_CANCEL_TIMEOUT_SECONDS: Final = 10.0

TaskFunction = Callable[[Job, list[int]], None]
"""Work of a task, which gets the job and the numbers of partitions or runs."""


def prepare_on_ray(job: Job, progress: Progress, ray_options: Mapping[str, Any]) -> None:
    """Make all missing partitions, on the connected Ray cluster, or else on a Ray that is started on this machine.

    Args:
        job: the preparation.
        progress: called once a second with the work done and the total: partitions made, and files sorted.
        ray_options: Ray's options for the tasks (`label_selector`, `memory`).

    Raises:
        DataError: rows do not form complete episodes under the rules.
        SpecError: tasks cannot import a user's class or function.
        StorageError: the folder cannot be written.
        WorkerLost: tasks keep dying.
        OutOfMemory: tasks ran out of memory.
    """
    missing_partitions = find_missing_partitions(job)
    if not missing_partitions:
        return
    job.open_parts.clear()  # iterators cannot be pickled
    num_runs = 0 if job.is_in_order else len(job.run_bounds) - 1
    with ray_connection(num_cpus=len(os.sched_getaffinity(0))):
        # The job is sent as bytes, since Ray silently repeats a task forever if its argument cannot be unpickled.
        job_ref = ray.put(cloudpickle.dumps((job, registered_objects())))
        remote_call = ray.remote(_call).options(**{"num_cpus": 1, **ray_options})

        def run_tasks(function: TaskFunction, batches: Iterable[list[int]]) -> None:
            _wait_for_tasks([remote_call.remote(function, job_ref, batch) for batch in batches], report)

        def report() -> None:
            num_made = len(missing_partitions) - len(find_missing_partitions(job))
            progress(len(list_sorted_files(job)) + num_made, num_runs + len(missing_partitions))

        try:
            if job.is_in_order:
                run_tasks(_make_in_order, _divide_in_order(missing_partitions))
            else:
                run_tasks(lambda job, runs: write_sorted_file(job, *runs), ([run] for run in range(num_runs)))
                groups = groupby(missing_partitions, lambda number: number // _MAX_GROUPED_PARTITIONS)
                run_tasks(_make_grouped, (list(numbers) for _, numbers in groups))
        except ray.exceptions.RayError as error:
            raise _convert_ray_error(error) from error
    progress(num_runs + len(missing_partitions), num_runs + len(missing_partitions))


def _divide_in_order(missing_partitions: list[int]) -> list[list[int]]:
    """Divide partitions of rows in stored order among tasks."""
    # One task per CPU, since the parts between two tasks are read twice; more only if a task would be too long.
    num_tasks = max(
        int(ray.cluster_resources().get("CPU", 1)), -(-len(missing_partitions) // _MAX_PARTITIONS_PER_TASK)
    )
    return [numbers.tolist() for numbers in np.array_split(missing_partitions, num_tasks) if len(numbers)]


def _wait_for_tasks(tasks: list[Any], report: Callable[[], None]) -> None:
    """Wait for all tasks, and call `report` once a second. An error, or an exception of `report`, cancels the others.

    Raises:
        UserError: a task returned it.
    """
    # Commits are listed once a second, however many tasks end.
    report_time = time.monotonic() + _PROGRESS_INTERVAL_SECONDS
    try:
        while tasks:
            ended_tasks, tasks = ray.wait(tasks, timeout=max(report_time - time.monotonic(), 0.0))
            for task in ended_tasks:
                unwrap(ray.get(task))
            if time.monotonic() >= report_time:
                report()
                report_time = time.monotonic() + _PROGRESS_INTERVAL_SECONDS
    finally:
        # Without force: Ray aborts this process if it forces a task to end that has just ended by itself.
        for task in tasks:
            ray.cancel(task)
        if tasks:
            ray.wait(tasks, num_returns=len(tasks), timeout=_CANCEL_TIMEOUT_SECONDS)


def _call(function: TaskFunction, job_bytes: bytes, batch: list[int]) -> UserError | None:
    """Call the function in a task; return a user error that it raises."""
    return catch_user_error(lambda: function(_unpickle_job(job_bytes), batch))


def _make_in_order(job: Job, numbers: list[int]) -> None:
    """Make the partitions among `numbers` that are missing from parts in stored order."""
    # If this task replaces a task that was lost, some partitions are already committed.
    missing_partitions = [number for number in find_missing_partitions(job) if number in numbers]
    deque(make_ordered_partitions(job, missing_partitions), maxlen=0)


def _make_grouped(job: Job, numbers: list[int]) -> None:
    """Make adjacent partitions from all sorted files; those that are committed are left as they are."""
    for number, contents in read_sorted_files(job, range(numbers[0], numbers[-1] + 1)):
        make_partition(job, number, contents)


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


def _convert_ray_error(error: Exception) -> Exception:
    """Convert an error of Ray to a user error if tasks died; return an exception that a task raised unchanged."""
    reason = first_line(error)
    if isinstance(error, ray.exceptions.OutOfMemoryError):
        return OutOfMemory(f"tasks that prepare the data ran out of memory ({reason})")
    if isinstance(error, ray.exceptions.RayTaskError | ray.exceptions.UserCodeException):
        return error
    return WorkerLost(f"tasks that prepare the data were lost: {reason}")
