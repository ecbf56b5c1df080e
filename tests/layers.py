"""Number of repetitions of checks: `HINDCAST_CHECKS` is `quick`, `all` (CI) or `soak`; see docs/checks.md."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

_LAYERS = ("quick", "all", "soak")
LAYER = os.environ.get("HINDCAST_CHECKS", "quick")
assert LAYER in _LAYERS, f"HINDCAST_CHECKS is {LAYER!r}; it may be {', '.join(_LAYERS)}"


def examples(count: int) -> settings:
    """Return settings of a property: half of `count` examples in CI, a fifth in the quick layer, 20 times in a soak.

    A failure prints how to reproduce it.
    """
    # Only a soak draws other examples each time; elsewhere, more of them would repeat the same ones.
    max_examples = {"quick": max(count // 5, 3), "all": max(count // 2, 3), "soak": 20 * count}[LAYER]
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
