"""Numbers with three significant digits."""

import pytest

from hindcast.formatting import significant


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0123, "0.0123"),
        (4.5, "4.5"),
        (-999.4, "-999"),
        (10_401.2, "10,401"),
        (-1e14, "-100,000,000,000,000"),
        (1e300, "1e+300"),
        (float("inf"), "inf"),
    ],
)
def test_significant_digits(value: float, text: str) -> None:
    assert significant(value) == text
