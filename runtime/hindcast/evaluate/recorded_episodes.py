"""Recorded episodes as the networks of a policy see them, whole and in memory."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hindcast.api.pipeline import PipelineSpec
from hindcast.datasets.dataset import Dataset
from hindcast.datasets.units import EpisodeLocation
from hindcast.episodes.columns import Columns, root
from hindcast.errors import DataError
from hindcast.models.policy import Policy
from hindcast.pipeline.executors import Local
from hindcast.pipeline.needs import transitions
from hindcast.pipeline.source_feed import SourceFeed, SourceSettings
from hindcast.pipeline.window import Batch, WindowData

_ROWS = 1 << 13


def load_window(dataset: Dataset, policy: Policy, gamma: float, name: str) -> WindowData:
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
    settings = SourceSettings(
        needs=needs,
        pipeline=PipelineSpec(),
        seed=0,
        device=torch.device("cpu"),
        preprocessing=policy.preprocessing,
        observation_space=policy.observation_space,
        action_space=policy.action_space,
        executor=Local(),
        connectors=(),
        extra_columns=frozenset(),
    )
    window = SourceFeed(name, dataset, settings, budget=0).load_all()
    _refuse_odd_logp(window, dataset)
    return window


def _refuse_odd_logp(window: WindowData, dataset: Dataset) -> None:
    """Refuse log-probabilities that are none: every sum of ratios that they enter would be lost.

    Raises:
        DataError: there is one, with the file and the row of its episode.
    """
    if Columns.ACTION_LOGP not in window.columns:
        return
    logp = window.columns[Columns.ACTION_LOGP]
    odd = torch.nonzero(~torch.isfinite(logp)).flatten()
    if not len(odd):
        return
    step = int(odd[0])
    ends = window.length.cumsum(0)
    episode = int(torch.searchsorted(ends, step, right=True))
    t = step - int(ends[episode] - window.length[episode])
    raise DataError(
        f"{_place(dataset, episode)}: {Columns.ACTION_LOGP} is {float(logp[step]):g} at timestep {t} of the episode, "
        "expected the log-probability of the recorded action; leave out the episode, or the column, so that the "
        "behaviour is cloned."
    )


def _place(dataset: Dataset, episode: int) -> EpisodeLocation:
    """Of an episode, counted over all units."""
    for unit in dataset.units:
        if episode < len(unit.lengths):
            return dataset.locate(unit, episode)
        episode -= len(unit.lengths)
    raise IndexError(f"the data have {episode} episodes less")


def has_logp(dataset: Dataset) -> bool:
    """Whether the log-probabilities of the behaviour's actions were recorded."""
    return Columns.ACTION_LOGP in {root(leaf) for leaf in dataset.spec.leaves}


def map_steps(window: WindowData, compute: Callable[[Batch], Tensor], steps: Tensor | None = None) -> Tensor:
    """`[S, ...]` what is computed of batches of a window's steps, in order: of all, unless some are given."""
    steps = torch.arange(window.num_steps) if steps is None else steps
    return torch.cat([compute(window.gather(part)) for part in steps.split(_ROWS)])


def steps_of_episodes(window: WindowData, episodes: Tensor) -> Tensor:
    """The steps of some episodes, `[N]` bool, in order."""
    return torch.nonzero(episodes.repeat_interleave(window.length)).squeeze(1)
