"""`hindcast status KIND/NAME`: show a resource's state on a cluster, the reason, and the next step."""

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

POLL_INTERVAL_SECONDS = 2.0

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
        _show(_read_explanation(cluster, target, screen), cluster, screen)
    elif screen.flags.json or not screen.out.is_terminal:
        _print_changes(cluster, target, screen)
    else:
        _show_live(cluster, target, screen)


def _read_explanation(cluster: "Cluster", target: "ClusterResource", screen: Screen) -> "Explanation":
    from datetime import UTC, datetime

    from hindcast.cli.cluster.access import Forbidden
    from hindcast.cli.cluster.explain import explain, label_selector

    document = cluster.read_resource(target)
    try:
        pods = cluster.list_pods(label_selector(target.kind, target.name))
    except Forbidden as error:  # a user may be allowed to read resources but not pods
        screen.note(f"pods cannot be shown: {error}")
        pods = []
    return explain(document, pods, datetime.now(UTC))


def _poll_explanations(
    cluster: "Cluster", target: "ClusterResource", screen: Screen
) -> Iterator["Explanation"]:
    """Yield an explanation at each interval until the resource has finished."""
    from time import sleep

    while True:
        explanation = _read_explanation(cluster, target, screen)
        yield explanation
        if explanation.is_finished:
            return
        sleep(POLL_INTERVAL_SECONDS)


def _show(explanation: "Explanation", cluster: "Cluster", screen: Screen) -> None:
    from hindcast.cli.cluster.next_step import next_steps
    from hindcast.cli.cluster.status_view import render_explanation

    steps = next_steps(explanation, cluster.context)
    screen.show_result(to_json(explanation, steps), *render_explanation(explanation, steps))


def to_json(explanation: "Explanation", steps: Sequence["NextStep"]) -> dict[str, Any]:
    """Return an explanation as the document that `--json` prints; unknown values are None."""
    return {
        "kind": explanation.kind,
        "name": explanation.name,
        "namespace": explanation.namespace,
        "state": explanation.state,
        "since": None if explanation.since is None else explanation.since.isoformat().replace("+00:00", "Z"),
        "reason": explanation.reason,
        "message": explanation.message,
        "notes": list(explanation.notes),
        "revision": explanation.revision,
        "progress": explanation.progress or None,
        "checkpoint": explanation.checkpoint or None,
        "output": explanation.output or None,
        "retries": {"used": explanation.retries, "allowed": explanation.retries_allowed},
        "pools": [{**asdict(pool), "ready": pool.num_ready} for pool in explanation.pools],
        "runs": list(explanation.attempts),
        "next": [asdict(step) for step in steps],
    }


def _print_changes(cluster: "Cluster", target: "ClusterResource", screen: Screen) -> None:
    """Print the explanation to a pipe or a file whenever it has changed."""
    previous = None
    for explanation in _poll_explanations(cluster, target, screen):
        if explanation != previous:
            _show(explanation, cluster, screen)
        previous = explanation


def _show_live(cluster: "Cluster", target: "ClusterResource", screen: Screen) -> None:
    from rich.live import Live

    from hindcast.cli.cluster.next_step import next_steps
    from hindcast.cli.cluster.status_view import render_screen

    # By default rich cuts off what does not fit on the terminal.
    with Live(console=screen.out, auto_refresh=False, vertical_overflow="visible") as live:
        for explanation in _poll_explanations(cluster, target, screen):
            live.update(render_screen(explanation, next_steps(explanation, cluster.context)), refresh=True)
