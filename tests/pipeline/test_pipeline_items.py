"""n-step transitions and sequences against slow, obvious references."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pipeline_fakes import KINDS, FakeDataset, loader_of, random_dataset

from hindcast.pipeline.items import count_sequences
from hindcast.pipeline.needs import Needs
from hindcast.pipeline.shard import Shard
from hindcast.pipeline.window import Batch, Recipe
from layers import examples

EVERYTHING = frozenset(
    {
        "obs",
        "new_obs",
        "actions",
        "new_actions",
        "rewards",
        "terminateds",
        "truncateds",
        "discounts",
        "n_step",
    }
)
both_feeds = pytest.mark.parametrize("kind", ["resident", "streaming"])


def n_step_reference(dataset: FakeDataset, n: int, gamma: float) -> dict[int, dict[str, Any]]:
    """From the number of a step to its item."""
    items: dict[int, dict[str, Any]] = {}
    for block in dataset.blocks:
        for episode in range(block.num_episodes):
            steps, observations = block.rows_of("actions", episode), block.rows_of("obs", episode)
            numbers, rewards = block.columns["actions"][steps, 0], block.columns["rewards"][steps]
            obs = block.columns["obs"][observations, 0]
            for t in range(len(numbers)):
                total, covered_steps = 0.0, 0
                while covered_steps < n and t + covered_steps < len(numbers):
                    total += gamma**covered_steps * float(rewards[t + covered_steps])
                    covered_steps += 1
                at_end = t + covered_steps == len(numbers)  # finished or not
                terminated = at_end and bool(block.terminated[episode])
                items[int(numbers[t])] = {
                    "obs": obs[t],
                    "new_obs": obs[t + covered_steps],
                    "new_actions": numbers[t if at_end else t + covered_steps],
                    "followed": not at_end,
                    "rewards": total,
                    "n_step": covered_steps,
                    "discounts": 0.0 if terminated else gamma**covered_steps,
                    "terminateds": terminated,
                    "truncateds": at_end and bool(block.truncated[episode]),
                }
    return items


def pass_over(kind: str, dataset: FakeDataset, needs: Needs, **order: Any) -> Batch:
    """All items of an epoch, in batches that span windows."""
    with closing(KINDS[kind](loader_of(dataset, Recipe(needs), **order), 1)) as feed:
        parts, num_remaining = [], feed.epoch_size
        while num_remaining:
            parts.append(feed.take(min(7, num_remaining)))
            num_remaining -= len(parts[-1]["obs"])
        return {leaf: torch.cat([part[leaf] for part in parts]) for leaf in parts[0]}


@examples(100)
@given(seed=st.integers(0, 10_000), n=st.integers(1, 20), gamma=st.sampled_from([0.0, 0.5, 0.99, 1.0]))
@both_feeds
def test_n_step_items_equal_reference(kind, seed, n, gamma):
    dataset = random_dataset(seed)
    expected = n_step_reference(dataset, n, gamma)
    batch = pass_over(kind, dataset, Needs(EVERYTHING, n_step=n, gamma=gamma), window_steps=25)
    numbers = batch["actions"][:, 0].int().tolist()
    assert sorted(numbers) == sorted(expected)
    for position, number in enumerate(numbers):
        for name, value in expected[number].items():
            actual = batch[name][position].flatten()[0].item()
            assert actual == pytest.approx(value, rel=1e-6, abs=1e-6), (number, name)


def test_n_step_items_have_documented_dtypes():
    batch = pass_over("resident", random_dataset(0), Needs(EVERYTHING, n_step=3, gamma=0.9))
    names = ("rewards", "discounts", "n_step", "terminateds", "followed", "new_actions")
    dtypes = {name: batch[name].dtype for name in names}
    assert dtypes == {
        "rewards": torch.float32,
        "discounts": torch.float32,
        "n_step": torch.int64,
        "terminateds": torch.bool,
        "followed": torch.bool,
        "new_actions": torch.float32,
    }


def test_one_step_items_contain_stored_values():
    stored_needs = Needs(frozenset({"obs", "new_obs", "actions", "rewards"}))
    stored_batch, full_batch = (
        pass_over("resident", random_dataset(1), needs)
        for needs in (stored_needs, Needs(EVERYTHING, gamma=0.9))
    )
    assert list(stored_batch) == ["actions", "rewards", "obs", "new_obs"]
    assert all(torch.equal(stored_batch[leaf], full_batch[leaf]) for leaf in stored_batch)


def sequence_reference(dataset: FakeDataset, seq_len: int, burn_in: int) -> dict[int, dict[str, Any]]:
    """From the number of a sequence's first step to its rows, `None` for padding; and what it begins with."""
    items: dict[int, dict[str, Any]] = {}
    for block in dataset.blocks:
        for episode in range(block.num_episodes):
            steps = block.rows_of("actions", episode)
            numbers = block.columns["actions"][steps, 0].astype(int).tolist()
            states = block.columns["state_out/h"][steps]
            learned_steps = begin = 0
            while learned_steps < len(numbers):
                rows = [(begin + i) if begin + i < len(numbers) else None for i in range(seq_len)]
                items[numbers[begin]] = {
                    "numbers": [None if row is None else numbers[row] for row in rows],
                    "t": [0 if row is None else int(block.t_started[episode]) + row for row in rows],
                    "loss_mask": [row is not None and row >= learned_steps for row in rows],
                    "seq_lens": sum(row is not None for row in rows),
                    "state": states[begin - 1] if begin else np.zeros(2),
                }
                learned_steps = min(begin + seq_len, len(numbers))
                begin += seq_len - burn_in
    return items


def with_states(dataset: FakeDataset, name: str = "state_out/h") -> FakeDataset:
    random = np.random.default_rng(0)
    for number, block in enumerate(dataset.blocks):
        states = random.normal(size=(block.num_steps, 2)).astype(np.float32)
        dataset.blocks[number] = block.with_columns(block.columns | {name: states})
    return dataset


def items_per_unit(dataset: FakeDataset, needs: Needs) -> list[int]:
    of_each = (needs.seq_len, needs.burn_in, needs.stride)
    return [int(count_sequences(unit.lengths, *of_each).sum()) for unit in dataset.units]


@examples(100)
@given(seed=st.integers(0, 10_000), seq_len=st.integers(1, 9), data=st.data())
@both_feeds
def test_sequences_equal_reference(kind, seed, seq_len, data):
    dataset = with_states(random_dataset(seed))
    burn_in = data.draw(st.integers(0, seq_len - 1))
    columns = frozenset({"obs", "actions", "rewards", "t", "state_out"})
    needs = Needs(columns, seq_len=seq_len, burn_in=burn_in, initial_state="recorded")
    expected = sequence_reference(dataset, seq_len, burn_in)
    batch = pass_over(kind, dataset, needs, window_steps=25, unit_items=items_per_unit(dataset, needs))
    firsts = batch["actions"][:, 0, 0].int().tolist()
    assert sorted(firsts) == sorted(expected)
    rewards = np.concatenate([block.columns["rewards"] for block in dataset.blocks])
    for position, first in enumerate(firsts):
        item = expected[first]
        assert batch["loss_mask"][position].tolist() == item["loss_mask"]
        assert batch["seq_lens"][position] == item["seq_lens"]
        assert batch["t"][position].tolist() == item["t"]
        assert batch["state_in/h"][position].tolist() == pytest.approx(item["state"])
        for step, number in enumerate(item["numbers"]):
            actual_values = [
                float(batch[leaf][position, step].flatten()[0]) for leaf in ("actions", "obs", "rewards")
            ]
            expected_values = [0.0, 0.0, 0.0] if number is None else [number, number + 0.25, rewards[number]]
            assert actual_values == pytest.approx(expected_values)
    assert int(batch["loss_mask"].sum()) == dataset.num_steps, "an epoch learns from each timestep once"


@examples(50)
@given(seed=st.integers(0, 10_000), seq_len=st.integers(1, 9), data=st.data())
@both_feeds
def test_sequences_with_stride_begin_along_the_whole_episode(kind, seed, seq_len, data):
    dataset = random_dataset(seed)
    stride = data.draw(st.integers(1, seq_len))
    needs = Needs(frozenset({"actions", "t", "obs"}), seq_len=seq_len, stride=stride)
    expected = [
        block.columns["actions"][block.rows_of("actions", episode), 0][first : first + seq_len].tolist()
        for block in dataset.blocks
        for episode in range(block.num_episodes)
        for first in range(0, int(block.length[episode]), stride)
    ]
    batch = pass_over(kind, dataset, needs, window_steps=25, unit_items=items_per_unit(dataset, needs))
    sequences = [
        row[mask].tolist() for row, mask in zip(batch["actions"][..., 0], batch["loss_mask"], strict=True)
    ]
    assert sorted(sequences) == sorted(expected)
    assert batch["seq_lens"].tolist() == [len(sequence) for sequence in sequences]


@both_feeds
def test_n_step_columns_of_sequences_reach_beyond_their_end(kind):
    dataset = random_dataset(3)
    needs = Needs(EVERYTHING, n_step=3, gamma=0.9, seq_len=4)
    expected = n_step_reference(dataset, 3, 0.9)
    batch = pass_over(kind, dataset, needs, unit_items=items_per_unit(dataset, needs))
    for row, step in batch["loss_mask"].nonzero().tolist():
        item = expected[int(batch["actions"][row, step, 0])]
        for name, value in item.items():
            assert batch[name][row, step].flatten()[0].item() == pytest.approx(value, rel=1e-5, abs=1e-6)


def test_sequences_have_documented_dtypes_and_shapes():
    dataset = with_states(random_dataset(0), "state_in/h")
    columns = EVERYTHING | {"t", "state_in"}
    needs = Needs(columns, gamma=0.9, seq_len=5, burn_in=2, initial_state="recorded")
    batch = pass_over("resident", dataset, needs, unit_items=items_per_unit(dataset, needs))
    count = len(batch["obs"])
    found = {name: (batch[name].dtype, tuple(batch[name].shape)) for name in batch}
    assert found == {
        "obs": (torch.float32, (count, 5, 3)),
        "new_obs": (torch.float32, (count, 5, 3)),
        "actions": (torch.float32, (count, 5, 2)),
        "new_actions": (torch.float32, (count, 5, 2)),
        "followed": (torch.bool, (count, 5)),
        "rewards": (torch.float32, (count, 5)),
        "terminateds": (torch.bool, (count, 5)),
        "truncateds": (torch.bool, (count, 5)),
        "discounts": (torch.float32, (count, 5)),
        "n_step": (torch.int64, (count, 5)),
        "t": (torch.int64, (count, 5)),
        "loss_mask": (torch.bool, (count, 5)),
        "seq_lens": (torch.int64, (count,)),
        "state_in/h": (torch.float32, (count, 2)),
    }


@examples(50)
@given(
    seed=st.integers(0, 1000), seq_len=st.integers(1, 6), replacement=st.booleans(), done=st.integers(0, 12)
)
def test_sequences_resume_at_any_batch_in_both_feeds(seed, seq_len, replacement, done):
    dataset = random_dataset(seed)
    needs = Needs(frozenset({"actions", "t"}), seq_len=seq_len, burn_in=seq_len // 2)
    order = {"window_steps": 20, "replacement": replacement, "unit_items": items_per_unit(dataset, needs)}
    feeds = [
        KINDS[kind](loader_of(dataset, Recipe(needs), **order), 3) for kind in ("resident", "streaming") * 2
    ]
    with closing(feeds[0]), closing(feeds[1]), closing(feeds[2]), closing(feeds[3]):
        original = [feeds[0].next() for _ in range(done + 5)]
        for _ in range(done):
            feeds[1].next()
        for resumed_feed in feeds[2:]:
            resumed_feed.seek(feeds[1].state())
        for batch in original[done:]:
            for feed in feeds[1:]:
                other = feed.next()
                assert all(torch.equal(batch[leaf], other[leaf]) for leaf in batch)


def test_shards_of_a_batch_partition_its_sequences():
    dataset = random_dataset(5)
    needs = Needs(frozenset({"actions"}), seq_len=3)
    order = {"window_steps": 20, "unit_items": items_per_unit(dataset, needs)}
    feeds = [KINDS["streaming"](loader_of(dataset, Recipe(needs), **order), 7) for _ in range(4)]
    with closing(feeds[0]), closing(feeds[1]), closing(feeds[2]), closing(feeds[3]):
        for _ in range(6):
            parts = [feed.take(7, Shard(rank, 3)) for rank, feed in enumerate(feeds[1:])]
            for leaf, values in feeds[0].next().items():
                assert torch.equal(torch.cat([part[leaf] for part in parts]), values)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"n_step": 0}, "n_step is 0"),
        ({"n_step": 2}, "need gamma"),
        ({"columns": frozenset({"discounts"})}, "need gamma"),
        ({"gamma": 1.5}, "gamma is 1.5"),
        ({"seq_len": 0}, "seq_len is 0"),
        ({"seq_len": 4, "burn_in": 4}, "burn_in is 4"),
        ({"burn_in": 1}, "set seq_len"),
        ({"initial_state": "recorded"}, "set seq_len"),
    ],
)
def test_impossible_needs_raise(wrong, sentence):
    with pytest.raises(ValueError, match=sentence):
        Needs(**({"columns": frozenset({"obs"})} | wrong))
