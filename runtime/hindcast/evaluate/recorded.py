"""Recorded episodes as the networks of a policy see them, whole and in memory."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hindcast.api.pipeline import PipelineSpec
from hindcast.datasets.dataset import Dataset
from hindcast.episodes.columns import Columns, root
from hindcast.models.policy import Policy
from hindcast.pipeline.executors import Local
from hindcast.pipeline.needs import transitions
from hindcast.pipeline.source_feed import Settings, SourceFeed
from hindcast.pipeline.window import Batch, WindowData

_ROWS = 1 << 13


def window_of(dataset: Dataset, policy: Policy, gamma: float, name: str) -> WindowData:
    """All episodes of a dataset, end to end, with what temporal differences take; `action_logp` where it is recorded.

    Args:
        dataset: as small as memory asks for.
        policy: whose observation filter, frame stack and action scaling apply.
        gamma: discount.
        name: of the data, in messages.

    Raises:
        DataError: a column is missing, or the data do not fit the policy's spaces.
    """
    needs = transitions(gamma)
    if has_logp(dataset):
        needs = needs.with_columns(frozenset({Columns.ACTION_LOGP}))
    settings = Settings(
        needs=needs,
        pipeline=PipelineSpec(),
        seed=0,
        device=torch.device("cpu"),
        preprocessing=policy.preprocessing,
        observation_space=policy.observation_space,
        action_space=policy.action_space,
        executor=Local(),
        connectors=(),
        added=frozenset(),
    )
    return SourceFeed(name, dataset, settings, budget=0).everything()


def has_logp(dataset: Dataset) -> bool:
    """Whether the log-probabilities of the behaviour's actions were recorded."""
    return Columns.ACTION_LOGP in {root(leaf) for leaf in dataset.spec.leaves}


def over_steps(window: WindowData, compute: Callable[[Batch], Tensor]) -> Tensor:
    """`[S, ...]` what is computed of batches of a window's steps, in order."""
    steps = torch.arange(window.num_steps)
    return torch.cat([compute(window.gather(part)) for part in steps.split(_ROWS)])


def steps_of(window: WindowData, episodes: Tensor) -> Tensor:
    """The steps of some episodes, `[N]` bool, in order."""
    return torch.nonzero(episodes.repeat_interleave(window.length)).squeeze(1)
