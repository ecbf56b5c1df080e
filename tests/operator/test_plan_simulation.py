"""Invariants of plans under random changes in random order, with an operator that may be killed between two writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from itertools import chain
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from plan_world import CHECKPOINT, DEFAULTS, PROGRESS, REFERRING_TRAINING, World, make_pod, make_reference

from hindcast_operator.planning import plain_status, plan
from layers import examples

Change = Callable[[World], object]


# -- changes of the simulated cluster ------------------------------------------------------------------------
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


def _start_pods(world: World) -> None:
    job = world.attempt.ray_job if _has_live_job(world) else None
    if (
        job is not None
        and not job.is_suspended
        and job.deployment_status != "Running"
        and job.ended_at is None
    ):
        world.start_pods()


def _report_progress(world: World) -> None:
    if _can_report(world):
        world.send_report(progress=PROGRESS, checkpoint=CHECKPOINT)


def _report_without_progress(world: World) -> None:
    if _can_report(world):
        world.send_report(has_progress=False)


def _report_end(state: str, reason: str) -> Change:
    def change(world: World) -> None:
        if _can_report(world):
            world.report_end(state, reason)

    return change


def _stop_as_requested(world: World) -> None:
    if _can_report(world) and world.attempt.config_map.intent:  # type: ignore[union-attr]
        world.report_end("Suspended", "Suspended", checkpoint=CHECKPOINT)


def _report_end_before_job(world: World) -> None:
    """Let the driver report its end while the RayJob is still running."""
    if _can_report(world):
        world.report_end("Failed", "UserCodeFailed").update_job(deployment_status="Running", ended_at=None)


def _end_job(world: World) -> None:
    if _can_report(world):
        world.finish_job("FAILED")


def _reject_job(world: World) -> None:
    if _has_live_job(world):
        world.update_job(deployment_status="ValidationFailed", message="rayStartParams")


def _delete_job(world: World) -> None:
    if _has_live_job(world):
        world.delete_job()


def _kill_head(world: World) -> None:
    if _can_report(world):
        world.set_pods(make_pod("head", phase="Failed", is_oom_killed=True))


def _lack_gpus(world: World) -> None:
    if _has_live_job(world):
        world.set_pods(make_pod("learner", scheduling_failure="0/1 nodes: Insufficient nvidia.com/gpu"))


def _lose_node(world: World) -> None:
    if _can_report(world):
        world.set_pods(*(replace(pod, unreachable_since=world.now) for pod in world.attempt.pods))


def _toggle_kueue(world: World) -> None:
    world.has_full_queue = not world.has_full_queue
    if _has_live_job(world):
        world.update_job(
            is_suspended=world.has_full_queue, deployment_status="Suspended" if world.has_full_queue else ""
        )
        world.set_pods()


def _finish_deletions(world: World) -> None:
    for child, attempt in list(world.attempts.items()):
        if attempt.ray_job is not None and attempt.ray_job.is_deleting:
            world.finish_deletion(child)


def _toggle_suspend(world: World) -> None:
    world.edit_spec(suspend=not world.manifest["spec"].get("suspend", False))


def _raise_revision(world: World) -> None:
    world.edit_spec(revision=world.manifest["spec"].get("revision", 1) + 1)


def _toggle_seed(world: World) -> None:
    world.edit_spec(seed=7 - world.manifest["spec"].get("seed", 0))


def _raise_stop(world: World) -> None:
    world.edit_spec(stop={"iterations": world.manifest["spec"]["stop"]["iterations"] + 100})


def _toggle_invalid_spec(world: World) -> None:
    world.problems = () if world.problems else ("spec.config.lr: is 'fast', expected a number",)


def _toggle_kuberay(world: World) -> None:
    world.has_kuberay = not world.has_kuberay


def _set_reference(state: str) -> Change:
    def change(world: World) -> None:
        world.references = (make_reference(state),)

    return change


def _advance(seconds: float) -> Change:
    return lambda world: world.advance(seconds)


def _advance_to_deadline(world: World) -> None:
    """Advance the time to the next deadline."""
    world.now = world.plan().requeue_at or world.now


FREQUENT_CHANGES: list[Change] = [
    _start_pods,
    _report_progress,
    _report_end("Lost", "WorkerLost"),
    _advance_to_deadline,
    _advance(70.4),
]
RARE_CHANGES: list[Change] = [
    *(
        _report_without_progress,
        _stop_as_requested,
        _report_end_before_job,
        _end_job,
        _reject_job,
        _delete_job,
        _kill_head,
        _lack_gpus,
        _lose_node,
        _toggle_kueue,
    ),
    *(
        _finish_deletions,
        _toggle_suspend,
        _toggle_suspend,
        _raise_revision,
        _toggle_seed,
        _raise_stop,
        _toggle_invalid_spec,
        _toggle_kuberay,
    ),
    *(
        _set_reference("Complete"),
        _set_reference("Missing"),
        _set_reference("Unfinished"),
        _set_reference("Failed"),
    ),
    *(
        _report_end("Succeeded", "Succeeded"),
        _report_end("Failed", "UserCodeFailed"),
        _report_end("Lost", "OutOfMemory"),
    ),
    *(_advance(0.4), _advance(11), _advance(310), _advance(1801), _finish_deletions),
]
change_lists = st.lists(st.sampled_from([*FREQUENT_CHANGES * 6, *RARE_CHANGES]), min_size=10, max_size=40)
kill_points = st.lists(st.integers(0, 6), max_size=60)
"""For each reconciliation, beginning with the last number: index of the write after which the operator is killed. When
the list is empty, the operator is not killed."""


# -- the operator --------------------------------------------------------------------------------------------
def reconcile_until_stable(world: World, kill_points_left: list[int]) -> None:
    """Reconcile until nothing changes. After a kill, the next reconciliation continues."""
    for _ in range(60):
        state_before = (world.status, dict(world.attempts))
        kill_point = kill_points_left.pop() if kill_points_left else None
        decision = world.plan()
        was_killed = False
        for write_index, _ in enumerate(_execute_stepwise(world, decision)):
            check_world(world)
            if write_index == kill_point:
                was_killed = True
                break
        if not was_killed and state_before == (world.status, world.attempts):
            return
    raise AssertionError("the status still changes after 60 reconciliations")


def _execute_stepwise(world: World, decision):  # type: ignore[no-untyped-def]
    """Write the status and execute the actions, and yield after each write."""
    world.write_status(decision)
    yield
    yield from chain.from_iterable(world.execute_stepwise(action) for action in decision.actions)


# -- invariants ----------------------------------------------------------------------------------------------
def check_world(world: World) -> None:
    assert len(world.live_children) <= 1, "two attempts live at once"
    assert len(set(world.created_children)) == len(world.created_children), "an attempt has two RayJobs"


def check_status(world: World) -> None:
    true_types = {entry["type"] for entry in world.status["conditions"] if entry["status"] == "True"}
    assert len(true_types & {"Ready", "Reconciling", "Stalled"}) == 1
    assert ("Finished" in true_types) == bool(true_types & {"Complete", "Failed"})
    assert not {"Complete", "Failed"} <= true_types
    assert all(entry["observedGeneration"] == world.generation for entry in world.status["conditions"])
    assert len(world.status["runs"]) <= 10
    unfinished_attempts = [run for run in world.status["runs"] if "outcome" not in run]
    assert len(unfinished_attempts) <= 1
    assert unfinished_attempts == [] or world.status["runs"][0] is unfinished_attempts[0]


def check_stable(world: World, fraction: float) -> None:
    """Check that the plan changes nothing, now and after a fraction of the time to the next deadline."""
    decision = world.plan()
    assert plain_status(decision.status) == world.status
    assert (decision.actions, decision.events) == ((), ())
    assert plan(world.observe(), DEFAULTS) == decision
    requeue_at = decision.requeue_at
    assert requeue_at is None or requeue_at > world.now
    elapsed = (requeue_at - world.now) * fraction if requeue_at is not None else timedelta(days=30)
    later_facts = replace(world.observe(), now=world.now + elapsed)
    assert plain_status(plan(later_facts, DEFAULTS).status) == world.status


def keeps_endings(status_before: dict[str, Any], world: World, *, was_extended: bool) -> bool:
    """Return True if attempts that finished a run are unchanged, and only a raised stop adds another attempt."""
    old_runs, new_runs = (
        [{name: value for name, value in run.items() if name != "inputs"} for run in status.get("runs", [])]
        for status in (status_before, world.status)  # only the latest attempt has inputs
    )
    old_endings = [run for run in old_runs if run.get("outcome") in ("Succeeded", "Failed")]
    new_attempts = {(run["revision"], run["attempt"]): run for run in new_runs}
    newest_attempts = {run["revision"]: run for run in reversed(new_runs)}
    are_unchanged = all(
        new_attempts.get((run["revision"], run["attempt"]), run) == run for run in old_endings
    )
    return are_unchanged and (
        was_extended or all(newest_attempts.get(run["revision"], run) == run for run in old_endings)
    )


@pytest.mark.slow
@examples(150)
@example(
    changes=[*[_start_pods] * 7, _report_end("Succeeded", "Succeeded"), _raise_stop, _start_pods],
    kills=[],
    fraction=0.0,
    has_slow_deletion=False,
)
@given(change_lists, kill_points, st.floats(0, 0.999), st.booleans())
def test_invariants_hold_after_any_sequence_of_events(
    changes: list[Change], kills: list[int], fraction: float, has_slow_deletion: bool
) -> None:
    world = World(REFERRING_TRAINING)
    world.references, world.has_slow_deletion = (make_reference(),), has_slow_deletion
    kills = list(kills)
    reconcile_until_stable(world, kills)
    for change in changes:
        status_before = world.status
        change(world)
        reconcile_until_stable(world, kills)
        check_status(world)
        check_stable(world, fraction)
        assert keeps_endings(status_before, world, was_extended=_raise_stop in changes)


@examples(150)
@given(change_lists, kill_points, st.booleans())
def test_kill_between_two_writes_changes_no_outcome(
    changes: list[Change], kills: list[int], has_slow_deletion: bool
) -> None:
    steady_world, killed_world = World(REFERRING_TRAINING), World(REFERRING_TRAINING)
    kills = list(kills)
    for world in (steady_world, killed_world):
        world.references, world.has_slow_deletion = (make_reference(),), has_slow_deletion
        reconcile_until_stable(world, kills if world is killed_world else [])
    for change in changes:
        for world in (steady_world, killed_world):
            change(world)
            reconcile_until_stable(world, kills if world is killed_world else [])
    assert killed_world.status == steady_world.status
    assert killed_world.created_children == steady_world.created_children
    assert killed_world.attempts == steady_world.attempts


@examples(150)
@given(change_lists)
def test_undisturbed_run_finishes_after_any_history(changes: list[Change]) -> None:
    """After any changes, a new revision with a valid spec and a working driver succeeds if KubeRay is installed."""
    world = World(REFERRING_TRAINING)
    world.references = (make_reference(),)
    reconcile_until_stable(world, [])
    for change in changes:
        change(world)
        reconcile_until_stable(world, [])
    world.problems, world.has_kuberay, world.has_full_queue, world.has_slow_deletion = (), True, False, False
    world.references = (make_reference(),)
    world.edit_spec(suspend=False, revision=world.manifest["spec"].get("revision", 1) + 1)
    for _ in range(30):
        _finish_deletions(world)
        _start_pods(world)
        _report_end("Succeeded", "Succeeded")(world)
        world.advance(400)
        reconcile_until_stable(world, [])
    assert world.state == "Succeeded"
