"""Verdicts of other tools on resources: kstatus (Helm 4, Flux, kpt), Argo CD and Flux, from their own libraries."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from api_server import Object

PROGRAM = Path(os.environ.get("CLUSTER", Path(__file__).parents[3] / "shared" / "cluster" / "cluster"))
GITOPS = Path(__file__).parents[2] / "docs" / "gitops"

VERDICTS = {
    **dict.fromkeys(
        ("Pending", "Waiting", "Queued", "Starting", "Retrying", "Suspending"),
        ("InProgress", "Progressing", "InProgress"),
    ),
    "Running": ("Current", "Healthy", "InProgress"),
    "Suspended": ("Current", "Suspended", "Current"),
    "Succeeded": ("Current", "Healthy", "Current"),
    **dict.fromkeys(("Stalled", "Failed"), ("Failed", "Degraded", "Failed")),
}
"""State -> verdicts of kstatus, Argo CD with docs/gitops/argocd-cm.yaml, and Flux with docs/gitops/flux.yaml."""


def check_verdicts(*resources: Object | None) -> None:
    """Check that the tools' verdicts on each resource are those of its state; do nothing without their libraries.

    The Lua engine of the program reads numbers as nil. The health script therefore does not see an `observedGeneration`
    that is out of date; tests/charts checks that with another engine.
    """
    if not PROGRAM.exists():
        return
    arguments = (
        *("--argocd-cm", str(GITOPS / "argocd-cm.yaml")),
        *("--kustomization", str(GITOPS / "flux.yaml")),
    )
    process = subprocess.run(
        [PROGRAM, "verdicts", *arguments],
        input=json.dumps({"apiVersion": "v1", "kind": "List", "items": resources}),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    lines = [json.loads(line) for line in process.stdout.splitlines()]
    verdicts = {line["name"]: (line["kstatus"], line["argocd"], line["flux"]) for line in lines}
    states = {resource["metadata"]["name"]: resource["status"]["state"] for resource in resources if resource}
    unexpected = {name: verdicts[name] for name, state in states.items() if verdicts[name] != VERDICTS[state]}
    assert not unexpected, unexpected
