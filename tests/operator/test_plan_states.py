"""The states of a resource: what leads to each state, and the status in it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from plan_world import (
    CHECKPOINT,
    DEFAULTS,
    PROGRESS,
    RECORDING,
    REFERRING_TRAINING,
    START,
    World,
    make_pod,
    make_reference,
    make_running_world,
)

from hindcast.api.cluster import ClusterSpec
from hindcast.api.status import ProgressStatus
from hindcast.errors import Problem
from hindcast_operator.decision import CreateAttempt, DeleteAttempt, SetDeadlines, SetIntent
from hindcast_operator.defaults import RunDefaults
from hindcast_operator.facts import AttemptFacts, CreationProblem, RayClusterFacts, RayJobFacts
from hindcast_operator.planning import Reason, plan

CHILD, NEXT_CHILD = "cartpole-bc-t1-1", "cartpole-bc-t1-2"
INVALID_SPEC = ("spec.config.lr: is 'fast', expected a number",)


# -- before the first attempt --------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("reference_state", "state", "reason"),
    [
        ("Missing", "Waiting", "ReferenceMissing"),
        ("Unfinished", "Waiting", "ReferenceUnfinished"),
        ("Failed", "Stalled", "DependencyFailed"),
        ("Circular", "Stalled", "CircularReference"),
    ],
)
def test_reference_that_is_not_complete_delays_first_attempt(
    reference_state: str, state: str, reason: str
) -> None:
    world = World(REFERRING_TRAINING)
    world.references = (make_reference(reference_state),)
    world.settle()
    assert (world.state, world.find_reason(), world.find_reason("DataReady")) == (state, reason, reason)
    assert world.condition_statuses["Stalled" if state == "Stalled" else "Reconciling"] == "True"
    assert "OfflineRecording/cartpole" in world.status["message"]
    assert world.created_children == []
    assert "runs" not in world.status

    world.references = (make_reference(),)
    world.settle()
    assert world.state == "Starting"
    assert world.condition_statuses["DataReady"] == "True"
    assert world.run["inputs"]["OfflineRecording/cartpole"]["digest"] == "d1"


def test_retry_keeps_inputs_of_revision() -> None:
    world = World(REFERRING_TRAINING)
    world.references = (make_reference(),)
    world.settle()
    world.references = (make_reference("Missing"),)
    world.start_pods().send_report().report_end("Lost", "WorkerLost").settle()
    world.advance(60).settle()
    assert world.created_children[-1] == NEXT_CHILD
    assert "OfflineRecording/cartpole" in world.run["inputs"]


def test_installed_kuberay_starts_waiting_resource() -> None:
    world = World()
    world.has_kuberay = False
    world.settle()
    assert (world.state, world.find_reason()) == ("Pending", "KubeRayNotInstalled")
    assert world.condition_statuses == {"Ready": "False", "Reconciling": "True"}
    assert world.created_children == []
    world.has_kuberay = True
    world.settle()
    assert world.state == "Starting"


@pytest.mark.parametrize("is_running", [False, True])
def test_forbidden_watch_is_named_until_it_is_allowed(is_running: bool) -> None:
    """Without the right to watch pods, no attempt is created, ended or deleted."""
    world = make_running_world() if is_running else World()
    num_children = len(world.created_children)
    state = "Running" if is_running else "Starting"
    world.forbidden_kinds = {"pods": 'pods is forbidden: User "hindcast" cannot list resource "pods"'}
    world.settle()
    world.advance(4000).settle()
    assert (world.state, world.find_reason("Stalled")) == ("Stalled", "WatchForbidden")
    assert "may not watch pods here: pods is forbidden" in world.status["message"]
    assert len(world.created_children) == num_children
    assert not is_running or world.run.get("outcome") is None
    world.forbidden_kinds = {}
    if is_running:
        world.send_report()
    world.settle()
    assert world.state == state
    assert world.created_children == [CHILD]


def test_missing_kuberay_does_not_end_attempt() -> None:
    world = make_running_world()
    world.delete_job()
    world.has_kuberay = False
    world.settle()
    assert (world.state, world.run.get("outcome")) == ("Pending", None)


def test_invalid_spec_stalls_until_corrected() -> None:
    world = World()
    world.problems = INVALID_SPEC
    world.settle()
    assert (world.state, world.find_reason("Stalled")) == ("Stalled", "InvalidSpec")
    assert "spec.config.lr" in world.status["message"]
    world.problems = ()
    world.settle()
    assert world.created_children == [CHILD]


def test_invalid_spec_does_not_affect_running_attempt() -> None:
    world = make_running_world()
    world.problems = INVALID_SPEC
    world.settle()
    assert (world.state, world.find_reason("SpecDrift")) == ("Running", "InvalidSpec")
    world.report_end("Succeeded", "Succeeded").settle()
    assert world.state == "Succeeded"


def test_invalid_spec_keeps_deadlines_of_running_attempt() -> None:
    """Regression: with a spec that is not valid, the attempt was ended by the default deadlines."""
    defaults = DEFAULTS.model_copy(update={"run_policy": RunDefaults(backoff_limit=0)})
    world = World(runPolicy={"stallTimeoutSeconds": 7200}, defaults=defaults)
    world.settle()
    world.start_pods().send_report().settle()
    world.problems = INVALID_SPEC
    world.advance(7000).settle()
    assert world.state == "Running"
    world.advance(300).settle()
    # The platform's limit is 0.
    assert (world.state, world.find_reason()) == ("Failed", "BackoffLimitExceeded")


def test_run_with_invalid_spec_can_be_suspended() -> None:
    world = make_running_world()
    world.problems = INVALID_SPEC
    world.edit_spec(suspend=True).settle()
    assert world.state == "Suspending"
    world.report_end("Suspended", "Suspended").settle()
    assert (world.state, world.find_reason("SpecDrift")) == ("Suspended", "InvalidSpec")
    world.edit_spec(suspend=False).settle()
    assert (world.state, world.find_reason(), len(world.created_children)) == ("Stalled", "InvalidSpec", 1)


def test_long_list_of_problems_is_cut() -> None:
    """Regression: no status was written at all."""
    world = World()
    world.problems = tuple(f"spec.input.{index}.path: {'é' * 1000}" for index in range(64))
    world.settle()
    assert world.state == "Stalled" and "spec.input.0.path" in world.status["message"]
    assert len(world.status["message"].encode()) <= 8000
    assert all(len(event.message.encode()) <= 1024 for event in world.events)


def test_refusal_by_platform_stalls(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem(("spec", "cluster", "rayVersion"), "is 2.5.0")
    monkeypatch.setattr("hindcast_operator.planning.situations.find_refusals", lambda *_: [problem])
    world = World()
    world.settle()
    assert (world.state, world.find_reason()) == ("Stalled", "RefusedByPlatform")
    assert world.status["message"] == str(problem)
    assert world.created_children == []


# -- names ---------------------------------------------------------------------------------------------------
def test_foreign_ray_job_is_name_conflict() -> None:
    world = World()
    world.attempts[CHILD] = make_foreign_attempt("stranger", None)
    world.settle()
    assert (world.state, world.find_reason()) == ("Stalled", "NameConflict")
    assert world.created_children == []
    del world.attempts[CHILD]
    world.settle()
    assert world.created_children == [CHILD]


def test_foreign_account_is_name_conflict() -> None:
    world = World()
    conflict = "ServiceAccount/cartpole-bc-training (owned by Pod/x)"
    world.attempts[CHILD] = AttemptFacts(CHILD, creation_problem=CreationProblem("NameConflict", conflict))
    decision = world.plan()
    assert decision.status.state == "Stalled"
    assert "ServiceAccount/cartpole-bc-training" in (decision.status.message or "")
    assert decision.requeue_at is not None


@pytest.mark.parametrize("is_deleting", [True, False])
def test_object_of_earlier_resource_is_awaited(is_deleting: bool) -> None:
    world = World()
    world.attempts[CHILD] = make_foreign_attempt("old", "older-uid", is_deleting)
    decision = world.settle()
    assert (world.state, world.find_reason()) == ("Pending", "CleaningUp")
    assert decision.actions == ()
    del world.attempts[CHILD]
    world.settle()
    assert world.created_children == [CHILD]


def make_foreign_attempt(uid: str, owner: str | None, is_deleting: bool = False) -> Any:
    return AttemptFacts(CHILD, ray_job=RayJobFacts(CHILD, uid, owner, is_deleting, created_at=START))


def test_ray_job_is_adopted_after_lost_status() -> None:
    world = make_running_world()
    world.report_end("Lost", "WorkerLost").settle()
    world.advance(60).settle()
    world.start_pods().send_report().settle()
    world.status = {"observedGeneration": -1}
    world.settle()
    assert world.state == "Running"
    assert world.created_children == [CHILD, NEXT_CHILD]
    assert world.run["attempt"] == 2


def test_refused_creation_is_retried() -> None:
    world = World()
    first_decision = world.plan()
    world.write_status(first_decision)
    attempt_facts = world.observe().attempts[CHILD]
    world.attempts[CHILD] = replace(
        attempt_facts,
        creation_problem=CreationProblem("CreationRefused", 'exceeded quota "q": count/rayjobs.ray.io=1'),
    )
    decision = world.plan()
    assert (decision.status.state, decision.status.conditions[0].reason) == ("Stalled", "CreationRefused")
    assert [type(action) for action in decision.actions] == [CreateAttempt]
    assert decision.requeue_at is not None
    world.attempts.clear()
    world.settle()
    assert world.created_children == [CHILD]


# -- starting and running ------------------------------------------------------------------------------------
def test_queued_attempt_has_no_deadline() -> None:
    world = World()
    world.has_full_queue = True
    world.settle()
    world.update_job(deployment_status="Suspended")
    decision = world.advance(7200).settle()
    assert (world.state, world.find_reason(), decision.requeue_at) == ("Queued", "Queued", None)
    world.update_job(is_suspended=False, deployment_status="")
    decision = world.settle()
    assert world.state == "Starting"
    assert world.run["admissionTime"] == "2026-11-21T08:00:00Z"


def test_time_in_queue_does_not_count_if_operator_saw_only_its_end() -> None:
    world = World()
    world.has_full_queue = True
    world.reconcile()
    world.advance(7200)
    world.update_job(is_suspended=False, deployment_status="Initializing", started_at=world.now)
    world.advance(5).settle()
    assert world.state == "Starting"
    assert world.run["admissionTime"] == "2026-11-21T08:00:00Z"


def test_preempted_attempt_is_queued_again_without_retry() -> None:
    world = make_running_world()
    world.has_full_queue = True
    world.update_job(is_suspended=True, deployment_status="Suspending").settle()
    assert world.status["runs"][1]["outcome"] == "Preempted"
    assert world.created_children == [CHILD, NEXT_CHILD]
    assert (world.state, world.run["retries"]) == ("Queued", 0)


def test_silent_start_with_all_pods_ready_is_retried() -> None:
    world = World()
    world.settle()
    decision = world.start_pods().settle()
    assert decision.requeue_at == world.now.replace(hour=6, minute=30)
    world.advance(1800).settle()
    assert (world.state, world.run["reason"]) == ("Retrying", "NoHeartbeat")


WEATHER: dict[str, dict[str, Any]] = {
    "busy GPUs": {
        "pods": (make_pod("learner", scheduling_failure="0/1 nodes: 1 Insufficient nvidia.com/gpu."),)
    },
    "quota": {
        "ray_cluster": RayClusterFacts("c", replica_failure='pods "x" is forbidden: exceeded quota: q')
    },
    "policy": {"submitter_failure": 'pods "x" is forbidden: violates PodSecurity "restricted"'},
    "image": {"pods": (make_pod("head", container_wait=("ImagePullBackOff", "no such image")),)},
    "mount": {"pods": (make_pod("head", mount_failure='configmap "x" not found'),)},
    "KubeRay away": {},
}


@pytest.mark.parametrize("weather", WEATHER)
@pytest.mark.parametrize("seconds", [20, 3600, 7 * 24 * 3600])
def test_weather_is_awaited_and_named_without_limit(weather: str, seconds: float) -> None:
    """Regression: half an hour of busy GPUs, of a full quota or without KubeRay failed a run for good."""
    world = World()
    world.settle()
    world.update_job(deployment_status="" if weather == "KubeRay away" else "Initializing")
    world.change_attempt(world.child_name, **WEATHER[weather])
    decision = world.advance(max(seconds, 60 if weather == "KubeRay away" else 0)).settle()
    assert world.state == "Starting"
    assert Reason.from_word(world.find_reason() or "").effect == "waits"
    assert world.find_reason() != "ClusterStarting"
    assert decision.requeue_at is None
    world.change_attempt(world.child_name, ray_cluster=None, submitter_failure=None)
    world.start_pods().send_report().settle()
    assert (world.state, world.run["attempt"]) == ("Running", 1)


def test_missed_start_deadline_with_known_cause_fails() -> None:
    world = World(runPolicy={"startDeadlineSeconds": 1800})
    world.settle()
    world.update_job(deployment_status="Initializing")
    world.set_pods(
        make_pod("learner", scheduling_failure="0/1 nodes are available: 1 Insufficient nvidia.com/gpu.")
    )
    world.settle()
    assert (world.state, world.find_reason()) == ("Starting", "Unschedulable")
    world.advance(1800).settle()
    assert (world.state, world.find_reason()) == ("Failed", "StartDeadlineExceeded")
    assert "spec.learners.gpus" in world.status["message"]
    assert world.live_children == [], "no pod keeps a node"


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        ({"disrupted_at": START}, "Disrupted"),
        ({"unreachable_since": START}, "NodeUnreachable"),
        ({"phase": "Failed", "reason": "Evicted"}, "Evicted"),
        ({"is_oom_killed": True}, "OutOfMemory"),
    ],
)
def test_start_deadline_during_loss_of_pod_is_retried(problem: dict[str, Any], reason: str) -> None:
    """Regression: a drain shortly before the deadline ended the run for good."""
    world = World(runPolicy={"startDeadlineSeconds": 200})
    world.settle()
    world.start_pods().set_pods(make_pod("learner", **{"phase": "Running", **problem}))
    world.advance(200).settle()
    assert (world.state, world.run["outcome"], world.run["reason"]) == ("Retrying", "Lost", reason)


def test_attempt_without_start_and_known_cause_is_retried_as_documented() -> None:
    """Regression: the page of reasons called it final."""
    world = World(runPolicy={"startDeadlineSeconds": 600})
    world.settle()
    world.start_pods().advance(600).settle()
    assert (world.state, world.run["outcome"]) == ("Retrying", "Lost")
    assert world.run["reason"] == "StartDeadlineExceeded"
    assert Reason.START_DEADLINE_EXCEEDED.effect == "lost"


def test_each_lack_of_resources_has_an_event() -> None:
    """A full node delays the head, then the learner waits for a GPU. The second obstacle has an event too."""
    world = World()
    world.settle()
    world.update_job(deployment_status="Initializing")
    lacks = {"head": "Insufficient cpu", "learner": "Insufficient nvidia.com/gpu"}
    for pool, lack in lacks.items():
        for nodes in (1, 2):  # the scheduler's message changes, the remedy does not
            world.set_pods(
                make_pod(pool, scheduling_failure=f"0/{nodes} nodes are available: {nodes} {lack}.")
            )
            world.advance(10).settle()
    events = world.events_with("Unschedulable")
    assert [lack in event.message for event, lack in zip(events, lacks.values(), strict=True)] == [True, True]


def test_attempt_without_reports_is_lost() -> None:
    world = make_running_world()
    world.advance(1800).settle()
    assert (world.state, world.run["reason"]) == ("Retrying", "NoHeartbeat")


def test_attempt_without_progress_is_lost() -> None:
    world = make_running_world()
    for _ in range(60):
        assert world.state == "Running"
        world.advance(30).send_report(has_progress=False)
        was_silent = world.plan().ends_silent_attempt
        world.settle()
    assert (world.state, world.run["reason"]) == ("Retrying", "NoProgress")
    assert not was_silent, "its reports arrive, so neither the clock nor the connection is in doubt"


def test_progress_keeps_attempt_alive() -> None:
    world = make_running_world()
    for _ in range(200):
        world.advance(30).send_report().settle()
    assert world.state == "Running"
    assert world.run["attempt"] == 1


def test_report_without_change_keeps_status() -> None:
    world = make_running_world()
    status_before = world.status
    world.advance(30).send_report(progress=None, has_progress=False).settle()
    assert world.status == status_before


def test_attempt_without_head_pod_ends_as_lost_driver() -> None:
    world = make_running_world()
    decision = world.set_pods(make_pod("learner", phase="Running", is_ready=True)).settle()
    assert world.state == "Running"
    world.settle_at(decision.requeue_at)
    assert (world.state, world.run["reason"]) == ("Retrying", "LostDriver")


def test_head_on_unreachable_node_is_lost_after_five_minutes() -> None:
    world = make_running_world()
    world.set_pods(make_pod("head", phase="Running", unreachable_since=world.now)).settle()
    assert world.find_reason("ClusterReady") == "NodeUnreachable"
    decision = world.advance(299).settle()
    assert world.state == "Running"
    world.settle_at(decision.requeue_at)
    assert world.run["reason"] == "NodeUnreachable"


@pytest.mark.parametrize("is_terminating", [False, True])
def test_head_on_unreachable_node_before_first_report_is_lost_after_five_minutes(
    is_terminating: bool,
) -> None:
    """Regression: the attempt waited without limit, and its learners held their GPUs."""
    world = World()
    world.settle()
    world.start_pods()
    head = make_pod("head", phase="Running", unreachable_since=world.now, is_deleting=is_terminating)
    world.set_pods(head, make_pod("learner", phase="Running", is_ready=True))
    decision = world.settle()
    assert (world.state, world.find_reason()) == ("Starting", "NodeUnreachable")
    world.settle_at(decision.requeue_at)
    assert (world.run["outcome"], world.run["reason"]) == ("Lost", "NodeUnreachable")
    assert world.now == START + timedelta(seconds=300)


def test_replaced_head_before_first_report_keeps_attempt() -> None:
    world = World()
    world.settle()
    old_head = make_pod("head", phase="Running", unreachable_since=world.now, is_deleting=True)
    world.start_pods().set_pods(old_head, make_pod("head", name="new")).settle()
    assert (world.state, world.plan().requeue_at) == ("Starting", None)


@pytest.mark.parametrize("is_terminating", [False, True])
def test_unreachable_head_counts_as_silence(is_terminating: bool) -> None:
    """Regression: if all nodes were cut off from the control plane, the breaker kept no run."""
    world = make_running_world()
    world.set_pods(
        make_pod("head", phase="Running", unreachable_since=world.now, is_deleting=is_terminating)
    ).settle()
    world.advance(600)
    assert world.plan().ends_silent_attempt
    decision = plan(replace(world.observe(), is_verdict_held=True), DEFAULTS)
    assert (decision.status.state, decision.actions) == ("Running", ())
    assert "many runs fell silent" in (decision.status.message or "")


def test_missing_head_is_no_silence() -> None:
    world = make_running_world()
    world.set_pods().settle()
    world.advance(600)
    assert not world.plan().ends_silent_attempt
    decision = plan(replace(world.observe(), is_verdict_held=True), DEFAULTS)
    assert decision.status.runs[0].outcome == "Lost"


def test_active_deadline_covers_all_attempts() -> None:
    world = make_running_world(runPolicy={"activeDeadlineSeconds": 100})
    world.advance(40).report_end("Lost", "WorkerLost").settle()
    world.advance(30).settle()
    world.start_pods().send_report().settle()
    active_seconds = world.run["activeSeconds"]
    assert active_seconds == 60
    decision = world.settle()
    assert decision.requeue_at is not None
    assert (decision.requeue_at - world.now).total_seconds() <= 40
    world.settle_at(decision.requeue_at)
    assert (world.state, world.find_reason()) == ("Failed", "DeadlineExceeded")
    assert world.live_children == []


def test_changed_deadlines_are_passed_to_kuberay() -> None:
    world = make_running_world(runPolicy={"activeDeadlineSeconds": 3600})
    world.edit_spec(runPolicy={"activeDeadlineSeconds": 9000, "ttlSecondsAfterFinished": 60})
    decision = world.reconcile()
    # activeDeadlineSeconds + BACKSTOP_SECONDS (900)
    changes = {"activeDeadlineSeconds": 9900, "ttlSecondsAfterFinished": 60}
    assert decision.actions == (SetDeadlines(world.child_name, changes),)
    assert world.reconcile().actions == ()
    world.edit_spec(runPolicy={"startDeadlineSeconds": 7200})
    changes = {"activeDeadlineSeconds": None, "ttlSecondsAfterFinished": 0}
    assert world.reconcile().actions == (SetDeadlines(world.child_name, changes),)
    assert world.reconcile().actions == ()
    assert (world.state, len(world.created_children)) == ("Running", 1)


def test_deadline_beyond_last_date_never_passes() -> None:
    """The API server accepts any 64-bit number of seconds."""
    seconds = 2**63 - 1
    names = ("startDeadlineSeconds", "activeDeadlineSeconds", "stallTimeoutSeconds", "suspendGraceSeconds")
    world = World(runPolicy=dict.fromkeys(names, seconds))
    world.settle()
    assert (world.state, world.start_pods().settle().requeue_at is not None) == ("Starting", True)
    world.send_report().settle()
    world.advance(30 * 365 * 24 * 3600).settle()
    assert world.state == "Running"
    world.edit_spec(suspend=True).settle()
    assert world.state == "Suspending"


def test_losses_beyond_backoff_limit_fail() -> None:
    world = World(runPolicy={"backoffLimit": 2})
    for _ in range(3):
        world.settle()
        world.start_pods().send_report().report_end("Lost", "WorkerLost", "The node is gone.").settle()
        world.advance(700)
    world.settle()
    assert (world.state, world.find_reason()) == ("Failed", "BackoffLimitExceeded")
    assert "WorkerLost" in world.status["message"] and "The node is gone" in world.status["message"]
    assert len(world.created_children) == 3


def test_checkpoint_resets_retries() -> None:
    world, checkpoint = make_running_world(runPolicy={"backoffLimit": 1}), CHECKPOINT
    for iteration in (10, 20, 30):
        world.report_end("Lost", "WorkerLost").settle()
        assert (world.state, world.run["retries"]) == ("Retrying", 0)
        world.advance(60).settle()
        assert world.run["retries"] == 1
        world.start_pods().advance(20).send_report(checkpoint=checkpoint).settle()  # of the previous attempt
        assert world.run["retries"] == 1
        new_checkpoint = CHECKPOINT.model_copy(update={"iteration": iteration})
        checkpoint = new_checkpoint
        world.send_report(checkpoint=checkpoint).settle()
        assert world.run["retries"] == 0
    world.report_end("Lost", "WorkerLost").settle()
    world.advance(60).settle()
    world.start_pods().send_report(checkpoint=checkpoint).report_end("Lost", "WorkerLost").settle()
    assert (world.state, world.find_reason()) == ("Failed", "BackoffLimitExceeded")


def test_recording_forgets_losses_only_beyond_earlier_attempts() -> None:
    """Regression: losses of a recording were never forgotten, so four lost nodes in a week failed it."""
    world = World(RECORDING, runPolicy={"backoffLimit": 1})
    for saved_amount in (100, 200, 300):
        world.settle()
        world.start_pods().send_report(progress=ProgressStatus(saved_amount=saved_amount)).settle()
        world.report_end("Lost", "WorkerLost").settle()
        assert (world.state, world.run["retries"]) == ("Retrying", 0)
        world.advance(60)
    world.settle()
    world.start_pods().send_report(progress=ProgressStatus(saved_amount=300)).report_end(
        "Lost", "WorkerLost"
    ).settle()
    assert (world.state, world.find_reason()) == ("Failed", "BackoffLimitExceeded")


def test_episodes_that_are_not_saved_reset_no_retries() -> None:
    """Regression: attempts that were killed before their first commit, each an episode later, were always retried."""
    world = World(RECORDING, runPolicy={"backoffLimit": 2})
    for episodes in (1, 2, 3):
        world.settle()
        progress = ProgressStatus(episodes=episodes, timesteps=9 * episodes, saved_amount=0)
        world.start_pods().send_report(progress=progress).settle()
        world.report_end("Lost", "OutOfMemory").settle()
        world.advance(60)
    assert (world.state, world.find_reason()) == ("Failed", "BackoffLimitExceeded")


def test_recording_forgets_losses_after_its_expert_is_trained() -> None:
    """Regression: the environment steps of the expert's training counted as recorded."""
    world = World(RECORDING)
    world.settle()
    progress = ProgressStatus(iteration=120, timesteps=1_000_000, saved_amount=100)
    world.start_pods().send_report(stage="Training the expert", progress=progress).settle()
    world.report_end("Lost", "WorkerLost").settle()
    world.advance(60).settle()
    assert world.run["retries"] == 1
    progress = ProgressStatus(timesteps=5000, saved_amount=4000)
    world.start_pods().send_report(stage="Recording", progress=progress).settle()
    assert world.run["retries"] == 0


def test_pod_left_over_from_disruption_does_not_excuse_later_loss() -> None:
    """Regression: the time of the disruption moved on as long as the pod existed."""
    world = make_running_world(runPolicy={"backoffLimit": 0})
    disrupted_pod = replace(make_pod("submitter", phase="Failed"), name="submitter-1", disrupted_at=world.now)
    submitter = replace(make_pod("submitter"), created_at=world.now + timedelta(seconds=5))
    world.set_pods(*world.attempt.pods, disrupted_pod, submitter).settle()
    assert world.find_reason("ClusterReady") != "Disrupted"
    world.advance(900).send_report().settle()
    world.report_end("Lost", "WorkerLost").settle()
    assert world.status["runs"][0]["reason"] == "BackoffLimitExceeded"


@pytest.mark.parametrize("reported", ["WorkerLost", "Terminated", None])
def test_disrupted_attempt_does_not_count_as_loss(reported: str | None) -> None:
    world = make_running_world(runPolicy={"backoffLimit": 0})
    for _ in range(5):
        head, learner = world.attempt.pods
        world.set_pods(head, replace(learner, disrupted_at=world.now, is_deleting=True)).settle()
        assert world.find_reason("ClusterReady") == "Disrupted"
        world.set_pods(head).advance(60).send_report().settle()
        if reported is None:
            world.finish_job("FAILED").settle()
            world.advance(10)
        else:
            world.report_end("Lost", reported)
        world.settle()
        assert (world.state, world.run["reason"]) == ("Retrying", "Disrupted")
        world.advance(60).settle()
        world.start_pods().send_report().settle()
    assert world.state == "Running"


def test_learners_release_gpus_that_wait_for_another_learner() -> None:
    world = World(learners={"replicas": 2, "gpus": 1}, runPolicy={"backoffLimit": 0})
    pauses = []
    for _ in range(6):
        world.settle()
        world.update_job(deployment_status="Initializing")
        created = {"created_at": world.now}
        waiting = make_pod("learner", name="b", scheduling_failure="Insufficient nvidia.com/gpu", **created)
        running = make_pod(
            "learner", name="a", scheduled_at=world.now, phase="Running", is_ready=True, **created
        )
        world.set_pods(running, waiting)
        decision = world.settle()
        assert world.state == "Starting"
        decision = world.settle_at(decision.requeue_at)
        assert (world.state, world.run["reason"]) == ("Retrying", "GpusReleased")
        assert world.live_children == [] and decision.requeue_at is not None
        pauses.append((decision.requeue_at - world.now).total_seconds())
        world.now = decision.requeue_at
    assert pauses[0] < 160 and pauses[-1] > 2600


def test_learners_keep_gpus_for_full_time_when_first_node_comes_late() -> None:
    """Regression: after a long wait in a full cluster, the first learner with a GPU released it at once."""
    world = World(learners={"replicas": 2, "gpus": 1})
    world.settle()
    pods = [make_pod("learner", name=name, scheduling_failure="Insufficient nvidia.com/gpu") for name in "ab"]
    world.update_job(deployment_status="Initializing").set_pods(*pods).settle()
    world.advance(1800)
    decision = world.set_pods(make_pod("learner", name="a", scheduled_at=world.now), pods[1]).settle()
    assert world.state == "Starting" and decision.requeue_at == world.now + timedelta(seconds=600)
    world.advance(600).settle()
    assert (world.state, world.run["reason"]) == ("Retrying", "GpusReleased")


def test_learners_without_any_gpu_hold_nothing_and_wait() -> None:
    world = World(learners={"replicas": 2, "gpus": 1})
    world.settle()
    pods = [make_pod("learner", name=name, scheduling_failure="Insufficient nvidia.com/gpu") for name in "ab"]
    world.update_job(deployment_status="Initializing").set_pods(*pods).settle()
    assert world.advance(86400).settle().requeue_at is None
    assert (world.state, world.find_reason()) == ("Starting", "Unschedulable")


@pytest.mark.parametrize(
    ("days", "fewest", "most"), [(1, 14, 36), pytest.param(7, 100, 250, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("has_reached_storage", [False, True])
def test_storage_away_is_awaited_ever_longer_without_gpus(
    has_reached_storage: bool, days: int, fewest: int, most: int
) -> None:
    """Regression: a wrong host name started 2,153 GPU clusters in a week, and the run never said so."""
    world = World(runPolicy={"backoffLimit": 0})
    end, num_attempts = world.now + timedelta(days=days), 0
    world.settle()
    if has_reached_storage:
        world.start_pods().send_report(progress=PROGRESS).settle()
    while world.now < end:
        world.start_pods().send_report().report_end("Lost", "StorageUnavailable", "no answer").settle()
        num_attempts += 1
        is_stalled = num_attempts >= 3 and not has_reached_storage
        assert world.state == ("Stalled" if is_stalled else "Retrying")
        assert world.live_children == []
        world.now = world.settle().requeue_at or end
        world.settle()
    assert fewest < num_attempts < most
    assert world.state == "Starting", "it goes on by itself once storage is back"


def test_creation_that_fails_for_now_is_named() -> None:
    """Regression: a webhook that was away left the run Pending without a word."""
    world = World()
    world.write_status(world.plan())
    failure = 'Internal error occurred: failed calling webhook "mrayjob.kb.io": connection refused'
    world.attempts[CHILD] = AttemptFacts(CHILD, creation_problem=CreationProblem("CreationFailing", failure))
    decision = world.plan()
    assert (decision.status.state, decision.status.conditions[0].reason) == ("Pending", "CreationFailing")
    assert "mrayjob.kb.io" in (decision.status.message or "")
    assert [type(action) for action in decision.actions] == [CreateAttempt]


# -- reports that do not arrive ------------------------------------------------------------------------------
@pytest.mark.parametrize("missing", ["ConfigMap", "access"])
@pytest.mark.parametrize("has_reported", [False, True])
def test_missing_object_of_live_attempt_is_restored(missing: str, has_reported: bool) -> None:
    world = make_running_world() if has_reported else World()
    world.settle()
    if not has_reported:
        world.start_pods()
    change = {"config_map": None} if missing == "ConfigMap" else {"has_access": False}
    world.change_attempt(world.child_name, **change)
    world.settle()
    assert world.attempt.config_map is not None and world.attempt.has_access
    assert (world.run["attempt"], len(world.created_children)) == (1, 1)
    world.advance(60).send_report().settle()
    assert world.state == "Running"


@pytest.mark.parametrize("missing", ["ConfigMap", "access"])
@pytest.mark.parametrize("edit", ["drift", "invalid spec", "account", "platform's account"])
def test_missing_object_of_reporting_attempt_is_restored_after_edit(missing: str, edit: str) -> None:
    """Regression: after an edit, nothing was restored, or only for a ServiceAccount that the pods do not have."""
    account = "team" if edit == "account" else None
    platform_account = "shared" if edit == "platform's account" else None
    defaults = DEFAULTS.model_copy(update={"cluster": ClusterSpec(service_account_name=platform_account)})
    world = make_running_world(defaults=defaults, cluster={"serviceAccountName": account} if account else {})
    if edit == "drift":
        world.edit_spec(algorithm="CQL")
    elif edit == "invalid spec":
        world.problems = INVALID_SPEC
    elif edit == "account":
        world.edit_spec(cluster={"serviceAccountName": "other"})
    else:
        cluster = ClusterSpec(service_account_name="other")
        world.defaults = DEFAULTS.model_copy(update={"cluster": cluster})
    change = {"config_map": None} if missing == "ConfigMap" else {"has_access": False}
    world.settle()
    world.change_attempt(world.child_name, **change)
    assert [action.account for action in world.plan().actions] == [account or platform_account]
    world.settle()
    assert world.attempt.config_map is not None and world.attempt.has_access
    assert (world.state, len(world.created_children)) == ("Running", 1)


@pytest.mark.parametrize(
    "problem",
    [
        CreationProblem("CreationRefused", "exceeded quota: maps"),
        CreationProblem("CreationFailing", "failed calling webhook"),
        CreationProblem("NameConflict", "ConfigMap/x (owned by Y)"),
    ],
)
@pytest.mark.parametrize("has_reported", [False, True])
def test_refused_repair_of_live_attempt_is_named(problem: CreationProblem, has_reported: bool) -> None:
    """Regression: ClusterReady stayed True until the driver gave up after ten minutes."""
    world = make_running_world() if has_reported else World()
    world.settle()
    world.change_attempt(world.child_name, config_map=None, creation_problem=problem)
    decision = world.plan()
    world.write_status(decision)
    assert world.find_reason("ClusterReady") == problem.reason
    assert problem.cause in world.status["message"]
    assert world.state == ("Running" if has_reported else "Starting")
    assert len(decision.actions) == 1, "the repair is tried again"


@pytest.mark.parametrize("loss", ["ConfigMap deleted", "ConfigMap restored", "report unreadable"])
def test_clocks_survive_lost_report(loss: str) -> None:
    """Regression: without a readable report, no deadline applied, and a hung run held its GPUs for ever."""
    world = make_running_world()
    config_map = world.attempt.config_map
    assert config_map is not None
    lost_map = None if loss == "ConfigMap deleted" else replace(config_map, report=None, beat="", progress="")
    if loss == "report unreadable":
        lost_map = replace(config_map, report=None, report_problem="number cannot be read")
    world.change_attempt(world.child_name, config_map=lost_map)
    if loss == "ConfigMap deleted":
        problem = CreationProblem("CreationRefused", "exceeded quota")
        world.change_attempt(world.child_name, creation_problem=problem)
        decision = world.plan()
        world.write_status(decision)
    else:
        decision = world.settle()
    assert world.state == "Running"
    if loss == "report unreadable":
        assert world.find_reason("ClusterReady") == "ReportUnreadable"
    world.settle_at(decision.requeue_at)
    assert world.run["reason"] == "NoHeartbeat"
    assert world.live_children == []


def test_unreadable_first_report_starts_run() -> None:
    world = World()
    world.settle()
    config_map = replace(world.start_pods().attempt.config_map, beat="1", progress="1", report_problem="x")  # type: ignore[type-var]
    world.change_attempt(world.child_name, config_map=config_map)
    world.settle()
    assert (world.state, world.find_reason("ClusterReady")) == ("Running", "ReportUnreadable")


def test_held_verdict_ends_nothing_and_is_named() -> None:
    world = make_running_world()
    facts = replace(world.advance(3600).observe(), is_verdict_held=True)
    decision = plan(facts, DEFAULTS)
    assert (decision.status.state, decision.actions) == ("Running", ())
    assert "many runs fell silent" in (decision.status.message or "")


@pytest.mark.parametrize(
    "outcome", [("Lost", "NewerWord"), ("NewerState", "NewerWord"), ("Failed", "NewerWord")]
)
def test_outcome_with_unknown_word_is_taken_over(outcome: tuple[str, str]) -> None:
    world = make_running_world()
    world.report_end(*outcome).settle()
    assert world.run["reason"] == "NewerWord"
    assert world.run["outcome"] == ("Failed" if outcome[0] == "Failed" else "Lost")
    world.status = {**world.status, "newField": {"a": 1}, "runs": [{**world.run, "newField": 1}]}
    world.settle()
    assert world.state == ("Failed" if outcome[0] == "Failed" else "Retrying")


def test_backoff_limit_zero_fails_at_first_loss() -> None:
    world = World(runPolicy={"backoffLimit": 0})
    world.settle()
    world.start_pods().send_report().report_end("Lost", "WorkerLost").settle()
    assert (world.state, len(world.created_children)) == ("Failed", 1)


def test_deleted_ray_job_is_lost_attempt() -> None:
    world = make_running_world()
    world.delete_job().settle()
    assert (world.state, world.run["reason"]) == ("Retrying", "RayJobDeleted")


def test_ray_job_with_other_uid_is_deleted_and_attempt_is_lost() -> None:
    world = make_running_world()
    world.update_job(uid="another").reconcile()
    assert world.run["reason"] == "RayJobDeleted"
    world.settle()
    assert world.live_children == [], "the other RayJob is deleted before the next attempt"


def test_ray_job_rejected_by_kuberay_fails() -> None:
    world = World()
    world.settle()
    message = "The RayJob spec is invalid: rayStartParams"
    world.update_job(deployment_status="ValidationFailed", message=message).settle()
    assert (world.state, world.find_reason()) == ("Failed", "InvalidRayJob")
    assert message in world.status["message"]


@pytest.mark.parametrize("job_status", ["SUCCEEDED", "FAILED", "STOPPED"])
def test_ray_job_ended_without_report_is_lost_driver(job_status: str) -> None:
    world = make_running_world()
    decision = world.finish_job(job_status).settle()
    assert world.state == "Running", "the final report may be observed later than the end of the RayJob"
    world.settle_at(decision.requeue_at)
    assert (world.state, world.run["reason"]) == ("Retrying", "LostDriver")


def test_logs_in_ray_job_message_are_not_copied() -> None:
    world = make_running_world()
    world.finish_job("FAILED").update_job(message="Traceback: password=hunter2").settle()
    world.advance(10).settle()
    assert "hunter2" not in str(world.status) + str(world.events)


# -- suspending ----------------------------------------------------------------------------------------------
def test_resource_created_suspended_has_no_attempt_until_resumed() -> None:
    world = World(suspend=True)
    world.settle()
    assert world.state == "Suspended"
    assert world.condition_statuses == {"Ready": "True", "Suspended": "True"}
    assert world.created_children == []
    world.edit_spec(suspend=False).settle()
    assert world.created_children == [CHILD]


def test_suspend_saves_checkpoint_and_resumes() -> None:
    world = make_running_world()
    decision = world.edit_spec(suspend=True).reconcile()
    assert decision.actions == (SetIntent("cartpole-bc-t1-1", "checkpoint"),)
    world.settle()
    assert (world.state, world.find_condition("Suspended")["status"]) == ("Suspending", "False")  # type: ignore[index]
    world.report_end("Suspended", "Suspended", checkpoint=CHECKPOINT).settle()
    assert (world.state, world.live_children) == ("Suspended", [])
    assert world.status["checkpoint"]["path"] == CHECKPOINT.path
    world.advance(86400).settle()
    world.edit_spec(suspend=False).settle()
    assert world.created_children == [CHILD, NEXT_CHILD]
    assert (world.run["revision"], world.run["retries"]) == (1, 0)


def test_suspend_grace_period_ends_attempt() -> None:
    world = make_running_world()
    world.edit_spec(suspend=True).settle()
    decision = world.advance(60).settle()
    assert world.state == "Suspending"
    world.settle_at(decision.requeue_at)
    assert (world.state, world.live_children) == ("Suspended", [])


def test_reverted_suspend_resumes_with_next_attempt() -> None:
    world = make_running_world()
    world.edit_spec(suspend=True).settle()
    world.edit_spec(suspend=False).settle()
    assert world.state == "Suspending"
    world.report_end("Suspended", "Suspended").settle()
    assert world.created_children[-1] == NEXT_CHILD


def test_unreported_attempt_is_suspended_immediately() -> None:
    world = World()
    world.settle()
    world.edit_spec(suspend=True).settle()
    assert (world.state, world.live_children) == ("Suspended", [])


@pytest.mark.parametrize(
    ("outcome", "state"), [("Succeeded", "Succeeded"), ("Failed", "Failed"), ("Lost", "Suspended")]
)
def test_end_while_suspending_gives_final_state(outcome: str, state: str) -> None:
    world = make_running_world()
    world.edit_spec(suspend=True).settle()
    reason = {"Succeeded": "Succeeded", "Failed": "UserCodeFailed", "Lost": "Terminated"}[outcome]
    world.report_end(outcome, reason).settle()
    assert world.state == state


def test_state_suspended_requires_deleted_pods() -> None:
    world = make_running_world()
    world.edit_spec(suspend=True).settle()
    world.report_end("Suspended", "Suspended").reconcile()
    world.attempts[CHILD] = make_attempt_with_pod_being_deleted()
    world.settle()
    assert world.state == "Suspending"
    world.attempts.clear()
    world.settle()
    assert world.state == "Suspended"


def make_attempt_with_pod_being_deleted() -> Any:
    return AttemptFacts(CHILD, pods=(make_pod("learner", phase="Running", is_deleting=True),))


def test_next_attempt_waits_five_minutes_for_unreachable_pod() -> None:
    world = make_running_world()
    world.report_end("Lost", "WorkerLost").settle()
    remaining_attempt = make_attempt_with_pod_being_deleted()
    world.attempts[remaining_attempt.child_name] = remaining_attempt
    world.advance(60).settle()
    assert (world.state, world.find_reason(), len(world.created_children)) == ("Retrying", "CleaningUp", 1)
    unreachable_pod = replace(remaining_attempt.pods[0], unreachable_since=world.now)
    world.attempts[remaining_attempt.child_name] = replace(remaining_attempt, pods=(unreachable_pod,))
    decision = world.settle()
    assert decision.requeue_at == world.now + timedelta(seconds=300)
    world.settle_at(decision.requeue_at)
    assert len(world.created_children) == 2


# -- finished ------------------------------------------------------------------------------------------------
def test_finished_run_is_never_restarted() -> None:
    world = make_running_world()
    world.report_end("Succeeded", "Succeeded").settle()
    status_before = world.status
    world.attempts.clear()
    world.advance(10**6).edit_spec(suspend=True).settle()
    world.edit_spec(suspend=False).settle()
    assert world.created_children == [CHILD]
    assert world.status["runs"] == status_before["runs"]
    assert world.state == "Succeeded"


def test_failed_run_stays_failed_after_raised_limit() -> None:
    world = World(runPolicy={"backoffLimit": 0})
    world.settle()
    world.start_pods().send_report().report_end("Lost", "WorkerLost").settle()
    world.edit_spec(runPolicy={"backoffLimit": 5}).advance(1000).settle()
    assert (world.state, len(world.created_children)) == ("Failed", 1)


def test_ray_job_running_after_reported_end_is_deleted() -> None:
    world = make_running_world()
    world.report_end("Failed", "UserCodeFailed")
    world.update_job(deployment_status="Running", job_status="RUNNING", ended_at=None)
    decision = world.settle()
    assert world.attempt.ray_job is not None
    assert decision.requeue_at is not None
    world.now = decision.requeue_at
    decision = world.reconcile()
    assert decision.actions == (DeleteAttempt(CHILD, keep_config_map=True),)
    assert world.settle().requeue_at is None
