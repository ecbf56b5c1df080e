from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hindcast.errors import DataError
from hindcast.pipeline.order import Order
from layers import examples


def make_order(steps, nbytes=None, *, seed=0, **options):
    nbytes = np.full(len(steps), 100) if nbytes is None else np.asarray(nbytes)
    limits = {"window_steps": 64, "window_bytes": 1 << 30}
    return Order(np.asarray(steps), nbytes, seed=seed, **(limits | options))


def deliver(order, start, count):
    """Return (unit, step in unit) of `count` items from cursor `start`, window by window."""
    window, offset = order.locate(start)
    items = []
    while len(items) < count:
        positions = [(unit, step) for unit in window.units for step in range(order.unit_steps[unit])]
        items += [positions[i] for i in order.permutation(window)[offset:]]
        window, offset = order.next_window(window), 0
    return items[:count]


units_of_steps = st.lists(st.integers(0, 40), min_size=1, max_size=12).filter(sum)


@examples(60)
@given(units_of_steps, st.integers(0, 2**40), st.integers(1, 100), st.integers(100, 500))
def test_every_epoch_delivers_each_step_once(steps, seed, window_steps, window_bytes):
    order = make_order(steps, seed=seed, window_steps=window_steps, window_bytes=window_bytes)
    all_steps = sorted((unit, step) for unit, n in enumerate(steps) for step in range(n))
    for epoch in (0, 1, 5):
        assert sorted(deliver(order, epoch * sum(steps), sum(steps))) == all_steps


@examples(60)
@given(units_of_steps, st.integers(0, 100), st.integers(1, 100), st.data())
def test_locate_agrees_with_iteration(steps, seed, window_steps, data):
    order = make_order(steps, seed=seed, window_steps=window_steps)
    cursor = data.draw(st.integers(0, 3 * sum(steps)))
    items = deliver(order, 0, cursor + 5)
    assert deliver(order, cursor, 5) == items[cursor:]


@examples(60)
@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 400)), min_size=1, max_size=20),
    st.integers(1, 100),
    st.integers(1, 1000),
)
def test_windows_respect_limits_unless_one_unit_exceeds_them(units, window_steps, window_bytes):
    steps, nbytes = zip(*units, strict=True)
    order = make_order(steps, nbytes, window_steps=window_steps, window_bytes=window_bytes)
    windows = order.windows(0)
    for window in windows:
        num_steps, num_bytes = sum(steps[u] for u in window.units), sum(nbytes[u] for u in window.units)
        assert len(window.units) == 1 or (num_steps <= window_steps and num_bytes <= window_bytes)
    for window, next_window in pairwise(windows):
        unit = next_window.units[0]
        too_many = window.num_steps + steps[unit] > window_steps
        too_large = sum(nbytes[u] for u in window.units) + nbytes[unit] > window_bytes
        assert too_many or too_large, "a window was closed although the next unit fitted"


def test_unit_beyond_window_limit_is_a_separate_window():
    order = make_order([10, 1000, 10], window_steps=50)
    assert {window.num_steps for window in order.windows(0)} <= {10, 20, 1000}
    assert any(window.units == (1,) for window in order.windows(0))


def test_order_depends_on_seed():
    steps = [20, 30, 40]
    first_items = deliver(make_order(steps, seed=7), 0, 200)
    assert first_items == deliver(make_order(steps, seed=7), 0, 200)
    assert first_items != deliver(make_order(steps, seed=8), 0, 200)


def test_epochs_differ_in_units_and_steps():
    order = make_order([10] * 20, window_steps=50)
    epochs = [deliver(order, epoch * 200, 200) for epoch in (0, 1)]
    assert epochs[0] != epochs[1]
    assert order.windows(0)[0].units != order.windows(1)[0].units


def test_order_is_the_same_on_every_machine():
    """Compare with a snapshot. If it changes, runs that resume with a new version see different batches."""
    order = make_order([5, 7, 3, 6], seed=1, window_steps=12)
    assert [window.units for window in order.windows(0)] == [(1, 2), (3, 0)]
    assert order.permutation(order.windows(0)[0]).tolist() == [7, 3, 9, 0, 8, 6, 1, 2, 4, 5]


def test_units_without_steps_are_left_out():
    order = make_order([0, 5, 0, 5], window_steps=5)
    assert sorted(window.units for window in order.windows(0)) == [(1,), (3,)]


def test_dataset_without_steps_raises():
    with pytest.raises(DataError, match="no timesteps"):
        make_order([0, 0])


def test_order_with_replacement_draws_from_the_window():
    order = make_order([30, 30], window_steps=30, replacement=True)
    window, offset = order.locate(70)
    assert (window.epoch, window.index, offset) == (1, 0, 10)
    draws = order.permutation(window)
    assert len(draws) == 30
    assert len(set(draws.tolist())) < 30
    assert draws.min() >= 0 and draws.max() < 30


@pytest.mark.parametrize("cursor", [0, 1, 50, 100, 1000])
def test_num_distinct_without_replacement_counts_items(cursor):
    assert make_order([100]).num_distinct(cursor) == min(cursor, 100)


@pytest.mark.parametrize("cursor", [0, 1, 150, 2000, 2050, 5000, 7321, 20_000])
def test_num_distinct_with_replacement_matches_simulation(cursor):
    """Within a window, after some of an epoch's windows, and in the epochs after it."""
    num_distinct = [
        len(set(deliver(make_order([20] * 250, seed=seed, window_steps=100, replacement=True), 0, cursor)))
        for seed in range(5)
    ]
    order = make_order([20] * 250, window_steps=100, replacement=True)
    assert order.num_distinct(cursor) == pytest.approx(np.mean(num_distinct), rel=0.01, abs=10)


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
