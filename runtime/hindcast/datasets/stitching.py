"""Joining episodes that others cut at the ends of row groups and files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hindcast.datasets.footers import Indexed
from hindcast.formats.entries import RowGroup, Run

Place = tuple[int, int, int]  # file, row group, stored row


class Stitched(NamedTuple):
    """An episode: the stored rows that make it, in order.

    Attributes:
        eps_id: its id; None in a file that Hindcast wrote, whose rows are not known yet.
        places: where the rows are.
    """

    eps_id: str | None
    places: list[Place]


def stitch(files: Sequence[Indexed]) -> list[Indexed]:
    """The files, with runs marked that continue the one before, across row groups and files."""
    stitched: list[Indexed] = []
    before: tuple[Run, int] | None = None
    for file in files:
        groups, runs = [], iter(file.runs)
        for group in file.entry.row_groups:
            continued = set(group.continued)
            for row, length in enumerate(group.lengths if file.runs else ()):
                run = next(runs)
                if before is not None and _follows(run, *before):
                    continued.add(row)
                before = run, length
            groups.append(group.model_copy(update={"continued": tuple(sorted(continued))}))
        if not file.runs:
            before = None
        stitched.append(with_groups(file, groups))
    return stitched


def stitched_episodes(files: Sequence[Indexed]) -> Iterator[Stitched]:
    """The episodes of files that were stitched, in the dataset's order."""
    episode: Stitched | None = None
    for number, file in enumerate(files):
        runs = iter(file.runs)
        for i, group in enumerate(file.entry.row_groups):
            continued = set(group.continued)
            for row in range(group.rows):
                run = next(runs, None)
                if episode is None or row not in continued:
                    if episode is not None:
                        yield episode
                    episode = Stitched(None if run is None else run.eps_id, [])
                episode.places.append((number, i, row))
    if episode is not None:
        yield episode


def with_groups(file: Indexed, groups: Sequence[RowGroup]) -> Indexed:
    """The file with other row groups."""
    return file._replace(entry=file.entry.model_copy(update={"row_groups": tuple(groups)}))


def _follows(run: Run, before: Run, steps: int) -> bool:
    if run.eps_id != before.eps_id or before.ended:
        return False
    return run.t_started == before.t_started + steps
