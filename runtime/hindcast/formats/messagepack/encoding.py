"""Blocks to cells: the state of each episode, byte for byte as RLlib's recorder packs it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgpack
import numpy as np
from gymnasium import spaces

from hindcast.episodes import details
from hindcast.episodes.block import I64, Block
from hindcast.episodes.columns import Columns, leaves_of, per_observation, root
from hindcast.episodes.episode import REWARD_SPACE
from hindcast.episodes.spaces import space_struct, space_to_state
from hindcast.errors import DataError
from hindcast.formats.messagepack.cells import DETAILS
from hindcast.formats.messagepack.items import Infos, Items, items_of
from hindcast.formats.messagepack.values import pack
from hindcast.formats.spec import DataSpec
from hindcast.formats.storable import Refused

_OWN = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.INFOS)


class StateEncoder:
    """Packs episodes of one spec.

    Args:
        spec: what blocks hold.

    Raises:
        DataError: a spec without observations, actions or rewards, or with a space that episodes cannot have.
    """

    def __init__(self, spec: DataSpec) -> None:
        missing = [column for column in _OWN[:3] if not leaves_of(column, list(spec.leaves))]
        if missing:
            raise DataError(f"an episode in MessagePack needs {', '.join(missing)}: the data have none")
        known = {Columns.OBS: spec.observation_space, Columns.ACTIONS: spec.action_space}
        self._spec = spec
        roots = dict.fromkeys(root(leaf) for leaf in spec.leaves)
        self._outputs = [name for name in roots if name not in _OWN]
        self._columns: dict[str, Items] = {
            name: items_of(spec, name, space_struct(known.get(name))) for name in (*_OWN[:3], *self._outputs)
        }
        self._columns[Columns.INFOS] = Infos()
        packed = {name: _packed_space(space) for name, space in known.items()}
        self._ends = {name: _end_of_buffer(packed.get(name, pack(None))) for name in (*_OWN, *self._outputs)}
        self._ends[Columns.REWARDS] = _end_of_buffer(_packed_space(REWARD_SPACE))
        self._spaces = _entries(_observation_space=packed[Columns.OBS], _action_space=packed[Columns.ACTIONS])
        self._constant = 512 + len(self._spaces) + sum(len(end) + 64 for end in self._ends.values())

    def sizes(self, block: Block) -> I64:
        """`[N]` bytes of each episode's cell, about."""
        total = np.full(block.num_episodes, self._constant)
        for name, items in self._columns.items():
            total += items.sizes(block.length + per_observation(name), block)
        if block.details is not None:
            total += np.array([len(text) for text in block.details], dtype=np.int64)
        return total

    def pack(self, block: Block) -> list[bytes]:
        """Each episode's state.

        Raises:
            DataError: columns that do not fit the spec; details that MessagePack cannot represent.
        """
        self._spec.check_names(block)
        strips = {
            name: items.strips(block, block.length + per_observation(name))
            for name, items in self._columns.items()
        }
        return [
            b"".join(self._parts(block, i, {name: next(own) for name, own in strips.items()}))
            for i in range(block.num_episodes)
        ]

    def _parts(self, block: Block, i: int, strips: dict[str, Any]) -> Iterator[Any]:
        length, t_started = int(block.length[i]), int(block.t_started[i])
        packer = msgpack.Packer()
        yield packer.pack_map_header(18)
        before, after = (_NO_IDS, _NO_DATA) if block.details is None else _packed_details(block, i)
        yield _entries(id_=pack(str(block.eps_id[i])))
        yield before
        for key, name in zip(("observations", "actions", "rewards", "infos"), _OWN, strict=True):
            yield pack(key)
            yield from self._buffer(name, length, strips)
        yield pack("extra_model_outputs")
        yield packer.pack_map_header(len(self._outputs)) if self._outputs else pack(None)
        for name in self._outputs:
            yield pack(name)
            yield from self._buffer(name, length, strips)
        yield _entries(
            is_terminated=pack(bool(block.terminated[i])),
            is_truncated=pack(bool(block.truncated[i])),
            t_started=pack(t_started),
            t=pack(t_started + length),
        )
        yield self._spaces
        yield after

    def _buffer(self, name: str, length: int, strips: dict[str, Any]) -> Iterator[Any]:
        packer = msgpack.Packer()
        yield packer.pack_map_header(4)
        yield pack("data")
        yield packer.pack_array_header(length + per_observation(name))
        yield strips[name]
        yield self._ends[name]


def _entries(**values: bytes) -> bytes:
    """Map entries; the values are packed already."""
    return b"".join(part for key, value in values.items() for part in (pack(key), value))


_OF_IDS: Final = ("agent_id", "module_id", "multi_agent_episode_id")
_OF_DATA: Final = ("_start_time", "_last_step_time", "custom_data")
_NO_IDS: Final = _entries(**{key: pack(None) for key in _OF_IDS})
_NO_DATA: Final = _entries(_start_time=pack(None), _last_step_time=pack(None), custom_data=pack({}))


def _packed_details(block: Block, i: int) -> tuple[bytes, bytes]:
    """The entries before the columns and after them."""
    assert block.details is not None
    values = {"custom_data": {}, **details.from_text(block.details[i])}
    try:
        packed = {key: pack(values.get(name), exactly=True) for key, name in DETAILS.items()}
    except (TypeError, OverflowError, Refused) as error:
        raise DataError(
            f"episode {block.eps_id[i]} has custom data or an id that MessagePack cannot represent ({error}): "
            "write Episodes"
        ) from error
    return (
        _entries(**{key: packed[key] for key in _OF_IDS}),
        _entries(**{key: packed[key] for key in _OF_DATA}),
    )


def _packed_space(space: spaces.Space | None) -> bytes:
    if space is None:
        return pack(None)
    try:
        return pack(space_to_state(space))
    except ValueError as error:
        raise DataError(str(error)) from error


def _end_of_buffer(space: bytes) -> bytes:
    return _entries(lookback=pack(0), finalized=pack(False), space=space)
