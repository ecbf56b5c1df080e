"""The fixture with RLlib's public names has those of RLlib 2.60."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

FIXTURE = Path(__file__).parents[1] / "fixtures/rllib_names.txt"


def test_fixture_has_the_public_names_of_rllib(run_script: Callable[..., str]) -> None:
    assert FIXTURE.read_text().split() == json.loads(run_script("rllib_names.py"))
