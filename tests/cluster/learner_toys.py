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


class KillsSecondLearnerOnce(BatchConnector):
    """Kills the second learner's process once, at the first batch after a number of timesteps.

    Args:
        file: created when the process is killed.
        after_timesteps: number of delivered timesteps.
    """

    def __init__(self, file: str, after_timesteps: int) -> None:
        self._file = Path(file)
        self._after_timesteps = after_timesteps

    def __call__(self, batch: Batch, context: Context) -> Batch:
        is_second = dist.is_initialized() and dist.get_rank() == 1
        if is_second and context.position >= self._after_timesteps and not self._file.exists():
            self._file.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return batch
