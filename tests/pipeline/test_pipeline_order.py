from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hindcast.errors import DataError
from hindcast.pipeline.order import Order
from hindcast.pipeline.shard import Shard
from layers import examples


def make_order(steps, nbytes=None, *, seed=0, **options):
    nbytes = np.full(len(steps), 100) if nbytes is None else np.asarray(nbytes)
    limits = {"window_steps": 64, "window_bytes": 1 << 30}
    return Order(np.asarray(steps), nbytes, seed=seed, **(limits | options))


def deliver(order, start, count):
    """Return (unit, item in unit) of `count` items from cursor `start`, one at a time."""
    lane_of_place = {order.place(lane): lane for lane in range(order.num_lanes)}
    lanes = {lane: lane_items(order, *order.locate(lane, start)) for lane in range(order.num_lanes)}
    places = (cursor % order.epoch_size % order.num_lanes for cursor in range(start, start + count))
    return [next(lanes[lane_of_place[place]]) for place in places]


def lane_items(order, window, index):
    """Yield (unit, item in unit) of a lane from an item of a window on."""
    while True:
        positions = [(unit, item) for unit, *items in window.pieces.tolist() for item in range(*items)]
        yield from (positions[i] for i in order.permutation(window)[index:])
        window, index = order.next_window(window), 0


units_of_steps = st.lists(st.integers(0, 40), min_size=1, max_size=12).filter(sum)


@examples(60)
@given(units_of_steps, st.integers(0, 2**40), st.integers(1, 100), st.integers(100, 5000))
def test_every_epoch_delivers_each_step_once(steps, seed, window_steps, window_bytes):
    order = make_order(steps, seed=seed, window_steps=window_steps, window_bytes=window_bytes)
    all_steps = sorted((unit, step) for unit, n in enumerate(steps) for step in range(n))
    for epoch in (0, 1, 5):
        assert sorted(deliver(order, epoch * sum(steps), sum(steps))) == all_steps


@examples(60)
@given(units_of_steps, st.integers(1, 100), st.integers(1, 9), st.data())
def test_cursors_of_items_follow_from_lanes(steps, window_steps, num_learners, data):
    order = make_order(steps, window_steps=window_steps)
    lane = data.draw(st.integers(0, order.num_lanes - 1))
    for item in range(3 * order.lane_size(lane)):
        cursor = order.cursor_of(lane, item)
        assert order.num_items(lane, cursor) == item
        assert order.num_items(lane, cursor + 1) == item + 1
        window, index = order.locate(lane, cursor)
        assert window.first_cursor <= cursor < window.end_cursor
        assert window.epoch * order.lane_size(lane) + window.first_item + index == item
    num_learners = min(num_learners, order.num_lanes)
    shards = [Shard(rank, num_learners) for rank in range(num_learners)]
    assert [lane for shard in shards for lane in order.lanes(shard)] == list(range(order.num_lanes))
    places = [set(order.places(shard).tolist()) for shard in shards]
    rounds = [range(order.num_lanes), range(order.epoch_size % order.num_lanes), range(order.num_lanes)]
    visits = [place for visits in rounds for place in visits]
    for shard, own in zip(shards, places, strict=True):
        gaps = np.diff([index for index, place in enumerate(visits) if place in own]) - 1
        assert order.max_gap(shard) >= max([0, *gaps])


@examples(60)
@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 400)), min_size=1, max_size=20),
    st.integers(1, 1000),
    st.integers(1, 10000),
)
def test_windows_respect_limits_unless_one_piece_exceeds_them(units, window_steps, window_bytes):
    steps, nbytes = (np.array(sizes) for sizes in zip(*units, strict=True))
    order = make_order(steps, nbytes, window_steps=window_steps, window_bytes=window_bytes)
    max_steps, max_bytes = window_steps // order.num_lanes, window_bytes // order.num_lanes

    def size(window):
        """Return the timesteps and bytes of each piece."""
        units, counts = window.pieces[:, 0], window.pieces[:, 2] - window.pieces[:, 1]
        return counts, nbytes[units] * counts // steps[units]

    for lane in range(order.num_lanes):
        windows = order.windows(lane, 0)
        for window in windows:
            piece_steps, piece_bytes = size(window)
            if len(window.pieces) > 1:
                assert piece_steps.sum() <= max_steps and piece_bytes.sum() <= max_bytes
            # A step is never divided, and pieces of a unit differ by a step.
            unit = window.pieces[0, 0]
            assert piece_bytes[0] <= max(1, max_bytes) + nbytes[unit] / steps[unit] + 1
            step_bytes = nbytes[window.pieces[:, 0]] / steps[window.pieces[:, 0]]
            exact_bytes = (piece_steps * step_bytes).sum()
            assert exact_bytes <= window_bytes / order.num_lanes + 2 * step_bytes.max() + len(piece_steps)
        for window, next_window in pairwise(windows):
            piece_steps, piece_bytes = (
                np.append(sizes, next_sizes[0])
                for sizes, next_sizes in zip(size(window), size(next_window), strict=True)
            )
            is_full = piece_steps.sum() > max_steps or piece_bytes.sum() > max_bytes
            assert is_full, "a window was closed although the next piece fitted"


def test_piece_beyond_window_limit_in_steps_is_a_separate_window():
    """A lane's window may have 25 steps; the lanes have 65, those of the ends with two small units."""
    order = make_order([10, 10, 1000, 10, 10], window_steps=16 * 25)
    windows = [window for lane in range(order.num_lanes) for window in order.windows(lane, 0)]
    assert {window.num_items for window in windows} <= {10, 20, 45, 65}
    windows = [window for window in windows if 2 in window.pieces[:, 0]]
    assert sorted(window.num_items for window in windows) == [45, 45, *[65] * 14]
    assert all(len(window.pieces) == 1 for window in windows)


def test_piece_beyond_window_limit_in_bytes_is_cut():
    order = make_order([10, 10, 1000, 10, 10], [10, 10, 1000, 10, 10], window_steps=1 << 20, window_bytes=400)
    windows = [window for lane in range(order.num_lanes) for window in order.windows(lane, 0)]
    assert max(window.num_items for window in windows) <= 25
    counts = np.array([piece for window in windows for piece in window.pieces.tolist() if piece[0] == 2])
    assert sorted(counts[:, 2] - counts[:, 1]) == sorted([22, 23] * 2 + [21, 22, 22] * 14)


@pytest.mark.parametrize(
    ("num_units", "steps", "window_steps", "num_lanes"),
    [
        (1, 5, 64, 5),  # a lane has at least one item
        (6, 1000, 2**20, 16),
        (200, 1000, 2**20, 28),  # seven units in each lane
        (2000, 1000, 2**20, 64),
        (2000, 1000, 32_000, 32),  # a unit in each lane's window
        (2000, 1000, 64, 16),
    ],
)
def test_number_of_lanes_follows_from_units_and_window(num_units, steps, window_steps, num_lanes):
    assert make_order([steps] * num_units, window_steps=window_steps).num_lanes == num_lanes


def test_learner_reads_little_more_than_its_part():
    """A unit on the border of two lanes is read for both."""
    order = make_order([1000] * 450, window_steps=2**20)
    for num_learners in (1, 2, 3, 4, 16):
        for rank in range(num_learners):
            lanes = order.lanes(Shard(rank, num_learners))
            num_reads = sum(len(window.pieces) for lane in lanes for window in order.windows(lane, 0))
            assert num_reads <= 1.15 * len(lanes) / order.num_lanes * 450


def test_order_depends_on_seed():
    steps = [20, 30, 40]
    first_items = deliver(make_order(steps, seed=7), 0, 200)
    assert first_items == deliver(make_order(steps, seed=7), 0, 200)
    assert first_items != deliver(make_order(steps, seed=8), 0, 200)


def test_epochs_differ_in_units_and_steps():
    order = make_order([10] * 200, window_steps=50)
    epochs = [deliver(order, epoch * 2000, 200) for epoch in (0, 1)]
    assert epochs[0] != epochs[1]
    assert order.windows(0, 0)[0].pieces.tolist() != order.windows(0, 1)[0].pieces.tolist()


def test_order_is_the_same_on_every_machine():
    """Compare with a snapshot. If it changes, runs that resume with a new version see different batches."""
    order = make_order([25, 40, 15, 30], seed=1, window_steps=120)
    assert [window.pieces.tolist() for window in order.windows(3, 0)] == [[[1, 0, 3], [0, 21, 25]]]
    expected = [(1, 11), (3, 11), (1, 0), (3, 0), (1, 25), (3, 28), (0, 1), (1, 30)]
    assert deliver(order, 1000, 8) == expected


def test_units_without_steps_are_left_out():
    order = make_order([0, 5, 0, 5], window_steps=5)
    assert {unit for unit, _ in deliver(order, 0, 10)} == {1, 3}


def test_dataset_without_steps_raises():
    with pytest.raises(DataError, match="no timesteps"):
        make_order([0, 0])


def test_order_with_replacement_draws_from_the_window():
    order = make_order([300, 300], window_steps=600, replacement=True)
    window, index = order.locate(2, 700)
    assert (window.epoch, index) == (1, 6)
    draws = order.permutation(window)
    assert len(draws) == window.num_items == 38
    assert len(set(draws.tolist())) < 38
    assert draws.min() >= 0 and draws.max() < 38


@pytest.mark.parametrize("cursor", [0, 1, 50, 100, 1000])
def test_num_distinct_without_replacement_counts_items(cursor):
    assert make_order([100]).num_distinct(cursor) == min(cursor, 100)


@pytest.mark.parametrize("cursor", [0, 1, 150, 2000, 2050, 5000, 12_000])
def test_num_distinct_with_replacement_matches_simulation(cursor):
    """Within a window, after some of an epoch's windows, and in the epochs after it."""
    num_distinct = [
        len(set(deliver(make_order([20] * 250, seed=seed, window_steps=100, replacement=True), 0, cursor)))
        for seed in range(5)
    ]
    order = make_order([20] * 250, window_steps=100, replacement=True)
    assert order.num_distinct(cursor) == pytest.approx(np.mean(num_distinct), rel=0.01, abs=10)


def test_num_distinct_keeps_the_windows_in_use():
    order = make_order([10] * 20, replacement=True)
    windows = order.windows(0, 5)
    order.num_distinct(1000)
    assert order.windows(0, 5) is windows


def test_num_distinct_does_not_depend_on_earlier_calls():
    order, *new_orders = [
        make_order([20, 30, 1, 45] * 5, window_steps=60, replacement=True) for _ in range(7)
    ]
    for cursor, new_order in zip((0, 30, 700, 699, 480, 2000), new_orders, strict=True):
        assert order.num_distinct(cursor) == new_order.num_distinct(cursor)


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"window_steps": 63},
        {"window_bytes": 1000},
        {"replacement": True},
        {"nbytes": [100, 100, 101]},
    ],
)
def test_digest_changes_with_the_order(change):
    assert make_order([5, 6, 7]).digest == make_order([5, 6, 7]).digest
    assert make_order([5, 6, 7], **change).digest != make_order([5, 6, 7]).digest
    assert make_order([5, 6, 8]).digest != make_order([5, 6, 7]).digest
