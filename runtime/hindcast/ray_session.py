"""Start Ray for this process, or join a cluster. Only this module calls `ray.init`.

A process starts its own Ray, and joins a cluster only if it runs as a job of that cluster.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

QUIET_OPTIONS: Final = {"log_to_driver": False, "logging_level": "ERROR"}
"""Options of `ray.init` for a Ray that prints nothing to the user's terminal."""

_JOB_VARIABLE: Final = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Environment variable that Ray sets in the driver of a job (`ray job submit`, KubeRay's RayJob)."""


_is_shared = False
"""True within a block of `shared_ray`."""


def start_ray(**options: Any) -> None:
    """Start a separate Ray on this machine, only for this process, without the dashboard and Ray's usage reports.

    Args:
        options: passed to `ray.init`.
    """
    import ray

    # As in pods. Ray sends reports unless told otherwise.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Without an address, ray.init joins the cluster that RAY_ADDRESS names or that was started last on this machine,
    # which may be another user's.
    ray.init(address="local", include_dashboard=False, **options)


def join_cluster(address: str = "auto", **options: Any) -> None:
    """Join a cluster.

    Args:
        address: Ray's address of the cluster; "auto" is the one that this process runs on.
        options: passed to `ray.init`.

    Raises:
        ConnectionError: no cluster is running there.
        RuntimeError: the cluster runs another version of Ray or Python.
    """
    import ray

    ray.init(address=address, **options)


def connect() -> None:
    """Connect this process to Ray if it is not yet connected: a job to its cluster, any other process to its own."""
    import ray

    if ray.is_initialized():
        return
    if _JOB_VARIABLE in os.environ:
        join_cluster()
    else:
        start_ray()


def companion_options() -> dict[str, Any]:
    """Return Ray's options of an actor that reserves no CPU, on the node of this process.

    Ray asks a random node to place an actor without resources, also if the actor has labels that another node has, and
    counts it as dead if that node dies meanwhile. It asks this node to place an actor that needs a byte of memory.
    """
    import ray

    node_selector = {"ray.io/node-id": ray.get_runtime_context().get_node_id()}
    return {"num_cpus": 0, "memory": 1, "label_selector": node_selector}


@contextmanager
def shared_ray() -> Iterator[None]:
    """Share one Ray in the block: the first `ray_connection` starts it, and it ends with the block."""
    global _is_shared  # noqa: PLW0603
    if _is_shared:
        yield
        return
    _is_shared, was_connected = True, is_connected()
    try:
        yield
    finally:
        _is_shared = False
        if not was_connected and is_connected():
            import ray

            ray.shutdown()


def is_connected() -> bool:
    """Return True if this process is connected to Ray; does not import it."""
    return "ray" in sys.modules and sys.modules["ray"].is_initialized()


def is_driver_of_cluster() -> bool:
    """Return True if this process has joined a Ray cluster of several nodes as a driver.

    False in tasks and actors, such as Tune's trials: the cluster has already reserved what they use.
    """
    if not is_connected():
        return False
    import ray

    is_driver = ray.get_runtime_context().worker.mode == ray.SCRIPT_MODE
    return is_driver and sum(node["Alive"] for node in ray.nodes()) > 1


@contextmanager
def ray_connection(num_cpus: int) -> Iterator[None]:
    """Provide Ray in the block: the one that this process is connected to, else one that ends with the block.

    Args:
        num_cpus: CPUs of the Ray, if one is started.
    """
    import ray

    if ray.is_initialized():
        yield
        return
    start_ray(num_cpus=num_cpus, **QUIET_OPTIONS)
    try:
        yield
    finally:
        if not _is_shared:
            ray.shutdown()
