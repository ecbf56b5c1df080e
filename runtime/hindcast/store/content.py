"""What episodes hold as a checksum that does not depend on layout, files or order."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from hindcast.episodes.block import Block
from hindcast.episodes.columns import EMPTY_INFO, Columns, per_observation, root

_ENDS = "episodes"
_DETAILS = "episode details"  # no column has a space in its name
_MODULUS = 1 << 256


@dataclass(frozen=True)
class Content:
    """Sums over episodes: equal for the same episodes, and (but for chance) only for these.

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
    def of(cls, block: Block) -> Content:
        """What whole episodes hold."""
        sums = {_ENDS: _sum_of_ends(block)}
        if block.details is not None and block.details.any():
            sums[_DETAILS] = _sum_of_details(block)
        for name, column in block.columns.items():
            total = _sum_of_texts(block, name) if column.dtype == object else _sum_of_numbers(block, name)
            if total:
                sums[name] = total
        return cls(block.num_episodes, block.num_steps, sums)

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
        """What the other has not got as this one has it, in words; None where they are equal."""
        for what, mine, theirs in (
            ("episodes", self.episodes, other.episodes),
            ("timesteps", self.timesteps, other.timesteps),
        ):
            if mine != theirs:
                return f"{theirs:,} {what} where there were {mine:,}"
        names = sorted({*self.sums, *other.sums})
        differing = [name for name in names if self.sums.get(name) != other.sums.get(name)]
        if not differing:
            return None
        words = {_ENDS: "lengths or ends", _DETAILS: "details of episodes"}
        return "other " + ", ".join(words.get(name, repr(name)) for name in differing)


def _sum_of_ends(block: Block) -> int:
    episodes = zip(
        block.eps_id.tolist(),
        block.length.tolist(),
        block.t_started.tolist(),
        block.terminated.tolist(),
        block.truncated.tolist(),
        strict=True,
    )
    return sum(_number(hashlib.sha256(repr(one).encode())) for one in episodes) % _MODULUS


def _sum_of_details(block: Block) -> int:
    assert block.details is not None
    told = zip(block.eps_id.tolist(), _canonical_json(block.details).tolist(), strict=True)
    return sum(_number(hashlib.sha256(repr(one).encode())) for one in told if one[1]) % _MODULUS


def _sum_of_numbers(block: Block, name: str) -> int:
    column = _canonical(block.columns[name])
    head = hashlib.sha256(f"{name} {column.dtype.name} {list(column.shape[1:])} ".encode())
    size = column.itemsize * int(np.prod(column.shape[1:], dtype=np.int64))
    values = column.reshape(-1).view(np.uint8).data
    total = 0
    for eps_id, first, stop in _bounds(block, name):
        sha = head.copy()
        sha.update(f"{eps_id}\0".encode())
        sha.update(values[first * size : stop * size])
        total += _number(sha)
    return total % _MODULUS


def _sum_of_texts(block: Block, name: str) -> int:
    texts = block.columns[name]
    is_json = root(name) == Columns.INFOS
    if is_json:
        texts = _canonical_json(texts)
    total = 0
    for eps_id, first, stop in _bounds(block, name):
        own = texts[first:stop].tolist()
        if is_json and not any(own):
            continue
        total += _number(hashlib.sha256(repr((name, eps_id, own)).encode("utf-8", "surrogatepass")))
    return total % _MODULUS


def _bounds(block: Block, name: str) -> zip[tuple[str, int, int]]:
    """Each episode's id, and its first and last row (exclusive) in a leaf's column."""
    observed = per_observation(name)
    first = block.obs_start if observed else block.start
    return zip(block.eps_id.tolist(), first.tolist(), (first + block.length + observed).tolist(), strict=True)


def _canonical(column: NDArray[Any]) -> NDArray[Any]:
    """Contiguous, little-endian, and with one NaN."""
    values = np.ascontiguousarray(column, dtype=column.dtype.newbyteorder("<"))
    if values.dtype.kind not in "fc" or not values.size:
        return values
    floats = values.view(f"<f{values.itemsize // 2}") if values.dtype.kind == "c" else values
    if not np.isnan(floats.min()):
        return values
    return np.where(np.isnan(floats), floats.dtype.type(np.nan), floats).view(values.dtype)


def _canonical_json(texts: NDArray[np.object_]) -> NDArray[np.object_]:
    known = {text: _respaced(text) for text in set(texts.tolist())}
    return np.array([known[text] for text in texts.tolist()], dtype=object)


def _respaced(text: str) -> str:
    if not text or text == EMPTY_INFO:
        return ""
    try:
        value = orjson.loads(text)
    except ValueError:
        return text
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode() if value else ""


def _number(sha: Any) -> int:
    return int.from_bytes(sha.digest(), "little")
