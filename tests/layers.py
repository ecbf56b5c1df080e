"""The number of repetitions of checks, by `HINDCAST_CHECKS`: `quick`, `all` (CI) or `soak`; see docs/checks.md."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

_LAYERS = ("quick", "all", "soak")
LAYER = os.environ.get("HINDCAST_CHECKS", "quick")
assert LAYER in _LAYERS, f"HINDCAST_CHECKS is {LAYER!r}; expected one of {', '.join(_LAYERS)}"


def examples(count: int) -> settings:
    """Return hypothesis settings: `count / 5` examples in CI, `count / 10` in the quick layer, `20 * count` in a soak.

    A failure prints how to reproduce it.
    """
    # Only a soak draws different examples each time; the other layers repeat the same ones in every run.
    max_examples = {"quick": max(count // 10, 3), "all": max(count // 5, 3), "soak": 20 * count}[LAYER]
    return settings(
        max_examples=max_examples,
        derandomize=LAYER != "soak",
        print_blob=True,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )


def repeats(count: int, soak: int) -> int:
    """Return the number of moments, faults or seeds of a long check: `count`, or `soak` in a soak."""
    return soak if LAYER == "soak" else count


def slow_except(quick: Collection[Any], values: Iterable[Any]) -> list[Any]:
    """Return the values of a test's parameters, with the mark `slow` for those that are not in `quick`."""
    return [
        value
        if value in quick
        else pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.slow)
        for value in values
    ]
