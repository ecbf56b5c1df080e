"""The packed items of one column of many episodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import orjson
from numpy.typing import NDArray

from hindcast.episodes import nested
from hindcast.episodes.block import I64, Block
from hindcast.episodes.columns import SEPARATOR, Columns, leaves_of
from hindcast.episodes.nested import Nested
from hindcast.formats.messagepack.template import Template
from hindcast.formats.messagepack.values import pack
from hindcast.formats.spec import DataSpec, Leaf

_NO_INFO = b"\x80"
_TEXT_BYTES = 64


class Items(Protocol):
    """The packed items of one column."""

    def sizes(self, counts: I64, block: Block) -> I64:
        """`[N]` bytes of each episode's items."""
        ...

    def strips(self, block: Block, counts: I64) -> Iterator[Any]:
        """Each episode's items, end to end."""
        ...


class _Numbers:
    """A column whose items differ in nothing but their numbers."""

    def __init__(self, column: str, spec: DataSpec, template: Template) -> None:
        self._spec = spec
        self._template = template
        self._names = {payload.path: SEPARATOR.join((column, *payload.path)) for payload in template.payloads}

    def sizes(self, counts: I64, block: Block) -> I64:  # noqa: ARG002
        return counts * self._template.stride

    def strips(self, block: Block, counts: I64) -> Iterator[Any]:
        columns = {path: self._spec.column_of(block, name) for path, name in self._names.items()}
        matrix = self._template.fill(columns, int(counts.sum()))
        at = 0
        for count in counts.tolist():
            yield matrix[at : at + count].data
            at += count


class _Any:
    """A column with text in it, packed item by item."""

    def __init__(self, column: str, spec: DataSpec, struct: Nested) -> None:
        self._column = column
        self._spec = spec
        self._leaves = leaves_of(column, list(spec.leaves))
        self._struct = struct

    def sizes(self, counts: I64, block: Block) -> I64:  # noqa: ARG002
        return counts * sum(self._spec.leaves[name].itemsize + _TEXT_BYTES for name in self._leaves)

    def strips(self, block: Block, counts: I64) -> Iterator[Any]:
        columns = {name: self._spec.column_of(block, name) for name in self._leaves}
        at = 0
        for count in counts.tolist():
            yield b"".join(
                pack(
                    nested.unflatten(
                        {name: own[row] for name, own in columns.items()}, self._column, self._struct
                    )
                )
                for row in range(at, at + count)
            )
            at += count


class Infos:
    """The infos: maps, empty if nothing is said."""

    def sizes(self, counts: I64, block: Block) -> I64:
        return counts * (_TEXT_BYTES if self._texts(block) is not None else 1)

    def strips(self, block: Block, counts: I64) -> Iterator[Any]:
        texts, at = self._texts(block), 0
        for count in counts.tolist():
            if texts is None:
                yield _NO_INFO * count
            else:
                yield b"".join(
                    pack(orjson.loads(text)) if text else _NO_INFO for text in texts[at : at + count]
                )
            at += count

    @staticmethod
    def _texts(block: Block) -> NDArray[np.object_] | None:
        texts = block.columns.get(Columns.INFOS)
        return None if texts is None or not texts.any() else texts


def items_of(spec: DataSpec, column: str, struct: Nested) -> Items:
    leaves = {name: spec.leaves[name] for name in leaves_of(column, list(spec.leaves))}
    if any(leaf.dtype is None for leaf in leaves.values()):
        return _Any(column, spec, struct)
    sample = nested.unflatten({name: _zero(leaf) for name, leaf in leaves.items()}, column, struct)
    template = Template.of(pack(sample))
    return _Any(column, spec, struct) if template is None else _Numbers(column, spec, template)


def _zero(leaf: Leaf) -> Any:
    """An item of a leaf; numbers without dimensions are NumPy scalars, as RLlib records them."""
    assert leaf.dtype is not None
    return np.zeros(leaf.shape, leaf.dtype) if leaf.shape else leaf.dtype.type(0)
