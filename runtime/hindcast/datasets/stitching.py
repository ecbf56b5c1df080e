"""Join episodes that other tools cut at the ends of row groups and files, and drop repeated ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hindcast.datasets.content import contents_of, find_repeats
from hindcast.datasets.episode_dataset import EpisodeDataset
from hindcast.datasets.file_index import IndexedFile
from hindcast.formats.entries import EpisodePart
from hindcast.formats.spec import DataSpec

StoredRow = tuple[int, int, int]  # file, row group, stored row


def stitch(files: Sequence[IndexedFile]) -> list[IndexedFile]:
    """Mark the stored rows that continue the episode of the previous row, across row groups and files."""
    if not any(file.episode_parts for file in files):
        return list(files)
    continued_rows: set[StoredRow] = set()
    previous: tuple[EpisodePart, int] | None = None
    for row, part, steps, _ in _stored_rows(files):
        if part is not None and previous is not None and _follows(part, *previous):
            continued_rows.add(row)
        previous = None if part is None else (part, steps)
    return _mark_rows(files, continued_rows, "continued")


def drop_repeats(files: list[IndexedFile], spec: DataSpec) -> tuple[list[IndexedFile], int]:
    """Mark the rows of episodes that repeat an earlier one as dropped.

    Args:
        files: the stitched files.
        spec: spec of all files.

    Returns:
        The files, and the number of dropped episodes.
    """
    # Within one folder that Hindcast wrote, no episode repeats another. Otherwise only episodes whose id occurs again
    # are read.
    hindcast_folders = {str(file.location.parent()) for file in files if not file.episode_parts}
    if len(hindcast_folders) < 2 and not any(file.episode_parts for file in files):
        return files, 0
    dataset = EpisodeDataset(spec, files)
    episodes: list[tuple[EpisodePart | None, list[StoredRow]]] = []
    for row, part, _, continues in _stored_rows(files):
        if not episodes or not continues:
            episodes.append((part, []))
        episodes[-1][1].append(row)
    if hindcast_folders:
        ids = dict(enumerate(dataset.episode_table().eps_id.tolist()))
    else:
        ids = {number: part.eps_id for number, (part, _) in enumerate(episodes) if part is not None}
    repeats = find_repeats(ids, lambda numbers: contents_of(dataset, numbers))
    dropped_rows = {row for number in repeats.duplicates for row in episodes[number][1]}
    return _mark_rows(files, dropped_rows, "dropped"), len(repeats.duplicates)


def _stored_rows(files: Sequence[IndexedFile]) -> Iterator[tuple[StoredRow, EpisodePart | None, int, bool]]:
    """Yield all stored rows in order, each with its episode part, its timesteps, and whether it is `continued`.

    The episode part is None in files that Hindcast wrote, whose rows have not been read.
    """
    for number, file in enumerate(files):
        parts = iter(file.episode_parts)
        for i, group in enumerate(file.entry.row_groups):
            continued_rows = set(group.continued)
            for row, steps in enumerate(group.lengths):
                yield (number, i, row), next(parts, None), steps, row in continued_rows


def _mark_rows(files: Sequence[IndexedFile], stored_rows: set[StoredRow], field: str) -> list[IndexedFile]:
    """Add rows to the field `continued` or `dropped` of their row groups."""
    rows: dict[tuple[int, int], list[int]] = {}
    for number, i, row in stored_rows:
        rows.setdefault((number, i), []).append(row)
    marked_files: list[IndexedFile] = []
    for number, file in enumerate(files):
        groups = tuple(
            group.model_copy(
                update={field: tuple(sorted({*getattr(group, field), *rows.get((number, i), ())}))}
            )
            for i, group in enumerate(file.entry.row_groups)
        )
        marked_files.append(file._replace(entry=file.entry.model_copy(update={"row_groups": groups})))
    return marked_files


def _follows(part: EpisodePart, previous: EpisodePart, steps: int) -> bool:
    if part.eps_id != previous.eps_id or previous.ended:
        return False
    return part.t_started == previous.t_started + steps
