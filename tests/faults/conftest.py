from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from processes import adopt_orphans, end_orphans

from support import descendants


@pytest.fixture(autouse=True)
def orphans() -> Iterator[None]:
    """What killed processes leave running (Ray's own, for a while) ends with the test."""
    before = descendants(os.getpid())
    adopt_orphans(True)
    yield
    end_orphans(before)
    adopt_orphans(False)
