"""Connectors that tests of several learners name as `learner_toys:Name`."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import torch.distributed as dist

from hindcast.pipeline.connectors import BatchConnector, Context
from hindcast.pipeline.window import Batch


class Slowly(BatchConnector):
    """Takes its time over each batch."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __call__(self, batch: Batch, context: Context) -> Batch:
        time.sleep(self._seconds)
        return batch


class KillsOnce(BatchConnector):
    """Kills the second learner's process once, as the batch after so many timesteps is made.

    Args:
        file: says that it has been done.
        after: timesteps delivered.
    """

    def __init__(self, file: str, after: int) -> None:
        self._file = Path(file)
        self._after = after

    def __call__(self, batch: Batch, context: Context) -> Batch:
        is_second = dist.is_initialized() and dist.get_rank() == 1
        if is_second and context.position >= self._after and not self._file.exists():
            self._file.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return batch
