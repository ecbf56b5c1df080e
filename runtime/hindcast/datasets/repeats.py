"""Episodes that were stored several times: the same id, and the same content (`Content`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple

from hindcast.datasets.content import Content
from hindcast.datasets.dataset import Dataset
from hindcast.datasets.episode_dataset import EpisodeDataset
from hindcast.datasets.footers import Indexed
from hindcast.datasets.stitching import Place, stitched_episodes, with_groups
from hindcast.formats.spec import DataSpec


class Repeats(NamedTuple):
    """Episodes whose id an earlier one has.

    Attributes:
        same: those that hold the same as an earlier one of their id.
        others: the rest -> the first of their id.
    """

    same: list[int]
    others: dict[int, int]


def find_repeats(
    ids: Mapping[int, Hashable], contents: Callable[[Sequence[int]], Mapping[int, Hashable]]
) -> Repeats:
    """Which episodes are there again.

    Args:
        ids: episode -> its id, in order: of those that are the same, the first counts.
        contents: what some episodes hold; asked once, for those whose id occurs again, if there are any.
    """
    counts = Counter(ids.values())
    several = [episode for episode, eps_id in ids.items() if counts[eps_id] > 1]
    held = contents(several) if several else {}
    repeats = Repeats([], {})
    first: dict[Hashable, int] = {}
    seen: set[tuple[Hashable, Hashable]] = set()
    for episode in several:
        eps_id = ids[episode]
        key = (eps_id, held[episode])
        if key in seen:
            repeats.same.append(episode)
        elif eps_id in first:
            repeats.others[episode] = first[eps_id]
        seen.add(key)
        first.setdefault(eps_id, episode)
    return repeats


def contents_of(dataset: Dataset, episodes: Sequence[int]) -> dict[int, str]:
    """What each of some episodes of a dataset holds, as a checksum; only units with one of them are read."""
    chosen = dataset.select(episodes)
    contents = (each.checksum for unit in chosen.units for each in Content.each(chosen.read(unit)))
    return dict(zip(sorted(episodes), contents, strict=True))


def drop_repeated(files: list[Indexed], spec: DataSpec) -> tuple[list[Indexed], int]:
    """The files, stitched, with episodes left out that repeat an earlier one.

    Those of files that Hindcast wrote are there once; of the others, only episodes whose id occurs again are read.

    Returns:
        The files, and how many episodes were left out.
    """
    if not any(file.runs for file in files):
        return files, 0
    episodes = list(stitched_episodes(files))
    ids = {number: episode.eps_id for number, episode in enumerate(episodes) if episode.eps_id is not None}
    repeats = find_repeats(ids, lambda several: contents_of(EpisodeDataset(spec, files), several))
    dropped = {place for number in repeats.same for place in episodes[number].places}
    if not dropped:
        return files, 0
    return [_without(file, number, dropped) for number, file in enumerate(files)], len(repeats.same)


def _without(file: Indexed, number: int, dropped: set[Place]) -> Indexed:
    groups = [
        group.model_copy(
            update={"dropped": tuple(row for row in range(group.rows) if (number, i, row) in dropped)}
        )
        for i, group in enumerate(file.entry.row_groups)
    ]
    return with_groups(file, groups)
