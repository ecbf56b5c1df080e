"""What KubeRay hides, reported in conditions and events, with what to do."""

from __future__ import annotations

from dataclasses import replace

import pytest
from plan_world import START, TRAINING, World, pod, running

from hindcast_operator.facts import PodFacts, RayClusterFacts
from hindcast_operator.planning.reasons import Reason


def starting() -> World:
    world = World()
    world.settle()
    world.job(deployment_status="Initializing", started=world.now).settle()
    return world


NO_NODE = "0/3 nodes are available: "
PODS: list[tuple[str, PodFacts, str, str]] = [
    (
        "gpu",
        pod("learner", unschedulable=f"{NO_NODE}3 Insufficient nvidia.com/gpu."),
        "Unschedulable",
        "spec.learners.gpus",
    ),
    (
        "cpu",
        pod("data", unschedulable=f"{NO_NODE}3 Insufficient cpu."),
        "Unschedulable",
        "spec.cluster.resources.dataWorker.cpu",
    ),
    (
        "memory",
        pod("head", unschedulable=f"{NO_NODE}3 Insufficient memory."),
        "Unschedulable",
        "spec.cluster.resources.head.memory",
    ),
    (
        "disk",
        pod("head", unschedulable=f"{NO_NODE}3 Insufficient ephemeral-storage."),
        "Unschedulable",
        "ephemeralStorage",
    ),
    (
        "taint",
        pod("runner", unschedulable=f"{NO_NODE}3 node(s) had untolerated taint {{gpu: true}}"),
        "Unschedulable",
        "spec.cluster.tolerations",
    ),
    (
        "selector",
        pod("head", unschedulable=f"{NO_NODE}3 node(s) didn't match Pod's node affinity/selector."),
        "Unschedulable",
        "spec.cluster.nodeSelector",
    ),
    (
        "claim",
        pod("head", unschedulable='persistentvolumeclaim "data" not found'),
        "Unschedulable",
        'persistentvolumeclaim "data"',
    ),
    (
        "no image",
        pod("head", waiting=("ErrImagePull", "rpc error: not found")),
        "ImagePullFailed",
        "spec.cluster.image",
    ),
    (
        "backing off",
        pod("head", waiting=("ImagePullBackOff", 'Back-off pulling image "x"')),
        "ImagePullFailed",
        "spec.cluster.image",
    ),
    (
        "no credentials",
        pod("head", waiting=("ErrImagePull", "401 Unauthorized")),
        "ImagePullFailed",
        "imagePullSecrets",
    ),
    (
        "image name",
        pod("head", waiting=("InvalidImageName", "couldn't parse")),
        "ImagePullFailed",
        "not a valid name",
    ),
    (
        "secret",
        pod("data", waiting=("CreateContainerConfigError", 'secret "s3" not found')),
        "ContainerConfigInvalid",
        'secret "s3" not found',
    ),
    (
        "crash loop",
        pod("learner", waiting=("CrashLoopBackOff", "back-off 10s")),
        "ContainerStartFailed",
        "kubectl logs",
    ),
    (
        "mount",
        pod("head", mount_failure='MountVolume.SetUp failed: configmap "code" not found'),
        "MountFailed",
        'configmap "code"',
    ),
    ("evicted", pod("data", phase="Failed", reason="Evicted"), "Evicted", "evicted"),
    ("node", pod("learner", phase="Running", unreachable_since=START), "NodeUnreachable", "is unreachable"),
    (
        "killed",
        pod("learner", phase="Failed", out_of_memory=True),
        "OutOfMemory",
        "spec.cluster.resources.learner.memory",
    ),
]


@pytest.mark.parametrize(("found", "reason", "says"), [row[1:] for row in PODS], ids=[row[0] for row in PODS])
def test_what_is_wrong_with_a_pod_is_reported(found: PodFacts, reason: str, says: str) -> None:
    world = starting()
    world.pods(found).settle()
    assert (world.state, world.reason(), world.reason("ClusterReady")) == ("Starting", reason, reason)
    assert says in world.status["message"]
    assert "waiting until 2026-11-21 06:30:00 UTC" in world.status["message"]
    events = world.events_with(reason)
    assert [event.type for event in events] == ["Warning"]
    assert says in events[0].message
    assert len(world.created) == 1, "no storm of attempts"


REJECTIONS = [
    (
        'pods "c-head-x7k2p" is forbidden: exceeded quota: team, requested: requests.cpu=4, used: 0, limited: 2',
        *("QuotaExceeded", "requested: requests.cpu=4"),
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


@pytest.mark.parametrize(("message", "reason", "says"), REJECTIONS)
@pytest.mark.parametrize("who", ["cluster", "submitter"])
def test_rejected_pods_are_reported(message: str, reason: str, says: str, who: str) -> None:
    world = starting()
    if who == "cluster":
        failure = RayClusterFacts("c", replica_failure=message)
        world.change(world.child, ray_cluster=failure)
    else:
        world.change(world.child, submitter_failure=message)
    world.settle()
    assert (world.state, world.reason()) == ("Starting", reason)
    assert says in world.events_with(reason)[0].message
    assert ("submitter" in world.status["message"]) == (who == "submitter")


def test_rejections_that_name_another_pod_each_time_write_nothing() -> None:
    world = starting()

    def reject(pod_name: str) -> None:
        message = f'pods "{pod_name}" is forbidden: exceeded quota: team'
        failure = RayClusterFacts("c", replica_failure=message)
        world.change(world.child, ray_cluster=failure)
        world.settle()

    reject("c-head-aaaaa")
    before = world.status
    reject("c-head-bbbbb")
    assert world.status == before


def test_two_texts_of_the_kubelet_for_one_image_write_once() -> None:
    world = starting()
    world.pods(pod("head", waiting=("ErrImagePull", "failed to pull and unpack: not found"))).settle()
    before = world.status
    world.pods(pod("head", waiting=("ImagePullBackOff", 'Back-off pulling image "x"'))).settle()
    assert world.status == before
    assert len(world.events_with("ImagePullFailed")) == 1
    assert "hindcast-runtime:0.1.0" in world.events_with("ImagePullFailed")[0].message


def test_kuberay_that_does_not_answer_is_reported_within_a_minute() -> None:
    world = World()
    decision = world.settle()
    assert decision.requeue_at is not None
    assert (decision.requeue_at - world.now).total_seconds() == 45
    world.now = decision.requeue_at
    world.settle()
    assert (world.state, world.reason()) == ("Starting", "KubeRayNotAnswering")
    assert len(world.events_with("KubeRayNotAnswering")) == 1
    world.job(deployment_status="Initializing").settle()
    assert world.reason() == "ClusterStarting"


def test_a_cause_that_goes_is_no_longer_reported() -> None:
    world = starting()
    world.pods(pod("head", waiting=("CreateContainerConfigError", 'secret "s3" not found'))).settle()
    world.pods(pod("head", phase="Running", ready=True)).settle()
    assert world.reason() == "ClusterStarting"
    world.beat().settle()
    assert world.reason("ClusterReady") == "ClusterReady"


def test_the_head_is_reported_before_the_workers() -> None:
    world = starting()
    world.pods(
        pod("learner", unschedulable="Insufficient nvidia.com/gpu"),
        pod("head", waiting=("ImagePullBackOff", "")),
    ).settle()
    assert world.reason() == "ImagePullFailed"


def test_pods_on_their_way_out_are_not_reported() -> None:
    world = starting()
    world.pods(pod("data", unschedulable="Insufficient cpu", deleting=True)).settle()
    assert world.reason() == "ClusterStarting"


# -- memory --------------------------------------------------------------------------------------------------
def test_a_killed_data_worker_is_reported_while_the_run_continues() -> None:
    world = running()
    killed = pod("data", phase="Failed", out_of_memory=True)
    world.pods(*world.attempt.pods, killed).settle()
    assert (world.state, world.reason("ClusterReady")) == ("Running", "OutOfMemory")
    assert "spec.cluster.resources.dataWorker.memory" in world.events_with("OutOfMemory")[0].message
    world.up().settle()
    assert world.reason("ClusterReady") == "ClusterReady"


def test_a_killed_head_is_remembered_when_its_pod_has_gone() -> None:
    world = running()
    killed = pod("head", phase="Failed", out_of_memory=True)
    world.pods(killed).settle()
    world.tick(2).over("FAILED").settle()
    world.tick(10).settle()
    assert (world.state, world.status["runs"][0]["reason"]) == ("Retrying", "OutOfMemory")
    assert "spec.cluster.resources.head.memory" in world.status["message"]


def test_the_size_that_a_pool_has_is_reported() -> None:
    world = running()
    memory = {"value": "3Gi", "reason": "a window"}
    world.status["resolved"] = {"pools": {"learner": {"memory": memory}}}
    world.end("Lost", "OutOfMemory", "A learner ran out of memory and was killed.", pool="learner").settle()
    assert "raise spec.cluster.resources.learner.memory (now 3Gi)" in world.status["message"]


def test_a_reported_size_is_not_repeated() -> None:
    world = running()
    message = "Out of memory; raise spec.cluster.resources.dataWorker.memory (now 2Gi)"
    world.end("Lost", "OutOfMemory", message).settle()
    assert world.status["runs"][0]["message"] == message


def test_the_sizes_of_an_attempt_are_in_the_status() -> None:
    world = starting()
    pools = world.status["resolved"]["pools"]
    assert set(pools) >= {"head", "learner"}
    killed = pod("learner", phase="Failed", out_of_memory=True)
    world.pods(killed).settle()
    assert f"(now {pools['learner']['memory']['value']})" in world.status["message"]


# -- the end of it -------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("job_reason", "seconds", "outcome", "reason"),
    [
        ("SubmissionFailed", 10, "Lost", "SubmissionFailed"),
        ("AppFailed", 10, "Lost", "LostDriver"),
        ("PreRunningDeadlineExceeded", 2700, "Lost", "StartDeadlineExceeded"),
        ("DeadlineExceeded", 6300, "Failed", "DeadlineExceeded"),
        ("PreRunningDeadlineExceeded", 1700, "Lost", "LostDriver"),
        ("DeadlineExceeded", 3500, "Lost", "LostDriver"),
    ],
)
def test_how_kuberay_ends_a_rayjob(job_reason: str, seconds: int, outcome: str, reason: str) -> None:
    """By a deadline that has not passed, since the spec's was raised, no run is over."""
    world = World(runPolicy={"activeDeadlineSeconds": 3600})
    world.settle()
    world.up().tick(seconds).over("FAILED", job_reason).tick(10).settle()
    run = world.status["runs"][0]
    assert (run["outcome"], run["reason"]) == (outcome, reason)


def test_quotes_are_one_short_line() -> None:
    world = starting()
    world.pods(pod("head", unschedulable="0/1 nodes:\n" + "very " * 400)).settle()
    assert "\n" not in world.status["message"]
    assert len(world.status["message"]) < 600
    assert all(len(event.message) <= 1000 for event in world.events)


def test_every_reason_of_the_runtime_is_known() -> None:
    from typing import get_args

    from hindcast.api.attempt import AttemptReason

    assert set(get_args(AttemptReason)) <= {reason.value for reason in Reason}


def test_a_recording_names_its_own_pools() -> None:
    from plan_world import RECORDING

    world = World(RECORDING)
    world.settle()
    killed = pod("runner", phase="Failed", out_of_memory=True)
    world.pods(replace(killed, name="r")).settle()
    assert "spec.cluster.resources.runner.memory" in world.status["message"]
    assert TRAINING["kind"] not in world.status["message"]
