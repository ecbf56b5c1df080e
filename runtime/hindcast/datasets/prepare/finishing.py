"""From complete partitions to one dataset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import orjson

from hindcast.datasets.assembly.findings import Findings
from hindcast.datasets.episode_dataset import EpisodeDataset
from hindcast.datasets.footers import Indexed
from hindcast.datasets.prepare.job import Job
from hindcast.datasets.prepare.partitions import Made, read_made, write_blocks
from hindcast.episodes.block import Block
from hindcast.errors import DataError
from hindcast.formats.dataset_folder.commits import remove_orphans
from hindcast.formats.dataset_folder.manifest import Manifest, read_manifest, write_manifest
from hindcast.formats.spec import DataSpec, Leaf
from hindcast.storage.location import Location

PREPARED = "prepared.json"


def finish(job: Job, notes: tuple[str, ...]) -> None:
    """Record what was found, then list all files in a manifest, which makes it a dataset.

    Args:
        job: all of its partitions are made.
        notes: what else a user should know.

    Raises:
        DataError: partitions that do not make one dataset, or no episodes.
    """
    commits = [read_made(job.folder, number) for number in range(job.partitions)]
    findings = Findings.merged([commit.findings for commit in commits])
    if not findings.timesteps:
        wanted = "pass `filter`" if job.rules.is_filtered else "make an episode"
        raise DataError(f"{job.parts[0].path if job.parts else job.folder} holds no rows that {wanted}")
    spec = _common(commits)
    commits = [_widened(job.folder, commit, spec) for commit in commits]
    files = tuple(file for commit in commits for file in commit.files)
    document = {
        "notes": [*findings.sentences(), *notes, *_note_on_actions(spec)],
        "findings": findings.to_json(),
        "files": list(dict.fromkeys(part.path for part in job.parts)),
        "partitions": job.partitions,
    }
    job.folder.child(PREPARED).write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))
    if job.folder.is_local:  # elsewhere another machine may be writing
        remove_orphans(job.folder, {file.path for file in files})
    write_manifest(job.folder, Manifest(spec=spec.to_json(), files=files))


def notes_of(folder: Location) -> tuple[str, ...] | None:
    """What preparing a finished folder found; None if it is not finished.

    Raises:
        DataError: files in it that cannot be read.
    """
    if read_manifest(folder) is None:
        return None
    return tuple(orjson.loads(folder.child(PREPARED).read_bytes())["notes"])


def _note_on_actions(spec: DataSpec) -> tuple[str, ...]:
    if spec.normalized_actions or not spec.has_float_actions:
        return ()
    return (
        "actions are read in the environment's units; if they are in [-1, 1], set actionsNormalized: true",
    )


def _common(commits: Sequence[Made]) -> DataSpec:
    """What all partitions can be stored as: numbers in the narrowest dtype that holds those of each."""
    specs = [DataSpec.from_json(commit.spec) for commit in commits if commit.spec is not None]
    common = specs[0]
    for spec in specs[1:]:
        leaves = {**spec.leaves, **common.leaves}
        for name in common.leaves.keys() & spec.leaves.keys():
            leaves[name] = _wider(name, common.leaves[name], spec.leaves[name])
        common = replace(common, leaves=leaves)
        difference = common.difference(replace(spec, leaves={name: leaves[name] for name in spec.leaves}))
        if difference:
            raise DataError(f"the data differ from file to file: {difference}")
    return common


def _wider(name: str, one: Leaf, other: Leaf) -> Leaf:
    if one == other:
        return one
    if one.dtype is None or other.dtype is None or one.shape != other.shape:
        raise DataError(f"{name!r} is {one} in some episodes and {other} in others: all must be the same")
    return Leaf(np.result_type(one.dtype, other.dtype), one.shape)


def _widened(folder: Location, commit: Made, spec: DataSpec) -> Made:
    """The partition in the dtypes of all, rewritten if necessary."""
    if commit.spec is None or not DataSpec.from_json(commit.spec).difference(spec):
        return commit
    blocks = [_cast(block, spec) for block in _blocks(folder, commit, DataSpec.from_json(commit.spec))]
    return write_blocks(folder, commit.range, spec, blocks, commit.findings)


def _blocks(folder: Location, commit: Made, spec: DataSpec) -> list[Block]:
    dataset = EpisodeDataset(spec, [Indexed(folder.child(file.path), file, spec) for file in commit.files])
    return [dataset.read(unit) for unit in dataset.units]


def _cast(block: Block, spec: DataSpec) -> Block:
    columns: dict[str, Any] = {}
    for name, column in block.columns.items():
        columns[name] = (
            column if column.dtype == object else column.astype(spec.leaves[name].dtype, copy=False)
        )
    return block.with_columns(columns)
