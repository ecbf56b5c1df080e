"""Preparing in this process: what fits into memory, and what comes in order anyway."""

from __future__ import annotations

from hindcast.datasets.assembly.steps import Steps
from hindcast.datasets.prepare.in_order import Parts
from hindcast.datasets.prepare.job import Job, Progress
from hindcast.datasets.prepare.partitions import made, make_grouped, make_in_order
from hindcast.episodes.block import Block


def make_here(job: Job, progress: Progress) -> None:
    """Make all partitions that are not made.

    Raises:
        DataError: rows that make no whole episodes under the rules.
        StorageError: it cannot be written.
    """
    todo = sorted(set(range(job.partitions)) - made(job.folder))
    if not todo:
        return
    if job.in_order:
        parts = Parts(job)
        for done, number in enumerate(todo):
            progress(done, len(todo))
            make_in_order(parts, number)
        progress(len(todo), len(todo))
        return
    total = len(job.parts) + len(todo)
    steps: dict[int, list[Steps]] = {number: [] for number in todo}
    blocks: dict[int, list[Block]] = {number: [] for number in todo}
    for number in range(len(job.parts)):
        progress(number, total)
        rows, episodes = job.scatter(number)
        for partition, part in rows:
            if partition in steps:
                steps[partition].append(part)
        for partition, block in episodes:
            if partition in blocks:
                blocks[partition].append(block)
    for done, number in enumerate(todo):
        progress(len(job.parts) + done, total)
        make_grouped(job, number, steps.pop(number), blocks.pop(number))
    progress(total, total)
