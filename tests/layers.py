"""How often a check repeats itself: `HINDCAST_CHECKS` is `quick`, `all` (CI) or `soak`; see docs/checks.md."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

_LAYERS = ("quick", "all", "soak")
LAYER = os.environ.get("HINDCAST_CHECKS", "quick")
assert LAYER in _LAYERS, f"HINDCAST_CHECKS is {LAYER!r}; it may be {', '.join(_LAYERS)}"


def examples(number: int) -> settings:
    """Settings of a property: half as many examples in CI, a fifth in the quick layer, 20 times as many in a soak.

    Only a soak draws other examples each time, so more of them elsewhere would say the same again; a failure prints
    how to see it again.
    """
    shown = {"quick": max(number // 5, 3), "all": max(number // 2, 3), "soak": 20 * number}[LAYER]
    return settings(
        max_examples=shown,
        derandomize=LAYER != "soak",
        print_blob=True,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )


def repeats(number: int, soak: int) -> int:
    """How many moments, faults or seeds a long check takes: `number`, and `soak` in a soak."""
    return soak if LAYER == "soak" else number
