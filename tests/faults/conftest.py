from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from processes import Script, adopt_orphans, end_orphans

from support import descendants
from warm_python import WarmPython


@pytest.fixture(scope="session", autouse=True)
def _start_from_warm_python(warm: WarmPython) -> None:
    """Let `Script` start its processes from a process that has imported the slow packages."""
    Script.warm = warm


@pytest.fixture(autouse=True)
def orphans() -> Iterator[None]:
    """After each test, end processes that killed ones have left running, such as Ray's."""
    descendants_before = descendants(os.getpid())
    adopt_orphans(True)
    yield
    end_orphans(descendants_before)
    adopt_orphans(False)
