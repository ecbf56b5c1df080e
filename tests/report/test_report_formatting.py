"""Numbers with three significant digits, and names of types."""

import re
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import hindcast
from hindcast.formatting import describe_type, significant


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


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3, "an int"),
        ("3", "a str"),
        (None, "a NoneType"),
        (np.zeros(2), "an ndarray"),
        (object(), "an object"),
        (np.uint8(3), "a uint8"),
        (int | str, "a UnionType"),
        (gym.spaces.OneOf([gym.spaces.Discrete(2)]), "a OneOf"),
    ],
)
def test_type_has_its_article(value: Any, text: str) -> None:
    assert describe_type(value) == text


def test_messages_describe_types_with_the_article_of_the_type() -> None:
    sources = Path(hindcast.__path__[0]).rglob("*.py")
    assert not [path for path in sources if re.search(r"\b[aA]n? \{type\(", path.read_text())]
