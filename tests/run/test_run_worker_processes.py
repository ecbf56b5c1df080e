"""Worker processes end with their parent."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import sys, threading
from hindcast.worker_processes import end_with_parent
end_with_parent(int(sys.argv[1]))
threading.Event().wait(60)
"""


@pytest.mark.slow  # starts two processes
def test_worker_of_dead_parent_ends() -> None:
    dead_parent = subprocess.Popen([sys.executable, "-c", ""])
    dead_parent.wait()
    worker = subprocess.run([sys.executable, "-c", CODE, str(dead_parent.pid)], timeout=30, check=False)
    assert worker.returncode == 1
