"""Which of several files can be used together, and what is wrong with the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from hindcast import formatting
from hindcast.datasets.inspection.problems import Problem, problem_of
from hindcast.datasets.prepare.reading import Reading
from hindcast.datasets.prepare.source_files import Found, find, recognised
from hindcast.episodes.block import Block
from hindcast.errors import DataError
from hindcast.formats.rows import Rows
from hindcast.formats.spec import DataSpec, leaf_of
from hindcast.storage.location import Location


class Described(NamedTuple):
    """A file, what it holds, and how many timesteps."""

    location: Location
    spec: DataSpec
    steps: int


class Compatible(NamedTuple):
    """Files that can be used together.

    Attributes:
        numbers: which of the files they are.
        spec: what they hold together.
        problems: one for each other file.
    """

    numbers: list[int]
    spec: DataSpec
    problems: list[Problem]


def compatible(files: Sequence[Described]) -> Compatible:
    """The largest group, by timesteps, of files that agree in columns, dtypes, shapes and spaces."""
    groups: list[tuple[DataSpec, list[int]]] = []
    for number, file in enumerate(files):
        for i, (spec, members) in enumerate(groups):
            if not spec.difference(file.spec):
                groups[i] = (spec if spec is file.spec else spec.merge(file.spec), [*members, number])
                break
        else:
            groups.append((file.spec, [number]))
    if not groups:
        return Compatible([], DataSpec(), [])
    (spec, members), *others = sorted(
        groups, key=lambda group: sum(files[i].steps for i in group[1]), reverse=True
    )
    usual = files[members[0]].location
    return Compatible(members, spec, [_drift(files[i], usual, spec) for _, group in others for i in group])


def _drift(file: Described, usual: Location, spec: DataSpec) -> Problem:
    message = (
        f"{file.location} cannot be one dataset with {usual}: {spec.difference(file.spec)}; its "
        f"{formatting.plural(file.steps, 'timestep')} are not counted"
    )
    return Problem(severity="error", kind="drift", message=message, path=str(file.location))


def usable(reading: Reading) -> tuple[list[Location], list[Problem]]:
    """Read every file of an input to its end: those that can be used together, and what is wrong with the others.

    Raises:
        DataError: nothing is there.
        StorageError: storage that refuses or fails.
    """
    known, _ = recognised(find(reading), reading)
    read: list[Described] = []
    problems: list[Problem] = []
    for one in known:
        try:
            read.append(_read(one))
        except DataError as error:
            problems.append(problem_of(str(one.location), error))
    found = compatible(read)
    return [read[i].location for i in found.numbers], [*problems, *found.problems]


def _read(found: Found) -> Described:
    """A file's spaces, and the kinds of its columns. All numbers count as float64, since preparing widens them."""
    form, location, options = found
    spec, steps = form.describe(location, options), 0
    for piece in form.pieces(location, options):
        for part in form.read(piece, options):
            spec = _with_leaves(spec, part, location)
            steps += part.num_steps if isinstance(part, Block) else len(part)
    return Described(location, spec, steps)


def _with_leaves(spec: DataSpec, part: Rows | Block, location: Location) -> DataSpec:
    leaves = {
        name: leaf_of(name, column[:0].astype(np.float64) if column.dtype.kind in "iuf" else column)
        for name, column in part.columns.items()
    }
    own = replace(spec, leaves=leaves)
    difference = spec.difference(own) if spec.leaves else None
    if difference:
        raise DataError(f"{location} differs from place to place: {difference}")
    return spec.merge(own)
