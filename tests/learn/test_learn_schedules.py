import pytest
from pydantic import TypeAdapter, ValidationError

from hindcast.learn.schedules import Schedule, value_at

ADAPTER = TypeAdapter(Schedule)


def test_a_number_is_constant():
    assert value_at(0.5, 0) == value_at(0.5, 10**9) == 0.5


@pytest.mark.parametrize(
    ("timesteps", "value"), [(0, 1.0), (50, 0.75), (100, 0.5), (150, 0.25), (200, 0.0), (10**9, 0.0)]
)
def test_points_are_joined_by_lines_and_the_last_value_stays(timesteps, value):
    assert value_at([[0, 1.0], [100, 0.5], [200, 0.0]], timesteps) == pytest.approx(value)


def test_one_point_is_a_constant():
    assert value_at([[0, 0.3]], 1000) == 0.3


@pytest.mark.parametrize(
    ("schedule", "reason"),
    [
        ([[10, 1.0]], "starts at timestep 0"),
        ([[0, 1.0], [0, 2.0]], "must increase"),
        ([[0, 1.0], [5, 2.0], [3, 1.0]], "must increase"),
        ([[0, -1.0]], "must not be negative"),
        ([], "at least 1"),
        ([[0, 1.0, 2.0]], "at most 2"),
        (-0.1, "greater than or equal"),
        ("fast", "number"),
    ],
)
def test_what_is_no_schedule_is_refused(schedule, reason):
    with pytest.raises(ValidationError, match=reason):
        ADAPTER.validate_python(schedule)


def test_both_forms_are_accepted():
    assert ADAPTER.validate_python(3e-4) == 3e-4
    assert ADAPTER.validate_python([[0, 1e-3], [1000, 0]]) == [[0, 1e-3], [1000, 0]]
