"""The log of an attempt that still has pods: its submitter prints the driver's output."""

from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from time import sleep
from typing import Any, Final

from hindcast.api.attempt import POOL_LABEL
from hindcast.cli.cluster.access import Cluster, Gone
from hindcast.cli.cluster.explain import selector
from hindcast.cli.cluster.target import ClusterResource

Raw = Mapping[str, Any]

SUBMITTER: Final = "submitter"
"""Pool label and container of the pod that hands the driver to Ray and prints its log."""

_POLL_SECONDS: Final = 2.0


def submitter_of(cluster: Cluster, target: ClusterResource, run: Raw) -> Raw | None:
    """The latest submitter of an attempt; None where it is gone or not made yet. Raises ClusterError."""
    pods = cluster.pods(f"{selector(target.kind, target.name, run)},{POOL_LABEL}={SUBMITTER}")
    return max(pods, key=lambda pod: str(pod["metadata"]["creationTimestamp"]), default=None)


def has_started(pod: Raw | None) -> bool:
    """Whether its container has run, so that there is a log."""
    return ((pod or {}).get("status") or {}).get("phase") in ("Running", "Succeeded", "Failed")


def live_log(
    cluster: Cluster, target: ClusterResource, run: Raw, follow: bool, note: Callable[[str], None]
) -> Iterator[bytes] | None:
    """The driver's output, piece by piece; None if no pod has it.

    Args:
        follow: wait for the driver to start, and follow it until it ends.
        note: called once if it has to wait.

    Raises:
        ClusterError: the pods cannot be read.
    """
    pod = submitter_of(cluster, target, run)
    if follow and not run.get("outcome") and not has_started(pod):
        note(f"waiting for the driver of attempt {run['attempt']} to start")
    while follow and not run.get("outcome") and not has_started(pod):
        sleep(_POLL_SECONDS)
        run = next(
            (own for own in runs_of(cluster.resource(target)) if own["rayJobName"] == run["rayJobName"]),
            {**run, "outcome": "gone"},
        )
        pod = submitter_of(cluster, target, run)
    if pod is None or not has_started(pod):
        return None
    return _pieces(cluster, str(pod["metadata"]["name"]), follow)


def _pieces(cluster: Cluster, pod: str, follow: bool) -> Iterator[bytes] | None:
    """None if the pod has gone in the meantime."""
    pieces = cluster.log(pod, SUBMITTER, follow)
    try:
        first = next(pieces, b"")
    except Gone:
        return None
    return chain([first], pieces)


def runs_of(resource: Raw) -> list[Raw]:
    """A resource's attempts, newest first."""
    return list((resource.get("status") or {}).get("runs") or ())
