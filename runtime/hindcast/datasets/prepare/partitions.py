"""Writing a partition: its episodes, and the commit that makes it count and says what was found."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from pydantic import ValidationError

from hindcast.datasets.assembly.blocks import assemble
from hindcast.datasets.assembly.findings import Findings
from hindcast.datasets.assembly.rules import keep_whole_episodes
from hindcast.datasets.assembly.steps import Steps
from hindcast.datasets.prepare.in_order import Parts, episodes_in_order
from hindcast.datasets.prepare.job import Job
from hindcast.datasets.writer import BlockWriter
from hindcast.episodes.block import Block
from hindcast.errors import DataError
from hindcast.formats.dataset_folder.commits import COMMITS, Commit, commit_location, file_stem, write_commit
from hindcast.formats.dataset_folder.manifest import first_problem
from hindcast.formats.entries import FileEntry
from hindcast.formats.spec import DataSpec
from hindcast.storage.location import Location

_DIGEST_BYTES: Final = 8


class Made(Commit):
    """The commit of a partition. It also says what its files hold, so that both change together.

    Attributes:
        spec: of its blocks, as JSON; None if there are none.
        findings: what was found in its rows.
        ids: digests of the ids that its rows have, hexadecimal, 16 digits each; empty if rows were brought together.
    """

    spec: dict[str, Any] | None
    findings: Findings
    ids: str = ""


def made(folder: Location) -> set[int]:
    """The partitions that are complete."""
    numbers = (entry.relative.removesuffix(".json") for entry in folder.child(COMMITS).files())
    return {int(number) for number in numbers if number.isdecimal()}


def is_made(folder: Location, number: int) -> bool:
    """Whether a partition is complete."""
    return commit_location(folder, number).exists()


def make_grouped(job: Job, number: int, steps: Sequence[Steps], blocks: Sequence[Block]) -> None:
    """Make a partition of rows that were brought together, and of complete episodes.

    Args:
        job: the preparation.
        number: of the partition.
        steps: its rows, in any order.
        blocks: its complete episodes.

    Raises:
        DataError: rows that do not form complete episodes under the rules.
        StorageError: it cannot be written.
    """
    in_order = sorted(steps, key=lambda part: (int(part.piece[0]), int(part.row[0])))
    found: list[Steps | Block] = list(blocks)
    if in_order:
        found.append(Steps.concat(in_order, job.rules.paths))
    _make(job, number, found)


def make_in_order(parts: Parts, number: int) -> None:
    """Make a partition of rows and episodes in stored order.

    Raises:
        DataError: as `make_grouped`, damaged data, or rows of an episode that are not adjacent.
        StorageError: it cannot be written.
    """
    _make(parts.job, number, episodes_in_order(parts, number))


def is_any_apart(folder: Location, partitions: int) -> bool:
    """Whether rows of one id are in several partitions that were cut from rows in stored order."""
    seen: set[str] = set()
    for number in range(partitions):
        ids = read_made(folder, number).ids
        own = {ids[at : at + 2 * _DIGEST_BYTES] for at in range(0, len(ids), 2 * _DIGEST_BYTES)}
        if not seen.isdisjoint(own):
            return True
        seen |= own
    return False


def read_made(folder: Location, number: int) -> Made:
    """What is known of a complete partition.

    Raises:
        DataError: its commit cannot be read.
    """
    place = commit_location(folder, number)
    try:
        return Made.model_validate_json(place.read_bytes())
    except ValidationError as error:
        raise DataError(
            f"{place} cannot be read ({first_problem(error)}): delete {folder}, which is then made again"
        ) from error


def write_blocks(
    folder: Location,
    number: int,
    spec: DataSpec | None,
    blocks: Sequence[Block],
    findings: Findings,
    *,
    ids: str = "",
) -> Made:
    """Write a partition's episodes, then its commit, which takes the place of an earlier one."""
    entries: tuple[FileEntry, ...] = ()
    if spec is not None:
        with BlockWriter(folder, spec, file_stem(number, uuid.uuid4().hex[:8])) as writer:
            for block in blocks:
                writer.write(block)
            entries = writer.close()
    commit = Made(
        range=number,
        files=entries,
        episodes=findings.episodes,
        timesteps=findings.timesteps,
        first=0,
        spec=None if spec is None else spec.to_json(),
        findings=findings,
        ids=ids,
    )
    write_commit(folder, commit)
    return commit


def _make(job: Job, number: int, found: Iterable[Steps | Block]) -> None:
    if is_made(job.folder, number):
        return
    blocks: list[Block] = []
    findings: list[Findings] = []
    ids = ""
    for part in found:
        if isinstance(part, Steps):
            ids += _digests(part) if job.in_order and job.rules.is_grouped else ""
            block, finding = assemble(part, job.rules)
        else:
            block, finding = keep_whole_episodes(part, job.rules)
        findings.append(finding)
        if block is not None:
            blocks.append(block)
    block = _together(blocks)
    spec = None
    if block is not None:
        spec = replace(job.spec, leaves=DataSpec.of_block(block).leaves)
    write_blocks(
        job.folder, number, spec, [] if block is None else [block], Findings.merged(findings), ids=ids
    )


def _digests(steps: Steps) -> str:
    used = steps.names[np.unique(steps.episode)].tolist()
    return "".join(hashlib.blake2b(name.encode(), digest_size=_DIGEST_BYTES).hexdigest() for name in used)


def _together(blocks: Sequence[Block]) -> Block | None:
    if not blocks:
        return None
    try:
        return Block.concat(blocks)
    except ValueError as error:
        raise DataError(f"files differ: {error}") from error
