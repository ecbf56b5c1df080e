"""Nodes of the Ray cluster that shut down.

If Kubernetes terminates a pod, `ray start` receives SIGTERM, and Ray drains the node: nothing new starts there, and
after 30 seconds its processes are killed.
"""

from __future__ import annotations

import ray

from hindcast.api.attempt import POOL_LABEL, Pool


class DrainMonitor:
    """Finds the pools of nodes that begin to drain."""

    def __init__(self) -> None:
        self._known_ids: set[str] = set()

    def find_draining_pools(self) -> set[Pool]:
        """Return the pools of the nodes that began to drain since the last call."""
        # A private call, because ray.util.state has none for it; Ray Train uses it, too, to detect preemption.
        draining_ids = set(ray._private.state.state.get_draining_nodes())
        new_ids = draining_ids - self._known_ids
        self._known_ids |= new_ids
        if not new_ids:
            return set()
        return {
            node["Labels"][POOL_LABEL]
            for node in ray.nodes()
            if node["NodeID"] in new_ids and POOL_LABEL in node["Labels"]
        }
