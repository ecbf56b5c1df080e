"""Load recorded episodes into memory as the networks of a policy see them."""

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

_BATCH_STEPS = 1 << 13
"""Steps to which `map_steps` applies a network at once, which bounds the memory of its activations."""


def load_window(dataset: Dataset, policy: Policy, gamma: float, name: str) -> WindowData:
    """Load all episodes of a dataset, with the columns of transitions and, if recorded, `action_logp`.

    Args:
        dataset: a dataset that fits in memory.
        policy: policy that provides observation filter, frame stack and action scaling.
        gamma: discount.
        name: name of the data in messages.

    Raises:
        DataError: a column is missing or the data do not fit the policy's spaces.
    """
    needs = transitions(gamma)
    if has_logp(dataset):
        needs = needs.with_columns(frozenset({Columns.ACTION_LOGP}))
    settings = SourceSettings(
        needs=needs,
        pipeline=PipelineSpec(),
        seed=0,
        device=torch.device("cpu"),
        preprocessing=policy.preprocessing.without_reward_scale(),
        observation_space=policy.observation_space,
        action_space=policy.action_space,
        executor=Local(),
        connectors=(),
        extra_columns=frozenset(),
    )
    # The budget does not matter: `load_all` loads all data also if a training would stream them.
    window = SourceFeed(name, dataset, settings, budget=0).load_all()
    _refuse_invalid_logp(window, dataset)
    return window


def _refuse_invalid_logp(window: WindowData, dataset: Dataset) -> None:
    """Check that all log-probabilities are finite numbers, if the data have log-probabilities.

    Raises:
        DataError: a log-probability is not finite; the message names the file and row of the first such episode.
    """
    # A single NaN would make every sum of ratios NaN.
    if Columns.ACTION_LOGP not in window.columns:
        return
    logp = window.columns[Columns.ACTION_LOGP]
    invalid_steps = torch.nonzero(~torch.isfinite(logp)).flatten()
    if not len(invalid_steps):
        return
    step = int(invalid_steps[0])
    ends = window.length.cumsum(0)
    episode = int(torch.searchsorted(ends, step, right=True))
    t = step - int(ends[episode] - window.length[episode])
    path, row = _locate_episode(dataset, episode)
    raise DataError(
        f"{Columns.ACTION_LOGP} is {float(logp[step]):g} at timestep {t} of the "
        "episode, expected the log-probability of the recorded action. Leave out the episode, or leave out the column "
        "so that the recorded policy is cloned.",
        path=path,
        row=row,
    )


def _locate_episode(dataset: Dataset, episode: int) -> EpisodeLocation:
    """Return the location of an episode, given its index over all units."""
    for unit in dataset.units:
        if episode < len(unit.lengths):
            return dataset.locate(unit, episode)
        episode -= len(unit.lengths)
    raise IndexError(f"the episode is {episode} episodes beyond the end of the data")


def has_logp(dataset: Dataset) -> bool:
    """Return True if the data contain the log-probabilities of the recorded actions."""
    return Columns.ACTION_LOGP in {root(leaf) for leaf in dataset.spec.leaves}


def map_steps(window: WindowData, compute: Callable[[Batch], Tensor], steps: Tensor | None = None) -> Tensor:
    """Apply `compute` to a window's steps batch by batch; return its results in order, `[S, ...]`.

    Args:
        window: the window.
        compute: returns `[B, ...]` for a batch of B steps.
        steps: indices of the steps to apply `compute` to; None for all steps.
    """
    steps = torch.arange(window.num_steps) if steps is None else steps
    return torch.cat([compute(window.gather(batch_steps)) for batch_steps in steps.split(_BATCH_STEPS)])


def steps_of_episodes(window: WindowData, episodes: Tensor) -> Tensor:
    """Return the indices of the steps of the episodes that the mask `episodes` `[N]` selects, in order."""
    return torch.nonzero(episodes.repeat_interleave(window.length)).squeeze(1)
