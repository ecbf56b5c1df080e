"""Data shared by tests of runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from recall_data import write_recall

from toy_environments import Recall


@pytest.fixture(scope="session")
def recall_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Episodes of an expert that remembers the cue."""
    return write_recall(tmp_path_factory.mktemp("recall_data"), Recall(), is_expert=True)
