"""Workers end with the process that started them."""

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
def test_a_worker_whose_parent_is_gone_already_ends() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    worker = subprocess.run([sys.executable, "-c", CODE, str(gone.pid)], timeout=30, check=False)
    assert worker.returncode == 1
