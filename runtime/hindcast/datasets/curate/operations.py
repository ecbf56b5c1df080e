"""What is done with whole datasets: convert, merge, split, filter, sample. Each writes what it chose as any format."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hindcast.datasets.curate.opening import open_source, origin_of, refuse_overlap
from hindcast.datasets.curate.target import Target
from hindcast.datasets.curate.writing import Written, check_target, write
from hindcast.datasets.dataset import Dataset
from hindcast.datasets.merged import OnConflict, merge
from hindcast.datasets.prepare.reading import Reading
from hindcast.datasets.watch import NOBODY, Watch


def convert_data(reading: Reading, target: Target, watch: Watch = NOBODY) -> Written:
    """Write all that is read.

    Raises:
        SpecError: a destination that overlaps a source.
        UserError: as `write`, and what cannot be read.
    """
    return _written(reading, target, watch, lambda dataset: dataset)


def merge_data(
    readings: Sequence[Reading], target: Target, on_conflict: OnConflict = "Refuse", watch: Watch = NOBODY
) -> Written:
    """Write several sources as one; see `merge`."""
    refuse_overlap(readings, [target.folder])
    merged = merge([open_source(reading, watch) for reading in readings], on_conflict)
    return _write(merged, readings, target, watch)


def split_data(
    reading: Reading,
    rest: Target,
    share: Target,
    *,
    fraction: float,
    seed: int = 0,
    watch: Watch = NOBODY,
) -> tuple[Written, Written]:
    """Write a share of the episodes to one folder and the rest to another; see `Dataset.split`."""
    refuse_overlap([reading], [rest.folder, share.folder])
    parts = list(zip(open_source(reading, watch).split(fraction, seed), (rest, share), strict=True))
    for part, target in parts:
        check_target(part, target)
    first, second = (_write(part, [reading], target, watch) for part, target in parts)
    return first, second


def filter_data(
    reading: Reading, target: Target, where: Sequence[str], top: float | None = None, watch: Watch = NOBODY
) -> Written:
    """Write the episodes that terms choose; see `Dataset.filter`."""
    return _written(reading, target, watch, lambda dataset: dataset.filter(*where, top=top))


def sample_data(
    reading: Reading,
    target: Target,
    *,
    episodes: int | None = None,
    timesteps: int | None = None,
    fraction: float | None = None,
    seed: int = 0,
    watch: Watch = NOBODY,
) -> Written:
    """Write episodes drawn at random; see `Dataset.sample`."""
    return _written(
        reading,
        target,
        watch,
        lambda dataset: dataset.sample(episodes, timesteps=timesteps, fraction=fraction, seed=seed),
    )


def _written(reading: Reading, target: Target, watch: Watch, choose: Callable[[Dataset], Dataset]) -> Written:
    refuse_overlap([reading], [target.folder])
    return _write(choose(open_source(reading, watch)), [reading], target, watch)


def _write(dataset: Dataset, readings: Sequence[Reading], target: Target, watch: Watch) -> Written:
    for note in dataset.notes:
        watch.note(note)
    return write(dataset, target, origin_of(readings), watch)
