"""Actions of others as a module gives them."""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar

from hindcast.episodes.block import Block
from hindcast.episodes.columns import Columns, root
from hindcast.models.connectors import Preprocessing
from hindcast.pipeline.connectors import BlockConnector, Context, Scope


class ModuleActions(BlockConnector):
    """Scales recorded actions from the environment's bounds to those within which the module acts.

    Args:
        preprocessing: what stands between the environment and the module.
    """

    scope: ClassVar[Scope] = "step"
    reads: Collection[str] | None = ()

    def __init__(self, preprocessing: Preprocessing) -> None:
        self._preprocessing = preprocessing

    def __call__(self, block: Block, context: Context) -> Block:  # noqa: ARG002
        scaled = {
            name: self._preprocessing.to_module(name, column)
            for name, column in block.columns.items()
            if root(name) == Columns.ACTIONS
        }
        return block.with_columns({**block.columns, **scaled})
