"""Draws from episodes that the policy plays, alone and mixed with recorded data."""

import pytest
import torch
from pipeline_fakes import ALL_COLUMNS, are_equal_batches, make_block

from hindcast.api.pipeline import PipelineSpec
from hindcast.errors import DataError, SpecError
from hindcast.pipeline.live_feed import LiveFeed, LiveSource
from hindcast.pipeline.needs import Needs
from hindcast.pipeline.offline_data import OfflineData, Source
from hindcast.pipeline.shard import WHOLE_BATCH, Shard
from hindcast.pipeline.window import Recipe, concat_batches

UNITS = [[5, 1, 7], [20], [3, 3, 3, 3]]
both_samplings = pytest.mark.parametrize("sampling", ["epochs", "prioritized"])


class FakePlayer:
    """Plays episode i with 3 + i % 4 steps, whose indices start at 1000 * i; `played` records the calls."""

    width = 4

    def __init__(self):
        self.played = []
        self.is_open = False

    def __call__(self, indices, timesteps_played):
        self.played.append((timesteps_played, indices))
        self.is_open = True
        blocks = [make_block([3 + index % 4], 1000 * index) for index in indices]
        return type(blocks[0]).concat(blocks)

    def close(self):
        self.is_open = False


class UpdateCounter:
    """Returns the number of updates, which the test sets."""

    updates = 0

    def __call__(self):
        return self.updates


def make_live_source(**options):
    """Make a source that plays four episodes, 18 steps, before the first update and with every second one."""
    defaults = {"timesteps_per_update": 9.0, "warmup": 18, "capacity": 60}
    return LiveSource("sampler", FakePlayer(), UpdateCounter(), **{**defaults, **options})


def make_live_feed(
    sampling="epochs", batch_size=10, seed=0, needs=None, *, updates=0, shard=WHOLE_BATCH, **options
):
    recipe = Recipe(Needs(ALL_COLUMNS, sampling=sampling, **(needs or {})))
    feed = LiveFeed(make_live_source(**options), recipe, batch_size, seed, shard)
    feed._live.updates.updates = updates
    return feed


def train(feed, num_batches):
    """Take batches, and count an update for each; set the priorities of items that are drawn by priority."""
    batches = []
    for _ in range(num_batches):
        batches.append(feed.next())
        feed._live.updates.updates += 1
        if "weights" in batches[-1]:
            feed.prioritise((batches[-1]["rewards"] * 0.37).sin().reshape(feed.batch_size, -1)[:, 0])
    return batches


def test_episodes_are_played_as_updates_proceed():
    feed = make_live_feed()
    train(feed, 7)
    assert feed._live.player.played == [(18 * index, range(4 * index, 4 * index + 4)) for index in range(4)]
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
    """Updates that learn from batches of other sources make timesteps due, too."""
    feed = make_live_feed(updates=updates, **options)
    feed.next()
    assert feed.timesteps_played == timesteps


def test_returns_cover_one_iteration():
    feed = make_live_feed()
    feed.next()
    blocks = [make_block([3 + index % 4], 1000 * index) for index in range(4)]
    assert feed.returns() == [block.columns["rewards"].sum() for block in blocks]
    feed.reset_returns()
    assert feed.returns() == []


def test_close_closes_the_player():
    feed = make_live_feed()
    feed.next()
    assert feed._live.player.is_open
    feed.close()
    assert not feed._live.player.is_open


@both_samplings
def test_draws_come_from_the_newest_episodes(sampling):
    feed = make_live_feed(sampling, batch_size=300, timesteps_per_update=18.0)
    for num_rounds, batch in enumerate(train(feed, 9), 1):
        step = batch["rewards"]
        assert torch.equal(batch["obs"], (step + 0.25)[:, None].expand(-1, 3))
        episodes = (step // 1000).int().unique().tolist()
        stored_episodes, steps = [], 0
        for index in reversed(range(4 * num_rounds)):
            if steps + 3 + index % 4 > 60:
                break
            steps += 3 + index % 4
            stored_episodes.insert(0, index)
        assert episodes == stored_episodes


def test_new_steps_get_the_maximum_priority():
    feed = make_live_feed(
        "prioritized", batch_size=500, timesteps_per_update=18.0, capacity=1000, needs={"alpha": 1.0}
    )
    first_batch = feed.next()
    feed._live.updates.updates = 1
    feed.prioritise(torch.where(first_batch["rewards"] < 1000, 9.0, 0.1))
    second_batch = feed.next()
    # Episode 0 got priority 9, as did the new episodes 4 to 7; episodes 1 to 3 got 0.1. An episode has 3 to 6 steps.
    odds = torch.tensor([1.0 if episode in (0, 4, 5, 6, 7) else 0.1 / 9 for episode in range(8)])
    odds *= torch.tensor([3.0 + episode % 4 for episode in range(8)])
    counts = torch.bincount((second_batch["rewards"] // 1000).int(), minlength=8) / 500
    torch.testing.assert_close(counts, odds / odds.sum(), atol=0.06, rtol=0)


@pytest.mark.parametrize("priority", [torch.nan, torch.inf])
def test_invalid_priority_after_further_episodes_raises(priority):
    feed = make_live_feed("prioritized")
    feed.next()
    feed.metrics()
    feed.prioritise(torch.full((10,), priority))
    train(feed, 4)
    assert len(feed._live.player.played) > 1
    for report in (feed.metrics, feed.tensors):
        with pytest.raises(DataError, match="A priority became NaN or infinite"):
            report()


@both_samplings
@pytest.mark.parametrize("num_batches", [0, 1, 5, 13])
def test_resume_repeats_the_run_exactly(sampling, num_batches):
    original, resumed_feed = make_live_feed(sampling), make_live_feed(sampling, updates=num_batches - 3)
    train(original, num_batches)
    train(resumed_feed, 3)
    resumed_feed.seek(original.state(), original.tensors())
    for expected, actual in zip(train(original, 12), train(resumed_feed, 12), strict=True):
        assert are_equal_batches(expected, actual)
    expected, actual = original.metrics(), resumed_feed.metrics()
    assert expected | {"data_wait_seconds": 0} == actual | {"data_wait_seconds": 0}
    assert original.returns() == resumed_feed.returns() != []


def test_shards_of_draws_equal_the_batch_of_one_learner():
    single_feed, ranks = make_live_feed(), [make_live_feed(shard=Shard(rank, 2)) for rank in range(2)]
    for _ in range(6):
        shards = [feed.next() for feed in ranks]
        assert are_equal_batches(concat_batches(shards), single_feed.next())


@both_samplings
def test_sequences_are_drawn_from_whole_episodes(sampling):
    feed = make_live_feed(sampling, needs={"seq_len": 4, "burn_in": 1})
    for batch in train(feed, 9):
        assert batch["rewards"].shape == (10, 4)
        first_steps = batch["rewards"][:, 0] % 1000
        assert set(first_steps.tolist()) <= {0.0, 3.0}


def test_seek_to_position_of_source_with_other_warmup_raises():
    feed = make_live_feed()
    with pytest.raises(DataError, match=r"timesteps that are played or kept, .* has changed"):
        feed.seek(make_live_feed(warmup=30).state())


def test_mixed_feed_has_requested_fractions(make_dataset):
    sources = [
        Source("one", make_dataset(UNITS, "one"), 0.4),
        Source("two", make_dataset(UNITS[:2], "two"), 0.3),
    ]
    live = make_live_source(weight=0.3, timesteps_per_update=0.1)

    def make_data():
        return OfflineData(sources, Needs(ALL_COLUMNS), batch_size=2, seed=5, live_sources=[live])

    original, resumed_feed, batch_sources = make_data(), make_data(), []
    for batch_index in range(10_000):
        live.updates.updates = batch_index
        if batch_index == 3333:
            resumed_feed.seek(original.state(), original.tensors())
        batch = original.next()
        batch_sources.append(original._feed.source_of(batch_index))
        if 3333 <= batch_index < 3400:
            assert are_equal_batches(batch, resumed_feed.next())
    for source_index, fraction in enumerate((0.4, 0.3, 0.3)):
        assert batch_sources.count(source_index) / 10_000 == pytest.approx(fraction, rel=0.01)
        assert batch_sources[:100].count(source_index) / 100 == pytest.approx(fraction, abs=0.15)
    original.synchronise(lambda value: [value])
    result = original.end({})
    assert result["num_env_steps_sampled_lifetime"] == pytest.approx(18 + 0.1 * 10_000, abs=18)
    assert result["env_runners"]["num_episodes"] * 4.5 == result["num_env_steps_sampled_lifetime"]
    assert result["epoch"] == pytest.approx(0.7 * 10_000 * 2 / original.epoch_size, rel=0.01)
    original.close()
    resumed_feed.close()


@pytest.mark.parametrize(
    ("needs", "pipeline", "message"),
    [
        ({"targets": True}, {}, "live samples do not have"),
        ({}, {"connectors": ["user_steps:Noise"]}, "would change only recorded data"),
    ],
)
def test_unsupported_settings_of_live_samples_raise(make_dataset, needs, pipeline, message):
    sources, live_sources = [Source("one", make_dataset(UNITS), 0.4)], [make_live_source()]
    needs, spec = Needs(ALL_COLUMNS, **needs), PipelineSpec.model_validate(pipeline)
    with pytest.raises(SpecError, match=message):
        OfflineData(sources, needs, batch_size=2, pipeline=spec, live_sources=live_sources)


def test_live_samples_train_without_recorded_data():
    data = OfflineData([], Needs(ALL_COLUMNS), batch_size=2, seed=5, live_sources=[make_live_source()])
    assert (data.epoch_size, data.updates_per_iteration) == (0, 1000)
    data.next()
    data.synchronise(lambda value: [value])
    assert data.end({}).keys() == {"timers", "num_env_steps_sampled_lifetime", "env_runners"}
    data.close()
