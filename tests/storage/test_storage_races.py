"""Two writers race for a folder on storage without a server; tests/stores tests storage with a server."""

from __future__ import annotations

import pytest
from obstore.store import MemoryStore

from hindcast.storage.location import resolve
from support import race_for_lease


@pytest.mark.parametrize("kind", ["local", "memory"])
def test_exactly_one_of_two_writers_wins(kind, tmp_path):
    folder = resolve(tmp_path) if kind == "local" else resolve("races", MemoryStore())
    for race in range(100):
        assert race_for_lease(folder.child(f"{race}")) == [False, True]
