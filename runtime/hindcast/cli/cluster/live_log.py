"""Reads the log of an attempt that still has pods: its submitter prints the driver's output."""

from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from time import sleep
from typing import Any, Final

from hindcast.api.attempt import POOL_LABEL
from hindcast.cli.cluster.access import Cluster, NotFound
from hindcast.cli.cluster.explain import label_selector
from hindcast.cli.cluster.run_storage import attempts_of
from hindcast.cli.cluster.target import ClusterResource
from hindcast_operator.manifests.pods import SUBMITTER

Raw = Mapping[str, Any]

_POLL_SECONDS: Final = 2.0


def find_submitter(cluster: Cluster, target: ClusterResource, attempt: Raw) -> Raw | None:
    """Return the latest submitter pod of an attempt; None if it does not exist yet or any more."""
    pods = cluster.list_pods(f"{label_selector(target.kind, target.name, attempt)},{POOL_LABEL}={SUBMITTER}")
    return max(pods, key=lambda pod: str(pod["metadata"]["creationTimestamp"]), default=None)


def has_started(pod: Raw | None) -> bool:
    """Return True if the pod exists and its container has started, so that the container has a log."""
    return ((pod or {}).get("status") or {}).get("phase") in ("Running", "Succeeded", "Failed")


def open_live_log(
    cluster: Cluster, target: ClusterResource, attempt: Raw, follow: bool, note: Callable[[str], None]
) -> Iterator[bytes] | None:
    """Return the chunks of the log of an attempt's driver; None if no pod has the log.

    Args:
        cluster: the cluster.
        target: the resource.
        attempt: the attempt, an entry of status.runs.
        follow: wait in this call until the driver has started; the chunks then continue until the driver ends.
        note: called with a message if the driver has not started yet.

    Raises:
        ClusterError: the pods cannot be read.
    """
    pod = find_submitter(cluster, target, attempt)
    # An attempt may end before its driver starts, so the wait also ends once the attempt has an outcome.
    if follow and not attempt.get("outcome") and not has_started(pod):
        note(f"waiting for the driver of attempt {attempt['attempt']} to start")
    while follow and not attempt.get("outcome") and not has_started(pod):
        sleep(_POLL_SECONDS)
        attempt = _read_attempt(cluster, target, attempt)
        pod = find_submitter(cluster, target, attempt)
    if pod is None or not has_started(pod):
        return None
    return _open_log(cluster, str(pod["metadata"]["name"]), follow)


def _open_log(cluster: Cluster, pod: str, follow: bool) -> Iterator[bytes] | None:
    """Return the chunks of a pod's log; None if the pod has been deleted."""
    chunks = cluster.stream_log(pod, SUBMITTER, follow)
    # Reading the first chunk sends the request, which fails if the pod has been deleted in the meantime.
    try:
        first_chunk = next(chunks, b"")
    except NotFound:
        return None
    return chain([first_chunk], chunks)


def _read_attempt(cluster: Cluster, target: ClusterResource, attempt: Raw) -> Raw:
    """Read the attempt again; with the outcome `gone` if the resource's status no longer lists it."""
    attempts = {entry["rayJobName"]: entry for entry in attempts_of(cluster.read_resource(target))}
    return attempts.get(attempt["rayJobName"], {**attempt, "outcome": "gone"})
