"""Resources in each state, with the status that the operator's own planner gives them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "operator"))

from plan_world import CHECKPOINT, RECORDING, REFERRING, World, reference, running

Object = dict[str, Any]


def _waiting(state: str) -> World:
    world = World(REFERRING)
    world.references = (reference(state),)
    world.settle()
    return world


def _without_kuberay() -> World:
    world = World()
    world.kuberay = "NotInstalled"
    world.settle()
    return world


def _queued() -> World:
    world = World()
    world.queue = True
    world.settle()
    world.job(deployment_status="Suspended").settle()
    return world


def _settled(world: World) -> World:
    world.settle()
    return world


def _suspending() -> World:
    return _settled(running().edit(suspend=True))


def _recorded() -> World:
    world = World(RECORDING)
    world.settle()
    world.up().beat().end("Succeeded", "Succeeded").settle()
    return world


def _changed_after_success() -> World:
    """The user has raised the revision of a finished training; the operator is down."""
    return _settled(running().end("Succeeded", "Succeeded")).edit(revision=2)


_WORLDS: dict[str, tuple[str | None, Callable[[], World]]] = {
    "unseen": (None, World),
    "Pending": ("Pending", _without_kuberay),
    "Waiting": ("Waiting", lambda: _waiting("Unfinished")),
    "Stalled": ("Stalled", lambda: _waiting("Failed")),
    "Queued": ("Queued", _queued),
    "Starting": ("Starting", lambda: _settled(World())),
    "Running": ("Running", running),
    "Retrying": ("Retrying", lambda: _settled(running().end("Lost", "WorkerLost"))),
    "Suspending": ("Suspending", _suspending),
    "Suspended": (
        "Suspended",
        lambda: _settled(_suspending().end("Suspended", "Suspended", checkpoint=CHECKPOINT)),
    ),
    "Succeeded": ("Succeeded", lambda: _settled(running().end("Succeeded", "Succeeded"))),
    "recorded": ("Succeeded", _recorded),
    "Failed": ("Failed", lambda: _settled(running().end("Failed", "UserCodeFailed"))),
    "changed": ("Succeeded", _changed_after_success),
}

STATES = tuple(_WORLDS)


def resource_in(name: str) -> Object:
    """The resource as the API server would give it."""
    state, make = _WORLDS[name]
    world = make()
    assert world.status.get("state") == state
    metadata = world.manifest["metadata"] | {"generation": world.generation, "uid": world.uid}
    return world.manifest | {"metadata": metadata, "status": world.status}
