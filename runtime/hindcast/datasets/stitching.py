"""Joining episodes that others cut at the ends of row groups and files, and leaving out those that they repeat."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from hindcast.datasets.content import contents_of, find_repeats
from hindcast.datasets.episode_dataset import EpisodeDataset
from hindcast.datasets.footers import Indexed
from hindcast.formats.entries import EpisodePart
from hindcast.formats.spec import DataSpec

Place = tuple[int, int, int]  # file, row group, stored row


class StoredRow(NamedTuple):
    """A row of a file.

    Attributes:
        place: which it is.
        run: what it is of an episode; None in a file that Hindcast wrote, whose rows are not known yet.
        steps: how many it has.
        continues: it is marked as continuing the row before.
    """

    place: Place
    run: EpisodePart | None
    steps: int
    continues: bool


def stitch(files: Sequence[Indexed]) -> list[Indexed]:
    """The files, with runs marked that continue the one before, across row groups and files."""
    if not any(file.runs for file in files):
        return list(files)
    neighbours = pairwise(_stored_rows(files))
    return _marked(files, {row.place for before, row in neighbours if _follows(row, before)}, "continued")


def drop_repeated(files: list[Indexed], spec: DataSpec) -> tuple[list[Indexed], int]:
    """The files, stitched, with episodes left out that repeat an earlier one.

    Those of files that Hindcast wrote are there once; of the others, only episodes whose id occurs again are read.

    Returns:
        The files, and how many episodes were left out.
    """
    if not any(file.runs for file in files):
        return files, 0
    episodes: list[list[StoredRow]] = []
    for row in _stored_rows(files):
        if not episodes or not row.continues:
            episodes.append([])
        episodes[-1].append(row)
    ids = {number: rows[0].run.eps_id for number, rows in enumerate(episodes) if rows[0].run is not None}
    repeats = find_repeats(ids, lambda several: contents_of(EpisodeDataset(spec, files), several))
    dropped = {row.place for number in repeats.same for row in episodes[number]}
    return _marked(files, dropped, "dropped"), len(repeats.same)


def _stored_rows(files: Sequence[Indexed]) -> Iterator[StoredRow]:
    """All rows of all files, in order."""
    for number, file in enumerate(files):
        runs = iter(file.runs)
        for i, group in enumerate(file.entry.row_groups):
            continued = set(group.continued)
            for row, steps in enumerate(group.lengths):
                yield StoredRow((number, i, row), next(runs, None), steps, row in continued)


def _marked(files: Sequence[Indexed], stored: set[Place], field: str) -> list[Indexed]:
    """The files with these rows among the `continued` or `dropped` ones of their row groups."""
    rows: dict[tuple[int, int], list[int]] = {}
    for number, i, row in stored:
        rows.setdefault((number, i), []).append(row)
    marked: list[Indexed] = []
    for number, file in enumerate(files):
        groups = tuple(
            group.model_copy(
                update={field: tuple(sorted({*getattr(group, field), *rows.get((number, i), ())}))}
            )
            for i, group in enumerate(file.entry.row_groups)
        )
        marked.append(file._replace(entry=file.entry.model_copy(update={"row_groups": groups})))
    return marked


def _follows(row: StoredRow, before: StoredRow) -> bool:
    run, earlier = row.run, before.run
    if run is None or earlier is None or run.eps_id != earlier.eps_id or earlier.ended:
        return False
    return run.t_started == earlier.t_started + before.steps
