import numpy as np
import pytest
import torch
from pydantic import TypeAdapter, ValidationError

from hindcast.learn.schedules import Schedule, ScheduledValue, value_at

ADAPTER = TypeAdapter(Schedule)


def test_number_and_schedule_of_one_point_are_constant():
    assert value_at(0.5, 0) == value_at(0.5, 10**9) == value_at([[0, 0.5]], 1000) == 0.5


@pytest.mark.parametrize(
    ("timesteps", "value"), [(0, 1.0), (50, 0.75), (100, 0.5), (150, 0.25), (200, 0.0), (10**9, 0.0)]
)
def test_schedule_interpolates_and_keeps_the_last_value(timesteps, value):
    assert value_at([[0, 1.0], [100, 0.5], [200, 0.0]], timesteps) == pytest.approx(value)


@pytest.mark.parametrize(
    ("schedule", "reason"),
    [
        ([[10, 1.0]], "starts at timestep 10, expected 0"),
        ([[0, 1.0], [0, 2.0]], "must increase"),
        ([[0, 1.0], [5, 2.0], [3, 1.0]], "must increase"),
        ([[0, -1.0]], "expected at least 0"),
        ([], "at least 1"),
        ([[0, 1.0, 2.0]], r"expected \[timestep, value\] or"),
        ([[0, "step"]], r"expected \[timestep, value\] or"),
        ([[0, 1.0, "step", 1.0]], "at most 3"),
        ([[0, 1.0, "fast"]], "'line', 'cosine' or 'step'"),
        (-0.1, "greater than or equal"),
        ("fast", "number"),
    ],
)
def test_invalid_schedule_is_refused(schedule, reason):
    with pytest.raises(ValidationError, match=reason):
        ADAPTER.validate_python(schedule)


def test_number_and_points_are_accepted():
    assert ADAPTER.validate_python(3e-4) == 3e-4
    assert ADAPTER.validate_python([[0, 1e-3], [1000, 0]]) == [[0, 1e-3], [1000, 0]]


WARM_UP = [[0, 0.0], [100, 3e-4, "cosine"], [1100, 1e-4, "step"], [2000, 7e-5]]


@pytest.mark.parametrize(
    ("timesteps", "value"),
    [(50, 1.5e-4), (100, 3e-4), (350, 3e-4 - 1e-4 * (1 - 0.5**0.5)), (600, 2e-4), (1100, 1e-4), (1999, 1e-4)],
)
def test_point_selects_the_shape_of_its_segment(timesteps, value):
    assert value_at(ADAPTER.validate_python(WARM_UP), timesteps) == pytest.approx(value)
    assert value_at(WARM_UP, 2000) == value_at(WARM_UP, 10**9) == 7e-5


def test_scheduled_value_of_lines_and_steps_equals_value_at():
    rng = np.random.default_rng(0)
    for _ in range(100):
        times = [0, *np.cumsum(rng.integers(1, 10**6, rng.integers(0, 6))).tolist()]
        points = [[time, float(rng.random()), str(rng.choice(["line", "step"]))] for time in times]
        value = ScheduledValue(points)
        for timesteps in [*times, *rng.integers(0, 10**7, 5).tolist()]:
            assert float(value.float64_value(make_clock(timesteps))) == value_at(points, timesteps)


def test_scheduled_value_of_cosines_is_close_to_value_at():
    value = ScheduledValue(WARM_UP)
    for timesteps in range(0, 3000, 7):
        expected = pytest.approx(value_at(WARM_UP, timesteps), rel=1e-12)
        assert float(value.float64_value(make_clock(timesteps))) == expected


def test_scheduled_value_is_float32_and_not_in_checkpoints():
    value = ScheduledValue(0.3)
    assert value(make_clock(7)).dtype == torch.float32 and value(make_clock(7)).shape == ()
    assert float(value(make_clock(7))) == pytest.approx(0.3) and not value.state_dict()


def make_clock(timesteps):
    return torch.tensor(float(timesteps), dtype=torch.float64)
