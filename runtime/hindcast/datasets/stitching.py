"""Join episodes that other tools cut at the ends of row groups and files, and drop repeated episodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hindcast.datasets.content import compute_episode_checksums, find_repeats
from hindcast.datasets.episode_dataset import EpisodeDataset
from hindcast.datasets.file_index import IndexedFile
from hindcast.formats.entries import StoredFragment
from hindcast.formats.spec import DataSpec

StoredRow = tuple[int, int, int]
"""Index of a file, of a row group in the file, and of a row (an episode or a fragment of one) in the row group."""


def stitch(files: Sequence[IndexedFile]) -> list[IndexedFile]:
    """Mark the stored rows that continue the episode of the previous row, across row groups and files."""
    if not any(file.stored_fragments for file in files):
        return list(files)
    continued_rows: set[StoredRow] = set()
    previous: tuple[StoredFragment, int] | None = None
    for stored_row, fragment, num_steps, _ in _iterate_rows(files):
        if fragment is not None and previous is not None and _is_continuation(fragment, *previous):
            continued_rows.add(stored_row)
        previous = None if fragment is None else (fragment, num_steps)
    return _mark_rows(files, continued_rows, "continued")


def drop_repeats(files: list[IndexedFile], spec: DataSpec) -> tuple[list[IndexedFile], int]:
    """Mark the rows of episodes that repeat an earlier episode as dropped.

    Args:
        files: the stitched files.
        spec: spec of all files.

    Returns:
        The files, and the number of dropped episodes.

    Raises:
        DataError: ids, or episodes that share an id, cannot be read.
    """
    # A single folder that Hindcast wrote has no repeats, so nothing is read. Otherwise only episodes that share an id
    # are read and compared.
    hindcast_folders = {str(file.location.parent()) for file in files if not file.stored_fragments}
    if len(hindcast_folders) < 2 and not any(file.stored_fragments for file in files):
        return files, 0
    dataset = EpisodeDataset(spec, files)
    episodes: list[tuple[StoredFragment | None, list[StoredRow]]] = []
    for stored_row, fragment, _, is_continued in _iterate_rows(files):
        if not episodes or not is_continued:
            episodes.append((fragment, []))
        episodes[-1][1].append(stored_row)
    if hindcast_folders:
        ids = dict(enumerate(dataset.episode_table().eps_id.tolist()))
    else:
        ids = {
            episode: fragment.eps_id for episode, (fragment, _) in enumerate(episodes) if fragment is not None
        }
    repeats = find_repeats(ids, lambda indices: compute_episode_checksums(dataset, indices))
    dropped_rows = {stored_row for episode in repeats.duplicates for stored_row in episodes[episode][1]}
    return _mark_rows(files, dropped_rows, "dropped"), len(repeats.duplicates)


def _iterate_rows(
    files: Sequence[IndexedFile],
) -> Iterator[tuple[StoredRow, StoredFragment | None, int, bool]]:
    """Yield all stored rows in order, each with its fragment, its number of timesteps, and whether it is `continued`.

    The fragment is None in files that Hindcast wrote, whose rows have not been read.
    """
    for file_index, file in enumerate(files):
        fragments = iter(file.stored_fragments)
        for group_index, group in enumerate(file.entry.row_groups):
            continued_rows = set(group.continued)
            for row, num_steps in enumerate(group.lengths):
                yield (file_index, group_index, row), next(fragments, None), num_steps, row in continued_rows


def _mark_rows(files: Sequence[IndexedFile], stored_rows: set[StoredRow], field: str) -> list[IndexedFile]:
    """Add rows to the field `continued` or `dropped` of their row groups."""
    rows_by_group: dict[tuple[int, int], list[int]] = {}
    for file_index, group_index, row in stored_rows:
        rows_by_group.setdefault((file_index, group_index), []).append(row)
    marked_files: list[IndexedFile] = []
    for file_index, file in enumerate(files):
        groups = tuple(
            group.model_copy(
                update={
                    field: tuple(
                        sorted({*getattr(group, field), *rows_by_group.get((file_index, group_index), ())})
                    )
                }
            )
            for group_index, group in enumerate(file.entry.row_groups)
        )
        marked_files.append(file._replace(entry=file.entry.model_copy(update={"row_groups": groups})))
    return marked_files


def _is_continuation(fragment: StoredFragment, previous: StoredFragment, num_previous_steps: int) -> bool:
    if fragment.eps_id != previous.eps_id or previous.ended:
        return False
    return fragment.t_started == previous.t_started + num_previous_steps
