"""Checksums of episodes that do not depend on layout, files or order; and the search for repeated episodes."""

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

_ENDS_KEY = "episodes"
_DETAILS_KEY = "episode details"  # no column has a space in its name
# Sums of sha256 digests keep the size of a digest.
_MODULUS = 1 << 256
RowRange = tuple[str, int, int]
"""Id of an episode, its first row, and the row after its last."""


@dataclass(frozen=True)
class Content:
    """Checksums of a set of episodes: equal for the same episodes and (barring collisions) only for them.

    Attributes:
        episodes: number of episodes.
        timesteps: number of their timesteps.
        sums: leaf name -> sum, modulo 2^256, of sha256(leaf, dtype, shape, episode id, values) over all episodes.
            "episodes" covers lengths and flags, "episode details" the details of episodes that have any. All NaNs count
            as one value, and so do spellings of the same JSON. An episode whose infos are all empty adds nothing to
            `infos`.
    """

    episodes: int = 0
    timesteps: int = 0
    sums: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def from_block(cls, block: Block) -> Content:
        """Compute the content of all episodes of a block."""
        sums = {name: sum(digests) % _MODULUS for name, digests in _digests_by_leaf(block)}
        return cls(block.num_episodes, block.num_steps, _drop_zero_sums(sums))

    @classmethod
    def per_episode(cls, block: Block) -> list[Content]:
        """Compute the content of each episode of a block."""
        digests_by_leaf = list(_digests_by_leaf(block))
        return [
            cls(1, num_steps, _drop_zero_sums({name: digests[i] for name, digests in digests_by_leaf}))
            for i, num_steps in enumerate(block.length.tolist())
        ]

    def __add__(self, other: Content) -> Content:
        names = {**self.sums, **other.sums}
        sums = {name: (self.sums.get(name, 0) + other.sums.get(name, 0)) % _MODULUS for name in names}
        return Content(self.episodes + other.episodes, self.timesteps + other.timesteps, sums)

    @property
    def checksum(self) -> str:
        """The sha256 (hex) of the numbers and all sums."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """Return JSON values, the sums in hexadecimal."""
        sums = {name: f"{total:064x}" for name, total in self.sums.items()}
        return {"episodes": self.episodes, "timesteps": self.timesteps, "sums": sums}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Content:
        """Restore a content from the result of `to_json`."""
        sums = {name: int(total, 16) for name, total in data["sums"].items()}
        return cls(data["episodes"], data["timesteps"], sums)

    def difference(self, other: Content) -> str | None:
        """Describe the other content as the object of "has", such as "3 episodes instead of 5"; None if it is equal."""
        for quantity in ("episodes", "timesteps"):
            count, other_count = getattr(self, quantity), getattr(other, quantity)
            if count != other_count:
                return f"{other_count:,} {quantity} instead of {count:,}"
        names = sorted({*self.sums, *other.sums})
        differing_leaves = [name for name in names if self.sums.get(name) != other.sums.get(name)]
        if not differing_leaves:
            return None
        labels = {_ENDS_KEY: "lengths or ends", _DETAILS_KEY: "details of episodes"}
        return "different " + ", ".join(labels.get(name, repr(name)) for name in differing_leaves)


class Repeats(NamedTuple):
    """Episodes with the id of an earlier episode.

    Attributes:
        duplicates: indices of episodes with the content of an earlier episode of the same id.
        conflicts: index of an episode whose content no earlier episode of its id has -> first episode of its id.
    """

    duplicates: list[int]
    conflicts: dict[int, int]


def find_repeats(
    ids: Mapping[int, Hashable], compute_contents: Callable[[Sequence[int]], Mapping[int, Hashable]]
) -> Repeats:
    """Find repeated episodes; the first of equal episodes is not a repeat.

    Args:
        ids: index of an episode -> its id, in the order of the episodes.
        compute_contents: returns the content of episodes, given their indices; called at most once, with all episodes
            that share an id with another episode.
    """
    counts = Counter(ids.values())
    repeated_episodes = [episode for episode, eps_id in ids.items() if counts[eps_id] > 1]
    content_by_episode = compute_contents(repeated_episodes) if repeated_episodes else {}
    repeats = Repeats([], {})
    first_episode_by_id: dict[Hashable, int] = {}
    seen_keys: set[tuple[Hashable, Hashable]] = set()
    for episode in repeated_episodes:
        eps_id = ids[episode]
        key = (eps_id, content_by_episode[episode])
        if key in seen_keys:
            repeats.duplicates.append(episode)
        elif eps_id in first_episode_by_id:
            repeats.conflicts[episode] = first_episode_by_id[eps_id]
        seen_keys.add(key)
        first_episode_by_id.setdefault(eps_id, episode)
    return repeats


def compute_episode_checksums(
    dataset: Dataset, episodes: Sequence[int], leaves: Sequence[str] | None = None
) -> dict[int, str]:
    """Compute the checksums of some episodes of a dataset, reading only their units.

    Args:
        dataset: the dataset.
        episodes: indices of episodes.
        leaves: the leaves to cover; None covers all.

    Returns:
        Index of an episode -> `Content.checksum`.
    """
    view = dataset.select(episodes)
    contents = (
        content.checksum for unit in view.units for content in Content.per_episode(view.read(unit, leaves))
    )
    return dict(zip(sorted(episodes), contents, strict=True))


def compute_leaf_digests(name: str, column: NDArray[Any], row_ranges: Iterable[RowRange]) -> list[int]:
    """Compute a digest of each episode's values in a leaf, as an integer; 0 if infos are empty.

    Args:
        name: name of the leaf.
        column: rows of all episodes.
        row_ranges: the rows of each episode.
    """
    column = canonicalise(name, column)
    return list((_digest_texts if column.dtype == object else _digest_values)(name, column, row_ranges))


def canonicalise(name: str, column: NDArray[Any]) -> NDArray[Any]:
    """Convert a leaf's rows so that equal content has equal bytes: one NaN, JSON with one spacing and key order.

    Numbers become contiguous and little-endian; text other than infos is unchanged.
    """
    if column.dtype == object:
        return _canonicalise_json(column) if root(name) == Columns.INFOS else column
    values = np.ascontiguousarray(column, dtype=column.dtype.newbyteorder("<"))
    if values.dtype.kind not in "fc" or not values.size:
        return values
    # A complex number is a pair of floats, either of which may be NaN.
    floats = values.view(f"<f{values.itemsize // 2}") if values.dtype.kind == "c" else values
    # The minimum is NaN if any value is; unlike `np.isnan` of all values, it needs no array of flags.
    if not np.isnan(floats.min()):
        return values
    return np.where(np.isnan(floats), floats.dtype.type(np.nan), floats).view(values.dtype)


def _drop_zero_sums(sums: dict[str, int]) -> dict[str, int]:
    """Leave out sums of 0, of leaves and details that are empty in all episodes: data without them have equal sums."""
    return {name: total for name, total in sums.items() if total or name == _ENDS_KEY}


def _digests_by_leaf(block: Block) -> Iterator[tuple[str, list[int]]]:
    """Yield `_ENDS_KEY`, `_DETAILS_KEY` (if any) and each leaf's name, each with a digest per episode."""
    ids = block.eps_id.tolist()
    ends = (block.length, block.t_started, block.terminated, block.truncated)
    yield (
        _ENDS_KEY,
        [_digest(repr(values)) for values in zip(ids, *(end.tolist() for end in ends), strict=True)],
    )
    if block.details is not None and block.details.any():
        details = zip(ids, _canonicalise_json(block.details).tolist(), strict=True)
        yield _DETAILS_KEY, [_digest(repr((eps_id, text))) if text else 0 for eps_id, text in details]
    for name, column in block.columns.items():
        starts = block.obs_start if is_per_observation(name) else block.start
        stops = starts + block.length + is_per_observation(name)
        yield name, compute_leaf_digests(name, column, zip(ids, starts.tolist(), stops.tolist(), strict=True))


def _digest_values(name: str, column: NDArray[Any], row_ranges: Iterable[RowRange]) -> Iterator[int]:
    # The hash of the common prefix is copied for each episode.
    prefix_hash = hashlib.sha256(f"{name} {column.dtype.name} {list(column.shape[1:])} ".encode())
    size = column.itemsize * int(np.prod(column.shape[1:], dtype=np.int64))
    values = column.reshape(-1).view(np.uint8).data
    for eps_id, first, stop in row_ranges:
        episode_hash = prefix_hash.copy()
        episode_hash.update(f"{eps_id}\0".encode())
        episode_hash.update(values[first * size : stop * size])
        yield int.from_bytes(episode_hash.digest(), "little")


def _digest_texts(name: str, texts: NDArray[np.object_], row_ranges: Iterable[RowRange]) -> Iterator[int]:
    for eps_id, first, stop in row_ranges:
        episode_texts = texts[first:stop].tolist()
        has_content = root(name) != Columns.INFOS or any(episode_texts)
        yield _digest(repr((name, eps_id, episode_texts))) if has_content else 0


def _canonicalise_json(texts: NDArray[np.object_]) -> NDArray[np.object_]:
    canonical_texts = {text: _canonicalise_text(text) for text in set(texts.tolist())}
    return np.array([canonical_texts[text] for text in texts.tolist()], dtype=object)


def _canonicalise_text(text: str) -> str:
    """Return JSON in its canonical form: "" if its value is empty; text that is not JSON is unchanged."""
    if not text or text == EMPTY_INFO:
        return ""
    try:
        value = orjson.loads(text)
    except ValueError:
        return text
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode() if value else ""


def _digest(text: str) -> int:
    # JSON text may contain lone surrogates, which UTF-8 refuses by default.
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest(), "little")
