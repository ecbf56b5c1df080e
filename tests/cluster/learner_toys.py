"""Connectors for tests of several learners, named as `learner_toys:Name`."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import torch.distributed as dist

from hindcast.pipeline.connectors import BatchConnector, Context
from hindcast.pipeline.window import Batch


class SlowConnector(BatchConnector):
    """Sleeps before it returns a batch."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __call__(self, batch: Batch, context: Context) -> Batch:
        time.sleep(self._seconds)
        return batch


class SecondLearnerKillsOnce(BatchConnector):
    """In the second learner, kills a process once, and then only waits for its own end.

    Args:
        file: created when the process is killed.
        after_timesteps: number of timesteps that are delivered before that.
        process_id: the process.
    """

    def __init__(self, file: str, after_timesteps: int, process_id: int) -> None:
        self._file = Path(file)
        self._after_timesteps = after_timesteps
        self._process_id = process_id

    def __call__(self, batch: Batch, context: Context) -> Batch:
        is_second = dist.is_initialized() and dist.get_rank() == 1
        if is_second and context.position >= self._after_timesteps and not self._file.exists():
            self._file.touch()
            os.kill(self._process_id, signal.SIGKILL)
            time.sleep(600)
        return batch
