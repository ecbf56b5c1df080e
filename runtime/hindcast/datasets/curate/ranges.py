"""The unit of conversion: a range of episodes, which is written complete or not at all."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from hindcast.datasets.curate.target import Target
from hindcast.datasets.dataset import Dataset

_LEAST_BYTES = 32 << 20
_TEXT_GROWS = 4


class Range(NamedTuple):
    """Consecutive episodes of a dataset.

    Attributes:
        number: from 0.
        first: the first episode.
        stop: the one after the last.
    """

    number: int
    first: int
    stop: int


def ranges_of(dataset: Dataset, target: Target) -> list[Range]:
    """All episodes in ranges, of about the size of a file, that begin and end with units and with full files."""
    least = max(_LEAST_BYTES, target.file_bytes // (_TEXT_GROWS if target.is_text else 1))
    step = target.rows_per_file if target.is_row_an_episode else None
    cuts, size, end = [0], 0, 0
    for unit in dataset.units:
        size += unit.nbytes
        end += len(unit.lengths)
        cut = end - end % step if step else end
        if size >= least and cut > cuts[-1]:
            cuts.append(cut)
            size = 0
    if cuts[-1] < dataset.num_episodes:
        cuts.append(dataset.num_episodes)
    return [Range(number, first, stop) for number, (first, stop) in enumerate(pairwise(cuts))]
