"""Joining episodes that others cut at the ends of row groups and files, and leaving out those that they repeat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hindcast.datasets.content import contents_of, find_repeats
from hindcast.datasets.episode_dataset import EpisodeDataset
from hindcast.datasets.footers import Indexed
from hindcast.formats.entries import EpisodePart
from hindcast.formats.spec import DataSpec

StoredRow = tuple[int, int, int]  # file, row group, stored row


class Stitched(NamedTuple):
    """An episode: the stored rows that make it, in order.

    Attributes:
        eps_id: its id; None in a file that Hindcast wrote, whose rows are not known yet.
        rows: which they are.
    """

    eps_id: str | None
    rows: list[StoredRow]


def stitch(files: Sequence[Indexed]) -> list[Indexed]:
    """The files, with runs marked that continue the one before, across row groups and files."""
    continued: set[StoredRow] = set()
    before: tuple[EpisodePart, int] | None = None
    for number, file in enumerate(files):
        runs = iter(file.runs)
        for i, group in enumerate(file.entry.row_groups if file.runs else ()):
            for row, length in enumerate(group.lengths):
                run = next(runs)
                if before is not None and _follows(run, *before):
                    continued.add((number, i, row))
                before = run, length
        if not file.runs:
            before = None
    return _marked(files, continued, "continued")


def drop_repeated(files: list[Indexed], spec: DataSpec) -> tuple[list[Indexed], int]:
    """The files, stitched, with episodes left out that repeat an earlier one.

    Those of files that Hindcast wrote are there once; of the others, only episodes whose id occurs again are read.

    Returns:
        The files, and how many episodes were left out.
    """
    if not any(file.runs for file in files):
        return files, 0
    episodes = _stitched_episodes(files)
    ids = {number: episode.eps_id for number, episode in enumerate(episodes) if episode.eps_id is not None}
    repeats = find_repeats(ids, lambda several: contents_of(EpisodeDataset(spec, files), several))
    dropped = {row for number in repeats.same for row in episodes[number].rows}
    return _marked(files, dropped, "dropped"), len(repeats.same)


def _stitched_episodes(files: Sequence[Indexed]) -> list[Stitched]:
    """The episodes of files that were stitched, in the dataset's order."""
    episodes: list[Stitched] = []
    for number, file in enumerate(files):
        runs = iter(file.runs)
        for i, group in enumerate(file.entry.row_groups):
            continued = set(group.continued)
            for row in range(group.rows):
                run = next(runs, None)
                if not episodes or row not in continued:
                    episodes.append(Stitched(None if run is None else run.eps_id, []))
                episodes[-1].rows.append((number, i, row))
    return episodes


def _marked(files: Sequence[Indexed], stored: set[StoredRow], field: str) -> list[Indexed]:
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


def _follows(run: EpisodePart, before: EpisodePart, steps: int) -> bool:
    if run.eps_id != before.eps_id or before.ended:
        return False
    return run.t_started == before.t_started + steps
