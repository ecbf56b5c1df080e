"""n-step transitions against a slow, obvious reference."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pipeline_fakes import KINDS, FakeDataset, loader_of, random_dataset

from hindcast.pipeline.needs import Needs
from hindcast.pipeline.window import Batch, Recipe
from layers import examples

EVERYTHING = frozenset(
    {"obs", "new_obs", "actions", "rewards", "terminateds", "truncateds", "discounts", "n_step"}
)
both = pytest.mark.parametrize("kind", ["resident", "streaming"])


def n_step_reference(dataset: FakeDataset, n: int, gamma: float) -> dict[int, dict[str, Any]]:
    """From the number of a step to its item."""
    items: dict[int, dict[str, Any]] = {}
    for block in dataset.blocks:
        for episode in range(block.num_episodes):
            steps, observations = block.rows_of("actions", episode), block.rows_of("obs", episode)
            numbers, rewards = block.columns["actions"][steps, 0], block.columns["rewards"][steps]
            obs = block.columns["obs"][observations, 0]
            for t in range(len(numbers)):
                total, covered = 0.0, 0
                while covered < n and t + covered < len(numbers):
                    total += gamma**covered * float(rewards[t + covered])
                    covered += 1
                at_end = t + covered == len(numbers)
                terminated = at_end and bool(block.terminated[episode])
                items[int(numbers[t])] = {
                    "obs": obs[t],
                    "new_obs": obs[t + covered],
                    "rewards": total,
                    "n_step": covered,
                    "discounts": 0.0 if terminated else gamma**covered,
                    "terminateds": terminated,
                    "truncateds": at_end and bool(block.truncated[episode]),
                }
    return items


def pass_over(kind: str, dataset: FakeDataset, needs: Needs, **order: Any) -> Batch:
    """All items of an epoch, in batches that span windows."""
    with closing(KINDS[kind](loader_of(dataset, Recipe(needs), **order), 1)) as feed:
        parts, left = [], feed.epoch_size
        while left:
            parts.append(feed.take(min(7, left)))
            left -= len(parts[-1]["obs"])
        return {leaf: torch.cat([part[leaf] for part in parts]) for leaf in parts[0]}


@examples(100)
@given(seed=st.integers(0, 10_000), n=st.integers(1, 20), gamma=st.sampled_from([0.0, 0.5, 0.99, 1.0]))
@both
def test_n_step_items_are_those_of_the_reference(kind, seed, n, gamma):
    dataset = random_dataset(seed)
    expected = n_step_reference(dataset, n, gamma)
    batch = pass_over(kind, dataset, Needs(EVERYTHING, n_step=n, gamma=gamma), window_steps=25)
    numbers = batch["actions"][:, 0].int().tolist()
    assert sorted(numbers) == sorted(expected)
    for place, number in enumerate(numbers):
        for name, value in expected[number].items():
            found = batch[name][place].flatten()[0].item()
            assert found == pytest.approx(value, rel=1e-6, abs=1e-6), (number, name)


def test_dtypes_of_n_step_items():
    batch = pass_over("resident", random_dataset(0), Needs(EVERYTHING, n_step=3, gamma=0.9))
    found = {name: batch[name].dtype for name in ("rewards", "discounts", "n_step", "terminateds")}
    assert found == {
        "rewards": torch.float32,
        "discounts": torch.float32,
        "n_step": torch.int64,
        "terminateds": torch.bool,
    }


def test_one_step_items_have_what_is_stored():
    plain = Needs(frozenset({"obs", "new_obs", "actions", "rewards"}))
    one, other = (
        pass_over("resident", random_dataset(1), needs) for needs in (plain, Needs(EVERYTHING, gamma=0.9))
    )
    assert list(one) == ["actions", "rewards", "obs", "new_obs"]
    assert all(torch.equal(one[leaf], other[leaf]) for leaf in one)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"n_step": 0}, "n_step is 0"),
        ({"n_step": 2}, "need gamma"),
        ({"columns": frozenset({"discounts"})}, "need gamma"),
        ({"gamma": 1.5}, "gamma is 1.5"),
    ],
)
def test_what_is_not_possible_is_refused(wrong, sentence):
    with pytest.raises(ValueError, match=sentence):
        Needs(**({"columns": frozenset({"obs"})} | wrong))
