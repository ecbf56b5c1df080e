"""Problems of pods, which KubeRay does not report on the RayJob, appear in conditions and events, with a remedy."""

from __future__ import annotations

from datetime import timedelta
from typing import get_args

import pytest
from plan_world import RECORDING, START, World, make_pod, make_running_world

from hindcast.api.attempt import UNCOUNTED_REASONS, AttemptReason
from hindcast_operator.facts import PodFacts, RayClusterFacts
from hindcast_operator.planning.reasons import Reason


def make_starting_world() -> World:
    world = World(runPolicy={"startDeadlineSeconds": 1800})
    world.settle()
    world.update_job(deployment_status="Initializing", started_at=world.now).settle()
    return world


def make_waiting_pod(pool: str, reason: str, message: str) -> PodFacts:
    return make_pod(pool, container_wait=(reason, message))


# Pool, what each of three nodes lacks, phrase in the message.
SCHEDULING_FAILURES = [
    ("learner", "Insufficient nvidia.com/gpu.", "spec.learners.gpus"),
    ("data", "Insufficient cpu.", "spec.cluster.resources.dataWorker.cpu"),
    ("head", "Insufficient memory.", "spec.cluster.resources.head.memory"),
    ("head", "Insufficient ephemeral-storage.", "ephemeralStorage"),
    ("submitter", "Insufficient cpu.", "Insufficient cpu; add nodes"),
    ("data", "node(s) had untolerated taint {nvidia.com/gpu: present}.", "spec.cluster.tolerations"),
    ("runner", "node(s) had untolerated taint {gpu: true}", "spec.cluster.tolerations"),
    ("head", "node(s) didn't match Pod's node affinity/selector.", "spec.cluster.nodeSelector"),
]
MOUNT_FAILURE = 'MountVolume.SetUp failed: configmap "code" not found'
MISSING_CLAIM = 'persistentvolumeclaim "data" not found'
MISSING_SECRET = 'secret "s3" not found'
# Pod, reason, phrase in the message.
POD_PROBLEMS: list[tuple[PodFacts, str, str]] = [
    *(
        (make_pod(pool, scheduling_failure=f"0/3 nodes are available: 3 {lack}"), "Unschedulable", phrase)
        for pool, lack, phrase in SCHEDULING_FAILURES
    ),
    (make_pod("head", scheduling_failure=MISSING_CLAIM), "Unschedulable", 'persistentvolumeclaim "data"'),
    (make_waiting_pod("head", "ErrImagePull", "not found"), "ImagePullFailed", "spec.cluster.image"),
    (make_waiting_pod("head", "ImagePullBackOff", "Back-off"), "ImagePullFailed", "spec.cluster.image"),
    (make_waiting_pod("head", "ErrImagePull", "401 Unauthorized"), "ImagePullFailed", "imagePullSecrets"),
    (make_waiting_pod("head", "InvalidImageName", "couldn't parse"), "ImagePullFailed", "not a valid name"),
    (
        make_waiting_pod("data", "CreateContainerConfigError", MISSING_SECRET),
        "ContainerConfigInvalid",
        MISSING_SECRET,
    ),
    (make_waiting_pod("learner", "CrashLoopBackOff", "back-off 10s"), "ContainerStartFailed", "kubectl logs"),
    (make_pod("head", mount_failure=MOUNT_FAILURE), "MountFailed", 'configmap "code"'),
    (make_pod("data", disrupted_at=START, is_deleting=True), "Disrupted", "spot"),
    (make_pod("data", phase="Failed", reason="Evicted"), "Evicted", "evicted"),
    (make_pod("learner", phase="Running", unreachable_since=START), "NodeUnreachable", "is unreachable"),
    (
        make_pod("learner", phase="Failed", is_oom_killed=True),
        "OutOfMemory",
        "spec.cluster.resources.learner.memory",
    ),
]


@pytest.mark.parametrize(("pod_facts", "reason", "phrase"), POD_PROBLEMS)
def test_problem_of_pod_is_reported(pod_facts: PodFacts, reason: str, phrase: str) -> None:
    world = make_starting_world()
    world.set_pods(pod_facts).settle()
    assert (
        (world.state, world.find_reason())
        == ("Starting", reason)
        == ("Starting", world.find_reason("ClusterReady"))
    )
    assert phrase in world.status["message"]
    assert "waiting until 2026-11-21 06:30:00 UTC" in world.status["message"]
    events = world.events_with(reason)
    assert [event.type for event in events] == ["Warning"]
    assert phrase in events[0].message
    assert len(world.created_children) == 1, "no further attempt is created"


# Each row: message of the API server, reason, phrase in the event.
REJECTIONS = [
    (
        'pods "c-head-x7k2p" is forbidden: exceeded quota: team, requested: requests.cpu=4, used: 0, limited: 2',
        "QuotaExceeded",
        "requested: requests.cpu=4",
    ),
    (
        'pods "x" is forbidden: failed quota: team: must specify limits.cpu',
        "QuotaExceeded",
        "must specify limits.cpu",
    ),
    (
        'pods "x" is forbidden: violates PodSecurity "restricted:latest": hostPath',
        "PodSecurityViolation",
        "hostPath",
    ),
    ('admission webhook "policy" denied the request: no', "PodsRefused", 'webhook "policy"'),
]


@pytest.mark.parametrize(("message", "reason", "phrase"), REJECTIONS)
@pytest.mark.parametrize("creator", ["cluster", "submitter"])
def test_rejected_pods_are_reported(message: str, reason: str, phrase: str, creator: str) -> None:
    world = make_starting_world()
    if creator == "cluster":
        failure = RayClusterFacts("c", replica_failure=message)
        world.change_attempt(world.child_name, ray_cluster=failure)
    else:
        world.change_attempt(world.child_name, submitter_failure=message)
    world.settle()
    assert (world.state, world.find_reason()) == ("Starting", reason)
    assert phrase in world.events_with(reason)[0].message
    assert ("submitter" in world.status["message"]) == (creator == "submitter")


def test_same_rejection_of_another_pod_keeps_status() -> None:
    world = make_starting_world()

    def reject(pod_name: str) -> None:
        message = f'pods "{pod_name}" is forbidden: exceeded quota: team'
        failure = RayClusterFacts("c", replica_failure=message)
        world.change_attempt(world.child_name, ray_cluster=failure)
        world.settle()

    reject("c-head-aaaaa")
    status_before = world.status
    reject("c-head-bbbbb")
    assert world.status == status_before


def test_alternating_image_pull_reasons_change_status_once() -> None:
    world = make_starting_world()
    world.set_pods(make_waiting_pod("head", "ErrImagePull", "failed to pull and unpack: not found")).settle()
    status_before = world.status
    world.set_pods(make_waiting_pod("head", "ImagePullBackOff", 'Back-off pulling image "x"')).settle()
    assert world.status == status_before
    assert len(world.events_with("ImagePullFailed")) == 1
    assert "hindcast-runtime:0.1.0" in world.events_with("ImagePullFailed")[0].message


def test_silent_kuberay_is_reported_within_a_minute() -> None:
    world = World()
    requeue_at = world.settle().requeue_at
    assert requeue_at == START + timedelta(seconds=45)
    world.settle_at(requeue_at)
    assert (world.state, world.find_reason()) == ("Starting", "KubeRayNotAnswering")
    assert len(world.events_with("KubeRayNotAnswering")) == 1
    world.update_job(deployment_status="Initializing").settle()
    assert world.find_reason() == "ClusterStarting"


def test_resolved_problem_is_no_longer_reported() -> None:
    world = make_starting_world()
    world.set_pods(make_waiting_pod("head", "CreateContainerConfigError", MISSING_SECRET)).settle()
    world.set_pods(make_pod("head", phase="Running", is_ready=True)).settle()
    assert world.find_reason() == "ClusterStarting"
    world.send_report().settle()
    assert world.find_reason("ClusterReady") == "ClusterReady"


def test_problem_of_head_is_reported_first() -> None:
    world = make_starting_world()
    world.set_pods(
        make_pod("learner", scheduling_failure="Insufficient nvidia.com/gpu"),
        make_pod("head", container_wait=("ImagePullBackOff", "")),
    ).settle()
    assert world.find_reason() == "ImagePullFailed"


def test_problem_of_deleted_pod_is_not_reported() -> None:
    world = make_starting_world()
    world.set_pods(make_pod("data", scheduling_failure="Insufficient cpu", is_deleting=True)).settle()
    assert world.find_reason() == "ClusterStarting"


# -- memory --------------------------------------------------------------------------------------------------
def test_killed_data_worker_is_reported_while_run_continues() -> None:
    world = make_running_world()
    killed_pod = make_pod("data", phase="Failed", is_oom_killed=True)
    world.set_pods(*world.attempt.pods, killed_pod).settle()
    assert (world.state, world.find_reason("ClusterReady")) == ("Running", "OutOfMemory")
    assert "spec.cluster.resources.dataWorker.memory" in world.events_with("OutOfMemory")[0].message
    world.start_pods().settle()
    assert world.find_reason("ClusterReady") == "ClusterReady"


def test_killed_head_explains_loss_after_its_pod_is_gone() -> None:
    world = make_running_world()
    killed_pod = make_pod("head", phase="Failed", is_oom_killed=True)
    world.set_pods(killed_pod).settle()
    world.advance(2).finish_job("FAILED").settle()
    world.advance(10).settle()
    assert (world.state, world.run["reason"]) == ("Retrying", "OutOfMemory")
    assert "spec.cluster.resources.head.memory" in world.status["message"]


def test_out_of_memory_names_current_size_of_pool() -> None:
    world = make_running_world()
    memory = {"value": "3Gi", "reason": "a window"}
    world.status["resolved"] = {"pools": {"learner": {"memory": memory}}}
    world.report_end(
        "Lost", "OutOfMemory", "A learner ran out of memory and was killed.", pool="learner"
    ).settle()
    assert "raise spec.cluster.resources.learner.memory (now 3Gi)" in world.status["message"]


def test_out_of_memory_message_with_size_is_unchanged() -> None:
    world = make_running_world()
    message = "Out of memory; raise spec.cluster.resources.dataWorker.memory (now 2Gi)"
    world.report_end("Lost", "OutOfMemory", message).settle()
    assert world.run["message"] == message


def test_repair_of_attempt_keeps_sizes_in_status() -> None:
    """Regression: a restored ConfigMap brought the sizes of a changed spec into the status of the old pods."""
    world = make_running_world()
    sizes = world.status["resolved"]
    world.edit_spec(cluster={"resources": {"learner": {"memory": "64Gi"}}})
    world.change_attempt(world.child_name, config_map=None)
    world.settle()
    assert world.attempt.config_map is not None
    assert world.status["resolved"] == sizes


def test_sizes_of_attempt_are_in_status_and_messages() -> None:
    world = make_starting_world()
    pools = world.status["resolved"]["pools"]
    assert set(pools) >= {"head", "learner"}
    killed_pod = make_pod("learner", phase="Failed", is_oom_killed=True)
    world.set_pods(killed_pod).settle()
    assert f"(now {pools['learner']['memory']['value']})" in world.status["message"]


def test_uncounted_reasons_of_table_and_runtime_are_the_same() -> None:
    uncounted = {reason.value for reason in Reason if reason.effect == "lost, not counted"}
    assert uncounted == UNCOUNTED_REASONS | {"Preempted", "Superseded"}, (
        "the last two are outcomes, not losses"
    )


# -- endings -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("job_reason", "seconds", "outcome", "reason"),
    [
        ("SubmissionFailed", 10, "Lost", "SubmissionFailed"),
        ("AppFailed", 10, "Lost", "LostDriver"),
        ("DeadlineExceeded", 6300, "Failed", "DeadlineExceeded"),
        ("DeadlineExceeded", 3500, "Lost", "LostDriver"),
    ],
)
def test_ending_by_kuberay_depends_on_reason_and_deadline_of_spec(
    job_reason: str, seconds: int, outcome: str, reason: str
) -> None:
    """If KubeRay ends the RayJob before the deadline of the spec, which was raised meanwhile, the attempt is lost.

    The deadline is 3600 s for all attempts; `seconds` pass before KubeRay ends the RayJob.
    """
    world = World(runPolicy={"activeDeadlineSeconds": 3600})
    world.settle()
    world.start_pods().advance(seconds).finish_job("FAILED", job_reason).advance(10).settle()
    assert (world.run["outcome"], world.run["reason"]) == (outcome, reason)


def test_quoted_messages_are_one_short_line() -> None:
    world = make_starting_world()
    world.set_pods(make_pod("head", scheduling_failure="0/1 nodes:\n" + "very " * 400)).settle()
    assert "\n" not in world.status["message"]
    assert len(world.status["message"]) < 600
    assert all(len(event.message) <= 1000 for event in world.events)


def test_every_reason_of_an_attempt_is_a_reason_of_the_operator() -> None:
    assert set(get_args(AttemptReason)) <= {reason.value for reason in Reason}


def test_out_of_memory_of_recording_names_runner_pool() -> None:
    world = World(RECORDING)
    world.settle()
    world.set_pods(make_pod("runner", phase="Failed", is_oom_killed=True)).settle()
    assert "spec.cluster.resources.runner.memory" in world.status["message"]
