"""Each reason of docs/reasons.md, reached by a running operator, and what other tools say of the status then."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import pytest
from fake_kuberay import SUCCESS_OUTCOME, FakeKubeRay, Outcome, PlayKubeRay, current_timestamp
from operator_process import RunOperator
from resources import VERSION, TeamNamespace, make_recording, make_training
from verdicts import check_verdicts

from api_server import MERGE, Object, RefusalError, collection, wait_for
from hindcast.api.attempt import POOL_LABEL
from hindcast_operator.names import NAME_LABEL, make_labels
from hindcast_operator.planning.reasons import Reason

SHORT_TIMES = """
from hindcast.api.run_policy import RunPolicy
from hindcast_operator.control import observe, startup, verdicts
from hindcast_operator.planning import attempts, diagnosis, runs
RunPolicy.rules = ()  # allows a short stallTimeoutSeconds
startup._FIRST_RETRY_SECONDS = startup._MAX_RETRY_SECONDS = 2.0
startup._EVENT_INTERVALS_SECONDS, startup._NORMAL_START_SECONDS = (1.0,), 0.0
verdicts._MAX_VERDICTS = 1
observe._SILENCE_SECONDS = 2.0
attempts.GANG_SECONDS, attempts.HEADLESS_SECONDS = 1, 300
diagnosis.KUBERAY_SILENCE_SECONDS = 3
runs.MIN_LONG_PAUSE_SECONDS = runs.MAX_LONG_PAUSE_SECONDS = 1
"""
"""Code that shortens what the operator waits for."""
ELSEWHERE = {Reason.KUBERAY_NOT_INSTALLED, Reason.WATCH_FORBIDDEN}
"""Reasons that all resources of a namespace have at once; tests of their own check them."""


@dataclass(frozen=True)
class Target:
    """The resource of a case, which has the reason's name, and its first attempt."""

    team: TeamNamespace
    kuberay: FakeKubeRay
    resource: Object

    @property
    def name(self) -> str:
        return str(self.resource["metadata"]["name"])

    @property
    def child(self) -> str:
        return f"{self.name}-r1-1"

    @property
    def labels(self) -> dict[str, str]:
        return make_labels(self.resource["kind"], self.name, 1, 1)

    def edit(self, **changes: Any) -> None:
        """Change fields of the spec."""
        self.team.apply(self.resource | {"spec": self.resource["spec"] | changes})

    def change_job(self, change: Object) -> None:
        path = collection("ray.io/v1", "rayjobs", self.team.namespace)
        self.team.api.request("PATCH", f"{path}/{self.child}", change, MERGE)

    def create(self, document: Object, status: Object | None = None) -> None:
        """Create an object of the attempt, with a status."""
        created = self.team.api.create(document, self.team.namespace)
        if status:
            self.team.api.merge(created, {"status": status}, "/status")

    def create_pod(self, pool: str, status: Object) -> None:
        """Create a pod of the attempt with a status; without one, the scheduler finds no node for it."""
        metadata = {
            "name": f"{self.name}-{pool}-{len(status)}",
            "labels": self.labels | {POOL_LABEL: pool},
        }
        # A gate keeps the scheduler away. Kubernetes would delete a pod on a node that does not exist.
        gates = {"schedulingGates": [{"name": "example.com/status-of-test"}]}
        node = gates if status else {"nodeSelector": {"no": "such-node"}}
        spec = {"containers": [{"name": "ray", "image": "ray"}]} | node
        self.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}, status)


Act = Callable[[Target], None]


def edit(**changes: Any) -> Act:
    return lambda target: target.edit(**changes)


def add_pod(**status: Any) -> Act:
    return lambda target: target.create_pod("runner", status)


def wait_in_container(reason: str) -> Act:
    """Give the attempt a pod whose container waits for this reason."""
    state = {"waiting": {"reason": reason, "message": "x"}}
    container = {"name": "ray", "image": "ray", "imageID": "", "ready": False, "restartCount": 0}
    return add_pod(phase="Pending", containerStatuses=[container | {"state": state}])


def conditions(**statuses: str) -> list[Object]:
    return [
        {"type": type_, "status": status, "lastTransitionTime": current_timestamp()}
        for type_, status in statuses.items()
    ]


def fail_mount(target: Target) -> None:
    target.create_pod("runner", {"phase": "Pending"})
    pod = {"kind": "Pod", "namespace": target.team.namespace, "name": f"{target.name}-runner-1"}
    event = {"metadata": {"name": target.name}, "reason": "FailedMount", "message": "no Secret"}
    target.create({"apiVersion": "v1", "kind": "Event", "involvedObject": pod, "type": "Warning"} | event)


def refuse_pods(message: str) -> Act:
    """Give the attempt a RayCluster whose pods the API server rejects."""

    def act(target: Target) -> None:
        job = target.team.api.get("RayJob", target.team.namespace, target.child)
        (condition,) = conditions(ReplicaFailure="True")
        cluster = {
            "apiVersion": "ray.io/v1",
            "kind": "RayCluster",
            "metadata": {"name": target.child, "labels": target.labels},
            "spec": job["spec"]["rayClusterSpec"],
        }
        target.create(cluster, {"conditions": [condition | {"reason": "FailedCreate", "message": message}]})

    return act


def split_gang(target: Target) -> None:
    """Let one learner have a node, and another one find none."""
    target.create_pod("learner", {"phase": "Pending", "conditions": conditions(PodScheduled="True")})
    target.create_pod("learner", {})


def end_job(**status: str) -> Act:
    """Let KubeRay report the end of the RayJob, without a report of the attempt."""
    return lambda target: target.kuberay.set_status(target.child, **status)


def queue(target: Target) -> None:
    """Suspend the RayJob, as Kueue does."""
    target.change_job({"spec": {"suspend": True}})


def keep_lost_job(target: Target) -> None:
    """Let the RayJob end without a report, and stay after its deletion."""
    target.change_job({"metadata": {"finalizers": ["example.com/keep"]}})
    target.kuberay.set_status(target.child, jobDeploymentStatus="Failed", jobStatus="FAILED")


def delete_account(target: Target) -> None:
    time.sleep(1.1)  # the API server's timestamps have whole seconds
    path = collection("v1", "serviceaccounts", target.team.namespace)
    target.team.api.delete(f"{path}/{target.name}-recording")


def report_without_progress(target: Target) -> None:
    with suppress(RefusalError):  # the attempt has just been ended
        target.kuberay.write_report(target.child, lastProgressTime="2026-01-01T00:00:00Z")


def pass_start_deadline(target: Target) -> None:
    """Shorten the deadline once KubeRay has processed the RayJob: its silence would be a lasting cause."""
    with suppress(RefusalError):  # the attempt has just been ended
        job = target.team.api.get("RayJob", target.team.namespace, target.child)
        if job.get("status", {}).get("jobDeploymentStatus") == "Initializing":
            target.edit(runPolicy={"startDeadlineSeconds": 1})


def fall_silent_later(target: Target) -> None:
    """Fall silent after another attempt has been ended for it."""
    if target.team.status(make_recording("no-heartbeat")).get("state") == "Retrying":
        target.edit(runPolicy={"stallTimeoutSeconds": 1})


def change_hashes(target: Target) -> None:
    """Let the attempt be of another spec, as after an edit that the CRD of an earlier version allowed."""
    runs = target.team.status(target.resource)["runs"]
    hashes = {"specHash": "0" * 16, "courseHash": "0" * 16}
    resource = target.resource | {"metadata": {"name": target.name, "namespace": target.team.namespace}}
    target.team.api.merge(resource, {"status": {"runs": [runs[0] | hashes]}}, "/status")


@dataclass(frozen=True)
class Case:
    """How a resource comes to have a reason in its status.

    Attributes:
        state: its state then.
        spec: fields of its spec.
        act: what is done once the first attempt is in the state `start`.
        start: see `act`; "Created": the attempt's RayJob exists.
        is_repeated: `act` is done again and again while that state lasts.
        outcome: outcome that its attempts report.
        last_status: deployment status at which its first RayJob stays.
        reference: recording to which it refers; it is then a training.
        is_event: only an event names the reason.
    """

    state: str
    spec: Object = field(default_factory=dict)
    act: Act | None = None
    _: KW_ONLY
    start: str = "Running"
    is_repeated: bool = False
    outcome: Outcome | None = None
    last_status: str | None = None
    reference: str | None = None
    is_event: bool = False


def ends(state: str, reason: Reason) -> Case:
    """Return the case of an attempt that reports its end with the reason."""
    outcome = {"state": state, "reason": str(reason), "message": "spec.cluster"}
    return Case("Retrying" if state == "Lost" else state, outcome=outcome)


def stays(act: Act | None = None) -> Case:
    """Return the case of an attempt that does not start."""
    return Case("Starting", act=act, start="Created", last_status="Initializing")


LOST: Outcome = {"state": "Lost", "reason": "WorkerLost", "message": "Lost a node"}
CASES = {
    Reason.ACCEPTED: Case("Pending"),  # like CREATION_FAILING, before the second try
    Reason.ATTEMPT_CREATED: Case("Running", is_event=True),
    Reason.REFERENCE_MISSING: Case("Waiting", reference="absent"),
    Reason.REFERENCE_UNFINISHED: Case("Waiting", reference="suspended"),
    Reason.INPUTS_READY: Case("Running", reference="succeeded"),
    Reason.QUEUED: Case("Queued", act=queue, start="Created", last_status=""),
    Reason.CLUSTER_STARTING: stays(),
    Reason.CLUSTER_READY: Case("Running"),
    Reason.RUNNING: Case("Running"),
    Reason.RETRYING: Case("Retrying", outcome=LOST),
    Reason.CLEANING_UP: Case("Retrying", act=keep_lost_job),
    Reason.SUSPENDING: Case("Suspending", act=edit(suspend=True), last_status="Running"),
    Reason.SUSPENDED: Case("Suspended", {"suspend": True}),
    Reason.PREEMPTED: Case("Running", act=queue),
    Reason.SUPERSEDED: Case("Running", act=edit(revision=2)),
    Reason.SUCCEEDED: Case("Succeeded", outcome=SUCCESS_OUTCOME),
    Reason.ALREADY_FINISHED: Case("Succeeded", outcome=SUCCESS_OUTCOME | {"reason": "AlreadyFinished"}),
    Reason.INVALID_SPEC: ends("Failed", Reason.INVALID_SPEC),
    Reason.INVALID_DATA: ends("Failed", Reason.INVALID_DATA),
    Reason.OUTPUT_CONFLICT: ends("Failed", Reason.OUTPUT_CONFLICT),
    Reason.USER_CODE_FAILED: ends("Failed", Reason.USER_CODE_FAILED),
    Reason.NO_CUDA_DEVICE: ends("Failed", Reason.NO_CUDA_DEVICE),
    Reason.INTERNAL_ERROR: ends("Failed", Reason.INTERNAL_ERROR),
    Reason.BACKOFF_LIMIT_EXCEEDED: Case("Failed", {"runPolicy": {"backoffLimit": 0}}, outcome=LOST),
    Reason.DEADLINE_EXCEEDED: Case("Failed", {"runPolicy": {"activeDeadlineSeconds": 1}}),
    Reason.INVALID_RAY_JOB: Case("Failed", act=end_job(jobDeploymentStatus="ValidationFailed")),
    Reason.DEPENDENCY_FAILED: Case("Stalled", reference="user-code-failed"),
    Reason.CIRCULAR_REFERENCE: Case("Stalled", reference="circle"),
    Reason.REFUSED_BY_PLATFORM: Case("Stalled", {"output": {"path": "relative"}}),
    Reason.NAME_CONFLICT: Case("Stalled"),
    Reason.CREATION_REFUSED: Case("Stalled"),
    Reason.CREATION_FAILING: Case("Pending"),
    Reason.SPEC_CHANGED: Case("Running", act=change_hashes),
    Reason.DEADLINES_REFUSED: Case(
        "Running", act=edit(runPolicy={"ttlSecondsAfterFinished": 60}), is_event=True
    ),
    Reason.CHANGE_WAITS: Case("Running", act=edit(runners={"replicas": 3})),
    Reason.KUBERAY_NOT_ANSWERING: Case("Starting", last_status=""),
    Reason.UNSCHEDULABLE: stays(add_pod()),
    Reason.IMAGE_PULL_FAILED: stays(wait_in_container("ErrImagePull")),
    Reason.CONTAINER_CONFIG_INVALID: stays(wait_in_container("CreateContainerConfigError")),
    Reason.MOUNT_FAILED: stays(fail_mount),
    Reason.CONTAINER_START_FAILED: stays(wait_in_container("CrashLoopBackOff")),
    Reason.QUOTA_EXCEEDED: stays(refuse_pods("pods x is forbidden: exceeded quota: none")),
    Reason.REPORT_UNREADABLE: Case(
        "Running", act=lambda target: target.kuberay.write_report(target.child, progress="far")
    ),
    Reason.TOKEN_OUTDATED: Case("Running", act=delete_account),
    Reason.MANY_RUNS_SILENT: Case("Running", act=fall_silent_later, is_repeated=True),
    Reason.POD_SECURITY_VIOLATION: stays(refuse_pods("violates PodSecurity")),
    Reason.PODS_REFUSED: stays(refuse_pods("a webhook says no")),
    Reason.OUT_OF_MEMORY: ends("Lost", Reason.OUT_OF_MEMORY),
    Reason.EVICTED: stays(add_pod(phase="Failed", reason="Evicted")),
    Reason.DISRUPTED: stays(add_pod(phase="Pending", conditions=conditions(DisruptionTarget="True"))),
    Reason.GPUS_RELEASED: Case("Retrying", act=split_gang, start="Created", last_status="Initializing"),
    Reason.NODE_UNREACHABLE: stays(
        add_pod(phase="Running", conditions=conditions(Ready="False", ContainersReady="True"))
    ),
    Reason.WORKER_LOST: ends("Lost", Reason.WORKER_LOST),
    # After the third attempt that has not reached storage.
    Reason.STORAGE_UNAVAILABLE: Case("Stalled", outcome=LOST | {"reason": "StorageUnavailable"}),
    Reason.STORAGE_FAILED: ends("Lost", Reason.STORAGE_FAILED),
    Reason.TERMINATED: ends("Lost", Reason.TERMINATED),
    Reason.LOST_DRIVER: Case("Retrying", act=end_job(jobDeploymentStatus="Failed", jobStatus="FAILED")),
    Reason.NO_HEARTBEAT: Case("Retrying", {"runPolicy": {"stallTimeoutSeconds": 1}}),
    Reason.NO_PROGRESS: Case(
        "Retrying", {"runPolicy": {"stallTimeoutSeconds": 5}}, report_without_progress, is_repeated=True
    ),
    Reason.START_DEADLINE_EXCEEDED: Case(
        "Retrying",
        act=pass_start_deadline,
        start="Created",
        is_repeated=True,
        last_status="Initializing",
    ),
    Reason.RAY_JOB_DELETED: Case("Retrying", act=lambda target: target.team.delete_ray_job(target.child)),
    Reason.SUBMISSION_FAILED: Case(
        "Retrying", act=end_job(jobDeploymentStatus="Failed", reason="SubmissionFailed")
    ),
}
"""Reason -> case. `verdicts.VERDICTS` has the verdicts in its state."""


@pytest.mark.timeout(240)
def test_each_reason_has_the_verdicts_of_its_state(
    team: TeamNamespace, run_operator: RunOperator, play_kuberay: PlayKubeRay
) -> None:
    assert CASES.keys() | ELSEWHERE == set(Reason)
    names = {reason: re.sub("(?<!^)(?=[A-Z])", "-", reason).lower() for reason in CASES}
    outcomes = {names[reason]: case.outcome for reason, case in CASES.items()}
    kuberay = play_kuberay(lambda child: outcomes.get(child.rpartition("-r1-")[0]))
    kuberay.first_report = {}  # without progress: no attempt reaches storage
    targets = {}
    for reason, case in CASES.items():
        reference = {"recordingRef": {"name": case.reference}}
        name = names[reason]
        resource = (
            make_training(name, input=[reference]) if case.reference else make_recording(name, **case.spec)
        )
        targets[reason] = target = Target(team, kuberay, resource)
        if case.last_status is not None:
            kuberay.last_statuses[target.child] = case.last_status
    seen: dict[Reason, Object] = {}
    acted: set[Reason] = set()
    with refused_jobs(team), run_operator(setup=SHORT_TIMES):
        conflict = {"name": targets[Reason.NAME_CONFLICT].child}
        team.api.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": conflict}, team.namespace)
        team.apply(make_recording("circle", policy={"trainingRef": {"name": "circular-reference"}}))
        for target in targets.values():
            team.apply(target.resource)
        try:
            wait_for(lambda: _look(targets, seen, acted) == CASES.keys(), "all reasons", 100)
        finally:
            print("not seen:", CASES.keys() - seen.keys())
    targets[Reason.CLEANING_UP].change_job({"metadata": {"finalizers": None}})
    check_verdicts(*seen.values())


def _look(targets: dict[Reason, Target], seen: dict[Reason, Object], acted: set[Reason]) -> set[Reason]:
    """Add the resources that now have the reason and the state of their case to `seen`; do what cases do next.

    Return the reasons seen.
    """
    (team,) = {target.team for target in targets.values()}
    resources = {
        item["metadata"]["name"]: item
        for plural in ("offlinerecordings", "offlinetrainings")
        for item in team.api.request("GET", collection(VERSION, plural, team.namespace))["items"]
    }
    events = {
        (event["involvedObject"]["name"], event["reason"])
        for event in team.api.request("GET", collection("v1", "events", team.namespace))["items"]
    }
    for reason in CASES.keys() - seen.keys():
        case, target = CASES[reason], targets[reason]
        resource = resources[target.name]
        status = resource.get("status") or {}
        entries = (*status.get("conditions", ()), *status.get("runs", ()))
        is_named = any(entry.get("reason") == reason for entry in entries)
        if case.is_event:
            is_named = (target.name, reason) in events
        is_observed = status.get("observedGeneration") == resource["metadata"]["generation"]
        if is_named and is_observed and status["state"] == case.state:
            seen[reason] = resource
        is_due = status.get("rayJobName") if case.start == "Created" else status.get("state") == case.start
        if case.act and is_due and (reason not in acted or case.is_repeated):
            acted.add(reason)
            case.act(target)
    return set(seen)


@contextmanager
def refused_jobs(team: TeamNamespace) -> Iterator[None]:
    """Refuse RayJobs of some cases, or their changes; for others, a webhook that they need does not answer."""
    api, group = team.api, "admissionregistration.k8s.io/v1"
    labels = f"object.metadata.labels['{NAME_LABEL}']"
    namespace = {"matchLabels": {"kubernetes.io/metadata.name": team.namespace}}
    rule = {"apiGroups": ["ray.io"], "apiVersions": ["v1"], "resources": ["rayjobs"]}
    metadata = {"name": team.namespace}

    def select(*names: str) -> Object:
        expressions = [{"key": NAME_LABEL, "operator": "In", "values": names}]
        return {"namespaceSelector": namespace, "objectSelector": {"matchExpressions": expressions}}

    refused = select("creation-refused", "deadlines-refused")
    expression = f"{labels} != (request.operation == 'CREATE' ? 'creation-refused' : 'deadlines-refused')"
    webhook = {
        "name": "away.example.com",
        "clientConfig": {"url": "https://127.0.0.1:1/validate"},
        "rules": [rule | {"operations": ["CREATE"]}],
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    documents: list[Object] = [
        {
            "kind": "ValidatingAdmissionPolicy",
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": refused
                | {"resourceRules": [rule | {"operations": ["CREATE", "UPDATE"]}]},
                "validations": [{"expression": expression}],
            },
        },
        {
            "kind": "ValidatingAdmissionPolicyBinding",
            "spec": {"policyName": team.namespace, "validationActions": ["Deny"]},
        },
        {
            "kind": "ValidatingWebhookConfiguration",
            "webhooks": [webhook | select("accepted", "creation-failing")],
        },
    ]
    manifests = [{"apiVersion": group, "metadata": metadata} | document for document in documents]
    for manifest in manifests:
        api.create(manifest)

    def is_refused(name: str) -> bool:
        probe = {
            "apiVersion": "ray.io/v1",
            "kind": "RayJob",
            "metadata": {"name": name, "labels": {NAME_LABEL: name}},
        }
        try:
            api.create(probe | {"spec": {}}, team.namespace, dryRun="All")
        except RefusalError as refusal:
            return team.namespace in refusal.message or webhook["name"] in refusal.message
        return False

    try:
        # The API server reads new policies and webhooks in its own time.
        for name in ("creation-refused", "creation-failing"):
            wait_for(lambda name=name: is_refused(name), f"{name} is refused")
        yield
    finally:
        for manifest in manifests:
            api.delete(f"{api.path_of(manifest)}/{team.namespace}")
