from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from processes import Script, adopt_orphans, end_orphans

from support import descendants
from warm_python import WarmPython


@pytest.fixture(scope="session", autouse=True)
def _start_at_once(warm: WarmPython) -> None:
    Script.warm = warm


@pytest.fixture(autouse=True)
def orphans() -> Iterator[None]:
    """End processes that killed ones leave running, such as Ray's, with the test."""
    before = descendants(os.getpid())
    adopt_orphans(True)
    yield
    end_orphans(before)
    adopt_orphans(False)
