"""Looking at the data that paths stand for: all that is in them, and all that is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hindcast.datasets.inspection.problems import Problem
from hindcast.datasets.inspection.sample import SAMPLE_STEPS, Progress
from hindcast.datasets.inspection.summarising import summarise
from hindcast.datasets.inspection.summary import Summary
from hindcast.datasets.inspection.survey import survey
from hindcast.storage.location import Location


def inspect_paths(
    paths: Sequence[str | Path | Location],
    *,
    sample_limit: int | None = SAMPLE_STEPS,
    columns: Sequence[str] | None = None,
    notes: Sequence[str] = (),
    progress: Progress | None = None,
) -> Summary:
    """Look at the footers of all files, and into a sample of their episodes.

    Args:
        paths: files, folders or globs.
        sample_limit: about how many timesteps to read; None reads everything, and compares recordings' checksums.
        columns: those to look at; all if None.
        notes: what is known of the data already; each becomes an info.
        progress: called with how many units are done, and how many there are.

    Raises:
        DataError: nothing there, or nothing of Hindcast's layouts. Files that are damaged are problems.
        StorageError: storage that refuses or fails.
    """
    dataset, problems = survey(paths, columns=columns, verify=sample_limit is None)
    known = [Problem(severity="info", message=note) for note in notes]
    return summarise(dataset, sample_limit, found=[*problems, *known], progress=progress)
