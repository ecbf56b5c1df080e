"""Items drawn from all data, uniformly and by priority."""

import numpy as np
import pytest
import torch
from pipeline_fakes import ALL_COLUMNS, STEPS, UNITS, FakeDataset, are_equal_batches, make_loader

from hindcast.api.pipeline import PipelineSpec
from hindcast.errors import DataError, SpecError, UserCodeError
from hindcast.pipeline.draws import ReplayFeed
from hindcast.pipeline.items import count_sequences
from hindcast.pipeline.needs import Needs
from hindcast.pipeline.offline_data import OfflineData, Source
from hindcast.pipeline.shard import WHOLE_BATCH, Shard
from hindcast.pipeline.window import Recipe, concat_batches

both_samplings = pytest.mark.parametrize("sampling", ["uniform", "prioritized"])


def make_replay_feed(sampling, batch_size=10, seed=0, units=UNITS, shard=WHOLE_BATCH, **needs):
    recipe, order = Recipe(Needs(ALL_COLUMNS, sampling=sampling, **needs)), {}
    if "seq_len" in needs:
        num_sequences = [
            count_sequences(np.array(unit), needs["seq_len"], needs["burn_in"]) for unit in units
        ]
        order = {"unit_items": np.array([count.sum() for count in num_sequences])}
    return ReplayFeed(make_loader(FakeDataset(units), recipe, seed=seed, **order), batch_size, shard)


def priorities_of_batch(batch):
    """Return priorities of a batch's items, as losses do; here a function of its steps."""
    return (batch["rewards"] * 0.37).sin()


def train(feed, num_batches):
    """Take batches and set the priorities of items that are drawn by priority, like a training."""
    batches = []
    for _ in range(num_batches):
        batches.append(feed.next())
        if "weights" in batches[-1]:
            feed.prioritise(priorities_of_batch(batches[-1]))
    return batches


@both_samplings
def test_draws_cover_all_data_and_columns_belong_together(sampling):
    (batch,) = train(make_replay_feed(sampling, batch_size=4000), 1)
    step = batch["rewards"]
    assert torch.equal(batch["actions"], torch.stack([step, -step], 1))
    assert torch.equal(batch["obs"], (step + 0.25)[:, None].expand(-1, 3))
    counts = np.bincount(step.int().numpy(), minlength=STEPS)
    assert counts.min() > 0.4 * 4000 / STEPS
    assert counts.max() < 2 * 4000 / STEPS


def test_draws_follow_the_last_priorities():
    feed = make_replay_feed("prioritized", batch_size=6, seed=4, alpha=0.7, beta=0.5)
    priorities = np.ones(STEPS)
    uniform = feed._draws._uniforms.take(0, 6 * 200).reshape(200, 6)
    for uniforms_of_batch in uniform:
        batch = feed.next()
        powers = (priorities + 1e-6) ** 0.7
        expected = np.searchsorted(np.cumsum(powers), uniforms_of_batch * powers.sum(), side="right")
        assert batch["rewards"].tolist() == expected.tolist()
        probabilities = powers / powers.sum()
        weights = (STEPS * probabilities) ** -0.5
        np.testing.assert_allclose(batch["weights"], weights[expected] / weights.max(), rtol=1e-5)
        feed.prioritise(priorities_of_batch(batch))
        priorities[expected] = np.abs(priorities_of_batch(batch).numpy())


@both_samplings
@pytest.mark.parametrize("num_batches", [0, 1, 7])
def test_resume_repeats_the_run_exactly(sampling, num_batches):
    original, resumed_feed = (make_replay_feed(sampling, batch_size=13) for _ in range(2))
    train(original, num_batches)
    train(resumed_feed, 3)
    resumed_feed.seek(original.state(), original.tensors())
    assert resumed_feed.cursor == original.cursor == 13 * num_batches
    for expected, actual in zip(train(original, 10), train(resumed_feed, 10), strict=True):
        assert are_equal_batches(expected, actual)
    expected, actual = original.metrics(), resumed_feed.metrics()
    assert {**expected, "data_wait_seconds": 0} == {**actual, "data_wait_seconds": 0}
    assert 0 < expected["coverage"] == expected["timesteps_seen"] / STEPS < 1
    assert expected["epoch"] == 13 * (num_batches + 10) / STEPS


@both_samplings
def test_shards_of_learners_equal_the_draws_of_one(sampling):
    single_feed = make_replay_feed(sampling)
    ranks = [make_replay_feed(sampling, shard=Shard(rank, 3)) for rank in range(3)]
    for _ in range(20):
        (expected,) = train(single_feed, 1)
        shards = [feed.next() for feed in ranks]
        assert are_equal_batches(concat_batches(shards), expected)
        for feed in ranks if sampling == "prioritized" else ():
            feed.prioritise(torch.cat([priorities_of_batch(shard_batch) for shard_batch in shards]))


def test_sequences_have_their_own_priorities():
    feed = make_replay_feed("prioritized", batch_size=4, units=[[10, 4], [7]], seq_len=5, burn_in=1)
    for _ in range(5):
        batch = feed.next()
        assert batch["rewards"].shape == (4, 5)
        assert batch["weights"].shape == (4,)
        feed.prioritise(batch["rewards"].mean(1))


def test_seek_to_position_of_other_data_or_draws_raises():
    feed = make_replay_feed("prioritized")
    with pytest.raises(DataError, match="the data in data, or how Hindcast prepares them, have changed"):
        feed.seek(make_replay_feed("prioritized", units=[*UNITS, [1]]).state())
    for other_feed in (
        make_replay_feed("uniform"),
        make_replay_feed("prioritized", seed=1),
        make_replay_feed("prioritized", alpha=0.1),
    ):
        with pytest.raises(DataError, match="the seed, the algorithm's sampling or alpha"):
            feed.seek(other_feed.state())


def test_priorities_require_prioritized_sampling():
    with pytest.raises(UserCodeError, match="set sampling='prioritized' in its needs"):
        make_replay_feed("uniform").prioritise(torch.ones(10))
    feed = make_replay_feed("prioritized")
    feed.next()
    with pytest.raises(UserCodeError, match=r"priorities of shape \[1, 10\] for 10 items"):
        feed.prioritise(torch.ones(1, 10))
    with pytest.raises(UserCodeError, match="set `priorities` of `Losses`"):
        feed.next()


@pytest.mark.parametrize(
    ("pipeline", "message"),
    [
        (
            {"residency": "Streaming"},
            "streamed: spec.pipeline.residency is Streaming. Leave spec.pipeline.residency at Auto",
        ),
        ({"residentBudget": "1Ki"}, "exceed the budget of 1.0 KiB. .* raise spec.pipeline.residentBudget"),
        (
            {"sampling": "WithReplacement"},
            r"spec.pipeline.sampling is WithReplacement.* Leave spec.pipeline.sampling out",
        ),
    ],
)
@both_samplings
def test_draws_from_streamed_data_raise(make_dataset, pipeline, message, sampling):
    spec = PipelineSpec.model_validate(pipeline)
    needs = Needs(frozenset({"obs"}), sampling=sampling)
    with pytest.raises(SpecError, match=message):
        OfflineData([Source("data", make_dataset(UNITS))], needs, batch_size=4, pipeline=spec)


def test_weighted_sources_have_their_own_priorities(make_dataset):
    sources = [
        Source("one", make_dataset(UNITS, "one"), 0.7),
        Source("two", make_dataset(UNITS[:3], "two"), 0.3),
    ]
    needs = Needs(ALL_COLUMNS, sampling="prioritized")
    original, resumed_feed = (OfflineData(sources, needs, batch_size=8, seed=1) for _ in range(2))
    train(original, 12)
    resumed_feed.seek(original.state(), original.tensors())
    for expected, actual in zip(train(original, 12), train(resumed_feed, 12), strict=True):
        assert are_equal_batches(expected, actual)
