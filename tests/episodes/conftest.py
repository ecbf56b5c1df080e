"""A fixture for both modes of episodes and buffers."""

from __future__ import annotations

import pytest


@pytest.fixture(params=[False, True], ids=["list", "numpy"])
def is_numpy(request: pytest.FixtureRequest) -> bool:
    return request.param
