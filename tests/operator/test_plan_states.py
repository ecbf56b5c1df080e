"""Each row of the state table: what brings a resource there, and what its status then says."""

from __future__ import annotations

from typing import Any

import pytest
from plan_world import CHECKPOINT, DEFAULTS, REFERRING, World, pod, reference, running

from hindcast_operator.decision import CreateAttempt, DeleteAttempt, SetDeadlines, SetIntent
from hindcast_operator.defaults import RunDefaults
from hindcast_operator.times import format_timestamp


def kinds(world: World) -> dict[str, str]:
    return {entry["type"]: entry["status"] for entry in world.status["conditions"]}


# -- before the first attempt --------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("state", "resource_state", "reason"),
    [
        ("Missing", "Waiting", "ReferenceMissing"),
        ("Unfinished", "Waiting", "ReferenceUnfinished"),
        ("Failed", "Stalled", "DependencyFailed"),
        ("Circular", "Stalled", "CircularReference"),
    ],
)
def test_it_waits_for_what_it_refers_to(state: str, resource_state: str, reason: str) -> None:
    world = World(REFERRING)
    world.references = (reference(state),)
    world.settle()
    assert (world.state, world.reason(), world.reason("DataReady")) == (resource_state, reason, reason)
    assert kinds(world)["Stalled" if resource_state == "Stalled" else "Reconciling"] == "True"
    assert "OfflineRecording/cartpole" in world.status["message"]
    assert world.created == []
    assert "runs" not in world.status

    world.references = (reference(),)
    world.settle()
    assert world.state == "Starting"
    assert kinds(world)["DataReady"] == "True"
    assert world.status["runs"][0]["inputs"]["OfflineRecording/cartpole"]["digest"] == "d1"


def test_a_retry_keeps_the_inputs_of_its_revision() -> None:
    world = World(REFERRING)
    world.references = (reference(),)
    world.settle()
    world.references = (reference("Missing"),)
    world.up().beat().end("Lost", "WorkerLost").settle()
    world.tick(60).settle()
    assert world.created[-1] == "cartpole-bc-t1-2"
    assert "OfflineRecording/cartpole" in world.status["runs"][0]["inputs"]


def test_kuberay_is_missing_and_comes() -> None:
    world = World()
    world.kuberay = "NotInstalled"
    world.settle()
    assert (world.state, world.reason()) == ("Pending", "KubeRayNotInstalled")
    assert kinds(world) == {"Ready": "False", "Reconciling": "True"}
    assert world.created == []
    world.kuberay = "Ready"
    world.settle()
    assert world.state == "Starting"


def test_an_attempt_is_left_alone_while_rayjobs_cannot_be_seen() -> None:
    world = running()
    world.delete_job()
    world.kuberay = "NotInstalled"
    world.settle()
    assert (world.state, world.status["runs"][0].get("outcome")) == ("Pending", None)


def test_an_invalid_spec_is_reported_and_heals() -> None:
    world = World()
    world.problems = ("spec.config.lr: is 'fast', expected a number",)
    world.settle()
    assert (world.state, world.reason("Stalled")) == ("Stalled", "InvalidSpec")
    assert "spec.config.lr" in world.status["message"]
    world.problems = ()
    world.settle()
    assert world.created == ["cartpole-bc-t1-1"]


def test_an_invalid_spec_does_not_touch_a_running_attempt() -> None:
    world = running()
    world.problems = ("spec.config.lr: is 'fast', expected a number",)
    world.settle()
    assert (world.state, world.reason("SpecDrift")) == ("Running", "InvalidSpec")
    world.end("Succeeded", "Succeeded").settle()
    assert world.state == "Succeeded"


def test_an_invalid_spec_keeps_the_deadlines_of_a_running_attempt() -> None:
    """An edit that admission takes and we do not: the attempt was ended by deadlines that nobody had set."""
    defaults = DEFAULTS.model_copy(update={"run_policy": RunDefaults(backoff_limit=0)})
    world = World(runPolicy={"stallTimeoutSeconds": 7200}, defaults=defaults)
    world.settle()
    world.up().beat().settle()
    world.problems = ("spec.config.lr: is 'fast', expected a number",)
    world.tick(7000).settle()
    assert world.state == "Running"
    world.tick(300).settle()
    assert (world.state, world.reason()) == ("Failed", "BackoffLimitExceeded"), "the platform's limit is 0"


def test_a_run_is_suspended_though_its_spec_is_not_valid() -> None:
    world = running()
    world.problems = ("spec.config.lr: is 'fast', expected a number",)
    world.edit(suspend=True).settle()
    assert world.state == "Suspending"
    world.end("Suspended", "Suspended").settle()
    assert (world.state, world.reason("SpecDrift")) == ("Suspended", "InvalidSpec")
    world.edit(suspend=False).settle()
    assert (world.state, world.reason(), len(world.created)) == ("Stalled", "InvalidSpec", 1)


def test_the_platform_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    sentence = "spec.cluster.podOverrides.all.spec.hostNetwork: is not allowed"
    monkeypatch.setattr("hindcast_operator.planning.situations.refusals", lambda *_: [sentence])
    world = World()
    world.settle()
    assert (world.state, world.reason()) == ("Stalled", "RefusedByPlatform")
    assert world.status["message"] == sentence
    assert world.created == []


# -- names ---------------------------------------------------------------------------------------------------
def test_anothers_object_is_a_name_conflict() -> None:
    world = World()
    world.attempts["cartpole-bc-t1-1"] = attempt_of_another("stranger", None)
    world.settle()
    assert (world.state, world.reason()) == ("Stalled", "NameConflict")
    assert world.created == []
    del world.attempts["cartpole-bc-t1-1"]
    world.settle()
    assert world.created == ["cartpole-bc-t1-1"]


def test_a_conflicting_account_is_a_name_conflict() -> None:
    from hindcast_operator.facts import AttemptFacts

    world = World()
    child = "cartpole-bc-t1-1"
    world.attempts[child] = AttemptFacts(child, conflict="ServiceAccount/cartpole-bc-training of Pod/x")
    decision = world.plan()
    assert decision.status.state == "Stalled"
    assert "ServiceAccount/cartpole-bc-training" in (decision.status.message or "")
    assert decision.requeue_at is not None


@pytest.mark.parametrize("deleting", [True, False])
def test_an_older_resources_object_is_waited_for(deleting: bool) -> None:
    world = World()
    world.attempts["cartpole-bc-t1-1"] = attempt_of_another("old", "older-uid", deleting)
    decision = world.settle()
    assert (world.state, world.reason()) == ("Pending", "CleaningUp")
    assert decision.actions == ()
    del world.attempts["cartpole-bc-t1-1"]
    world.settle()
    assert world.created == ["cartpole-bc-t1-1"]


def attempt_of_another(uid: str, owner: str | None, deleting: bool = False) -> Any:
    from plan_world import START

    from hindcast_operator.facts import AttemptFacts, RayJobFacts

    child = "cartpole-bc-t1-1"
    return AttemptFacts(child, ray_job=RayJobFacts(child, uid, owner, deleting, created=START))


def test_the_rayjob_of_a_lost_status_is_adopted() -> None:
    world = running()
    world.end("Lost", "WorkerLost").settle()
    world.tick(60).settle()
    world.up().beat().settle()
    world.status = {"observedGeneration": -1}
    world.settle()
    assert world.state == "Running"
    assert world.created == ["cartpole-bc-t1-1", "cartpole-bc-t1-2"]
    assert world.status["runs"][0]["attempt"] == 2


def test_a_refused_creation_is_tried_again() -> None:
    from dataclasses import replace

    world = World()
    first = world.plan()
    world.write(first)
    child = "cartpole-bc-t1-1"
    facts = world.facts()
    refused = replace(facts.attempts[child], refusal='exceeded quota "q": count/rayjobs.ray.io=1')
    world.attempts[child] = refused
    decision = world.plan()
    assert (decision.status.state, decision.status.conditions[0].reason) == ("Stalled", "CreationRefused")
    assert [type(action) for action in decision.actions] == [CreateAttempt]
    assert decision.requeue_at is not None
    world.attempts.clear()
    world.settle()
    assert world.created == [child]


# -- starting and running ------------------------------------------------------------------------------------
def test_kueue_holds_it_back_and_no_deadline_runs() -> None:
    world = World()
    world.queue = True
    world.settle()
    world.job(deployment_status="Suspended")
    decision = world.tick(7200).settle()
    assert (world.state, world.reason(), decision.requeue_at) == ("Queued", "Queued", None)
    world.job(suspended=False, deployment_status="")
    decision = world.settle()
    assert world.state == "Starting"
    assert world.status["runs"][0]["admissionTime"] == "2026-11-21T08:00:00Z"


def test_queueing_that_nobody_watched_does_not_count_either() -> None:
    world = World()
    world.queue = True
    world.turn()
    world.tick(7200)
    world.job(suspended=False, deployment_status="Initializing", started=world.now)
    world.tick(5).settle()
    assert world.state == "Starting"
    assert world.status["runs"][0]["admissionTime"] == "2026-11-21T08:00:00Z"


def test_a_preempted_attempt_queues_again_uncounted() -> None:
    world = running()
    world.queue = True
    world.job(suspended=True, deployment_status="Suspending").settle()
    assert world.status["runs"][1]["outcome"] == "Preempted"
    assert world.created == ["cartpole-bc-t1-1", "cartpole-bc-t1-2"]
    assert (world.state, world.status["runs"][0]["retries"]) == ("Queued", 0)


def test_the_start_deadline_without_a_cause_is_worth_another_attempt() -> None:
    world = World()
    world.settle()
    decision = world.up().settle()
    assert decision.requeue_at == world.now.replace(hour=6, minute=30)
    world.tick(1800).settle()
    assert world.state == "Retrying"
    assert world.status["runs"][0]["reason"] == "StartDeadlineExceeded"


def test_the_start_deadline_with_a_cause_fails() -> None:
    world = World()
    world.settle()
    world.job(deployment_status="Initializing")
    world.pods(pod("learner", unschedulable="0/1 nodes are available: 1 Insufficient nvidia.com/gpu."))
    world.settle()
    assert (world.state, world.reason()) == ("Starting", "Unschedulable")
    world.tick(1800).settle()
    assert (world.state, world.reason()) == ("Failed", "StartDeadlineExceeded")
    assert "spec.learners.gpus" in world.status["message"]
    assert world.live == [], "no node stays taken"


def test_each_want_of_room_has_an_event() -> None:
    """A full node delays the head, then the learner waits for a GPU: the second obstacle is announced too."""
    world = World()
    world.settle()
    world.job(deployment_status="Initializing")
    wants = {"head": "Insufficient cpu", "learner": "Insufficient nvidia.com/gpu"}
    for pool, want in wants.items():
        for nodes in (1, 2):  # the scheduler's words change, what to do does not
            world.pods(pod(pool, unschedulable=f"0/{nodes} nodes are available: {nodes} {want}."))
            world.tick(10).settle()
    events = world.events_with("Unschedulable")
    assert [want in event.message for event, want in zip(events, wants.values(), strict=True)] == [True, True]


def test_a_silent_attempt_is_lost() -> None:
    world = running()
    world.tick(1800).settle()
    assert (world.state, world.status["runs"][0]["reason"]) == ("Retrying", "NoHeartbeat")


def test_an_attempt_that_reports_and_does_not_move_is_lost() -> None:
    world = running()
    for _ in range(60):
        assert world.state == "Running"
        world.tick(30).beat(moved=False).settle()
    assert (world.state, world.status["runs"][0]["reason"]) == ("Retrying", "NoProgress")


def test_progress_and_beats_keep_an_attempt_alive() -> None:
    world = running()
    for _ in range(200):
        world.tick(30).beat().settle()
    assert world.state == "Running"
    assert world.status["runs"][0]["attempt"] == 1


def test_beats_alone_write_nothing() -> None:
    world = running()
    before = world.status
    world.tick(30).beat(progress=None, moved=False).settle()
    assert world.status == before


def test_a_gone_head_is_a_lost_driver() -> None:
    world = running()
    decision = world.pods(pod("learner", phase="Running", ready=True)).settle()
    assert world.state == "Running"
    assert decision.requeue_at is not None
    world.now = decision.requeue_at
    world.settle()
    assert (world.state, world.status["runs"][0]["reason"]) == ("Retrying", "LostDriver")


def test_a_head_on_an_unreachable_node_is_lost_after_five_minutes() -> None:
    world = running()
    world.pods(pod("head", phase="Running", unreachable_since=world.now)).settle()
    assert world.reason("ClusterReady") == "NodeUnreachable"
    decision = world.tick(299).settle()
    assert world.state == "Running"
    assert decision.requeue_at is not None
    world.now = decision.requeue_at
    world.settle()
    assert world.status["runs"][0]["reason"] == "NodeUnreachable"


def test_the_active_deadline_is_over_all_attempts() -> None:
    world = running(runPolicy={"activeDeadlineSeconds": 100})
    world.tick(40).end("Lost", "WorkerLost").settle()
    world.tick(30).settle()
    world.up().beat().settle()
    spent = world.status["runs"][0]["activeSeconds"]
    assert spent == 60
    decision = world.settle()
    assert decision.requeue_at is not None
    assert (decision.requeue_at - world.now).total_seconds() <= 40
    world.now = decision.requeue_at
    world.settle()
    assert (world.state, world.reason()) == ("Failed", "DeadlineExceeded")
    assert world.live == []


def test_deadlines_that_change_during_an_attempt_count_for_kuberay_too() -> None:
    world = running(runPolicy={"activeDeadlineSeconds": 3600})
    world.edit(runPolicy={"activeDeadlineSeconds": 9000, "ttlSecondsAfterFinished": 60})
    decision = world.turn()
    changed = {"activeDeadlineSeconds": 11700, "ttlSecondsAfterFinished": 60}
    assert decision.actions == (SetDeadlines(world.child, changed),)
    assert world.turn().actions == ()
    world.edit(runPolicy={"startDeadlineSeconds": 7200})
    changed = {"activeDeadlineSeconds": None, "preRunningDeadlineSeconds": 8100, "ttlSecondsAfterFinished": 0}
    assert world.turn().actions == (SetDeadlines(world.child, changed),)
    assert world.turn().actions == ()
    assert (world.state, len(world.created)) == ("Running", 1)


def test_a_deadline_beyond_all_dates_never_passes() -> None:
    """The API server takes any 64-bit number of seconds, and had some before this."""
    seconds = 2**63 - 1
    names = ("startDeadlineSeconds", "activeDeadlineSeconds", "stallTimeoutSeconds", "suspendGraceSeconds")
    world = World(runPolicy=dict.fromkeys(names, seconds))
    world.settle()
    assert (world.state, world.up().settle().requeue_at is not None) == ("Starting", True)
    world.beat().settle()
    world.tick(30 * 365 * 24 * 3600).settle()
    assert world.state == "Running"
    world.edit(suspend=True).settle()
    assert world.state == "Suspending"


def test_attempts_are_used_up() -> None:
    world = World(runPolicy={"backoffLimit": 2})
    for _ in range(3):
        world.settle()
        world.up().beat().end("Lost", "WorkerLost", "The node is gone.").settle()
        world.tick(700)
    world.settle()
    assert (world.state, world.reason()) == ("Failed", "BackoffLimitExceeded")
    assert "WorkerLost" in world.status["message"] and "The node is gone" in world.status["message"]
    assert len(world.created) == 3


def test_losses_before_a_checkpoint_are_forgotten() -> None:
    world = running(runPolicy={"backoffLimit": 1})
    for _ in range(3):
        world.end("Lost", "WorkerLost").settle()
        assert (world.state, world.status["runs"][0]["retries"]) == ("Retrying", 0)
        world.tick(60).settle()
        assert world.status["runs"][0]["retries"] == 1
        world.up().tick(20).beat(checkpoint=CHECKPOINT).settle()  # that of the attempt before
        assert world.status["runs"][0]["retries"] == 1
        saved = CHECKPOINT.model_copy(update={"save_time": format_timestamp(world.now)})
        world.beat(checkpoint=saved).settle()
        assert world.status["runs"][0]["retries"] == 0
    world.end("Lost", "WorkerLost").settle()
    world.tick(60).settle()
    world.up().beat(checkpoint=saved).end("Lost", "WorkerLost").settle()
    assert (world.state, world.reason()) == ("Failed", "BackoffLimitExceeded")


def test_no_retries_are_allowed() -> None:
    world = World(runPolicy={"backoffLimit": 0})
    world.settle()
    world.up().beat().end("Lost", "WorkerLost").settle()
    assert (world.state, len(world.created)) == ("Failed", 1)


def test_a_deleted_rayjob_is_a_lost_attempt() -> None:
    world = running()
    world.delete_job().settle()
    assert (world.state, world.status["runs"][0]["reason"]) == ("Retrying", "RayJobDeleted")


def test_a_rayjob_that_someone_made_anew_is_not_the_attempts() -> None:
    world = running()
    world.job(uid="another").turn()
    assert world.status["runs"][0]["reason"] == "RayJobDeleted"
    world.settle()
    assert world.live == [], "it is deleted before the next attempt"


def test_a_rayjob_that_kuberay_refuses_fails() -> None:
    world = World()
    world.settle()
    message = "The RayJob spec is invalid: rayStartParams"
    world.job(deployment_status="ValidationFailed", message=message).settle()
    assert (world.state, world.reason()) == ("Failed", "InvalidRayJob")
    assert message in world.status["message"]


@pytest.mark.parametrize("job_status", ["SUCCEEDED", "FAILED", "STOPPED"])
def test_a_rayjob_that_ends_without_a_report_is_a_lost_driver(job_status: str) -> None:
    world = running()
    decision = world.over(job_status).settle()
    assert world.state == "Running", "the report may come a moment later"
    assert decision.requeue_at is not None
    world.now = decision.requeue_at
    world.settle()
    assert (world.state, world.status["runs"][0]["reason"]) == ("Retrying", "LostDriver")


def test_logs_in_a_rayjobs_message_are_not_copied() -> None:
    world = running()
    world.over("FAILED").job(message="Traceback: password=hunter2").settle()
    world.tick(10).settle()
    assert "hunter2" not in str(world.status) + str(world.events)


# -- suspending ----------------------------------------------------------------------------------------------
def test_suspended_at_birth_creates_nothing() -> None:
    world = World(suspend=True)
    world.settle()
    assert world.state == "Suspended"
    assert kinds(world) == {"Ready": "True", "Suspended": "True"}
    assert world.created == []
    world.edit(suspend=False).settle()
    assert world.created == ["cartpole-bc-t1-1"]


def test_it_is_asked_to_checkpoint_then_deleted_then_resumed() -> None:
    world = running()
    decision = world.edit(suspend=True).turn()
    assert decision.actions == (SetIntent("cartpole-bc-t1-1", "checkpoint"),)
    world.settle()
    assert (world.state, world.condition("Suspended")["status"]) == ("Suspending", "False")  # type: ignore[index]
    world.end("Suspended", "Suspended", checkpoint=CHECKPOINT).settle()
    assert (world.state, world.live) == ("Suspended", [])
    assert world.status["checkpoint"]["path"] == CHECKPOINT.path
    world.tick(86400).settle()
    world.edit(suspend=False).settle()
    assert world.created == ["cartpole-bc-t1-1", "cartpole-bc-t1-2"]
    assert (world.status["runs"][0]["revision"], world.status["runs"][0]["retries"]) == (1, 0)


def test_the_grace_of_suspending_ends() -> None:
    world = running()
    world.edit(suspend=True).settle()
    decision = world.tick(60).settle()
    assert world.state == "Suspending"
    assert decision.requeue_at is not None
    world.now = decision.requeue_at
    world.settle()
    assert (world.state, world.live) == ("Suspended", [])


def test_taking_suspend_back_too_late_resumes_with_the_next_attempt() -> None:
    world = running()
    world.edit(suspend=True).settle()
    world.edit(suspend=False).settle()
    assert world.state == "Suspending"
    world.end("Suspended", "Suspended").settle()
    assert world.created[-1] == "cartpole-bc-t1-2"


def test_an_attempt_that_has_not_reported_is_suspended_at_once() -> None:
    world = World()
    world.settle()
    world.edit(suspend=True).settle()
    assert (world.state, world.live) == ("Suspended", [])


@pytest.mark.parametrize(
    ("outcome", "state"), [("Succeeded", "Succeeded"), ("Failed", "Failed"), ("Lost", "Suspended")]
)
def test_an_end_while_it_suspends(outcome: str, state: str) -> None:
    world = running()
    world.edit(suspend=True).settle()
    reason = {"Succeeded": "Succeeded", "Failed": "UserCodeFailed", "Lost": "Terminated"}[outcome]
    world.end(outcome, reason).settle()
    assert world.state == state


def test_suspended_is_only_said_when_the_pods_are_gone() -> None:
    world = running()
    world.edit(suspend=True).settle()
    world.end("Suspended", "Suspended").turn()
    world.attempts["cartpole-bc-t1-1"] = left_pods()
    world.settle()
    assert world.state == "Suspending"
    world.attempts.clear()
    world.settle()
    assert world.state == "Suspended"


def left_pods() -> Any:
    from hindcast_operator.facts import AttemptFacts

    return AttemptFacts("cartpole-bc-t1-1", pods=(pod("learner", phase="Running", deleting=True),))


def test_the_next_attempt_waits_for_pods_up_to_five_minutes_on_a_lost_node() -> None:
    from dataclasses import replace

    world = running()
    world.end("Lost", "WorkerLost").settle()
    left = left_pods()
    world.attempts[left.child] = left
    world.tick(60).settle()
    assert (world.state, world.reason(), len(world.created)) == ("Retrying", "CleaningUp", 1)
    lost = replace(left.pods[0], unreachable_since=world.now)
    world.attempts[left.child] = replace(left, pods=(lost,))
    decision = world.settle()
    assert decision.requeue_at is not None
    assert (decision.requeue_at - world.now).total_seconds() == 300
    world.now = decision.requeue_at
    world.settle()
    assert len(world.created) == 2


# -- finished ------------------------------------------------------------------------------------------------
def test_nothing_wakes_a_finished_run() -> None:
    world = running()
    world.end("Succeeded", "Succeeded").settle()
    before = world.status
    world.attempts.clear()
    world.tick(10**6).edit(suspend=True).settle()
    world.edit(suspend=False).settle()
    assert world.created == ["cartpole-bc-t1-1"]
    assert world.status["runs"] == before["runs"]
    assert world.state == "Succeeded"


def test_a_failed_run_stays_failed_when_limits_are_raised() -> None:
    world = World(runPolicy={"backoffLimit": 0})
    world.settle()
    world.up().beat().end("Lost", "WorkerLost").settle()
    world.edit(runPolicy={"backoffLimit": 5}).tick(1000).settle()
    assert (world.state, len(world.created)) == ("Failed", 1)


def test_a_rayjob_that_outlives_its_reported_end_is_deleted() -> None:
    world = running()
    world.end("Failed", "UserCodeFailed")
    world.job(deployment_status="Running", job_status="RUNNING", ended=None)
    decision = world.settle()
    assert world.attempt.ray_job is not None
    assert decision.requeue_at is not None
    world.now = decision.requeue_at
    decision = world.turn()
    assert decision.actions == (DeleteAttempt("cartpole-bc-t1-1", keep_config_map=True),)
    assert world.settle().requeue_at is None
