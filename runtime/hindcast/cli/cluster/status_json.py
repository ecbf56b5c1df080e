"""What `hindcast status --json` prints."""

from collections.abc import Sequence
from typing import Any

from hindcast.cli.cluster.explain import Explanation, PodRow, PoolRow
from hindcast.cli.cluster.next_step import Step


def to_json(found: Explanation, steps: Sequence[Step]) -> dict[str, Any]:
    """The explanation as a document; what is not known is null."""
    return {
        "kind": found.kind,
        "name": found.name,
        "namespace": found.namespace,
        "state": found.state,
        "since": None if found.since is None else found.since.isoformat().replace("+00:00", "Z"),
        "reason": found.reason,
        "message": found.message,
        "notes": list(found.notes),
        "revision": found.revision,
        "progress": found.progress or None,
        "checkpoint": found.checkpoint or None,
        "output": found.output or None,
        "retries": {"used": found.retries, "allowed": found.retries_allowed},
        "pools": [_pool(pool) for pool in found.pools],
        "runs": list(found.runs),
        "next": [{"text": step.text, "command": step.command} for step in steps],
    }


def _pool(pool: PoolRow) -> dict[str, Any]:
    return {
        "pool": pool.pool,
        "wanted": pool.wanted,
        "ready": pool.ready,
        "size": dict(pool.size),
        "reasons": dict(pool.reasons),
        "pods": [_pod(pod) for pod in pool.pods],
    }


def _pod(pod: PodRow) -> dict[str, Any]:
    return {
        "name": pod.name,
        "phase": pod.phase,
        "ready": pod.ready,
        "node": pod.node,
        "restarts": pod.restarts,
        "problem": pod.problem,
    }
