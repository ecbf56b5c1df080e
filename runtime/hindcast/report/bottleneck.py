"""One sentence on what bounds the speed of a training, and the field that changes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from hindcast.formatting import as_percentage

_WAIT_LIMIT: Final = 0.1
"""Share of an iteration above which waiting for data is the bottleneck."""
_REDUCE_LIMIT: Final = 0.25
"""Share of an iteration above which the exchange of gradients is the bottleneck."""
_REMEDIES: Final = {
    "read": "reading and decoding take longest: move the data closer, raise spec.pipeline.residentBudget so that they "
    "stay in memory, or set spec.pipeline.diskCache for data in a bucket",
    "prelearn": "the pre-learner and connectors take longest: raise spec.pipeline.dataWorkers.maxReplicas on a "
    "cluster, or make them faster",
    "copy": "copies into windows take longest: raise spec.learners.cpus, or lower spec.pipeline.windowBytes",
}
"""Stage of `Executor.seconds` -> what to do if learners wait for it."""


def describe_bottleneck(shares: Sequence[Mapping[str, float]]) -> str:
    """Return what takes the longest in an iteration, and what to change.

    Args:
        shares: for each learner, stage -> seconds over those of the iteration. Threads and data workers read, pre-learn
            and copy beside the updates, so their shares may exceed 1.
    """
    slowest = max(shares, key=lambda learner: learner["wait"])
    if slowest["wait"] > _WAIT_LIMIT:
        stage = max(_REMEDIES, key=lambda stage: slowest.get(stage, 0.0))
        return f"Learners wait for data {as_percentage(slowest['wait'])} of the time; {_REMEDIES[stage]}."
    reduce_share = max(learner["allReduce"] for learner in shares)
    if reduce_share > _REDUCE_LIMIT:
        return (
            f"Learners exchange gradients {as_percentage(reduce_share)} of the time: raise "
            "spec.config.trainBatchSizePerLearner, or lower spec.learners.replicas."
        )
    update_share = max(learner["update"] for learner in shares)
    return (
        f"Updates take {as_percentage(update_share)} of the time: raise spec.learners.replicas, or use a GPU."
    )
