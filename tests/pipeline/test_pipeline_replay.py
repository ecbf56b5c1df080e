"""Items drawn from all data, uniformly and by priority."""

import numpy as np
import pytest
import torch
from pipeline_fakes import ALL, FakeDataset, loader_of

from hindcast.api.pipeline import PipelineSpec
from hindcast.errors import DataError, SpecError, UserCodeError
from hindcast.pipeline.draws import ReplayFeed
from hindcast.pipeline.items import count_sequences
from hindcast.pipeline.needs import Needs
from hindcast.pipeline.offline_data import OfflineData, Source
from hindcast.pipeline.shard import Shard
from hindcast.pipeline.window import Recipe, concat_batches

UNITS = [[5, 1, 7], [20], [3, 3, 3, 3], [11, 9], [2], [30, 1]]
STEPS = sum(map(sum, UNITS))
both = pytest.mark.parametrize("sampling", ["uniform", "prioritized"])


def feed_of(sampling, batch_size=10, seed=0, units=UNITS, **needs):
    recipe, order = Recipe(Needs(ALL, sampling=sampling, **needs)), {}
    if "seq_len" in needs:
        cut = [count_sequences(np.array(unit), needs["seq_len"], needs["burn_in"]) for unit in units]
        order = {"items": np.array([count.sum() for count in cut])}
    return ReplayFeed(loader_of(FakeDataset(units), recipe, seed=seed, **order), batch_size)


def errors(batch):
    """What the losses of a batch would give: some function of its steps."""
    return (batch["rewards"] * 0.37).sin()


def learn(feed, batches, share=None):
    """So many batches of a training on the feed: each gets its priorities, where it is drawn by them."""
    found = []
    for _ in range(batches):
        found.append(feed.take(feed.batch_size, share) if share else feed.next())
        if "weights" in found[-1] and share is None:
            feed.prioritise(errors(found[-1]))
    return found


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[leaf], other[leaf]) for leaf in one)


@both
def test_draws_cover_all_data_and_columns_belong_together(sampling):
    (batch,) = learn(feed_of(sampling, batch_size=4000), 1)
    step = batch["rewards"]
    assert torch.equal(batch["actions"], torch.stack([step, -step], 1))
    assert torch.equal(batch["obs"], (step + 0.25)[:, None].expand(-1, 3))
    counts = np.bincount(step.int().numpy(), minlength=STEPS)
    assert counts.min() > 0.4 * 4000 / STEPS
    assert counts.max() < 2 * 4000 / STEPS


def test_draws_follow_the_last_priorities():
    feed, slowly = feed_of("prioritized", batch_size=6, seed=4, alpha=0.7, beta=0.5), np.ones(STEPS)
    uniform = feed._draws._uniforms.take(0, 6 * 200).reshape(200, 6)
    for numbers in uniform:
        batch = feed.next()
        powers = (slowly + 1e-6) ** 0.7
        expected = np.searchsorted(np.cumsum(powers), numbers * powers.sum(), side="right")
        assert batch["rewards"].tolist() == expected.tolist()
        chances = powers / powers.sum()
        weights = (STEPS * chances) ** -0.5
        np.testing.assert_allclose(batch["weights"], weights[expected] / weights.max(), rtol=1e-5)
        feed.prioritise(errors(batch))
        slowly[expected] = np.abs(errors(batch).numpy())


@both
@pytest.mark.parametrize("done", [0, 1, 7])
def test_resume_repeats_the_run_exactly(sampling, done):
    whole, resumed = (feed_of(sampling, batch_size=13) for _ in range(2))
    learn(whole, done)
    learn(resumed, 3)
    resumed.seek(whole.state(), whole.tensors())
    assert resumed.cursor == whole.cursor == 13 * done
    for one, other in zip(learn(whole, 10), learn(resumed, 10), strict=True):
        assert same(one, other)
    one, other = whole.metrics(), resumed.metrics()
    assert {**one, "data_wait_seconds": 0} == {**other, "data_wait_seconds": 0}
    assert 0 < one["coverage"] == one["timesteps_seen"] / STEPS < 1
    assert one["epoch"] == 13 * (done + 10) / STEPS


@both
def test_shards_of_learners_equal_the_draws_of_one(sampling):
    alone, ranks = feed_of(sampling), [feed_of(sampling) for _ in range(3)]
    for _ in range(20):
        (expected,) = learn(alone, 1)
        parts = [learn(feed, 1, Shard(rank, 3))[0] for rank, feed in enumerate(ranks)]
        assert same(concat_batches(parts), expected)
        for feed in ranks if sampling == "prioritized" else ():
            feed.prioritise(torch.cat([errors(part) for part in parts]))


def test_sequences_have_their_own_priorities():
    feed = feed_of("prioritized", batch_size=4, units=[[10, 4], [7]], seq_len=5, burn_in=1)
    for _ in range(5):
        batch = feed.next()
        assert batch["rewards"].shape == (4, 5)
        assert batch["weights"].shape == (4,)
        feed.prioritise(batch["rewards"].mean(1))


def test_seek_to_position_of_other_data_or_draws_raises():
    feed = feed_of("prioritized")
    with pytest.raises(DataError, match="the data in data, or how Hindcast prepares them, have changed"):
        feed.seek(feed_of("prioritized", units=[*UNITS, [1]]).state())
    for other in (feed_of("uniform"), feed_of("prioritized", seed=1), feed_of("prioritized", alpha=0.1)):
        with pytest.raises(DataError, match="the seed, the sampling"):
            feed.seek(other.state())


def test_priorities_require_prioritized_sampling():
    with pytest.raises(UserCodeError, match="its needs must say sampling='prioritized'"):
        feed_of("uniform").prioritise(torch.ones(10))
    feed = feed_of("prioritized")
    feed.next()
    with pytest.raises(UserCodeError, match=r"priorities of shape \[1, 10\] for 10 items"):
        feed.prioritise(torch.ones(1, 10))
    with pytest.raises(UserCodeError, match="set `priorities` of `Losses`"):
        feed.next()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"sampling": "all"}, "sampling is 'all'; it must be one of 'epochs', 'uniform', 'prioritized'"),
        ({"sampling": "uniform", "targets": True}, "targets require sampling 'epochs'"),
        ({"sampling": "prioritized", "alpha": -1.0}, "alpha is -1.0"),
        ({"columns": frozenset({"weights"}), "sampling": "prioritized"}, "the column 'weights'"),
    ],
)
def test_impossible_sampling_needs_raise(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        Needs(**{"columns": ALL, **options})


@pytest.mark.parametrize(
    ("pipeline", "sentence"),
    [
        ({"residency": "Streaming"}, "streamed: asked for; leave spec.pipeline.residency at Auto"),
        ({"residentBudget": "1Ki"}, "exceed the budget of 1.0 KiB; .* raise spec.pipeline.residentBudget"),
        ({"sampling": "WithReplacement"}, r"spec.pipeline.sampling is WithReplacement.* leave it out"),
    ],
)
@both
def test_draws_from_streamed_data_raise(recorded, pipeline, sentence, sampling):
    spec = PipelineSpec.model_validate(pipeline)
    needs = Needs(frozenset({"obs"}), sampling=sampling)
    with pytest.raises(SpecError, match=sentence):
        OfflineData([Source("data", recorded(UNITS))], needs, batch_size=4, pipeline=spec)


def test_weighted_sources_have_their_own_priorities(recorded):
    sources = [Source("one", recorded(UNITS, "one"), 0.7), Source("two", recorded(UNITS[:3], "two"), 0.3)]
    whole, resumed = (
        OfflineData(sources, Needs(ALL, sampling="prioritized"), batch_size=8, seed=1) for _ in range(2)
    )
    learn(whole, 12)
    resumed.seek(whole.state(), whole.tensors())
    for one, other in zip(learn(whole, 12), learn(resumed, 12), strict=True):
        assert same(one, other)
