"""Write the partitions of a prepared dataset: their episodes, a commit of each, and finally the manifest."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
import orjson

from hindcast.datasets.assembly.blocks import assemble
from hindcast.datasets.assembly.rules import Findings, apply_unfinished_rule
from hindcast.datasets.assembly.steps import NO_EXACT_DTYPE, ONLY_SOME_FILES, Steps, is_required
from hindcast.datasets.casting import cast_columns
from hindcast.datasets.prepare.job import Job
from hindcast.datasets.prepare.sorted_files import SORTED_FILES
from hindcast.datasets.prepare.stored_order import assign_episode_ids, cut_partitions
from hindcast.datasets.target import Target
from hindcast.episodes.block import Block
from hindcast.errors import DataError
from hindcast.formats.dataset_folder.commits import (
    Commit,
    commit_location,
    committed_files,
    committed_ranges,
    remove_orphans,
    write_commit,
)
from hindcast.formats.dataset_folder.manifest import Manifest, read_manifest, write_manifest
from hindcast.formats.lossless import (
    find_rounded_row,
    is_same_up_to_ones,
)
from hindcast.formats.spec import DataSpec, Leaf, loses_digits
from hindcast.storage.location import Location

PREPARED_FILE: Final = "prepared.json"
NOTE_ON_ACTIONS: Final = (
    "actions are read in the environment's units; if they are in [-1, 1], set actionsNormalized: true"
)
NOTE_ON_NORMALIZED_ACTIONS: Final = (
    "actions are read as normalised to [-1, 1]; if they are in the environment's units, set actionsNormalized: "
    "false"
)
_NO_ENDS: Final = (
    "nothing in the data says where episodes end (no id, flag that is set or timestep), so each file was read as one "
    "episode; name such a column under `schema`, or set prepare.episodes to File if that is right"
)
_DIGEST_BYTES: Final = 8


class PartitionCommit(Commit):
    """The commit of a partition. It includes the spec of the partition's files, so that both are replaced together.

    Attributes:
        spec: spec of its blocks, as JSON; None if there are no blocks.
        findings: findings in its rows.
        ids: concatenated digests of the ids of its rows, 16 hexadecimal digits each; empty if rows were grouped by id,
            or have no ids, and after `finish` has rewritten the partition, when they are no longer used.
    """

    spec: dict[str, Any] | None
    findings: Findings
    ids: str = ""

    remedy: ClassVar[str] = "delete {folder}; the next run prepares it again"


def find_missing_partitions(job: Job) -> list[int]:
    """Return the numbers of the partitions that are not committed yet, ascending."""
    return sorted(set(range(job.num_partitions)).difference(committed_ranges(job.folder)))


def make_ordered_partitions(job: Job, numbers: Sequence[int]) -> Iterator[int]:
    """Make partitions of rows and episodes in stored order, and yield the number of each partition when it is made.

    Args:
        job: the preparation.
        numbers: numbers of the partitions, ascending. Adjacent partitions are made in one pass over their parts.

    Raises:
        DataError: as `make_partition`, or data are damaged.
        StorageError: the folder cannot be written.
    """
    # Adjacent numbers have the same difference from their position in the list.
    for _, adjacent_pairs in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        adjacent_numbers = [number for _, number in adjacent_pairs]
        for number, contents in cut_partitions(job, adjacent_numbers[0], adjacent_numbers[-1] + 1):
            make_partition(job, number, contents)
            yield number


def make_partition(job: Job, number: int, contents: Sequence[Steps | Block]) -> None:
    """Make a partition from its contents, and commit it; a partition that is already committed is left as it is.

    Args:
        job: the preparation.
        number: number of the partition.
        contents: all rows of its episodes, in any order of their parts, and complete episodes.

    Raises:
        DataError: rows do not form complete episodes under the rules.
        StorageError: the folder cannot be written.
    """
    # Ray may repeat a task that has committed the partition.
    if commit_location(job.folder, number).exists():
        return
    row_chunks = [chunk for chunk in contents if isinstance(chunk, Steps)]
    row_chunks.sort(key=lambda chunk: (int(chunk.part[0]), int(chunk.row[0])))
    results: list[tuple[Block | None, Findings]] = [
        apply_unfinished_rule(chunk, job.rules) for chunk in contents if isinstance(chunk, Block)
    ]
    ids = ""
    if row_chunks:
        steps = Steps.concat(row_chunks, job.rules.paths)
        if job.is_in_order:
            steps = assign_episode_ids(steps, job)
            ids = _digest_ids(steps) if job.rules.is_grouped else ""
        results.append(assemble(steps, job.rules))
    blocks = [block for block, _ in results if block is not None]
    spec = None
    if blocks:
        blocks = [_concat_blocks(blocks)]
        leaves = DataSpec.from_block(blocks[0]).leaves
        leaves |= {
            name: leaves[name].with_names(names)
            for name, names in job.rules.names_in_episodes.items()
            if name in leaves
        }
        spec = replace(job.spec, leaves=leaves)
    _write_partition(
        job.folder, number, spec, blocks, Findings.merge([finding for _, finding in results]), ids=ids
    )


def has_split_episodes(folder: Location, num_partitions: int) -> bool:
    """Return True if rows of one id are in several partitions that were cut from the stored order."""
    seen_digests: set[str] = set()
    for number in range(num_partitions):
        ids = PartitionCommit.read(folder, number).ids
        digests = {
            ids[offset : offset + 2 * _DIGEST_BYTES] for offset in range(0, len(ids), 2 * _DIGEST_BYTES)
        }
        if not seen_digests.isdisjoint(digests):
            return True
        seen_digests |= digests
    return False


def _write_partition(
    folder: Location,
    number: int,
    spec: DataSpec | None,
    blocks: Sequence[Block],
    findings: Findings,
    *,
    ids: str = "",
) -> PartitionCommit:
    """Write a partition's episodes, then its commit, which replaces an earlier commit, and return the commit."""
    range_commit = Target(folder).write_range(spec or DataSpec(), number, 0, blocks)
    commit = PartitionCommit(
        **dict(range_commit), spec=None if spec is None else spec.to_json(), findings=findings, ids=ids
    )
    write_commit(folder, commit)
    return commit


def _digest_ids(steps: Steps) -> str:
    """Return `PartitionCommit.ids` of a partition's rows."""
    # Digests keep commits small. If two digests collide, rows are grouped by id although it is not necessary.
    used_ids = steps.episode_ids[np.unique(steps.episode)].tolist()
    return "".join(hashlib.blake2b(name.encode(), digest_size=_DIGEST_BYTES).hexdigest() for name in used_ids)


def _concat_blocks(blocks: Sequence[Block]) -> Block:
    try:
        return Block.concat(blocks)
    except ValueError as error:
        raise DataError(f"files differ: {error}") from error


def finish(job: Job, notes: tuple[str, ...]) -> None:
    """Finish the dataset: store the findings of all partitions and the notes, then the manifest.

    Raises:
        DataError: the partitions do not form one dataset, or there are no episodes.
    """
    commits = [PartitionCommit.read(job.folder, number) for number in range(job.num_partitions)]
    findings = Findings.merge([commit.findings for commit in commits])
    if not findings.timesteps:
        requirement = "pass `filter`" if job.rules.is_filtered else "form an episode"
        options = job.parts[0].options.mapper_training.get("options", {}) if job.parts else {}
        if (buffer := options.get("prelearner_buffer_class")) is not None:
            requirement += f" after the pre-learner's buffer {buffer}: its sample must return episodes"
        raise DataError(f"{job.describe_files()} holds no rows that {requirement}")
    spec, left_out = _merge_specs(commits)
    rounded_leaves = _find_rounded_columns(job.folder, commits, spec)
    spec = replace(
        spec, leaves={name: leaf for name, leaf in spec.leaves.items() if name not in rounded_leaves}
    )
    left_out |= dict.fromkeys(rounded_leaves, NO_EXACT_DTYPE)
    findings = findings.model_copy(update={"left_out": left_out | findings.left_out})
    commits = [_widen_partition(job.folder, commit, spec) for commit in commits]
    files = committed_files(commits)
    warnings = list(findings.warnings())
    if findings.has_no_ends and not job.rules.is_grouped and job.rules.spec.episodes == "Auto":
        warnings.append(_NO_ENDS)
    document = {
        "notes": [*findings.sentences(), *notes, *_make_action_notes(spec)],
        "warnings": warnings,
        "findings": findings.to_json(),
        "files": list(dict.fromkeys(part.path for part in job.parts)),
        "partitions": job.num_partitions,
    }
    job.folder.child(PREPARED_FILE).write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))
    # A task that still reads these files makes nothing, since all partitions are committed.
    job.folder.child(SORTED_FILES).delete()
    if job.folder.is_local:  # in other storage, another machine may be writing the same partitions
        remove_orphans(job.folder, commits)
    write_manifest(job.folder, Manifest(spec=spec.to_json(), files=files))


class PreparationNotes(NamedTuple):
    """The results of a finished preparation that concern the user.

    Attributes:
        notes: sentences for the user.
        warnings: sentences on what may be a mistake.
        findings: the findings themselves.
        files: paths of the files that were read; they had rows.
    """

    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    findings: Findings
    files: tuple[str, ...]


def read_notes(folder: Location) -> PreparationNotes | None:
    """Read the notes of a finished preparation; None if it is not finished.

    Raises:
        DataError: a file cannot be read.
    """
    if read_manifest(folder) is None:
        return None
    document = orjson.loads(folder.child(PREPARED_FILE).read_bytes())
    findings = Findings.model_validate(document["findings"])
    notes, warnings, files = (tuple(document[name]) for name in ("notes", "warnings", "files"))
    return PreparationNotes(notes, warnings, findings, files)


def _make_action_notes(spec: DataSpec) -> tuple[str, ...]:
    if not spec.has_float_actions:
        return ()
    return (NOTE_ON_NORMALIZED_ACTIONS if spec.normalized_actions else NOTE_ON_ACTIONS,)


def _merge_specs(commits: Sequence[PartitionCommit]) -> tuple[DataSpec, dict[str, str]]:
    """Return the common spec of all partitions, of which at least one has episodes.

    A dtype is the narrowest that can hold the numbers of all partitions. Columns that differ and are not required are
    left out.

    Returns:
        The spec, and the columns that it leaves out with the reason of each.

    Raises:
        DataError: the partitions cannot be one dataset.
    """
    specs = [DataSpec.from_json(commit.spec) for commit in commits if commit.spec is not None]
    left_out = _find_differing_columns(specs)
    specs = [
        replace(spec, leaves={name: leaf for name, leaf in spec.leaves.items() if name not in left_out})
        for spec in specs
    ]
    common_spec = specs[0]
    for spec in specs[1:]:
        leaves = {**spec.leaves, **common_spec.leaves}
        for name in common_spec.leaves.keys() & spec.leaves.keys():
            leaves[name] = _merge_leaves(name, common_spec.leaves[name], spec.leaves[name])
        common_spec = replace(common_spec, leaves=leaves)
        difference = common_spec.difference(
            replace(spec, leaves={name: leaves[name] for name in spec.leaves})
        )
        if difference:
            raise DataError(f"the data differ from file to file: {difference}")
    return common_spec, dict.fromkeys(left_out, ONLY_SOME_FILES)


def _find_differing_columns(specs: Sequence[DataSpec]) -> list[str]:
    """Return the leaves that a spec lacks, or has in a form that cannot be merged.

    Leaves that training requires are never returned: they cannot be left out.
    """
    names = dict.fromkeys(name for spec in specs for name in spec.required_leaves)
    return [
        name
        for name in names
        if not is_required(name)
        and not all(
            name in spec.leaves and _can_merge(name, spec.leaves[name], specs[0].leaves[name])
            for spec in specs
        )
    ]


def _can_merge(name: str, first: Leaf, second: Leaf) -> bool:
    if first == second or first.dtype is None or second.dtype is None:
        return first == second
    if is_required(name) and loses_digits(first.dtype, second.dtype):
        return False
    return is_same_up_to_ones(first.shape, second.shape)


def _merge_leaves(name: str, first: Leaf, second: Leaf) -> Leaf:
    if not _can_merge(name, first, second):
        raise DataError(f"{name!r} is {first} in some episodes and {second} in others: all must be the same")
    return first.widen(second)


def _find_rounded_columns(folder: Location, commits: Sequence[PartitionCommit], spec: DataSpec) -> list[str]:
    """Return the leaves that are not required, and in which the common dtype would round an integer of a partition."""
    rounded_leaves: dict[str, None] = {}
    for commit in commits:
        partition_spec = DataSpec() if commit.spec is None else DataSpec.from_json(commit.spec)
        dtypes = {
            name: leaf.dtype
            for name, leaf in spec.leaves.items()
            if leaf.dtype is not None and name in partition_spec.leaves and not is_required(name)
        }
        if all(partition_spec.leaves[name].dtype == dtype for name, dtype in dtypes.items()):
            continue
        for block in Target(folder).read_blocks(partition_spec, commit.files):
            rounded_leaves |= {
                name: None
                for name, dtype in dtypes.items()
                if find_rounded_row(block.columns[name], dtype) is not None
            }
    return list(rounded_leaves)


def _widen_partition(folder: Location, commit: PartitionCommit, spec: DataSpec) -> PartitionCommit:
    """Rewrite a partition in the common dtypes, if necessary, and return its commit."""
    if commit.spec is None or not DataSpec.from_json(commit.spec).difference(spec):
        return commit
    partition_spec = DataSpec.from_json(commit.spec)
    blocks = [cast_columns(block, spec) for block in Target(folder).read_blocks(partition_spec, commit.files)]
    return _write_partition(folder, commit.range, spec, blocks, commit.findings)
