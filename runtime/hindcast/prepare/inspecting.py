"""Looking at data of any kind: as they are where they are whole episodes in order, at what was prepared otherwise."""

from __future__ import annotations

from hindcast.errors import DataError
from hindcast.prepare.job import Progress
from hindcast.prepare.opening import ready
from hindcast.prepare.reading import Reading
from hindcast.store.filesystem import resolve
from hindcast.store.inspection.inspecting import inspect_paths
from hindcast.store.inspection.sample import SAMPLE_STEPS
from hindcast.store.inspection.summary import Summary


def inspect_data(
    reading: Reading, *, sample_limit: int | None = SAMPLE_STEPS, progress: Progress | None = None
) -> Summary:
    """All that is in data, and all that is wrong with them.

    Args:
        reading: what is read, and how.
        sample_limit: about how many timesteps to look at; None reads everything.
        progress: hears how preparing goes, then how looking does.

    Raises:
        DataError: nothing there, or foreign data that cannot be prepared. Damaged files of Hindcast's layouts are
            problems.
        StorageError: storage that refuses or fails.
    """
    try:
        found = ready(reading, progress=progress)
    except DataError as error:
        return _at_least_the_files(reading, error, sample_limit)
    summary = inspect_paths(found.paths, sample_limit=sample_limit, notes=found.notes, progress=progress)
    if {str(path) for path in found.paths} == {str(path) for path in reading.paths}:
        return summary
    return summary.model_copy(update={"prepared": str(found.paths[0])})


def _at_least_the_files(reading: Reading, error: DataError, sample_limit: int | None) -> Summary:
    """What is wrong with each file, where they are of Hindcast's layouts; what is right can be looked at.

    Raises:
        DataError: the error, where nothing of this says more than it does.
    """
    if not reading.is_plain:
        raise error
    try:
        places = [resolve(path, reading.filesystem) for path in reading.paths]
        summary = inspect_paths(places, sample_limit=sample_limit)
    except DataError:
        raise error from None
    if not any(problem.severity == "error" for problem in summary.problems):
        raise error
    return summary
