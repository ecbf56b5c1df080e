"""A simulated cluster with one resource, in which plans are observed and executed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

from hindcast.api import OfflineRecording, OfflineTraining
from hindcast.api.attempt import AttemptOutcome, Report, ResolvedInput
from hindcast.api.loading import validate_resource
from hindcast.api.run_policy import RunPolicy
from hindcast.api.status import CheckpointStatus, OutputStatus, ProgressStatus
from hindcast_operator.control.startup import AttemptPulse
from hindcast_operator.decision import (
    Action,
    CreateAttempt,
    Decision,
    DeleteAttempt,
    Event,
    RestoreAttempt,
    SetDeadlines,
    SetIntent,
)
from hindcast_operator.defaults import Defaults
from hindcast_operator.facts import (
    AttemptFacts,
    ConfigMapFacts,
    Facts,
    PodFacts,
    RayClusterFacts,
    RayJobFacts,
    ReferenceFacts,
)
from hindcast_operator.manifests import ray_job_deadlines
from hindcast_operator.planning import plain_status, plan, read_status, watched_children
from hindcast_operator.planning.attempts import is_gone

START = datetime(2026, 11, 21, 6, 0, tzinfo=UTC)
UID = "0a1b2c3d-0000-4000-8000-000000000001"
DEFAULTS = Defaults(storage_root="s3://bucket/hindcast")

RECORDING: dict[str, Any] = {
    "apiVersion": "hindcast.dev/v1alpha1",
    "kind": "OfflineRecording",
    "metadata": {"name": "cartpole", "namespace": "rl"},
    "spec": {
        "environment": {"id": "CartPole-v1"},
        "policy": {"random": {}},
        "duration": {"episodes": 10},
        "output": {"path": "s3://bucket/cartpole"},
    },
}
TRAINING: dict[str, Any] = {
    "apiVersion": "hindcast.dev/v1alpha1",
    "kind": "OfflineTraining",
    "metadata": {"name": "cartpole-bc", "namespace": "rl"},
    "spec": {
        "algorithm": "BC",
        "input": [{"path": "s3://bucket/cartpole"}],
        "learners": {"replicas": 1, "gpus": 1},
        "stop": {"iterations": 100},
        "checkpoint": {"path": "s3://bucket/runs"},
    },
}
REFERRING_TRAINING: dict[str, Any] = {
    **TRAINING,
    "spec": {**TRAINING["spec"], "input": [{"recordingRef": {"name": "cartpole"}}]},
}


def make_reference(state: str = "Complete") -> ReferenceFacts:
    """Return the facts about the recording to which `REFERRING_TRAINING` refers."""
    resolved_input = ResolvedInput(
        path="s3://bucket/cartpole", episodes=10, timesteps=2000, bytes=64000, digest="d1"
    )
    return ReferenceFacts(
        "OfflineRecording",
        "cartpole",
        state,  # type: ignore[arg-type]
        resolved_input if state == "Complete" else None,
        ring=("OfflineTraining/cartpole", "OfflineRecording/cartpole") if state == "Circular" else (),
    )


class World:
    """A cluster with one resource. `reconcile` executes one decision; `settle` repeats this until nothing changes."""

    def __init__(self, resource: dict[str, Any] | None = None, defaults: Defaults = DEFAULTS, **spec: Any):
        template = resource or TRAINING
        self.manifest = {**template, "spec": {**template["spec"], **spec}}
        self.defaults = defaults
        self.uid = UID
        self.generation = 1
        self.status: dict[str, Any] = {"observedGeneration": -1}
        self.attempts: dict[str, AttemptFacts] = {}
        self.references: tuple[ReferenceFacts, ...] = ()
        self.problems: tuple[str, ...] = ()
        self.has_kuberay = True
        self.forbidden_kinds: dict[str, str] = {}
        self.is_deleting = False
        self.has_full_queue = False
        """Kueue keeps new RayJobs queued if this is True."""
        self.has_slow_deletion = False
        """If this is True, RayJobs that are being deleted and their pods exist until `finish_deletion`."""
        self.now = START
        self.created_children: list[str] = []
        """Names of all attempts with a RayJob, in the order of creation."""
        self.events: list[Event] = []
        self._validated: tuple[dict[str, Any], OfflineRecording | OfflineTraining] | None = None
        self._uids = count(1)
        self._pulses: defaultdict[str, AttemptPulse] = defaultdict(AttemptPulse)

    # -- observation and execution of plans ------------------------------------------------------------------
    @property
    def resource(self) -> OfflineRecording | OfflineTraining | None:
        """The manifest as a resource; it is validated once, because `edit_spec` replaces it."""
        if self._validated is None or self._validated[0] is not self.manifest:
            self._validated = self.manifest, validate_resource(self.manifest)
        return None if self.problems else self._validated[1]

    def observe(self) -> Facts:
        for child in self.attempts:
            self._pulses[child].update(self.attempts[child], self.now)
            self.attempts[child] = replace(
                self.attempts[child],
                beat_seen_at=self._pulses[child].beat_seen_at,
                progress_seen_at=self._pulses[child].progress_seen_at,
            )
        kind, name = self.manifest["kind"], self.manifest["metadata"]["name"]
        watched_names = watched_children(kind, name, self.resource, read_status(self.status))
        children = {child: AttemptFacts(child) for child in watched_names} | self.attempts
        return Facts(
            kind=kind,
            namespace="rl",
            name=name,
            uid=self.uid,
            generation=self.generation,
            resource=self.resource,
            problems=self.problems,
            status=self.status,
            is_deleting=self.is_deleting,
            has_kuberay=self.has_kuberay,
            forbidden_kinds=self.forbidden_kinds,
            attempts=children,
            references=self.references,
            now=self.now,
            suspend=self.manifest["spec"].get("suspend", False),
            run_policy=RunPolicy.model_validate(self.manifest["spec"].get("runPolicy", {})),
        )

    def plan(self) -> Decision:
        return plan(self.observe(), self.defaults)

    def write_status(self, decision: Decision) -> bool:
        """Write the status of a decision. Return True if it changed."""
        new_status = plain_status(decision.status)
        has_changed = new_status != self.status
        self.status = new_status
        return has_changed

    def execute(self, action: Action) -> None:
        for _ in self.execute_stepwise(action):
            pass

    def execute_stepwise(self, action: Action) -> Iterator[None]:
        """Execute an action, and yield after each write, so that a test can kill the operator between two writes."""
        if isinstance(action, CreateAttempt | RestoreAttempt):
            yield from self._create(action)
        elif isinstance(action, DeleteAttempt):
            yield from self._delete(action)
        elif isinstance(action, SetDeadlines):
            self._set_deadlines(action)
            yield
        else:
            self._set_intent(action)
            yield

    def reconcile(self) -> Decision:
        decision = self.plan()
        self.write_status(decision)
        for action in decision.actions:
            self.execute(action)
        self.events += decision.events
        return decision

    def settle(self) -> Decision:
        for _ in range(12):
            state_before = (self.status, dict(self.attempts))
            decision = self.reconcile()
            if state_before == (self.status, self.attempts):
                return decision
        raise AssertionError(f"the status still changes after 12 reconciliations: {self.status}")

    def _create(self, action: CreateAttempt | RestoreAttempt) -> Iterator[None]:
        attempt, child_name = action.attempt, action.attempt.ray_job_name
        attempt_facts = self.attempts.get(child_name, AttemptFacts(child_name))
        if attempt_facts.config_map is None:
            config_map = ConfigMapFacts(
                child_name, f"cm-{next(self._uids)}", owner_uid=attempt.uid, is_deleting=False
            )
            self.attempts[child_name] = attempt_facts = replace(attempt_facts, config_map=config_map)
            yield
        if not attempt_facts.has_access:
            self.attempts[child_name] = attempt_facts = replace(attempt_facts, has_access=True)
            yield
        if isinstance(action, CreateAttempt) and attempt_facts.ray_job is None:
            job = RayJobFacts(
                child_name,
                f"job-{next(self._uids)}",
                owner_uid=attempt.uid,
                is_deleting=False,
                created_at=self.now,
                is_suspended=self.has_full_queue,
                deadlines=ray_job_deadlines(action.resource.spec.run_policy),
            )
            self.attempts[child_name] = replace(attempt_facts, ray_job=job)
            self.created_children.append(child_name)
            yield

    def _delete(self, action: DeleteAttempt) -> Iterator[None]:
        attempt_facts = self.attempts.get(action.child_name)
        if attempt_facts is None:
            return
        if attempt_facts.ray_job is not None and not attempt_facts.ray_job.is_deleting:
            pods = tuple(replace(pod, is_deleting=True) for pod in attempt_facts.pods)
            attempt_facts = self.change_attempt(
                action.child_name, ray_job=replace(attempt_facts.ray_job, is_deleting=True), pods=pods
            )
            if not self.has_slow_deletion:
                attempt_facts = self.finish_deletion(action.child_name)
            yield
        if attempt_facts is not None and attempt_facts.config_map is not None and not action.keep_config_map:
            self.change_attempt(action.child_name, config_map=None)
            yield

    def _set_intent(self, action: SetIntent) -> None:
        attempt_facts = self.attempts.get(action.child_name)
        if attempt_facts is not None and attempt_facts.config_map is not None:
            self.change_attempt(
                action.child_name, config_map=replace(attempt_facts.config_map, intent=action.intent)
            )

    def _set_deadlines(self, action: SetDeadlines) -> None:
        attempt_facts = self.attempts.get(action.child_name)
        if attempt_facts is not None and attempt_facts.ray_job is not None:
            deadlines_or_none = {**attempt_facts.ray_job.deadlines, **action.deadlines}
            new_deadlines = {
                name: seconds for name, seconds in deadlines_or_none.items() if seconds is not None
            }
            self.change_attempt(
                action.child_name, ray_job=replace(attempt_facts.ray_job, deadlines=new_deadlines)
            )

    # -- changes by KubeRay, the attempt and the user --------------------------------------------------------
    @property
    def child_name(self) -> str:
        """Name of the latest attempt's RayJob and ConfigMap."""
        return self.run["rayJobName"]

    @property
    def attempt(self) -> AttemptFacts:
        """The objects of the latest attempt."""
        return self.attempts[self.child_name]

    def change_attempt(self, child_name: str, **fields: Any) -> AttemptFacts | None:
        """Change facts about an attempt. Return them, or None if no object of the attempt exists any more."""
        attempt_facts = replace(self.attempts[child_name], **fields)
        if attempt_facts.ray_job is None and attempt_facts.config_map is None and not attempt_facts.pods:
            del self.attempts[child_name]
            return None
        self.attempts[child_name] = attempt_facts
        return attempt_facts

    def update_job(self, **fields: Any) -> World:
        job = self.attempt.ray_job
        assert job is not None
        self.change_attempt(self.child_name, ray_job=replace(job, **fields))
        return self

    def delete_job(self) -> World:
        self.change_attempt(self.child_name, ray_job=None, ray_cluster=None, pods=())
        return self

    def set_pods(self, *pods: PodFacts) -> World:
        self.change_attempt(self.child_name, pods=pods)
        return self

    def start_pods(self) -> World:
        """Let KubeRay create the cluster and start all pods."""
        self.update_job(deployment_status="Running", job_status="RUNNING", started_at=self.now)
        self.change_attempt(self.child_name, ray_cluster=RayClusterFacts(f"{self.child_name}-abcde"))
        return self.set_pods(
            make_pod("head", phase="Running", is_ready=True),
            make_pod("learner", phase="Running", is_ready=True),
        )

    def send_report(self, number: int | None = None, *, has_progress: bool = True, **fields: Any) -> World:
        """Let the attempt report; `fields` are those of `Report`. Without progress, the time of progress stays."""
        config_map = self.attempt.config_map
        assert config_map is not None
        last_report = config_map.report
        timestamp = self.now.strftime("%Y-%m-%dT%H:%M:%SZ")
        report = Report(
            number=number or (1 if last_report is None else last_report.number + 1),
            report_time=timestamp,
            last_progress_time=timestamp
            if has_progress or last_report is None
            else last_report.last_progress_time,
            **{"stage": "Training", **fields},
        )
        config_map = replace(
            config_map, report=report, beat=str(report.number), progress=report.last_progress_time
        )
        self.change_attempt(self.child_name, config_map=config_map)
        return self

    def report_end(self, state: str, reason: str, message: str = "The end.", **fields: Any) -> World:
        """Let the attempt report its end and the RayJob end."""
        outcome = AttemptOutcome(state=state, reason=reason, message=message, pool=fields.pop("pool", None))  # type: ignore[arg-type]
        self.send_report(outcome=outcome, **fields)
        return self.finish_job("SUCCEEDED" if state in ("Succeeded", "Suspended") else "FAILED")

    def finish_job(self, job_status: str = "FAILED", reason: str = "") -> World:
        """Let KubeRay finish the RayJob and delete its cluster."""
        status = "Complete" if job_status == "SUCCEEDED" else "Failed"
        self.update_job(deployment_status=status, job_status=job_status, reason=reason, ended_at=self.now)
        self.change_attempt(self.child_name, pods=(), ray_cluster=None)
        return self

    def advance(self, seconds: float) -> World:
        self.now += timedelta(seconds=seconds)
        return self

    def settle_at(self, time: datetime | None) -> Decision:
        """Advance to the time for which a decision has requested a reconciliation, and settle."""
        assert time is not None
        self.now = time
        return self.settle()

    def edit_spec(self, **spec: Any) -> World:
        self.manifest = {**self.manifest, "spec": {**self.manifest["spec"], **spec}}
        self.generation += 1
        return self

    def finish_deletion(self, child_name: str) -> AttemptFacts | None:
        """Remove a RayJob that is being deleted, and its pods. Return what `change_attempt` returns."""
        return self.change_attempt(child_name, ray_job=None, ray_cluster=None, pods=())

    # -- the state of the cluster ----------------------------------------------------------------------------
    def find_condition(self, type_: str) -> dict[str, Any] | None:
        return next((entry for entry in self.status["conditions"] if entry["type"] == type_), None)

    def find_reason(self, type_: str = "Ready") -> str | None:
        condition = self.find_condition(type_)
        return None if condition is None else condition["reason"]

    @property
    def condition_statuses(self) -> dict[str, str]:
        """Type of each condition -> its status."""
        return {entry["type"]: entry["status"] for entry in self.status["conditions"]}

    @property
    def state(self) -> str:
        return self.status["state"]

    @property
    def run(self) -> dict[str, Any]:
        """The entry of the latest attempt in the status."""
        return self.status["runs"][0]

    @property
    def live_children(self) -> list[str]:
        """Names of attempts that may still write."""
        return [child for child, attempt in self.attempts.items() if not is_gone(attempt, self.now)]

    def events_with(self, reason: str) -> list[Event]:
        return [event for event in self.events if event.reason == reason]


def make_pod(pool: str, **fields: Any) -> PodFacts:
    values = {"name": f"cluster-{pool}-x7k2p", "created_at": START, "phase": "Pending", **fields}
    return PodFacts(pool=pool, **values)  # type: ignore[arg-type]


PROGRESS = ProgressStatus(iteration=5, percentage=5.0, summary="5/100 iterations", metrics={"loss": 0.5})
CHECKPOINT = CheckpointStatus(path="s3://bucket/runs/cartpole-bc/r1/checkpoints/checkpoint-50", iteration=5)
OUTPUT = OutputStatus(path="s3://bucket/cartpole", episodes=10, timesteps=2000, bytes=64000, digest="d1")


def make_running_world(**spec: Any) -> World:
    """Build the world of a training with a first attempt that has reported."""
    world = World(**spec)
    world.settle()
    world.start_pods().settle()
    world.advance(20).send_report(progress=PROGRESS, checkpoint=CHECKPOINT).settle()
    return world
