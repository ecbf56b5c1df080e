"""The Ray of this process. Nothing else calls `ray.init`.

Without an address `ray.init` joins the cluster that `RAY_ADDRESS` names, or that was started last on the machine:
somebody else's. So a process starts its own Ray, and joins a cluster only if it belongs to it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

QUIET_OPTIONS: Final = {"log_to_driver": False, "logging_level": "ERROR"}
"""Options of `ray.init` for a Ray that the user does not see."""

_JOB: Final = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Set where Ray runs the process as a job (`ray job submit`, KubeRay's RayJob)."""


def start_ray(**options: Any) -> None:
    """Start a Ray on this machine, for this process alone, without its dashboard.

    Args:
        options: of `ray.init`.
    """
    import ray

    ray.init(address="local", include_dashboard=False, **options)


def join_cluster(**options: Any) -> None:
    """Join the cluster that this process runs on.

    Args:
        options: of `ray.init`.

    Raises:
        ConnectionError: there is none.
        RuntimeError: it runs another version of Ray or Python.
    """
    import ray

    ray.init(address="auto", **options)


def connect() -> None:
    """Connect this process unless it is connected: a job to its cluster, any other to its own Ray."""
    import ray

    if ray.is_initialized():
        return
    if _JOB in os.environ:
        join_cluster()
    else:
        start_ray()


@contextmanager
def ray_connection(num_cpus: int) -> Iterator[None]:
    """The Ray that this process is connected to; if there is none, a new one until the block ends.

    Args:
        num_cpus: of one that is started.
    """
    import ray

    if ray.is_initialized():
        yield
        return
    start_ray(num_cpus=num_cpus, **QUIET_OPTIONS)
    try:
        yield
    finally:
        ray.shutdown()
