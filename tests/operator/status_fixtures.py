"""One object per state, with a status from the operator's own `plan`, for tests of kstatus, Argo and Flux."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from plan_world import (
    CHECKPOINT,
    OUTPUT,
    PROGRESS,
    RECORDING,
    REFERRING_TRAINING,
    START,
    World,
    make_pod,
    make_reference,
    make_running_world,
)

from hindcast_operator.facts import AttemptFacts, RayJobFacts


@dataclass(frozen=True)
class Verdict:
    """The verdict that a tool must reach.

    Attributes:
        kstatus: `InProgress`, `Current` or `Failed`.
        is_finished: the run has succeeded or failed.
        is_suspended: the run is suspended and has no pods; Argo CD then reports `Suspended`.
    """

    kstatus: str
    is_finished: bool = False
    is_suspended: bool = False


def _new_world() -> World:
    return World()


def _pending_world() -> World:
    world = World()
    world.write_status(world.plan())
    return world


def _world_without_kuberay() -> World:
    world = World()
    world.has_kuberay = False
    return _settle(world)


def _waiting_world(state: str) -> Callable[[], World]:
    def make() -> World:
        world = World(REFERRING_TRAINING)
        world.references = (make_reference(state),)
        return _settle(world)

    return make


def _queued_world() -> World:
    world = World()
    world.has_full_queue = True
    return _settle(world)


def _starting_world() -> World:
    return _settle(World())


def _unschedulable_world() -> World:
    world = _starting_world()
    world.update_job(deployment_status="Initializing")
    world.set_pods(
        make_pod("learner", scheduling_failure="0/3 nodes are available: 3 Insufficient nvidia.com/gpu.")
    )
    return _settle(world)


def _running_world() -> World:
    return make_running_world()


def _degraded_world() -> World:
    world = make_running_world()
    killed_pod = make_pod("data", phase="Failed", is_oom_killed=True)
    return _settle(world.set_pods(*world.attempt.pods, killed_pod))


def _drifted_world() -> World:
    return _settle(make_running_world().edit_spec(seed=7))


def _retrying_world() -> World:
    return _settle(make_running_world().report_end("Lost", "WorkerLost", "The node of a learner is gone."))


def _suspending_world() -> World:
    return _settle(make_running_world().edit_spec(suspend=True))


def _suspended_world() -> World:
    return _settle(
        _suspending_world().report_end(
            "Suspended", "Suspended", "Stopped at iteration 5.", checkpoint=CHECKPOINT
        )
    )


def _never_started_world() -> World:
    return _settle(World(suspend=True))


def _invalid_world() -> World:
    world = World()
    world.problems = ("spec.config.lr: is 'fast', expected a number",)
    return _settle(world)


def _conflict_world() -> World:
    world = World()
    child = "cartpole-bc-t1-1"
    world.attempts[child] = AttemptFacts(
        child, ray_job=RayJobFacts(child, uid="x", owner_uid=None, is_deleting=False, created_at=START)
    )
    return _settle(world)


def _succeeded_world() -> World:
    return _settle(
        make_running_world()
        .advance(600)
        .report_end("Succeeded", "Succeeded", "100 iterations done", progress=PROGRESS)
    )


def _succeeded_recording_world() -> World:
    world = _settle(World(RECORDING))
    world.start_pods().send_report()
    return _settle(world.report_end("Succeeded", "Succeeded", "10 episodes recorded", output=OUTPUT))


def _failed_world() -> World:
    return _settle(
        make_running_world().report_end("Failed", "UserCodeFailed", "env.py:7: KeyError: 'reward' in step()")
    )


def _exhausted_world() -> World:
    world = _settle(World(runPolicy={"backoffLimit": 0}))
    return _settle(
        world.start_pods().send_report().report_end("Lost", "WorkerLost", "The node of a learner is gone.")
    )


def _new_revision_world() -> World:
    """Build a world with a higher revision in the spec, which the operator has not seen yet."""
    return _succeeded_world().edit_spec(revision=2)


def _settle(world: World) -> World:
    world.settle()
    return world


_IN_PROGRESS_VERDICT, _CURRENT_VERDICT, _FAILED_VERDICT = (
    Verdict("InProgress"),
    Verdict("Current"),
    Verdict("Failed"),
)

_WORLDS: dict[str, tuple[Callable[[], World], Verdict]] = {
    "New": (_new_world, _IN_PROGRESS_VERDICT),
    "Pending": (_pending_world, _IN_PROGRESS_VERDICT),
    "PendingWithoutKubeRay": (_world_without_kuberay, _IN_PROGRESS_VERDICT),
    "Waiting": (_waiting_world("Unfinished"), _IN_PROGRESS_VERDICT),
    "WaitingForMissing": (_waiting_world("Missing"), _IN_PROGRESS_VERDICT),
    "StalledByDependency": (_waiting_world("Failed"), _FAILED_VERDICT),
    "StalledByInvalidSpec": (_invalid_world, _FAILED_VERDICT),
    "StalledByNameConflict": (_conflict_world, _FAILED_VERDICT),
    "Queued": (_queued_world, _IN_PROGRESS_VERDICT),
    "Starting": (_starting_world, _IN_PROGRESS_VERDICT),
    "StartingUnschedulable": (_unschedulable_world, _IN_PROGRESS_VERDICT),
    "Running": (_running_world, _CURRENT_VERDICT),
    "RunningDegraded": (_degraded_world, _CURRENT_VERDICT),
    "RunningWithDrift": (_drifted_world, _CURRENT_VERDICT),
    "Retrying": (_retrying_world, _IN_PROGRESS_VERDICT),
    "Suspending": (_suspending_world, _IN_PROGRESS_VERDICT),
    "Suspended": (_suspended_world, Verdict("Current", is_suspended=True)),
    "SuspendedBeforeStart": (_never_started_world, Verdict("Current", is_suspended=True)),
    "Succeeded": (_succeeded_world, Verdict("Current", is_finished=True)),
    "SucceededRecording": (_succeeded_recording_world, Verdict("Current", is_finished=True)),
    "Failed": (_failed_world, Verdict("Failed", is_finished=True)),
    "FailedWithoutRetriesLeft": (_exhausted_world, Verdict("Failed", is_finished=True)),
    "SucceededWithHigherRevision": (_new_revision_world, Verdict("InProgress", is_finished=True)),
}


def resource_object(world: World) -> dict[str, Any]:
    """Return the resource as the API server returns it."""
    metadata = {
        **world.manifest["metadata"],
        "uid": world.uid,
        "generation": world.generation,
        "resourceVersion": "1000",
        "creationTimestamp": START.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    return {**world.manifest, "metadata": metadata, "status": world.status}


FIXTURES: dict[str, dict[str, Any]] = {name: resource_object(make()) for name, (make, _) in _WORLDS.items()}
"""Name of a state -> resource in this state, with its status."""

EXPECTED_VERDICTS: dict[str, Verdict] = {name: verdict for name, (_, verdict) in _WORLDS.items()}
"""Name of a state -> expected verdict."""
