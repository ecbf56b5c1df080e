"""Anything may happen, in any order, and the operator may die between any two writes: what holds all the same."""

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
def _going(world: World) -> bool:
    """An attempt's RayJob exists, and the status knows it."""
    runs = world.status.get("runs", [])
    held = world.attempts.get(runs[0]["rayJobName"]) if runs else None
    job = None if held is None else held.ray_job
    return job is not None and not job.deleting and runs[0].get("rayJobUID") == job.uid


def _reporting(world: World) -> bool:
    job = world.attempt.ray_job if _going(world) else None
    return (
        job is not None
        and not job.suspended
        and job.deployment_status == "Running"
        and world.attempt.config_map is not None
    )


def _up(world: World) -> None:
    job = world.attempt.ray_job if _going(world) else None
    if job is not None and not job.suspended and job.deployment_status != "Running" and job.ended is None:
        world.up()


def _beat(world: World) -> None:
    if _reporting(world):
        world.beat(progress=PROGRESS, checkpoint=CHECKPOINT)


def _idle_beat(world: World) -> None:
    if _reporting(world):
        world.beat(moved=False)


def _end(state: str, reason: str) -> Happening:
    def happen(world: World) -> None:
        if _reporting(world):
            world.end(state, reason)

    return happen


def _acknowledge(world: World) -> None:
    if _reporting(world) and world.attempt.config_map.intent:  # type: ignore[union-attr]
        world.end("Suspended", "Suspended", checkpoint=CHECKPOINT)


def _late_report(world: World) -> None:
    """The driver reports its end, and the RayJob takes its time."""
    if _reporting(world):
        world.end("Failed", "UserCodeFailed").job(deployment_status="Running", ended=None)


def _die(world: World) -> None:
    if _reporting(world):
        world.over("FAILED")


def _invalid(world: World) -> None:
    if _going(world):
        world.job(deployment_status="ValidationFailed", message="rayStartParams")


def _delete_job(world: World) -> None:
    if _going(world):
        world.delete_job()


def _kill(world: World) -> None:
    if _reporting(world):
        world.pods(pod("head", phase="Failed", out_of_memory=True))


def _no_room(world: World) -> None:
    if _going(world):
        world.pods(pod("learner", unschedulable="0/1 nodes: Insufficient nvidia.com/gpu"))


def _lose_node(world: World) -> None:
    if _reporting(world):
        world.pods(*(replace(one, unreachable_since=world.now) for one in world.attempt.pods))


def _kueue(world: World) -> None:
    world.queue = not world.queue
    if _going(world):
        world.job(suspended=world.queue, deployment_status="Suspended" if world.queue else "")
        world.pods()


def _collect(world: World) -> None:
    for child, attempt in list(world.attempts.items()):
        if attempt.ray_job is not None and attempt.ray_job.deleting:
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
"""After how many writes the operator dies, reconcile by reconcile; where the list ends it lives."""


# -- the operator --------------------------------------------------------------------------------------------
def until_rest(world: World, dies: list[int]) -> None:
    """Reconciles until nothing changes; a reconcile that dies is taken up by the next."""
    for _ in range(60):
        before = (world.status, dict(world.attempts))
        writes_left = dies.pop() if dies else None
        decision = world.plan()
        died = False
        for done, _ in enumerate(_writes(world, decision)):
            check_world(world)
            if done == writes_left:
                died = True
                break
        if not died and before == (world.status, world.attempts):
            return
    raise AssertionError("does not come to rest")


def _writes(world: World, decision):  # type: ignore[no-untyped-def]
    world.write(decision)
    yield
    yield from chain.from_iterable(world.steps(action) for action in decision.actions)


# -- what holds ----------------------------------------------------------------------------------------------
def check_world(world: World) -> None:
    assert len(world.live) <= 1, "two attempts live at once"
    assert len(set(world.created)) == len(world.created), "an attempt has two RayJobs"


def check_status(world: World) -> None:
    holds = {entry["type"] for entry in world.status["conditions"] if entry["status"] == "True"}
    assert len(holds & {"Ready", "Reconciling", "Stalled"}) == 1
    assert ("Finished" in holds) == bool(holds & {"Complete", "Failed"})
    assert not {"Complete", "Failed"} <= holds
    assert all(entry["observedGeneration"] == world.generation for entry in world.status["conditions"])
    assert len(world.status["runs"]) <= 32
    unfinished = [run for run in world.status["runs"] if "outcome" not in run]
    assert len(unfinished) <= 1
    assert unfinished == [] or world.status["runs"][0] is unfinished[0]


def check_rest(world: World, share: float) -> None:
    decision = world.plan()
    assert plain_status(decision.status) == world.status
    assert (decision.actions, decision.events) == ((), ())
    assert plan(world.facts(), DEFAULTS) == decision
    again = decision.requeue_at
    assert again is None or again > world.now
    between = (again - world.now) * share if again is not None else timedelta(days=30)
    later = replace(world.facts(), now=world.now + between)
    assert plain_status(plan(later, DEFAULTS).status) == world.status


def latched(before: dict[str, object], world: World, *, extended: bool) -> bool:
    """What ended stays as it ended, and only a training that was extended goes on after its end."""
    ended = [run for run in before.get("runs", []) if run.get("outcome") in ("Succeeded", "Failed")]  # type: ignore[attr-defined]
    kept = {(run["revision"], run["attempt"]): run for run in world.status["runs"]}
    newest = {run["revision"]: run for run in reversed(world.status["runs"])}
    stays = all(kept.get((run["revision"], run["attempt"]), run) == run for run in ended)
    return stays and (extended or all(newest.get(run["revision"], run) == run for run in ended))


@pytest.mark.slow
@examples(150)
@example(script=[*[_up] * 7, _end("Succeeded", "Succeeded"), _extend, _up], dies=[], share=0.0, slow=False)
@given(happenings, deaths, st.floats(0, 0.999), st.booleans())
def test_whatever_happens(script: list[Happening], dies: list[int], share: float, slow: bool) -> None:
    world = World(REFERRING)
    world.references, world.slow = (reference(),), slow
    dies = list(dies)
    until_rest(world, dies)
    for happening in script:
        before = world.status
        happening(world)
        until_rest(world, dies)
        check_status(world)
        check_rest(world, share)
        assert latched(before, world, extended=_extend in script)


@examples(150)
@given(happenings, deaths, st.booleans())
def test_dying_between_two_writes_changes_nothing(
    script: list[Happening], dies: list[int], slow: bool
) -> None:
    steady, killed = World(REFERRING), World(REFERRING)
    dies = list(dies)
    for world in (steady, killed):
        world.references, world.slow = (reference(),), slow
        until_rest(world, dies if world is killed else [])
    for happening in script:
        for world in (steady, killed):
            happening(world)
            until_rest(world, dies if world is killed else [])
    assert killed.status == steady.status
    assert killed.created == steady.created
    assert killed.attempts == steady.attempts


@examples(150)
@given(happenings)
def test_a_run_that_is_left_in_peace_finishes(script: list[Happening]) -> None:
    """Whatever has happened: with KubeRay there, a good spec and a driver that works, the run succeeds or is final."""
    world = World(REFERRING)
    world.references = (reference(),)
    until_rest(world, [])
    for happening in script:
        happening(world)
        until_rest(world, [])
    world.problems, world.kuberay, world.queue, world.slow = (), "Ready", False, False
    world.references = (reference(),)
    world.edit(suspend=False, revision=world.manifest["spec"].get("revision", 1) + 1)
    for _ in range(30):
        _collect(world)
        _up(world)
        _end("Succeeded", "Succeeded")(world)
        world.tick(400)
        until_rest(world, [])
    assert world.state == "Succeeded"
