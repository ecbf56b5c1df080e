"""Trains in the pool of learners."""

from __future__ import annotations

from hindcast.api import OfflineTraining
from hindcast.run.cluster.mailbox import Mailbox
from hindcast.run.cluster.pools import Pools
from hindcast.run.events import Outcome
from hindcast.run.session import Inputs
from hindcast.run.training import TrainingRun


def train(resource: OfflineTraining, inputs: Inputs, mailbox: Mailbox, pools: Pools) -> Outcome:
    """Train in this process of the learners' pool; evaluation runs in the data workers'."""
    return TrainingRun(resource, inputs, mailbox.reporter(), mailbox.interruption(), pools).carry_out()
