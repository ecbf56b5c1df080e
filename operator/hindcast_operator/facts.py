"""Facts: plain values observed at one moment about one resource and the objects that belong to it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal

from hindcast.api import OfflineRecording, OfflineTraining
from hindcast.api.attempt import Pool, Report, ResolvedInput
from hindcast.api.run_policy import RunPolicy

DEADLINE_FIELDS: Final = ("ttlSecondsAfterFinished", "preRunningDeadlineSeconds", "activeDeadlineSeconds")
"""Fields of a RayJob's spec that may change while it runs: KubeRay reads them in every reconciliation."""


@dataclass(frozen=True)
class ObjectFacts:
    """An object that has, or should have, the resource as its controller.

    Attributes:
        owner_uid: uid of the object's controller; None if it has no controller.
        is_deleting: the object has a deletion timestamp.
    """

    name: str
    uid: str
    owner_uid: str | None
    is_deleting: bool

    def is_current(self, uid: str) -> bool:
        """Return True if the resource of that uid owns the object and it is not being deleted."""
        return self.owner_uid == uid and not self.is_deleting


@dataclass(frozen=True)
class RayJobFacts(ObjectFacts):
    """A RayJob.

    Attributes:
        created_at: `metadata.creationTimestamp`.
        is_suspended: `spec.suspend`, which only Kueue sets.
        job_status: Ray's view: "", PENDING, RUNNING, STOPPED, SUCCEEDED, FAILED.
        deployment_status: KubeRay's view: "", Initializing, Waiting, Running, Complete, Failed, Suspending, Suspended,
            Retrying, ValidationFailed.
        reason: reason of a failure, one word.
        message: message of a failure, at most 1,000 characters. It may contain logs of the job, so the status quotes
            only that of ValidationFailed.
        started_at: `status.startTime`: when KubeRay first processed the RayJob; for a queued one, after its admission.
        ended_at: `status.endTime`.
        deadlines: KubeRay's own deadlines: the fields in `DEADLINE_FIELDS` that the RayJob's spec sets, in seconds.
    """

    created_at: datetime
    is_suspended: bool = False
    job_status: str = ""
    deployment_status: str = ""
    reason: str = ""
    message: str = ""
    started_at: datetime | None = None
    ended_at: datetime | None = None
    deadlines: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class RayClusterFacts:
    """The RayCluster of a RayJob.

    Attributes:
        replica_failure: why pods cannot be created (quota, Pod Security); None if nothing prevents it.
    """

    name: str
    replica_failure: str | None = None


@dataclass(frozen=True)
class PodFacts:
    """A pod of an attempt.

    Attributes:
        pool: the pool to which the pod belongs, or `submitter`.
        created_at: `metadata.creationTimestamp`.
        phase: Pending, Running, Succeeded, Failed, Unknown.
        is_ready: the condition Ready is True.
        is_deleting: the pod has a deletion timestamp.
        reason: `status.reason`, such as `Evicted`, `NodeLost` or `Preempting`; empty if the pod has not failed.
        unreachable_since: the time since which the node has been unreachable. For a pod that is being deleted: the time
            by which a reachable node would have removed it. None if the node seems reachable.
        scheduled_at: when the pod got a node; None if it has none.
        scheduling_failure: the scheduler's message if no node fits.
        container_wait: reason and message of the first container (init containers first) that cannot start, such as
            `ImagePullBackOff` or `CreateContainerConfigError`; None if there is no such container.
        mount_failure: message of the latest FailedMount or FailedAttachVolume event, if the containers do not start.
        is_oom_killed: a container was killed because it ran out of memory, now or before its last restart.
        disrupted_at: since when the pod has to leave its node, not for its own memory or disk: a drain, a preemption,
            a spot node. None if it need not.
    """

    name: str
    pool: Pool | Literal["submitter"]
    created_at: datetime
    phase: str
    is_ready: bool = False
    is_deleting: bool = False
    reason: str = ""
    unreachable_since: datetime | None = None
    scheduled_at: datetime | None = None
    scheduling_failure: str | None = None
    container_wait: tuple[str, str] | None = None
    mount_failure: str | None = None
    is_oom_killed: bool = False
    disrupted_at: datetime | None = None


@dataclass(frozen=True)
class ConfigMapFacts(ObjectFacts):
    """An attempt's ConfigMap.

    Attributes:
        intent: the operator's request to the attempt; empty if there is none.
        report: the attempt's latest report, without the parts that cannot be read; None before its first heartbeat,
            or if nothing of it can be read.
        report_problem: why some of the report cannot be read; None if all can.
        beat: text that differs between any two reports, each of which is a heartbeat; empty without a report.
        progress: text that changes when the attempt makes progress; empty without a report.
    """

    intent: str = ""
    report: Report | None = None
    report_problem: str | None = None
    beat: str = ""
    progress: str = ""


@dataclass(frozen=True)
class CreationProblem:
    """Why an object of an attempt could not be created.

    Attributes:
        reason: `NameConflict`: another owner's object has its name. `CreationRefused`: the API server refused it.
            `CreationFailing`: the API server cannot create it for now, such as if a webhook does not answer.
        cause: `Kind/name (owner)` of the other object, or the API server's message.
    """

    reason: Literal["NameConflict", "CreationRefused", "CreationFailing"]
    cause: str


@dataclass(frozen=True)
class AttemptFacts:
    """The objects of an attempt; None for objects that do not exist.

    Attributes:
        child_name: name of the attempt's RayJob and of its ConfigMap.
        submitter_failure: why the submitter's Job cannot create its pod (quota, Pod Security): the event's message.
        creation_problem: why one of the attempt's objects could not be created; None if nothing prevents it.
        has_access: False if the ServiceAccount, Role or RoleBinding is missing that lets the attempt report. Only
            checked if no report arrives.
        token_renewal_time: when the pods have a token of their ServiceAccount again, which was deleted and created
            during the attempt; None if it was not, and while reports arrive.
        beat_seen_at: when this operator first saw the latest heartbeat; before the first one, when all pods were ready.
            None if that has not happened yet. It outlives reports that are missing or cannot be read.
        progress_seen_at: the same for progress.
    """

    child_name: str
    config_map: ConfigMapFacts | None = None
    ray_job: RayJobFacts | None = None
    ray_cluster: RayClusterFacts | None = None
    pods: tuple[PodFacts, ...] = ()
    submitter_failure: str | None = None
    creation_problem: CreationProblem | None = None
    has_access: bool = True
    token_renewal_time: datetime | None = None
    beat_seen_at: datetime | None = None
    progress_seen_at: datetime | None = None


@dataclass(frozen=True)
class ReferenceFacts:
    """A resource to which the observed resource refers.

    Attributes:
        state: `Circular` means that no resource of `ring` has started, because each waits for the next one.
        input: the input that the referenced resource provides, once it is complete; else None.
        ring: `Kind/name` of the resources that lead from the observed one back to it; empty if it is not Circular.
    """

    kind: str
    name: str
    state: Literal["Missing", "Circular", "Unfinished", "Complete", "Failed"]
    input: ResolvedInput | None = None
    ring: tuple[str, ...] = ()


@dataclass(frozen=True)
class Facts:
    """All facts about one resource.

    Attributes:
        resource: as the user wrote it; None if it is not valid, for the reasons in `problems`.
        problems: errors in the spec that admission could not detect.
        status: the current `.status`, as JSON values.
        is_deleting: the resource has a deletion timestamp.
        has_kuberay: the API server serves RayJobs.
        attempts: by child name: the latest attempt, the next one, and earlier ones that still have objects.
        references: the resources to which this one refers.
        now: the time of the observation.
        suspend: `spec.suspend`, also if `resource` is None.
        run_policy: `spec.runPolicy`, also if `resource` is None; the default policy if it cannot be parsed.
        forbidden_kinds: kinds that the operator may not watch in the namespace -> the API server's message.
        is_verdict_held: no attempt may be ended for its silence now, because too many were in the last minutes.
    """

    kind: str
    namespace: str
    name: str
    uid: str
    generation: int
    resource: OfflineRecording | OfflineTraining | None
    problems: tuple[str, ...]
    status: Mapping[str, Any]
    is_deleting: bool
    has_kuberay: bool
    attempts: Mapping[str, AttemptFacts]
    references: tuple[ReferenceFacts, ...]
    now: datetime
    suspend: bool
    run_policy: RunPolicy
    forbidden_kinds: Mapping[str, str] = field(default_factory=dict)
    is_verdict_held: bool = False
