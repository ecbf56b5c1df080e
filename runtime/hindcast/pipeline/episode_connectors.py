"""Connectors over lists of `SingleAgentEpisode`, in RLlib's form (`ConnectorV2`), on blocks.

A block becomes episodes and back, with Python objects for each, so this is the slow way: it is taken only for
connectors of this form. Those that follow each other share episodes, batch and `shared_data`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import gymnasium as gym
import torch

from hindcast.episodes.block import Block
from hindcast.episodes.convert import block_to_episodes, episodes_to_block
from hindcast.models.rl_module import RLModule
from hindcast.pipeline.connector_v2 import run_pieces
from hindcast.pipeline.connectors import BlockConnector, Context
from hindcast.pipeline.contracts import check_again, check_episodes
from hindcast.pipeline.given_module import MultiRLModule
from hindcast.pipeline.metrics_logger import MetricsLogger
from hindcast.pipeline.module_batches import with_batch
from hindcast.user_code import Misuse, raise_as_users


class EpisodeConnector(BlockConnector):
    """Runs connectors over episodes on blocks.

    Args:
        pieces: any objects with the call of `ConnectorV2`.
        observation_space: how observations are nested.
        action_space: how actions are nested.
        module: the policy's network, for `rl_module`.
        next_obs: the algorithm reads `new_obs`, so that whoever changes observations in the batch must give these too.
    """

    def __init__(
        self,
        pieces: Sequence[Any],
        observation_space: gym.Space | None = None,
        action_space: gym.Space | None = None,
        module: RLModule | None = None,
        *,
        next_obs: bool = False,
    ) -> None:
        self.pieces = pieces
        self._spaces = (observation_space, action_space)
        self._module = None if module is None else MultiRLModule(module)
        self._next_obs = next_obs
        self._tried = False
        self.stochastic = any(bool(getattr(piece, "stochastic", False)) for piece in pieces)
        self.columns = tuple(name for piece in pieces for name in getattr(piece, "columns", ()))

    @property
    def name(self) -> str:
        """The classes of the connectors over episodes."""
        return ", ".join(type(piece).__name__ for piece in self.pieces)

    @property
    def function(self) -> Callable[..., Any]:
        """Of the first connector over episodes."""
        return type(self.pieces[0]).__call__

    def __call__(self, block: Block, context: Context) -> Block:
        if len(self.pieces) > 1 and not self._tried:
            self._tried = True
            self._try_each(block, context)
        return self._connected(self.pieces, block, context)

    def _connected(self, pieces: Sequence[Any], block: Block, context: Context) -> Block:
        episodes = block_to_episodes(block, *self._spaces)
        with torch.no_grad():
            batch = run_pieces(
                pieces,
                {},
                episodes,
                rl_module=self._module,
                explore=False,
                shared_data={"context": context},
                metrics=context.metrics,
            )
        return with_batch(episodes_to_block(episodes), batch, next_obs=self._next_obs)

    def _try_each(self, block: Block, context: Context) -> None:
        """Find the first piece that changes what it must not, so that it is reported by its own name."""
        for count, piece in enumerate(self.pieces, 1):
            try:
                once, again = (
                    self._connected(self.pieces[:count], block, replace(context, metrics=MetricsLogger()))
                    for _ in range(2)
                )
                check_episodes(again, block.length)
                check_again(once.columns, again.columns)
            except (Misuse, ValueError) as error:
                raise_as_users(error, f"connector {type(piece).__name__}", type(piece).__call__)
