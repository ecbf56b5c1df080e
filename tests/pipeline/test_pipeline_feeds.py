import threading
import time
from concurrent.futures import wait

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pipeline_fakes import FEED_CLASSES, STEPS, UNITS, FakeDataset, are_equal_batches, both_feeds, make_loader

from hindcast.episodes.batched import batch_dtype
from hindcast.errors import DataError
from hindcast.pipeline.lane_feed import LaneFeed
from hindcast.pipeline.mixed_feed import MixedFeed
from hindcast.pipeline.needs import Needs
from hindcast.pipeline.targets import Targets
from hindcast.pipeline.window import Recipe
from layers import examples


def reader_threads():
    """Return the threads that still read after a moment: a thread ends shortly after its last unit."""
    threads = [thread for thread in threading.enumerate() if thread.name == "hindcast-reader"]
    for thread in threads:
        thread.join(1)
    return [thread for thread in threads if thread.is_alive()]


def take_steps(feed, num_batches):
    return np.concatenate([feed.next()["rewards"].numpy() for _ in range(num_batches)])


@both_feeds
def test_batch_columns_belong_to_the_same_steps(feed_kind, make_feed):
    batch = make_feed(feed_kind, FakeDataset(UNITS), batch_size=STEPS).next()
    step = batch["rewards"]
    assert torch.equal(batch["actions"], torch.stack([step, -step], 1))
    assert torch.equal(batch["obs"], (step + 0.25)[:, None].expand(-1, 3))
    is_last = batch["terminateds"] | batch["truncateds"]
    next_obs = torch.where(is_last, step + 0.75, step + 1.25)
    assert torch.equal(batch["new_obs"], next_obs[:, None].expand(-1, 3))


@both_feeds
def test_flags_are_set_on_last_step_of_episode(feed_kind, make_feed):
    batch = make_feed(feed_kind, FakeDataset([[2, 3], [4]]), batch_size=9).next()
    by_step = batch["rewards"].argsort()
    assert batch["terminateds"][by_step].nonzero().flatten().tolist() == [1, 8]
    assert batch["truncateds"][by_step].nonzero().flatten().tolist() == [4]


@examples(30)
@given(
    units=st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=4), min_size=1, max_size=6),
    batch_size=st.integers(1, 40),
    window_steps=st.integers(1, 60),
    seed=st.integers(0, 1000),
)
def test_resident_and_streaming_feeds_deliver_the_same_batches(units, batch_size, window_steps, seed):
    feeds = [
        feed_class(make_loader(FakeDataset(units), seed=seed, window_steps=window_steps), batch_size)
        for feed_class in FEED_CLASSES.values()
    ]
    try:
        for _ in range(12):
            assert are_equal_batches(feeds[0].next(), feeds[1].next())
    finally:
        for feed in feeds:
            feed.close()


@both_feeds
def test_epochs_are_permutations_of_the_dataset_in_full_batches(feed_kind, make_feed):
    batch_size = 37
    feed = make_feed(feed_kind, FakeDataset(UNITS), batch_size=batch_size, window_steps=30)
    batches = [feed.next() for _ in range(20)]
    assert {len(batch["rewards"]) for batch in batches} == {batch_size}
    steps = np.concatenate([batch["rewards"].numpy() for batch in batches])
    for epoch in range(20 * batch_size // STEPS):
        assert sorted(steps[epoch * STEPS : (epoch + 1) * STEPS]) == list(range(STEPS))


@both_feeds
@pytest.mark.parametrize("num_batches", [0, 1, 3, 9, 10, 11, 40])
def test_resume_repeats_the_run_exactly(feed_kind, num_batches, make_feed):
    options = {"batch_size": 13, "window_steps": 25}
    original = make_feed(feed_kind, FakeDataset(UNITS), **options)
    for _ in range(num_batches):
        original.next()
    resumed_feed = make_feed(feed_kind, FakeDataset(UNITS), **options)
    resumed_feed.seek(original.state())
    assert resumed_feed.cursor == original.cursor == 13 * num_batches
    for _ in range(10):
        assert are_equal_batches(original.next(), resumed_feed.next())


def test_streaming_feed_after_seek_reads_only_this_and_the_next_window_of_each_lane(make_feed):
    dataset = FakeDataset([[5]] * 400)
    feed = make_feed("streaming", dataset, window_steps=80)
    cursor = 3 * feed.epoch_size // 2
    feed.seek(feed.state() | {"cursor": cursor})
    feed.next()
    feed.close()
    windows = [feed._order.locate(lane, cursor)[0] for lane in range(feed._order.num_lanes)]
    windows += [feed._order.next_window(window) for window in windows]
    assert len(dataset.reads) <= sum(len(window.pieces) for window in windows) < len(dataset.units) / 4
    assert set(dataset.reads) <= {unit for window in windows for unit in window.pieces[:, 0]}


@both_feeds
def test_seek_back_repeats_batches(feed_kind, make_feed):
    feed = make_feed(feed_kind, FakeDataset(UNITS), window_steps=25)
    start = feed.state()
    first_steps = take_steps(feed, 15)
    feed.seek(start)
    assert (take_steps(feed, 15) == first_steps).all()


@both_feeds
def test_seek_to_position_of_other_data_or_order_raises(feed_kind, make_feed):
    feed = make_feed(feed_kind, FakeDataset(UNITS))
    with pytest.raises(DataError, match="the data in data, or how Hindcast prepares them, have changed"):
        feed.seek(make_feed(feed_kind, FakeDataset([*UNITS, [1]])).state())
    with pytest.raises(DataError, match="seed"):
        feed.seek(make_feed(feed_kind, FakeDataset(UNITS), seed=5).state())


@both_feeds
def test_position_in_the_order_of_an_earlier_version_is_refused_with_that_reason(feed_kind, make_feed):
    feed = make_feed(feed_kind, FakeDataset(UNITS))
    state = {name: value for name, value in feed.state().items() if name != "lanes"} | {"order": "0" * 16}
    with pytest.raises(DataError, match="the order in which Hindcast delivers data has changed"):
        feed.seek(state)


@both_feeds
def test_metrics_report_epoch_and_coverage(feed_kind, make_feed):
    feed = make_feed(feed_kind, FakeDataset(UNITS), batch_size=STEPS // 2)
    feed.next()
    assert feed.metrics()["coverage"] == pytest.approx(0.5, abs=0.01)
    for _ in range(4):
        feed.next()
    assert feed.metrics()["timesteps_seen"] == STEPS
    assert feed.metrics()["epoch"] == feed.cursor / STEPS
    assert feed.metrics()["data_wait_seconds"] > 0


@both_feeds
def test_coverage_with_replacement_after_the_first_window_of_each_lane(feed_kind, make_feed):
    """Each of 16 lanes has 10 windows; about 1 - 1/e of the timesteps of the first ones have been drawn."""
    num_units, window_steps = 160, 50
    feed = make_feed(
        feed_kind,
        FakeDataset([[window_steps]] * num_units),
        batch_size=window_steps,
        window_steps=window_steps,
        replacement=True,
    )
    drawn_steps = {int(step) for step in take_steps(feed, num_units // 10)}
    expected = 0.1 * (1 - (1 - 1 / window_steps) ** window_steps)
    metrics = feed.metrics()
    assert metrics["coverage"] == pytest.approx(expected, abs=1e-3)
    assert metrics["coverage"] == pytest.approx(len(drawn_steps) / (num_units * window_steps), abs=0.01)
    assert metrics["timesteps_seen"] == pytest.approx(len(drawn_steps), abs=50)


@both_feeds
def test_coverage_with_replacement_estimates_distinct_steps(feed_kind, make_feed):
    feed = make_feed(feed_kind, FakeDataset([[50]] * 100), batch_size=50, window_steps=50, replacement=True)
    num_distinct = len({int(step) for step in take_steps(feed, 40)})
    assert num_distinct < 0.4 * 5000
    metrics = feed.metrics()
    assert metrics["coverage"] == pytest.approx(num_distinct / 5000, abs=0.01)
    assert metrics["timesteps_seen"] == pytest.approx(num_distinct, abs=50)


@both_feeds
def test_coverage_of_weighted_sequences_is_fraction_of_timesteps(feed_kind, make_feed):
    """Sources of 200 and 100 timesteps, as 20 and 10 sequences."""
    needs = Needs(frozenset({"rewards"}), seq_len=10)
    sources = []
    for units in ([[20]] * 10, [[20]] * 5):
        items = np.full(len(units), 2)
        feed = make_feed(feed_kind, FakeDataset(units), recipe=Recipe(needs), unit_items=items)
        sources.append((feed, 1.0))
    mixed_feed = MixedFeed(sources, seed=0, batch_size=5)
    assert mixed_feed.metrics()["coverage"] == 0.0
    while mixed_feed.cursor < 10:
        mixed_feed.next()
    assert mixed_feed.metrics()["timesteps_seen"] == 100.0
    assert mixed_feed.metrics()["coverage"] == pytest.approx(1 / 3)
    while min(feed.cursor / feed.epoch_size for feed, _ in sources) < 1:
        mixed_feed.next()
    assert mixed_feed.metrics()["coverage"] == 1.0


def test_coverage_of_mix_without_recorded_data_is_zero(make_feed):
    live_feeds = [make_feed("streaming", FakeDataset(UNITS)) for _ in range(2)]
    for feed in live_feeds:
        feed.metrics = lambda: {"timesteps_seen": 0.0, "data_wait_seconds": 0.0}
        feed.epoch_size = feed.epoch_timesteps = 0
    metrics = MixedFeed([(feed, 1.0) for feed in live_feeds], seed=0, batch_size=5).metrics()
    assert (metrics["epoch"], metrics["coverage"]) == (0.0, 0.0)


@both_feeds
def test_next_raises_when_loading_fails(feed_kind, make_feed):
    dataset = FakeDataset(UNITS)

    def prelearn(unit, epoch):
        if unit.id == 3:
            raise DataError("file-3.parquet is damaged")
        return dataset.read(unit)

    feed = make_feed(feed_kind, dataset, prelearn=prelearn, window_steps=20)
    for _ in range(2):
        with pytest.raises(DataError, match="file-3"):
            take_steps(feed, 40)
    feed.close()
    assert not reader_threads()


@both_feeds
def test_next_after_failed_read_reads_again(feed_kind, make_feed):
    dataset, damaged_units = FakeDataset(UNITS), {3, 4}

    def prelearn(unit, epoch):
        if unit.id in damaged_units:
            damaged_units.remove(unit.id)
            raise DataError(f"file-{unit.id}.parquet is damaged")
        return dataset.read(unit)

    feed = make_feed(feed_kind, dataset, prelearn=prelearn, window_steps=20, batch_size=1)
    expected_feed = make_feed(feed_kind, FakeDataset(UNITS), window_steps=20, batch_size=1)
    for _ in range(STEPS):
        expected = expected_feed.next()
        while True:
            try:
                batch = feed.next()
            except DataError:
                continue
            break
        assert are_equal_batches(batch, expected)
    assert not damaged_units


@both_feeds
def test_close_ends_threads_and_feed_can_resume(feed_kind, make_feed):
    options = {"window_steps": 20, "batch_size": 7}
    feed, open_feed = (make_feed(feed_kind, FakeDataset(UNITS), **options) for _ in range(2))
    assert are_equal_batches(feed.next(), open_feed.next())
    open_feed.close()
    feed.close()
    assert not reader_threads()
    assert are_equal_batches(feed.next(), open_feed.next())


def test_close_during_read_waits_for_it(make_feed):
    dataset, is_reading, may_continue = FakeDataset([[9], [9]]), threading.Event(), threading.Event()

    def prelearn(unit, epoch):
        if dataset.reads:
            is_reading.set()
            may_continue.wait(10)
        return dataset.read(unit)

    feed = make_feed("streaming", dataset, prelearn=prelearn, batch_size=1, window_steps=9)
    feed.next()
    assert is_reading.wait(10)
    threading.Timer(0.05, may_continue.set).start()
    feed.close()
    assert not reader_threads()


def test_lane_reads_at_most_one_window_ahead(make_feed):
    dataset = FakeDataset([[10]] * 200)
    feed = make_feed("streaming", dataset, window_steps=10, batch_size=40)
    order = feed._order
    for _ in range(30):
        feed.next()
        time.sleep(0.005)  # so that a thread that does not wait would run ahead
        num_allowed = 0
        for lane in range(order.num_lanes):
            window, _ = order.locate(lane, feed._chunk.stop)
            windows = [*order.windows(lane, 0)[: window.index + 1], order.next_window(window)]
            num_allowed += sum(len(window.pieces) for window in windows)
        assert len(dataset.reads) <= num_allowed


@both_feeds
def test_targets_are_computed_from_whole_episodes_on_entering_a_window(feed_kind, make_feed):
    window_steps = []

    def episode_returns(window):
        window_steps.append(window.num_steps)
        episode = torch.repeat_interleave(torch.arange(len(window.length)), window.length)
        totals = torch.zeros(len(window.length)).index_add(0, episode, window.columns["rewards"])
        return {"value_targets": totals[episode]}

    dataset = FakeDataset(UNITS)
    feed = make_feed(
        feed_kind, dataset, targets=Targets(episode_returns, lambda: 0), window_steps=25, batch_size=5
    )
    returns = [
        np.repeat(np.add.reduceat(block.columns["rewards"], block.start), block.length)
        for block in dataset.blocks
    ]
    expected = torch.from_numpy(np.concatenate(returns)).float()
    order = feed._order
    first_cursors = [
        window.first_cursor
        for epoch in (0, 1)
        for lane in range(order.num_lanes)
        for window in order.windows(lane, epoch)
    ]
    for _ in range(2 * STEPS // 5):
        start, num_entered = feed.cursor, len(window_steps)
        batch = feed.next()
        assert torch.equal(batch["value_targets"], expected[batch["rewards"].int()])
        assert len(window_steps) - num_entered == sum(start <= first < start + 5 for first in first_cursors)
    assert sum(window_steps) >= 2 * STEPS // 5 * 5, "each timestep delivered is of a window with targets"


def test_targets_get_the_same_window_in_both_feeds(make_feed):
    def take_windows(feed_kind):
        windows = []
        targets = Targets(lambda window: windows.append(window) or {}, lambda: 0)
        take_steps(make_feed(feed_kind, FakeDataset(UNITS), window_steps=25, targets=targets), 30)
        return windows

    for resident, streaming in zip(take_windows("resident"), take_windows("streaming"), strict=True):
        assert are_equal_batches(resident.columns, streaming.columns)
        assert torch.equal(resident.obs_row, streaming.obs_row)
        assert torch.equal(resident.terminated, streaming.terminated)
        assert torch.equal(resident.length, streaming.length)


@both_feeds
def test_composite_column_in_needs_adds_all_its_leaves(feed_kind, make_feed):
    dataset = FakeDataset([[4, 3], [5]])
    for block in dataset.blocks:
        obs = block.columns.pop("obs")
        columns = {
            "obs/camera": obs.astype(np.uint8),
            "obs/speed": obs[:, 0],
            "actions/0": block.columns.pop("actions"),
        }
        block.columns.update(columns)
    recipe = Recipe(Needs(frozenset({"obs", "new_obs", "actions"})))
    batch = make_feed(feed_kind, dataset, recipe=recipe).next()
    assert sorted(batch) == ["actions/0", "new_obs/camera", "new_obs/speed", "obs/camera", "obs/speed"]
    assert batch["obs/camera"].dtype == torch.uint8
    assert torch.equal(batch["obs/camera"][:, 0], batch["obs/speed"].to(torch.uint8))


@both_feeds
def test_batch_contains_only_needed_columns(feed_kind, make_feed):
    feed = make_feed(feed_kind, FakeDataset(UNITS), recipe=Recipe(Needs(frozenset({"actions"}))))
    assert list(feed.next()) == ["actions"]


@both_feeds
def test_missing_column_is_named(feed_kind, make_feed):
    feed = make_feed(feed_kind, FakeDataset(UNITS), recipe=Recipe(Needs(frozenset({"action_logp"}))))
    with pytest.raises(DataError, match=r"'action_logp'.*actions, obs, rewards"):
        feed.next()


@both_feeds
def test_text_column_raises_with_remedy(feed_kind, make_feed):
    dataset = FakeDataset([[2]])
    dataset.blocks[0].columns["obs"] = np.array(["a", "b", "c"], dtype=object)
    with pytest.raises(DataError, match=r"'obs' is text.*connector"):
        make_feed(feed_kind, dataset).next()


@pytest.mark.parametrize(
    ("stored", "delivered"),
    [
        ("float64", "float32"),
        ("float16", "float32"),
        ("float32", "float32"),
        ("uint8", "uint8"),
        ("uint16", "int32"),
        ("uint64", "int64"),
        ("int64", "int64"),
        ("bool", "bool"),
    ],
)
def test_batches_have_documented_dtypes(stored, delivered):
    assert batch_dtype(np.dtype(stored)).name == delivered


@both_feeds
def test_resume_with_replacement_repeats_batches(feed_kind, make_feed):
    options = {"replacement": True, "window_steps": 25, "batch_size": 9}
    feed, resumed_feed = (make_feed(feed_kind, FakeDataset(UNITS), **options) for _ in range(2))
    steps = take_steps(feed, 20)
    assert len(set(steps.tolist())) < len(steps)
    resumed_feed.seek(feed.state())
    assert are_equal_batches(feed.next(), resumed_feed.next())


def test_lanes_whose_windows_end_at_once_start_the_next_ones_in_turns(monkeypatch):
    monkeypatch.setattr("hindcast.pipeline.lane_feed._CHUNK_BYTES", {"cpu": 1 << 13})
    feed = LaneFeed(make_loader(FakeDataset([[16]] * 320), window_steps=16 * 32), batch_size=32)
    start_window, num_started = feed.start_window, []
    feed.start_window = lambda window: num_started.append(window) or start_window(window)
    starts_per_batch = []
    for _ in range(64):
        feed.next()
        starts_per_batch.append(len(num_started))
        num_started.clear()
        wait([future for lane in feed._lanes for future in lane.futures()])
    num_lanes = len(feed._lanes)
    assert starts_per_batch[0] >= num_lanes
    assert sum(starts_per_batch[1:]) > 3 * num_lanes
    assert max(starts_per_batch[1:]) <= num_lanes / 4
