"""Draws from what a policy plays, and mixes of them with recorded data."""

import pytest
import torch
from pipeline_fakes import ALL, block_of

from hindcast.api.pipeline import PipelineSpec
from hindcast.errors import DataError, SpecError
from hindcast.pipeline.live_feed import LiveFeed, LiveSource
from hindcast.pipeline.needs import Needs
from hindcast.pipeline.offline_data import OfflineData, Source
from hindcast.pipeline.shard import Shard
from hindcast.pipeline.window import Recipe, concat_batches

UNITS = [[5, 1, 7], [20], [3, 3, 3, 3]]
both_samplings = pytest.mark.parametrize("sampling", ["epochs", "prioritized"])


class Playing:
    """Episode i has 3 + i % 4 steps, numbered from 1000 * i; notes what was played."""

    width = 4

    def __init__(self):
        self.played = []
        self.is_open = False

    def __call__(self, indices, timesteps):
        self.played.append((timesteps, indices))
        self.is_open = True
        blocks = [block_of([3 + index % 4], 1000 * index) for index in indices]
        return type(blocks[0]).concat(blocks)

    def close(self):
        self.is_open = False


class Training:
    """Counts updates."""

    def __init__(self, updates=0):
        self.updates = updates

    def __call__(self):
        return self.updates


def live_of(**options):
    """18 steps before the first update, and with every second one again: a play of four episodes."""
    defaults = {"timesteps_per_update": 9.0, "warmup": 18, "capacity": 60}
    return LiveSource("sampler", Playing(), Training(), **{**defaults, **options})


def feed_of(sampling="epochs", batch_size=10, seed=0, needs=None, updates=0, **options):
    recipe = Recipe(Needs(ALL, sampling=sampling, **(needs or {})))
    feed = LiveFeed(live_of(**options), recipe, batch_size, seed)
    feed._live.updates.updates = updates
    return feed


def learn(feed, num_batches):
    batches = []
    for _ in range(num_batches):
        batches.append(feed.next())
        feed._live.updates.updates += 1
        if "weights" in batches[-1]:
            feed.prioritise((batches[-1]["rewards"] * 0.37).sin().reshape(feed.batch_size, -1)[:, 0])
    return batches


def equal_batches(left_batch, right_batch):
    return left_batch.keys() == right_batch.keys() and all(
        torch.equal(left_batch[leaf], right_batch[leaf]) for leaf in left_batch
    )


def test_episodes_are_played_as_updates_proceed():
    feed = feed_of()
    learn(feed, 7)
    assert feed._live.player.played == [
        (18 * number, range(4 * number, 4 * number + 4)) for number in range(4)
    ]
    assert feed.timesteps_played == 18 + 6 * 9


@pytest.mark.parametrize(
    ("options", "updates", "timesteps"),
    [
        ({"warmup": 0}, 0, 18),  # there is something to learn from in any case
        ({"warmup": 0, "timesteps_per_update": 0.5}, 100, 54),  # 50 are due
        ({"warmup": 19}, 0, 36),
    ],
)
def test_whole_episodes_are_played_until_none_is_due(options, updates, timesteps):
    """Also if earlier updates used other sources."""
    feed = feed_of(updates=updates, **options)
    feed.next()
    assert feed.timesteps_played == timesteps


def test_returns_cover_one_iteration():
    feed = feed_of()
    feed.next()
    blocks = [block_of([3 + index % 4], 1000 * index) for index in range(4)]
    assert feed.returns() == [block.columns["rewards"].sum() for block in blocks]
    feed.reset_returns()
    assert feed.returns() == []


def test_close_closes_the_player():
    feed = feed_of()
    feed.next()
    assert feed._live.player.is_open
    feed.close()
    assert not feed._live.player.is_open


@both_samplings
def test_draws_come_from_the_newest_episodes(sampling):
    feed = feed_of(sampling, batch_size=300, timesteps_per_update=18.0)
    for number, batch in enumerate(learn(feed, 9), 1):
        step = batch["rewards"]
        assert torch.equal(batch["obs"], (step + 0.25)[:, None].expand(-1, 3))
        episodes = (step // 1000).int().unique().tolist()
        stored_episodes, steps = [], 0
        for index in reversed(range(4 * number)):
            if steps + 3 + index % 4 > 60:
                break
            steps += 3 + index % 4
            stored_episodes.insert(0, index)
        assert episodes == stored_episodes


def test_new_steps_get_the_maximum_priority():
    feed = feed_of(
        "prioritized", batch_size=500, timesteps_per_update=18.0, capacity=1000, needs={"alpha": 1.0}
    )
    first = feed.next()
    feed._live.updates.updates = 1
    feed.prioritise(torch.where(first["rewards"] < 1000, 9.0, 0.1))
    second = feed.next()
    chances = torch.tensor([1.0 if episode in (0, 4, 5, 6, 7) else 0.1 / 9 for episode in range(8)])
    chances *= torch.tensor([3.0 + episode % 4 for episode in range(8)])
    counts = torch.bincount((second["rewards"] // 1000).int(), minlength=8) / 500
    torch.testing.assert_close(counts, chances / chances.sum(), atol=0.06, rtol=0)


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
def test_invalid_priority_after_further_episodes_raises(wrong):
    feed = feed_of("prioritized")
    feed.next()
    feed.metrics()
    feed.prioritise(torch.full((10,), wrong))
    learn(feed, 4)
    assert len(feed._live.player.played) > 1
    for report in (feed.metrics, feed.tensors):
        with pytest.raises(DataError, match="A priority became NaN or infinite"):
            report()


@both_samplings
@pytest.mark.parametrize("num_batches", [0, 1, 5, 13])
def test_resume_repeats_the_run_exactly(sampling, num_batches):
    original, resumed_feed = feed_of(sampling), feed_of(sampling, updates=num_batches - 3)
    learn(original, num_batches)
    learn(resumed_feed, 3)
    resumed_feed.seek(original.state(), original.tensors())
    for expected, actual in zip(learn(original, 12), learn(resumed_feed, 12), strict=True):
        assert equal_batches(expected, actual)
    expected, actual = original.metrics(), resumed_feed.metrics()
    assert expected | {"data_wait_seconds": 0} == actual | {"data_wait_seconds": 0}
    assert original.returns() == resumed_feed.returns() != []


def test_shards_of_draws_equal_the_batch_of_one_learner():
    alone, ranks = feed_of(), [feed_of() for _ in range(2)]
    for _ in range(6):
        parts = [feed.take(10, Shard(rank, 2)) for rank, feed in enumerate(ranks)]
        assert equal_batches(concat_batches(parts), alone.next())


@both_samplings
def test_sequences_are_drawn_from_whole_episodes(sampling):
    feed = feed_of(sampling, needs={"seq_len": 4, "burn_in": 1})
    for batch in learn(feed, 9):
        assert batch["rewards"].shape == (10, 4)
        begins = batch["rewards"][:, 0] % 1000
        assert set(begins.tolist()) <= {0.0, 3.0}


def test_seek_to_position_of_other_source_raises():
    feed = feed_of()
    with pytest.raises(DataError, match="how much is played and kept has changed"):
        feed.seek(feed_of(warmup=30).state())


def test_mixed_feed_has_requested_fractions(make_dataset):
    sources = [
        Source("one", make_dataset(UNITS, "one"), 0.4),
        Source("two", make_dataset(UNITS[:2], "two"), 0.3),
    ]

    live = live_of(weight=0.3, timesteps_per_update=0.1)

    def make_data():
        return OfflineData(sources, Needs(ALL), batch_size=2, seed=5, live_sources=[live])

    original, resumed_feed, batch_sources = make_data(), make_data(), []
    for number in range(10_000):
        live.updates.updates = number
        if number == 3333:
            resumed_feed.seek(original.state(), original.tensors())
        batch = original.next()
        batch_sources.append(original._feed.source_of(number))
        if 3333 <= number < 3400:
            assert equal_batches(batch, resumed_feed.next())
    for number, fraction in enumerate((0.4, 0.3, 0.3)):
        assert batch_sources.count(number) / 10_000 == pytest.approx(fraction, rel=0.01)
        assert batch_sources[:100].count(number) / 100 == pytest.approx(fraction, abs=0.15)
    result = original.end({})
    assert result["num_env_steps_sampled_lifetime"] == pytest.approx(18 + 0.1 * 10_000, abs=18)
    assert result["env_runners"]["num_episodes"] * 4.5 == result["num_env_steps_sampled_lifetime"]
    assert result["epoch"] == pytest.approx(0.7 * 10_000 * 2 / original.epoch_size, rel=0.01)
    original.close()
    resumed_feed.close()


@pytest.mark.parametrize(
    ("needs", "pipeline", "sentence"),
    [
        ({"targets": True}, {}, "live samples do not have"),
        ({}, {"connectors": ["user_steps:Noise"]}, "would change only recorded data"),
    ],
)
def test_unsupported_settings_of_live_samples_raise(make_dataset, needs, pipeline, sentence):
    sources = [Source("one", make_dataset(UNITS), 0.4)]
    spec = PipelineSpec.model_validate(pipeline)
    with pytest.raises(SpecError, match=sentence):
        OfflineData(sources, Needs(ALL, **needs), batch_size=2, pipeline=spec, live_sources=[live_of()])


def test_live_samples_without_recorded_data_train():
    data = OfflineData([], Needs(ALL), batch_size=2, seed=5, live_sources=[live_of()])
    assert (data.epoch_size, data.updates_per_iteration) == (0, 1000)
    data.next()
    assert data.end({}).keys() == {"timers", "num_env_steps_sampled_lifetime", "env_runners"}
    data.close()
