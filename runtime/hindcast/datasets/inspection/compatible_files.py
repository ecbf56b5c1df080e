"""Which of several foreign files can be used together, and what is wrong with the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hindcast import formatting
from hindcast.datasets.inspection.problems import Problem, problem_of
from hindcast.datasets.prepare.reading import Reading
from hindcast.datasets.prepare.source_files import Found, find, recognised
from hindcast.episodes.block import Block
from hindcast.errors import DataError
from hindcast.formats.rows import Rows
from hindcast.formats.spec import DataSpec
from hindcast.storage.location import Location


class Usable(NamedTuple):
    """Foreign files, read to their ends.

    Attributes:
        files: those that can be read and agree with each other.
        problems: what is wrong with each of the others.
    """

    files: list[Location]
    problems: list[Problem]


class _Read(NamedTuple):
    location: Location
    spec: DataSpec
    steps: int


def usable(reading: Reading) -> Usable:
    """Read every file; files that differ in columns, shapes or spaces are left to those with the most timesteps.

    Raises:
        DataError: nothing there.
        StorageError: storage that refuses or fails.
    """
    known, _ = recognised(find(reading), reading)
    read: list[_Read] = []
    problems: list[Problem] = []
    for one in known:
        try:
            read.append(_read(one))
        except DataError as error:
            problems.append(problem_of(str(one.location), error))
    families = _families(read)
    if not families:
        return Usable([], problems)
    usual = families[0][0]
    for family in families[1:]:
        problems += [_drift(file, usual) for file in family]
    return Usable([file.location for file in families[0]], problems)


def _read(found: Found) -> _Read:
    """A file's spaces, and what its columns hold: of numbers no more than that they are, since they are widened."""
    form, location, options = found
    spec, steps = form.describe(location, options), 0
    for piece in form.pieces(location, options):
        for part in form.read(piece, options):
            spec = _with_leaves(spec, part, location)
            steps += part.num_steps if isinstance(part, Block) else len(part)
    return _Read(location, spec, steps)


def _with_leaves(spec: DataSpec, part: Rows | Block, location: Location) -> DataSpec:
    columns = {
        name: column.astype(np.float64, copy=False) if column.dtype.kind in "iuf" else column
        for name, column in part.columns.items()
    }
    block = Block({name: column[:0] for name, column in columns.items()}, *_NO_EPISODES)
    own = DataSpec.of_block(block, spec.observation_space, spec.action_space, spec.environment)
    difference = spec.difference(own) if spec.leaves else None
    if difference:
        raise DataError(f"{location} differs from place to place: {difference}")
    return spec.merge(own)


_NO_EPISODES = (
    np.zeros(0, np.int64),
    np.zeros(0, object),
    np.zeros(0, np.int64),
    np.zeros(0, np.bool_),
    np.zeros(0, np.bool_),
)


def _families(read: Sequence[_Read]) -> list[list[_Read]]:
    """Files that agree, those with the most timesteps first."""
    families: list[list[_Read]] = []
    for file in read:
        for family in families:
            if not family[0].spec.difference(file.spec):
                family.append(file)
                break
        else:
            families.append([file])
    return sorted(families, key=lambda family: sum(file.steps for file in family), reverse=True)


def _drift(file: _Read, usual: _Read) -> Problem:
    message = (
        f"{file.location} cannot be one dataset with {usual.location}: {usual.spec.difference(file.spec)}; its "
        f"{formatting.plural(file.steps, 'timestep')} are not counted"
    )
    return Problem(severity="error", kind="drift", message=message, path=str(file.location))
