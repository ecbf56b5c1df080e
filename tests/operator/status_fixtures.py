"""One object per state, its status made by the operator's own `plan`: what kstatus, Argo and Flux are tested with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from plan_world import (
    CHECKPOINT,
    OUTPUT,
    PROGRESS,
    RECORDING,
    REFERRING,
    START,
    World,
    pod,
    reference,
    running,
)

from hindcast_operator.facts import AttemptFacts, RayJobFacts


@dataclass(frozen=True)
class Verdict:
    """What a tool must find.

    Attributes:
        kstatus: `InProgress`, `Current` or `Failed`.
        finished: the run is over, either way.
        suspended: the user suspended it: Argo's `Suspended`.
    """

    kstatus: str
    finished: bool = False
    suspended: bool = False


def _fresh() -> World:
    return World()


def _pending() -> World:
    world = World()
    world.write(world.plan())
    return world


def _without_kuberay() -> World:
    world = World()
    world.kuberay = "NotInstalled"
    return _settled(world)


def _waiting(state: str) -> Callable[[], World]:
    def make() -> World:
        world = World(REFERRING)
        world.references = (reference(state),)
        return _settled(world)

    return make


def _queued() -> World:
    world = World()
    world.queue = True
    return _settled(world)


def _starting() -> World:
    return _settled(World())


def _unschedulable() -> World:
    world = _starting()
    world.job(deployment_status="Initializing")
    world.pods(pod("learner", unschedulable="0/3 nodes are available: 3 Insufficient nvidia.com/gpu."))
    return _settled(world)


def _running() -> World:
    return running()


def _degraded() -> World:
    world = running()
    killed = pod("data", phase="Failed", out_of_memory=True)
    return _settled(world.pods(*world.attempt.pods, killed))


def _drifted() -> World:
    return _settled(running().edit(seed=7))


def _retrying() -> World:
    return _settled(running().end("Lost", "WorkerLost", "The node of a learner is gone."))


def _suspending() -> World:
    return _settled(running().edit(suspend=True))


def _suspended() -> World:
    return _settled(
        _suspending().end("Suspended", "Suspended", "Stopped at iteration 5.", checkpoint=CHECKPOINT)
    )


def _suspended_at_birth() -> World:
    return _settled(World(suspend=True))


def _invalid() -> World:
    world = World()
    world.problems = ("spec.config.lr: is 'fast', expected a number",)
    return _settled(world)


def _conflict() -> World:
    world = World()
    child = "cartpole-bc-t1-1"
    world.attempts[child] = AttemptFacts(child, ray_job=RayJobFacts(child, "x", None, False, created=START))
    return _settled(world)


def _succeeded() -> World:
    return _settled(
        running().tick(600).end("Succeeded", "Succeeded", "100 iterations done", progress=PROGRESS)
    )


def _succeeded_recording() -> World:
    world = _settled(World(RECORDING))
    world.up().beat()
    return _settled(world.end("Succeeded", "Succeeded", "10 episodes recorded", output=OUTPUT))


def _failed() -> World:
    return _settled(running().end("Failed", "UserCodeFailed", "env.py:7: KeyError: 'reward' in step()"))


def _used_up() -> World:
    world = _settled(World(runPolicy={"backoffLimit": 0}))
    return _settled(world.up().beat().end("Lost", "WorkerLost", "The node of a learner is gone."))


def _new_revision() -> World:
    """The generation was raised, and the operator has not seen it yet."""
    return _succeeded().edit(revision=2)


def _settled(world: World) -> World:
    world.settle()
    return world


_IN_PROGRESS, _CURRENT, _FAILED = Verdict("InProgress"), Verdict("Current"), Verdict("Failed")

_MADE: dict[str, tuple[Callable[[], World], Verdict]] = {
    "Fresh": (_fresh, _IN_PROGRESS),
    "Pending": (_pending, _IN_PROGRESS),
    "PendingWithoutKubeRay": (_without_kuberay, _IN_PROGRESS),
    "Waiting": (_waiting("Unfinished"), _IN_PROGRESS),
    "WaitingForMissing": (_waiting("Missing"), _IN_PROGRESS),
    "StalledByDependency": (_waiting("Failed"), _FAILED),
    "StalledByInvalidSpec": (_invalid, _FAILED),
    "StalledByNameConflict": (_conflict, _FAILED),
    "Queued": (_queued, _IN_PROGRESS),
    "Starting": (_starting, _IN_PROGRESS),
    "StartingUnschedulable": (_unschedulable, _IN_PROGRESS),
    "Running": (_running, _CURRENT),
    "RunningDegraded": (_degraded, _CURRENT),
    "RunningWithDrift": (_drifted, _CURRENT),
    "Retrying": (_retrying, _IN_PROGRESS),
    "Suspending": (_suspending, _IN_PROGRESS),
    "Suspended": (_suspended, Verdict("Current", suspended=True)),
    "SuspendedAtBirth": (_suspended_at_birth, Verdict("Current", suspended=True)),
    "Succeeded": (_succeeded, Verdict("Current", finished=True)),
    "SucceededRecording": (_succeeded_recording, Verdict("Current", finished=True)),
    "Failed": (_failed, Verdict("Failed", finished=True)),
    "FailedUsedUp": (_used_up, Verdict("Failed", finished=True)),
    "SucceededThenRaised": (_new_revision, Verdict("InProgress", finished=True)),
}


def object_of(world: World) -> dict[str, Any]:
    """The resource as the API server shows it."""
    metadata = {
        **world.manifest["metadata"],
        "uid": world.uid,
        "generation": world.generation,
        "resourceVersion": "1000",
        "creationTimestamp": START.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    return {**world.manifest, "metadata": metadata, "status": world.status}


FIXTURES: dict[str, dict[str, Any]] = {name: object_of(make()) for name, (make, _) in _MADE.items()}
"""By name: the object with its status."""

EXPECTED: dict[str, Verdict] = {name: verdict for name, (_, verdict) in _MADE.items()}
"""By the same names: what tools must find. `SucceededThenRaised` still shows the older generation's status."""
