"""Writing a partition: its episodes, what was found, and the commit that makes it count."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from hindcast.episodes.block import Block
from hindcast.errors import DataError
from hindcast.prepare.assembling import assemble
from hindcast.prepare.findings import Findings
from hindcast.prepare.job import Job
from hindcast.prepare.runs import episodes_of
from hindcast.prepare.steps import Steps
from hindcast.prepare.wholes import keep_wholes
from hindcast.store.commits import COMMITS, Commit, file_stem, read_commits, write_commit
from hindcast.store.entries import FileEntry, Stored
from hindcast.store.filesystem import Location
from hindcast.store.manifest import FOLDER
from hindcast.store.spec import DataSpec
from hindcast.store.writer import EpisodeWriter

_RECORDS = f"{FOLDER}/prepared"


class Record(Stored):
    """What is known of a partition beside its commit.

    Attributes:
        spec: of its blocks, as JSON; None where there are none.
        findings: what came of its rows.
    """

    spec: dict[str, Any] | None
    findings: Findings


def made(folder: Location) -> set[int]:
    """The partitions that are complete."""
    return set(read_commits(folder))


def is_made(folder: Location, number: int) -> bool:
    """Whether a partition is complete."""
    return folder.child(COMMITS, f"{number:06d}.json").exists()


def make_grouped(job: Job, number: int, steps: Sequence[Steps], blocks: Sequence[Block]) -> None:
    """Make a partition of rows that were brought together, and of whole episodes.

    Args:
        job: the preparation.
        number: of the partition.
        steps: its rows, in any order.
        blocks: its whole episodes.

    Raises:
        DataError: rows that make no whole episodes under the rules.
        StorageError: it cannot be written.
    """
    in_order = sorted(steps, key=lambda part: (int(part.piece[0]), int(part.row[0])))
    found: list[Steps | Block] = list(blocks)
    if in_order:
        found.append(Steps.concat(in_order, job.rules.paths))
    _make(job, number, found)


def make_run(job: Job, number: int) -> None:
    """Make a partition of rows and episodes in stored order.

    Raises:
        DataError: as `make_grouped`, or damaged data.
        StorageError: it cannot be written.
    """
    _make(job, number, episodes_of(job, number))


def read_record(folder: Location, number: int) -> Record:
    """What is known of a partition."""
    return Record.model_validate_json(folder.child(_RECORDS, f"{number:06d}.json").read_bytes())


def write_blocks(
    folder: Location, number: int, spec: DataSpec | None, blocks: Sequence[Block], findings: Findings
) -> None:
    """Write a partition's episodes, its record, then its commit."""
    entries: tuple[FileEntry, ...] = ()
    if spec is not None:
        with EpisodeWriter(folder, spec, file_stem(number, uuid.uuid4().hex[:8])) as writer:
            for block in blocks:
                writer.write(block)
            entries = writer.close()
    record = Record(spec=None if spec is None else spec.to_json(), findings=findings)
    folder.child(_RECORDS, f"{number:06d}.json").write_bytes(record.model_dump_json(by_alias=True).encode())
    commit = Commit(
        range=number, files=entries, episodes=findings.episodes, timesteps=findings.timesteps, first=0
    )
    write_commit(folder, commit)


def _make(job: Job, number: int, found: Iterable[Steps | Block]) -> None:
    if is_made(job.folder, number):
        return
    blocks: list[Block] = []
    findings: list[Findings] = []
    for part in found:
        if isinstance(part, Steps):
            block, told = assemble(part, job.rules)
        else:
            block, told = keep_wholes(part, job.rules)
        findings.append(told)
        if block is not None:
            blocks.append(block)
    whole = _together(blocks)
    spec = None
    if whole is not None:
        spec = replace(job.spec, leaves=DataSpec.of_block(whole).leaves)
    write_blocks(job.folder, number, spec, [] if whole is None else [whole], Findings.merged(findings))


def _together(blocks: Sequence[Block]) -> Block | None:
    if not blocks:
        return None
    try:
        return Block.concat(blocks)
    except ValueError as error:
        raise DataError(f"files differ: {error}") from error
