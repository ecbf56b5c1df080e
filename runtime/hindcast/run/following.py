"""The part of a training that all learners but the first take: what the first one broadcasts."""

from __future__ import annotations

import contextlib

from hindcast.api import OfflineTraining
from hindcast.errors import Interrupted
from hindcast.learn.checkpoint import find_checkpoint
from hindcast.learn.ranks import Ranks
from hindcast.run.offline import Inputs, offline_trainer
from hindcast.run.placement import Placement


def follow(resource: OfflineTraining, inputs: Inputs, placement: Placement, group: Ranks) -> None:
    """Do what the first learner broadcasts, until the end.

    Args:
        resource: what to train.
        inputs: its data, references resolved.
        placement: where data workers are.
        group: the learners; this is not the first one.

    Raises:
        PeerLost: another learner ended before the training did.
        UserError: a mistake in the resource, the data or the user's code.
    """
    received = group.receive()
    if received == ["end"]:
        return
    trainer = offline_trainer(resource, inputs, placement, group, first_learners=received[1])
    while (received := group.receive()) != ["end"]:
        if received[0] == "begin":
            trainer.begin()
        elif received[0] == "load":
            trainer.load(find_checkpoint(received[1]))
        else:
            with contextlib.suppress(Interrupted):
                trainer.iterate()
    trainer.close()
