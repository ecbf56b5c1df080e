"""`hindcast status KIND/NAME`: the state of a resource on a cluster, why, and what to do next."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hindcast.cli.command import KubeContext, Namespace, command
from hindcast.cli.screen import Screen

if TYPE_CHECKING:
    from hindcast.cli.cluster.access import Cluster
    from hindcast.cli.cluster.explain import Explanation
    from hindcast.cli.cluster.next_step import NextStep
    from hindcast.cli.cluster.target import ClusterResource

INTERVAL_SECONDS = 2.0

TARGET_HELP = "For example training/clone, recording/data, otr/clone or OfflineTraining/clone."


@command
def status(
    resource: Annotated[str, typer.Argument(metavar="KIND/NAME", help=TARGET_HELP)],
    screen: Screen,
    namespace: Namespace = None,
    kube_context: KubeContext = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Update when something changes, until the run is finished.")
    ] = False,
) -> None:
    """Explain a resource on a cluster: state, pods, progress, checkpoint, attempts, what to do next."""
    from hindcast.cli.cluster.access import connect
    from hindcast.cli.cluster.target import parse_target

    target = parse_target(resource)
    cluster = connect(namespace, kube_context)
    if not watch:
        _show(_look(cluster, target, screen), cluster, screen)
    elif screen.flags.json or not screen.out.is_terminal:
        _follow(cluster, target, screen)
    else:
        _live(cluster, target, screen)


def _look(cluster: "Cluster", target: "ClusterResource", screen: Screen) -> "Explanation":
    from datetime import UTC, datetime

    from hindcast.cli.cluster.access import Forbidden
    from hindcast.cli.cluster.explain import explain, selector

    found = cluster.resource(target)
    try:
        pods = cluster.pods(selector(target.kind, target.name))
    except Forbidden as error:
        screen.note(f"pods are not shown: {error}")
        pods = []
    return explain(found, pods, datetime.now(UTC))


def _looks(cluster: "Cluster", target: "ClusterResource", screen: Screen) -> Iterator["Explanation"]:
    """One after the other, until the resource is finished."""
    from time import sleep

    while True:
        found = _look(cluster, target, screen)
        yield found
        if found.is_finished:
            return
        sleep(INTERVAL_SECONDS)


def _show(found: "Explanation", cluster: "Cluster", screen: Screen) -> None:
    from hindcast.cli.cluster.next_step import next_steps
    from hindcast.cli.cluster.status_view import views

    steps = next_steps(found, cluster.context)
    screen.result(to_json(found, steps), *views(found, steps))


def to_json(found: "Explanation", steps: Sequence["NextStep"]) -> dict[str, Any]:
    """The document that `--json` prints; unknown values are null."""
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
        "pools": [{**asdict(pool), "ready": pool.num_ready} for pool in found.pools],
        "runs": list(found.runs),
        "next": [asdict(step) for step in steps],
    }


def _follow(cluster: "Cluster", target: "ClusterResource", screen: Screen) -> None:
    """Into a pipe or a file: whenever something has changed."""
    before = None
    for found in _looks(cluster, target, screen):
        if found != before:
            _show(found, cluster, screen)
        before = found


def _live(cluster: "Cluster", target: "ClusterResource", screen: Screen) -> None:
    from rich.live import Live

    from hindcast.cli.cluster.next_step import next_steps
    from hindcast.cli.cluster.status_view import screen as whole

    with Live(console=screen.out, auto_refresh=False, vertical_overflow="visible") as live:
        for found in _looks(cluster, target, screen):
            live.update(whole(found, next_steps(found, cluster.context)), refresh=True)
