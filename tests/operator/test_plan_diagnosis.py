"""Problems of pods, which KubeRay does not report on the RayJob, appear in conditions and events, with a remedy."""

from __future__ import annotations

from dataclasses import replace

import pytest
from plan_world import START, TRAINING, World, make_pod, make_running_world

from hindcast.api.attempt import UNCOUNTED_REASONS
from hindcast_operator.facts import PodFacts, RayClusterFacts
from hindcast_operator.planning.reasons import Reason


def make_starting_world() -> World:
    world = World(runPolicy={"startDeadlineSeconds": 1800})
    world.settle()
    world.update_job(deployment_status="Initializing", started_at=world.now).settle()
    return world


NO_NODE = "0/3 nodes are available: "
# Each row: id of the test, pod, reason, phrase in the message.
POD_PROBLEMS: list[tuple[str, PodFacts, str, str]] = [
    (
        "gpu",
        make_pod("learner", scheduling_failure=f"{NO_NODE}3 Insufficient nvidia.com/gpu."),
        "Unschedulable",
        "spec.learners.gpus",
    ),
    (
        "cpu",
        make_pod("data", scheduling_failure=f"{NO_NODE}3 Insufficient cpu."),
        "Unschedulable",
        "spec.cluster.resources.dataWorker.cpu",
    ),
    (
        "memory",
        make_pod("head", scheduling_failure=f"{NO_NODE}3 Insufficient memory."),
        "Unschedulable",
        "spec.cluster.resources.head.memory",
    ),
    (
        "submitter",
        make_pod("submitter", scheduling_failure=f"{NO_NODE}3 Insufficient cpu."),
        "Unschedulable",
        "Insufficient cpu; add nodes",
    ),
    (
        "taint of GPUs",
        make_pod(
            "data",
            scheduling_failure=f"{NO_NODE}3 node(s) had untolerated taint {{nvidia.com/gpu: present}}.",
        ),
        "Unschedulable",
        "spec.cluster.tolerations",
    ),
    (
        "disk",
        make_pod("head", scheduling_failure=f"{NO_NODE}3 Insufficient ephemeral-storage."),
        "Unschedulable",
        "ephemeralStorage",
    ),
    (
        "taint",
        make_pod("runner", scheduling_failure=f"{NO_NODE}3 node(s) had untolerated taint {{gpu: true}}"),
        "Unschedulable",
        "spec.cluster.tolerations",
    ),
    (
        "selector",
        make_pod("head", scheduling_failure=f"{NO_NODE}3 node(s) didn't match Pod's node affinity/selector."),
        "Unschedulable",
        "spec.cluster.nodeSelector",
    ),
    (
        "claim",
        make_pod("head", scheduling_failure='persistentvolumeclaim "data" not found'),
        "Unschedulable",
        'persistentvolumeclaim "data"',
    ),
    (
        "no image",
        make_pod("head", container_wait=("ErrImagePull", "rpc error: not found")),
        "ImagePullFailed",
        "spec.cluster.image",
    ),
    (
        "backing off",
        make_pod("head", container_wait=("ImagePullBackOff", 'Back-off pulling image "x"')),
        "ImagePullFailed",
        "spec.cluster.image",
    ),
    (
        "no credentials",
        make_pod("head", container_wait=("ErrImagePull", "401 Unauthorized")),
        "ImagePullFailed",
        "imagePullSecrets",
    ),
    (
        "image name",
        make_pod("head", container_wait=("InvalidImageName", "couldn't parse")),
        "ImagePullFailed",
        "not a valid name",
    ),
    (
        "secret",
        make_pod("data", container_wait=("CreateContainerConfigError", 'secret "s3" not found')),
        "ContainerConfigInvalid",
        'secret "s3" not found',
    ),
    (
        "crash loop",
        make_pod("learner", container_wait=("CrashLoopBackOff", "back-off 10s")),
        "ContainerStartFailed",
        "kubectl logs",
    ),
    (
        "mount",
        make_pod("head", mount_failure='MountVolume.SetUp failed: configmap "code" not found'),
        "MountFailed",
        'configmap "code"',
    ),
    ("disrupted", make_pod("data", disrupted_at=START, is_deleting=True), "Disrupted", "spot"),
    ("evicted", make_pod("data", phase="Failed", reason="Evicted"), "Evicted", "evicted"),
    (
        "node",
        make_pod("learner", phase="Running", unreachable_since=START),
        "NodeUnreachable",
        "is unreachable",
    ),
    (
        "killed",
        make_pod("learner", phase="Failed", is_oom_killed=True),
        "OutOfMemory",
        "spec.cluster.resources.learner.memory",
    ),
]


@pytest.mark.parametrize(
    ("pod_facts", "reason", "phrase"), [row[1:] for row in POD_PROBLEMS], ids=[row[0] for row in POD_PROBLEMS]
)
def test_problem_of_pod_is_reported(pod_facts: PodFacts, reason: str, phrase: str) -> None:
    world = make_starting_world()
    world.set_pods(pod_facts).settle()
    assert (world.state, world.find_reason(), world.find_reason("ClusterReady")) == (
        "Starting",
        reason,
        reason,
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
    world.set_pods(
        make_pod("head", container_wait=("ErrImagePull", "failed to pull and unpack: not found"))
    ).settle()
    status_before = world.status
    world.set_pods(
        make_pod("head", container_wait=("ImagePullBackOff", 'Back-off pulling image "x"'))
    ).settle()
    assert world.status == status_before
    assert len(world.events_with("ImagePullFailed")) == 1
    assert "hindcast-runtime:0.1.0" in world.events_with("ImagePullFailed")[0].message


def test_silent_kuberay_is_reported_within_a_minute() -> None:
    world = World()
    decision = world.settle()
    assert decision.requeue_at is not None
    assert (decision.requeue_at - world.now).total_seconds() == 45
    world.now = decision.requeue_at
    world.settle()
    assert (world.state, world.find_reason()) == ("Starting", "KubeRayNotAnswering")
    assert len(world.events_with("KubeRayNotAnswering")) == 1
    world.update_job(deployment_status="Initializing").settle()
    assert world.find_reason() == "ClusterStarting"


def test_resolved_problem_is_no_longer_reported() -> None:
    world = make_starting_world()
    world.set_pods(
        make_pod("head", container_wait=("CreateContainerConfigError", 'secret "s3" not found'))
    ).settle()
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
    assert (world.state, world.status["runs"][0]["reason"]) == ("Retrying", "OutOfMemory")
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
    assert world.status["runs"][0]["message"] == message


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
    run = world.status["runs"][0]
    assert (run["outcome"], run["reason"]) == (outcome, reason)


def test_quoted_messages_are_one_short_line() -> None:
    world = make_starting_world()
    world.set_pods(make_pod("head", scheduling_failure="0/1 nodes:\n" + "very " * 400)).settle()
    assert "\n" not in world.status["message"]
    assert len(world.status["message"]) < 600
    assert all(len(event.message) <= 1000 for event in world.events)


def test_every_reason_of_an_attempt_is_a_reason_of_the_operator() -> None:
    from typing import get_args

    from hindcast.api.attempt import AttemptReason

    assert set(get_args(AttemptReason)) <= {reason.value for reason in Reason}


def test_out_of_memory_of_recording_names_runner_pool() -> None:
    from plan_world import RECORDING

    world = World(RECORDING)
    world.settle()
    killed_pod = make_pod("runner", phase="Failed", is_oom_killed=True)
    world.set_pods(replace(killed_pod, name="r")).settle()
    assert "spec.cluster.resources.runner.memory" in world.status["message"]
    assert TRAINING["kind"] not in world.status["message"]
