"""What episodes hold, as checksums that depend on neither layout, files nor order; and which hold the same."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from hindcast.datasets.dataset import Dataset
from hindcast.episodes.block import Block
from hindcast.episodes.columns import EMPTY_INFO, Columns, is_per_observation, root

_ENDS = "episodes"
_DETAILS = "episode details"  # no column has a space in its name
_MODULUS = 1 << 256
Bounds = tuple[str, int, int]


@dataclass(frozen=True)
class Content:
    """Sums over episodes: equal for the same episodes and (barring collisions) only for them.

    Attributes:
        episodes: how many.
        timesteps: their steps.
        sums: leaf name -> sum, modulo 2^256, of sha256(leaf, dtype, shape, episode id, values) over all episodes;
            "episodes" has their lengths and how they end, "episode details" those of episodes that have any. NaN
            counts as one value, and so does JSON however it is spaced; an episode whose infos are all empty adds
            nothing to `infos`.
    """

    episodes: int = 0
    timesteps: int = 0
    sums: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def from_block(cls, block: Block) -> Content:
        """The content of complete episodes."""
        sums = {name: sum(numbers) % _MODULUS for name, numbers in _digests_by_leaf(block)}
        return cls(block.num_episodes, block.num_steps, _drop_zero_sums(sums))

    @classmethod
    def per_episode(cls, block: Block) -> list[Content]:
        """The content of each of some complete episodes."""
        digests_by_leaf = list(_digests_by_leaf(block))
        return [
            cls(1, steps, _drop_zero_sums({name: numbers[i] for name, numbers in digests_by_leaf}))
            for i, steps in enumerate(block.length.tolist())
        ]

    def __add__(self, other: Content) -> Content:
        names = {**self.sums, **other.sums}
        sums = {name: (self.sums.get(name, 0) + other.sums.get(name, 0)) % _MODULUS for name in names}
        return Content(self.episodes + other.episodes, self.timesteps + other.timesteps, sums)

    @property
    def checksum(self) -> str:
        """sha256 (hex) of all of it."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """The sums in hexadecimal."""
        sums = {name: f"{total:064x}" for name, total in self.sums.items()}
        return {"episodes": self.episodes, "timesteps": self.timesteps, "sums": sums}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Content:
        """The inverse of `to_json`."""
        sums = {name: int(total, 16) for name, total in data["sums"].items()}
        return cls(data["episodes"], data["timesteps"], sums)

    def difference(self, other: Content) -> str | None:
        """What differs in the other, in words; None if they are equal."""
        for unit in ("episodes", "timesteps"):
            count, other_count = getattr(self, unit), getattr(other, unit)
            if count != other_count:
                return f"{other_count:,} {unit} where there were {count:,}"
        names = sorted({*self.sums, *other.sums})
        differing_leaves = [name for name in names if self.sums.get(name) != other.sums.get(name)]
        if not differing_leaves:
            return None
        labels = {_ENDS: "lengths or ends", _DETAILS: "details of episodes"}
        return "other " + ", ".join(labels.get(name, repr(name)) for name in differing_leaves)


class Repeats(NamedTuple):
    """Episodes whose id an earlier one has.

    Attributes:
        same: those that hold the same as an earlier one of their id.
        others: the rest -> the first of their id.
    """

    duplicates: list[int]
    conflicts: dict[int, int]


def find_repeats(
    ids: Mapping[int, Hashable], contents: Callable[[Sequence[int]], Mapping[int, Hashable]]
) -> Repeats:
    """Which episodes are there again.

    Args:
        ids: episode -> its id, in order: of those that are the same, the first counts.
        contents: what some episodes hold; asked once, for those whose id occurs again, if there are any.
    """
    counts = Counter(ids.values())
    repeated_episodes = [episode for episode, eps_id in ids.items() if counts[eps_id] > 1]
    content_of = contents(repeated_episodes) if repeated_episodes else {}
    repeats = Repeats([], {})
    first_of_id: dict[Hashable, int] = {}
    seen_keys: set[tuple[Hashable, Hashable]] = set()
    for episode in repeated_episodes:
        eps_id = ids[episode]
        key = (eps_id, content_of[episode])
        if key in seen_keys:
            repeats.duplicates.append(episode)
        elif eps_id in first_of_id:
            repeats.conflicts[episode] = first_of_id[eps_id]
        seen_keys.add(key)
        first_of_id.setdefault(eps_id, episode)
    return repeats


def contents_of(
    dataset: Dataset, episodes: Sequence[int], leaves: Sequence[str] | None = None
) -> dict[int, str]:
    """What each of some episodes of a dataset holds (in some leaves; all if None), as a checksum.

    Only units with one of the episodes are read.
    """
    view = dataset.select(episodes)
    contents = (
        content.checksum for unit in view.units for content in Content.per_episode(view.read(unit, leaves))
    )
    return dict(zip(sorted(episodes), contents, strict=True))


def leaf_digests(name: str, column: NDArray[Any], bounds: Iterable[Bounds]) -> list[int]:
    """What each episode holds in a leaf, as a number; 0 if it is empty.

    Args:
        name: the leaf's.
        column: rows of all episodes.
        bounds: each episode's id, and its first and last row (exclusive).
    """
    column = canonicalise(name, column)
    return list((_text_digests if column.dtype == object else _value_digests)(name, column, bounds))


def canonicalise(name: str, column: NDArray[Any]) -> NDArray[Any]:
    """A leaf's rows such that the same content has the same bytes: one NaN, and JSON spaced and sorted in one way.

    Numbers come contiguous and little-endian; other text than infos is as it was.
    """
    if column.dtype == object:
        return _canonical_json(column) if root(name) == Columns.INFOS else column
    values = np.ascontiguousarray(column, dtype=column.dtype.newbyteorder("<"))
    if values.dtype.kind not in "fc" or not values.size:
        return values
    floats = values.view(f"<f{values.itemsize // 2}") if values.dtype.kind == "c" else values
    if not np.isnan(floats.min()):
        return values
    return np.where(np.isnan(floats), floats.dtype.type(np.nan), floats).view(values.dtype)


def _drop_zero_sums(sums: dict[str, int]) -> dict[str, int]:
    return {name: total for name, total in sums.items() if total or name == _ENDS}


def _digests_by_leaf(block: Block) -> Iterator[tuple[str, list[int]]]:
    """For each leaf, and for ends and details, a number per episode."""
    ids = block.eps_id.tolist()
    ends = (block.length, block.t_started, block.terminated, block.truncated)
    yield _ENDS, [_digest(repr(values)) for values in zip(ids, *(end.tolist() for end in ends), strict=True)]
    if block.details is not None and block.details.any():
        details = zip(ids, _canonical_json(block.details).tolist(), strict=True)
        yield _DETAILS, [_digest(repr(one)) if one[1] else 0 for one in details]
    for name, column in block.columns.items():
        starts = block.obs_start if is_per_observation(name) else block.start
        stops = starts + block.length + is_per_observation(name)
        yield name, leaf_digests(name, column, zip(ids, starts.tolist(), stops.tolist(), strict=True))


def _value_digests(name: str, column: NDArray[Any], bounds: Iterable[Bounds]) -> Iterator[int]:
    head = hashlib.sha256(f"{name} {column.dtype.name} {list(column.shape[1:])} ".encode())
    size = column.itemsize * int(np.prod(column.shape[1:], dtype=np.int64))
    values = column.reshape(-1).view(np.uint8).data
    for eps_id, first, stop in bounds:
        sha = head.copy()
        sha.update(f"{eps_id}\0".encode())
        sha.update(values[first * size : stop * size])
        yield int.from_bytes(sha.digest(), "little")


def _text_digests(name: str, texts: NDArray[np.object_], bounds: Iterable[Bounds]) -> Iterator[int]:
    for eps_id, first, stop in bounds:
        episode_texts = texts[first:stop].tolist()
        has_content = root(name) != Columns.INFOS or any(episode_texts)
        yield _digest(repr((name, eps_id, episode_texts))) if has_content else 0


def _canonical_json(texts: NDArray[np.object_]) -> NDArray[np.object_]:
    canonical_texts = {text: _canonical_text(text) for text in set(texts.tolist())}
    return np.array([canonical_texts[text] for text in texts.tolist()], dtype=object)


def _canonical_text(text: str) -> str:
    if not text or text == EMPTY_INFO:
        return ""
    try:
        value = orjson.loads(text)
    except ValueError:
        return text
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode() if value else ""


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest(), "little")
