"""Invariants under random events in any order, with an operator that may die between any two writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from itertools import chain

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from plan_world import CHECKPOINT, DEFAULTS, PROGRESS, REFERRING, World, pod, reference

from hindcast_operator.planning import plain_status, plan
from layers import examples

Happening = Callable[[World], object]


# -- what may happen -----------------------------------------------------------------------------------------
def _has_live_job(world: World) -> bool:
    """Return True if the latest attempt's RayJob exists and the status knows it."""
    runs = world.status.get("runs", [])
    attempt = world.attempts.get(runs[0]["rayJobName"]) if runs else None
    job = None if attempt is None else attempt.ray_job
    return job is not None and not job.is_deleting and runs[0].get("rayJobUID") == job.uid


def _can_report(world: World) -> bool:
    job = world.attempt.ray_job if _has_live_job(world) else None
    return (
        job is not None
        and not job.is_suspended
        and job.deployment_status == "Running"
        and world.attempt.config_map is not None
    )


def _up(world: World) -> None:
    job = world.attempt.ray_job if _has_live_job(world) else None
    if (
        job is not None
        and not job.is_suspended
        and job.deployment_status != "Running"
        and job.ended_at is None
    ):
        world.up()


def _beat(world: World) -> None:
    if _can_report(world):
        world.beat(progress=PROGRESS, checkpoint=CHECKPOINT)


def _idle_beat(world: World) -> None:
    if _can_report(world):
        world.beat(moved=False)


def _end(state: str, reason: str) -> Happening:
    def happen(world: World) -> None:
        if _can_report(world):
            world.end(state, reason)

    return happen


def _acknowledge(world: World) -> None:
    if _can_report(world) and world.attempt.config_map.intent:  # type: ignore[union-attr]
        world.end("Suspended", "Suspended", checkpoint=CHECKPOINT)


def _late_report(world: World) -> None:
    """The driver reports its end, and the RayJob takes its time."""
    if _can_report(world):
        world.end("Failed", "UserCodeFailed").job(deployment_status="Running", ended_at=None)


def _die(world: World) -> None:
    if _can_report(world):
        world.finish_job("FAILED")


def _invalid(world: World) -> None:
    if _has_live_job(world):
        world.job(deployment_status="ValidationFailed", message="rayStartParams")


def _delete_job(world: World) -> None:
    if _has_live_job(world):
        world.delete_job()


def _kill(world: World) -> None:
    if _can_report(world):
        world.pods(pod("head", phase="Failed", is_oom_killed=True))


def _no_room(world: World) -> None:
    if _has_live_job(world):
        world.pods(pod("learner", scheduling_failure="0/1 nodes: Insufficient nvidia.com/gpu"))


def _lose_node(world: World) -> None:
    if _can_report(world):
        world.pods(*(replace(one, unreachable_since=world.now) for one in world.attempt.pods))


def _kueue(world: World) -> None:
    world.queue = not world.queue
    if _has_live_job(world):
        world.job(is_suspended=world.queue, deployment_status="Suspended" if world.queue else "")
        world.pods()


def _collect(world: World) -> None:
    for child, attempt in list(world.attempts.items()):
        if attempt.ray_job is not None and attempt.ray_job.is_deleting:
            world.collect(child)


def _suspend(world: World) -> None:
    world.edit(suspend=not world.manifest["spec"].get("suspend", False))


def _raise_revision(world: World) -> None:
    world.edit(revision=world.manifest["spec"].get("revision", 1) + 1)


def _drift(world: World) -> None:
    world.edit(seed=7 - world.manifest["spec"].get("seed", 0))


def _extend(world: World) -> None:
    world.edit(stop={"iterations": world.manifest["spec"]["stop"]["iterations"] + 100})


def _break_spec(world: World) -> None:
    world.problems = () if world.problems else ("spec.config.lr: is 'fast', expected a number",)


def _kuberay(world: World) -> None:
    world.kuberay = "Ready" if world.kuberay == "NotInstalled" else "NotInstalled"


def _refer(state: str) -> Happening:
    def happen(world: World) -> None:
        world.references = (reference(state),)

    return happen


def _tick(seconds: float) -> Happening:
    return lambda world: world.tick(seconds)


def _wake(world: World) -> None:
    """The time of the next deadline."""
    world.now = world.plan().requeue_at or world.now


OFTEN: list[Happening] = [_up, _beat, _end("Lost", "WorkerLost"), _wake, _tick(70.4)]
SELDOM: list[Happening] = [
    *(
        _idle_beat,
        _acknowledge,
        _late_report,
        _die,
        _invalid,
        _delete_job,
        _kill,
        _no_room,
        _lose_node,
        _kueue,
    ),
    *(_collect, _suspend, _suspend, _raise_revision, _drift, _extend, _break_spec, _kuberay),
    *(_refer("Complete"), _refer("Missing"), _refer("Unfinished"), _refer("Failed")),
    *(_end("Succeeded", "Succeeded"), _end("Failed", "UserCodeFailed"), _end("Lost", "OutOfMemory")),
    *(_tick(0.4), _tick(11), _tick(310), _tick(1801), _collect),
]
happenings = st.lists(st.sampled_from([*OFTEN * 6, *SELDOM]), min_size=10, max_size=40)
deaths = st.lists(st.integers(0, 6), max_size=60)
"""The number of writes before the operator dies, for each reconciliation; after the end of the list it lives."""


# -- the operator --------------------------------------------------------------------------------------------
def reconcile_until_rest(world: World, deaths_left: list[int]) -> None:
    """Reconcile until nothing changes; the next reconciliation continues one that died."""
    for _ in range(60):
        state_before = (world.status, dict(world.attempts))
        writes_left = deaths_left.pop() if deaths_left else None
        decision = world.plan()
        died = False
        for num_writes, _ in enumerate(_writes(world, decision)):
            check_world(world)
            if num_writes == writes_left:
                died = True
                break
        if not died and state_before == (world.status, world.attempts):
            return
    raise AssertionError("does not come to rest")


def _writes(world: World, decision):  # type: ignore[no-untyped-def]
    world.write(decision)
    yield
    yield from chain.from_iterable(world.steps(action) for action in decision.actions)


# -- what holds ----------------------------------------------------------------------------------------------
def check_world(world: World) -> None:
    assert len(world.live_children) <= 1, "two attempts live at once"
    assert len(set(world.created_children)) == len(world.created_children), "an attempt has two RayJobs"


def check_status(world: World) -> None:
    holds = {entry["type"] for entry in world.status["conditions"] if entry["status"] == "True"}
    assert len(holds & {"Ready", "Reconciling", "Stalled"}) == 1
    assert ("Finished" in holds) == bool(holds & {"Complete", "Failed"})
    assert not {"Complete", "Failed"} <= holds
    assert all(entry["observedGeneration"] == world.generation for entry in world.status["conditions"])
    assert len(world.status["runs"]) <= 32
    unfinished_runs = [run for run in world.status["runs"] if "outcome" not in run]
    assert len(unfinished_runs) <= 1
    assert unfinished_runs == [] or world.status["runs"][0] is unfinished_runs[0]


def check_rest(world: World, fraction: float) -> None:
    decision = world.plan()
    assert plain_status(decision.status) == world.status
    assert (decision.actions, decision.events) == ((), ())
    assert plan(world.facts(), DEFAULTS) == decision
    requeue_at = decision.requeue_at
    assert requeue_at is None or requeue_at > world.now
    between = (requeue_at - world.now) * fraction if requeue_at is not None else timedelta(days=30)
    later = replace(world.facts(), now=world.now + between)
    assert plain_status(plan(later, DEFAULTS).status) == world.status


def keeps_endings(status_before: dict[str, object], world: World, *, was_extended: bool) -> bool:
    """Return True if ended attempts are unchanged and only a training that was extended has continued after its end."""
    old_endings = [
        run for run in status_before.get("runs", []) if run.get("outcome") in ("Succeeded", "Failed")
    ]  # type: ignore[attr-defined]
    new_runs = {(run["revision"], run["attempt"]): run for run in world.status["runs"]}
    newest = {run["revision"]: run for run in reversed(world.status["runs"])}
    stays = all(new_runs.get((run["revision"], run["attempt"]), run) == run for run in old_endings)
    return stays and (was_extended or all(newest.get(run["revision"], run) == run for run in old_endings))


@pytest.mark.slow
@examples(150)
@example(script=[*[_up] * 7, _end("Succeeded", "Succeeded"), _extend, _up], dies=[], share=0.0, slow=False)
@given(happenings, deaths, st.floats(0, 0.999), st.booleans())
def test_invariants_hold_after_any_sequence_of_events(
    script: list[Happening], dies: list[int], share: float, slow: bool
) -> None:
    world = World(REFERRING)
    world.references, world.has_slow_deletion = (reference(),), slow
    dies = list(dies)
    reconcile_until_rest(world, dies)
    for happening in script:
        status_before = world.status
        happening(world)
        reconcile_until_rest(world, dies)
        check_status(world)
        check_rest(world, share)
        assert keeps_endings(status_before, world, was_extended=_extend in script)


@examples(150)
@given(happenings, deaths, st.booleans())
def test_death_between_two_writes_changes_no_outcome(
    script: list[Happening], dies: list[int], slow: bool
) -> None:
    steady_world, killed_world = World(REFERRING), World(REFERRING)
    dies = list(dies)
    for world in (steady_world, killed_world):
        world.references, world.has_slow_deletion = (reference(),), slow
        reconcile_until_rest(world, dies if world is killed_world else [])
    for happening in script:
        for world in (steady_world, killed_world):
            happening(world)
            reconcile_until_rest(world, dies if world is killed_world else [])
    assert killed_world.status == steady_world.status
    assert killed_world.created_children == steady_world.created_children
    assert killed_world.attempts == steady_world.attempts


@examples(150)
@given(happenings)
def test_undisturbed_run_finishes_after_any_history(script: list[Happening]) -> None:
    """After any history, a run with KubeRay, a valid spec and a working driver succeeds or is final."""
    world = World(REFERRING)
    world.references = (reference(),)
    reconcile_until_rest(world, [])
    for happening in script:
        happening(world)
        reconcile_until_rest(world, [])
    world.problems, world.kuberay, world.queue, world.has_slow_deletion = (), "Ready", False, False
    world.references = (reference(),)
    world.edit(suspend=False, revision=world.manifest["spec"].get("revision", 1) + 1)
    for _ in range(30):
        _collect(world)
        _up(world)
        _end("Succeeded", "Succeeded")(world)
        world.tick(400)
        reconcile_until_rest(world, [])
    assert world.state == "Succeeded"
