"""Place the learners and data workers of a Python program that has joined a Ray cluster with `ray.init`."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch

from hindcast.api.pipeline import DataWorkersSpec
from hindcast.api.training import LearnersSpec
from hindcast.errors import SpecError
from hindcast.ray_session import is_driver_of_cluster
from hindcast.run.placement import LOCAL, Placement

_WARNING_DELAY_SECONDS: Final = 15.0
"""Time to wait for this node's CPUs and GPUs before a warning."""
_LOG = logging.getLogger("hindcast")


@contextmanager
def program_placement(learners: LearnersSpec, workers: DataWorkersSpec) -> Iterator[Placement]:
    """Place a training whose first learner is this process.

    Args:
        learners: section of the training.
        workers: section of the training.

    Yields:
        The nodes of the Ray cluster, if this program has joined one of several nodes; else this machine. In the block,
        the resources of the first learner are reserved on this node, and torch's current device is its GPU.

    Raises:
        SpecError: this node does not have the GPUs of a learner, or learners leave none for data workers.
    """
    if not is_driver_of_cluster():
        yield LOCAL
        return
    from hindcast.cluster.pools import RayPlacement

    placement = RayPlacement()
    placement.check_gpus(learners, workers)
    with _reserve_here(placement.learner_options(learners)):
        yield placement


@contextmanager
def _reserve_here(options: dict[str, Any]) -> Iterator[None]:
    """Reserve Ray's resources on this node, and make the reserved GPU torch's current device.

    Nothing is reserved for a learner on CPUs on a node that offers too few, such as a head that only coordinates.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    node_id = ray.get_runtime_context().get_node_id()
    offer = next(node["Resources"] for node in ray.nodes() if node["NodeID"] == node_id)
    num_cpus, num_gpus = options["num_cpus"], options.get("num_gpus", 0)
    if offer.get("CPU", 0) < num_cpus or offer.get("GPU", 0) < num_gpus:
        if num_gpus:
            raise SpecError(
                f"asks for {num_cpus} CPUs and {num_gpus:g} GPUs for each learner, but this node of the Ray cluster, "
                f"where the program is the first learner, has {offer.get('CPU', 0):g} and {offer.get('GPU', 0):g}: "
                "run the program on a node that has them.",
                field="spec.learners.gpus",
            )
        yield
        return
    strategy = NodeAffinitySchedulingStrategy(node_id, soft=False)
    reservation = ray.remote(_Reservation).options(scheduling_strategy=strategy, **options).remote()
    try:
        gpu_ids = reservation.gpu_ids.remote()
        if not ray.wait([gpu_ids], timeout=_WARNING_DELAY_SECONDS)[0]:
            _LOG.warning(
                "the first learner waits until %d CPUs and %g GPUs of this node are free", num_cpus, num_gpus
            )
        for gpu_id in ray.get(gpu_ids)[:1]:
            torch.cuda.set_device(_device_index(str(gpu_id)))
        yield
    finally:
        ray.kill(reservation)


def _device_index(gpu_id: str) -> int:
    """Return torch's index of one of the node's GPUs."""
    visible_ids = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible_ids.split(",").index(gpu_id) if visible_ids else int(gpu_id)


class _Reservation:
    """An actor that does nothing: while it lives, its resources are reserved."""

    def gpu_ids(self) -> list[Any]:
        import ray

        return list(ray.get_gpu_ids())
