"""Episodes that were stored several times: the same id, and the same content (`Content`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple

from hindcast.datasets.content import Content
from hindcast.datasets.dataset import Dataset


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
