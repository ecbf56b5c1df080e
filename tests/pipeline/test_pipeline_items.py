"""n-step transitions and sequences, compared with slow, simple references."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pipeline_fakes import FEED_CLASSES, FakeDataset, both_feeds, make_loader, random_dataset

from hindcast.errors import DataError
from hindcast.pipeline.items import count_sequences
from hindcast.pipeline.needs import Needs
from hindcast.pipeline.shard import WHOLE_BATCH, Shard
from hindcast.pipeline.window import Batch, Recipe
from layers import examples

STEP_COLUMNS = frozenset(
    {"obs", "new_obs", "actions", "new_actions", "rewards"}
    | {"terminateds", "truncateds", "discounts", "n_step", "mc_returns"}
)


def n_step_reference(dataset: FakeDataset, n: int, gamma: float) -> dict[int, dict[str, Any]]:
    """Return the expected item of each step, by the index of the step."""
    items: dict[int, dict[str, Any]] = {}
    for block in dataset.blocks:
        for episode in range(block.num_episodes):
            steps, observations = block.rows_of("actions", episode), block.rows_of("obs", episode)
            step_indices, rewards = block.columns["actions"][steps, 0], block.columns["rewards"][steps]
            obs = block.columns["obs"][observations, 0]
            delta_t = block.columns.get("delta_t", np.ones(block.num_steps))[steps]
            for t in range(len(step_indices)):
                total, covered_steps, duration = 0.0, 0, 0.0
                while covered_steps < n and t + covered_steps < len(step_indices):
                    total += gamma**duration * float(rewards[t + covered_steps])
                    duration += delta_t[t + covered_steps]
                    covered_steps += 1
                is_at_end = t + covered_steps == len(step_indices)  # also of an unfinished episode
                terminated = is_at_end and bool(block.terminated[episode])
                items[int(step_indices[t])] = {
                    "obs": obs[t],
                    "new_obs": obs[t + covered_steps],
                    "new_actions": step_indices[t if is_at_end else t + covered_steps],
                    "followed": not is_at_end,
                    "rewards": total,
                    "n_step": covered_steps,
                    "mc_returns": sum(
                        gamma ** float(delta_t[t:k].sum()) * float(rewards[k])
                        for k in range(t, len(step_indices))
                    ),
                    "discounts": 0.0 if terminated else gamma**duration,
                    "terminateds": terminated,
                    "truncateds": is_at_end and bool(block.truncated[episode]),
                }
    return items


def take_epoch(feed_kind: str, dataset: FakeDataset, needs: Needs, **order: Any) -> Batch:
    """Return all items of an epoch, taken in batches that span windows."""
    with closing(FEED_CLASSES[feed_kind](make_loader(dataset, Recipe(needs), **order), 1)) as feed:
        batches, num_remaining = [], feed.epoch_size
        while num_remaining:
            batches.append(feed.take(min(7, num_remaining)))
            num_remaining -= len(batches[-1]["obs"])
        return {leaf: torch.cat([item_batch[leaf] for item_batch in batches]) for leaf in batches[0]}


def add_durations(dataset: FakeDataset, rng: np.random.Generator | None) -> FakeDataset:
    """Add random durations of steps, some of them 0, to the blocks of a dataset; without a generator, all are 1."""
    for index, block in enumerate(dataset.blocks):
        count = block.num_steps
        delta_t = np.ones(count) if rng is None else rng.exponential(size=count) * rng.integers(0, 3, count)
        dataset.blocks[index] = block.with_columns(
            {**block.columns, "delta_t": delta_t.astype(np.float32).astype(np.float64)}
        )
    return dataset


@examples(100)
@given(
    seed=st.integers(0, 10_000),
    n=st.integers(1, 20),
    gamma=st.sampled_from([0.0, 0.5, 0.99, 1.0]),
    has_durations=st.booleans(),
)
@both_feeds
def test_n_step_items_equal_reference(feed_kind, seed, n, gamma, has_durations):
    dataset, needs = random_dataset(seed), Needs(STEP_COLUMNS, n_step=n, gamma=gamma)
    if has_durations:
        dataset = add_durations(dataset, np.random.default_rng(seed))
        needs = needs.with_durations(frozenset({"delta_t"}))
    expected = n_step_reference(dataset, n, gamma)
    batch = take_epoch(feed_kind, dataset, needs, window_steps=25)
    step_indices = batch["actions"][:, 0].int().tolist()
    assert sorted(step_indices) == sorted(expected)
    for position, step_index in enumerate(step_indices):
        for name, value in expected[step_index].items():
            actual = batch[name][position].flatten()[0].item()
            assert actual == pytest.approx(value, rel=1e-6, abs=1e-6), (step_index, name)


@examples(20)
@given(seed=st.integers(0, 10_000), n=st.integers(1, 20), gamma=st.floats(0, 1))
def test_items_of_steps_of_one_unit_are_those_without_durations(seed, n, gamma):
    needs = Needs(STEP_COLUMNS, n_step=n, gamma=gamma)
    plain_batch = take_epoch("resident", random_dataset(seed), needs)
    timed_dataset = add_durations(random_dataset(seed), None)
    timed_batch = take_epoch("resident", timed_dataset, needs.with_durations(frozenset({"delta_t"})))
    assert plain_batch.keys() == timed_batch.keys()
    assert all(torch.equal(plain_batch[leaf], timed_batch[leaf]) for leaf in plain_batch)


@pytest.mark.parametrize("delta_t", [-0.5, float("nan")])
def test_invalid_durations_are_refused(delta_t):
    dataset = add_durations(random_dataset(0), None)
    dataset.blocks[0].columns["delta_t"][0] = delta_t
    with pytest.raises(DataError, match="'delta_t' has negative or missing durations"):
        take_epoch(
            "resident", dataset, Needs(frozenset({"obs"}), gamma=0.9).with_columns(frozenset({"delta_t"}))
        )


def test_n_step_items_have_documented_dtypes():
    batch = take_epoch("resident", random_dataset(0), Needs(STEP_COLUMNS, n_step=3, gamma=0.9))
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
        take_epoch("resident", random_dataset(1), needs)
        for needs in (stored_needs, Needs(STEP_COLUMNS, gamma=0.9))
    )
    assert list(stored_batch) == ["actions", "rewards", "obs", "new_obs"]
    assert all(torch.equal(stored_batch[leaf], full_batch[leaf]) for leaf in stored_batch)


def sequence_reference(dataset: FakeDataset, seq_len: int, burn_in: int) -> dict[int, dict[str, Any]]:
    """Return each expected sequence, by the index of its first step; rows of padding are None."""
    items: dict[int, dict[str, Any]] = {}
    for block in dataset.blocks:
        for episode in range(block.num_episodes):
            steps = block.rows_of("actions", episode)
            step_indices = block.columns["actions"][steps, 0].astype(int).tolist()
            states = block.columns["state_out/h"][steps]
            learned_steps = begin = 0
            while learned_steps < len(step_indices):
                rows = [(begin + i) if begin + i < len(step_indices) else None for i in range(seq_len)]
                items[step_indices[begin]] = {
                    "step_indices": [None if row is None else step_indices[row] for row in rows],
                    "t": [0 if row is None else int(block.t_started[episode]) + row for row in rows],
                    "loss_mask": [row is not None and row >= learned_steps for row in rows],
                    "seq_lens": sum(row is not None for row in rows),
                    "state": states[begin - 1] if begin else np.zeros(2),
                }
                learned_steps = min(begin + seq_len, len(step_indices))
                begin += seq_len - burn_in
    return items


def add_states(dataset: FakeDataset, name: str = "state_out/h") -> FakeDataset:
    """Add a column of random states to the dataset, in place, and return the dataset."""
    rng = np.random.default_rng(0)
    for index, block in enumerate(dataset.blocks):
        states = rng.normal(size=(block.num_steps, 2)).astype(np.float32)
        dataset.blocks[index] = block.with_columns(block.columns | {name: states})
    return dataset


def items_per_unit(dataset: FakeDataset, needs: Needs) -> list[int]:
    cutting = (needs.seq_len, needs.burn_in, needs.stride)
    return [int(count_sequences(unit.lengths, *cutting).sum()) for unit in dataset.units]


@examples(100)
@given(seed=st.integers(0, 10_000), seq_len=st.integers(1, 9), data=st.data())
@both_feeds
def test_sequences_equal_reference(feed_kind, seed, seq_len, data):
    dataset = add_states(random_dataset(seed))
    burn_in = data.draw(st.integers(0, seq_len - 1))
    columns = frozenset({"obs", "actions", "rewards", "t", "state_out"})
    needs = Needs(columns, seq_len=seq_len, burn_in=burn_in, initial_state="recorded")
    expected = sequence_reference(dataset, seq_len, burn_in)
    batch = take_epoch(feed_kind, dataset, needs, window_steps=25, unit_items=items_per_unit(dataset, needs))
    first_steps = batch["actions"][:, 0, 0].int().tolist()
    assert sorted(first_steps) == sorted(expected)
    rewards = np.concatenate([block.columns["rewards"] for block in dataset.blocks])
    for position, first_step in enumerate(first_steps):
        item = expected[first_step]
        assert batch["loss_mask"][position].tolist() == item["loss_mask"]
        assert batch["seq_lens"][position] == item["seq_lens"]
        assert batch["t"][position].tolist() == item["t"]
        assert batch["state_in/h"][position].tolist() == pytest.approx(item["state"])
        for step, step_index in enumerate(item["step_indices"]):
            actual_values = [
                float(batch[leaf][position, step].flatten()[0]) for leaf in ("actions", "obs", "rewards")
            ]
            expected_values = (
                [0.0, 0.0, 0.0]
                if step_index is None
                else [step_index, step_index + 0.25, rewards[step_index]]
            )
            assert actual_values == pytest.approx(expected_values)
    assert int(batch["loss_mask"].sum()) == dataset.num_steps, "an epoch learns from each timestep once"


@examples(50)
@given(seed=st.integers(0, 10_000), seq_len=st.integers(1, 9), data=st.data())
@both_feeds
def test_sequences_with_stride_begin_along_the_whole_episode(feed_kind, seed, seq_len, data):
    dataset = random_dataset(seed)
    stride = data.draw(st.integers(1, seq_len))
    needs = Needs(frozenset({"actions", "t", "obs"}), seq_len=seq_len, stride=stride)
    expected = [
        block.columns["actions"][block.rows_of("actions", episode), 0][start : start + seq_len].tolist()
        for block in dataset.blocks
        for episode in range(block.num_episodes)
        for start in range(0, int(block.length[episode]), stride)
    ]
    batch = take_epoch(feed_kind, dataset, needs, window_steps=25, unit_items=items_per_unit(dataset, needs))
    sequences = [
        row[mask].tolist() for row, mask in zip(batch["actions"][..., 0], batch["loss_mask"], strict=True)
    ]
    assert sorted(sequences) == sorted(expected)
    assert batch["seq_lens"].tolist() == [len(sequence) for sequence in sequences]


@both_feeds
def test_n_step_columns_of_sequences_reach_beyond_their_end(feed_kind):
    dataset = random_dataset(3)
    needs = Needs(STEP_COLUMNS, n_step=3, gamma=0.9, seq_len=4)
    expected = n_step_reference(dataset, 3, 0.9)
    batch = take_epoch(feed_kind, dataset, needs, unit_items=items_per_unit(dataset, needs))
    for row, step in batch["loss_mask"].nonzero().tolist():
        item = expected[int(batch["actions"][row, step, 0])]
        for name, value in item.items():
            assert batch[name][row, step].flatten()[0].item() == pytest.approx(value, rel=1e-5, abs=1e-6)


def test_sequences_have_documented_dtypes_and_shapes():
    dataset = add_states(random_dataset(0), "state_in/h")
    columns = STEP_COLUMNS | {"t", "state_in"}
    needs = Needs(columns, gamma=0.9, seq_len=5, burn_in=2, initial_state="recorded")
    batch = take_epoch("resident", dataset, needs, unit_items=items_per_unit(dataset, needs))
    count = len(batch["obs"])
    actual = {name: (batch[name].dtype, tuple(batch[name].shape)) for name in batch}
    assert actual == {
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
        "mc_returns": (torch.float32, (count, 5)),
        "t": (torch.int64, (count, 5)),
        "loss_mask": (torch.bool, (count, 5)),
        "seq_lens": (torch.int64, (count,)),
        "state_in/h": (torch.float32, (count, 2)),
    }


@examples(50)
@given(
    seed=st.integers(0, 1000),
    seq_len=st.integers(1, 6),
    replacement=st.booleans(),
    num_batches=st.integers(0, 12),
)
def test_sequences_resume_at_any_batch_in_both_feeds(seed, seq_len, replacement, num_batches):
    dataset = random_dataset(seed)
    needs = Needs(frozenset({"actions", "t"}), seq_len=seq_len, burn_in=seq_len // 2)
    order = {"window_steps": 20, "replacement": replacement, "unit_items": items_per_unit(dataset, needs)}
    feeds = [
        FEED_CLASSES[feed_kind](make_loader(dataset, Recipe(needs), **order), 3)
        for feed_kind in ("resident", "streaming") * 2
    ]
    with closing(feeds[0]), closing(feeds[1]), closing(feeds[2]), closing(feeds[3]):
        original = [feeds[0].next() for _ in range(num_batches + 5)]
        for _ in range(num_batches):
            feeds[1].next()
        for resumed_feed in feeds[2:]:
            resumed_feed.seek(feeds[1].state())
        for batch in original[num_batches:]:
            for feed in feeds[1:]:
                actual = feed.next()
                assert all(torch.equal(batch[leaf], actual[leaf]) for leaf in batch)


def test_shards_of_a_batch_partition_its_sequences():
    dataset = random_dataset(5)
    needs = Needs(frozenset({"actions"}), seq_len=3)
    order = {"window_steps": 20, "unit_items": items_per_unit(dataset, needs)}
    shards = [WHOLE_BATCH, *(Shard(rank, 3) for rank in range(3))]
    feeds = [
        FEED_CLASSES["streaming"](make_loader(dataset, Recipe(needs), **order), 7, shard=shard)
        for shard in shards
    ]
    with closing(feeds[0]), closing(feeds[1]), closing(feeds[2]), closing(feeds[3]):
        for _ in range(6):
            batch, *parts = [feed.next()["actions"] for feed in feeds]
            assert sorted(torch.cat(parts).tolist()) == sorted(batch.tolist())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n_step": 0}, "n_step is 0"),
        ({"n_step": 2}, "need gamma"),
        ({"columns": frozenset({"discounts"})}, "need gamma"),
        ({"gamma": 1.5}, "gamma is 1.5"),
        ({"seq_len": 0}, "seq_len is 0"),
        ({"seq_len": 4, "burn_in": 4}, "burn_in is 4"),
        ({"burn_in": 1}, "set seq_len"),
        ({"initial_state": "recorded"}, "set seq_len"),
        ({"sampling": "all"}, "sampling is 'all'; it must be one of 'epochs', 'uniform', 'prioritized'"),
        ({"sampling": "uniform", "targets": True}, "targets require sampling 'epochs'"),
        ({"sampling": "prioritized", "alpha": -1.0}, "alpha is -1.0"),
        ({"sampling": "prioritized", "columns": frozenset({"weights"})}, "adds its own column 'weights'"),
    ],
)
def test_impossible_needs_raise(fields, message):
    with pytest.raises(ValueError, match=message):
        Needs(**({"columns": frozenset({"obs"})} | fields))
