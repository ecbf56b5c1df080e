"""Facts: plain values observed at one moment about one resource and the objects that belong to it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal

from hindcast.api import OfflineRecording, OfflineTraining
from hindcast.api.attempt import Pool, Report, ResolvedInput
from hindcast.api.run_policy import RunPolicy

KubeRay = Literal["Ready", "NotInstalled"]
DEADLINE_FIELDS: Final = ("ttlSecondsAfterFinished", "preRunningDeadlineSeconds", "activeDeadlineSeconds")
"""Fields of a RayJob's spec that may change while it runs: KubeRay reads them in every reconciliation."""


@dataclass(frozen=True)
class ObjectFacts:
    """An object that has, or should have, the resource as its controller.

    Attributes:
        owner_uid: uid of its controller; None if it has no controller.
        is_deleting: it has a deletion timestamp.
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
        message: message of a failure. It may contain logs of the job, so it is only copied for ValidationFailed.
        started_at: `status.startTime`: when KubeRay first processed it; if it was queued, after its admission.
        ended_at: `status.endTime`.
        deadlines: KubeRay's own deadlines: the fields in `DEADLINE_FIELDS` that its spec sets.
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
        replica_failure: why pods cannot be created (quota, Pod Security).
    """

    name: str
    replica_failure: str | None = None


@dataclass(frozen=True)
class PodFacts:
    """A pod of an attempt.

    Attributes:
        pool: its pool, or `submitter`.
        created_at: `metadata.creationTimestamp`.
        phase: Pending, Running, Succeeded, Failed, Unknown.
        is_ready: all containers are ready.
        is_deleting: it has a deletion timestamp.
        reason: reason of a failed pod: `Evicted`, `NodeLost`, `Preempting` …
        unreachable_since: the time since which its node has been unreachable; None if it is reachable.
        scheduling_failure: the scheduler's message if no node fits.
        container_wait: reason and message of the first waiting container (init containers first):
            `ImagePullBackOff`, `CreateContainerConfigError` …
        mount_failure: message of the latest FailedMount or FailedAttachVolume event, if the containers do not start.
        is_oom_killed: a container was killed because it ran out of memory, now or before its last restart.
    """

    name: str
    pool: Pool | Literal["submitter"]
    created_at: datetime
    phase: str
    is_ready: bool = False
    is_deleting: bool = False
    reason: str = ""
    unreachable_since: datetime | None = None
    scheduling_failure: str | None = None
    container_wait: tuple[str, str] | None = None
    mount_failure: str | None = None
    is_oom_killed: bool = False


@dataclass(frozen=True)
class ConfigMapFacts(ObjectFacts):
    """An attempt's ConfigMap.

    Attributes:
        intent: the operator's request to the attempt.
        report: the attempt's latest report; None before its first heartbeat, or if it cannot be parsed.
        beat_seen_at: when this operator first saw a report with this number: each report is a heartbeat.
        progress_seen_at: when this operator first saw a report with this time of progress.
    """

    intent: str = ""
    report: Report | None = None
    beat_seen_at: datetime | None = None
    progress_seen_at: datetime | None = None


@dataclass(frozen=True)
class AttemptFacts:
    """The objects of an attempt; None for objects that do not exist.

    Attributes:
        child: name of its RayJob and of its ConfigMap.
        submitter_failure: why the submitter's Job cannot create its pod (quota, Pod Security): the event's message.
        conflict: `Kind/name` and owner of a foreign object that has a name the attempt needs.
        refusal: why the API server refused to create one of its objects: one sentence.
    """

    child: str
    config_map: ConfigMapFacts | None = None
    ray_job: RayJobFacts | None = None
    ray_cluster: RayClusterFacts | None = None
    pods: tuple[PodFacts, ...] = ()
    submitter_failure: str | None = None
    conflict: str | None = None
    refusal: str | None = None


@dataclass(frozen=True)
class ReferenceFacts:
    """A resource that this one refers to.

    Attributes:
        state: `Circular` means that it has not started and refers back to this resource.
        input: the input that it provides, once it is complete.
    """

    kind: str
    name: str
    state: Literal["Missing", "Circular", "Unfinished", "Complete", "Failed"]
    input: ResolvedInput | None = None


@dataclass(frozen=True)
class Facts:
    """All facts about one resource.

    Attributes:
        resource: as the user wrote it; None if it is not valid, for the reasons in `problems`.
        problems: errors in its spec that admission could not detect.
        status: the current `.status`, as JSON values.
        is_deleting: it has a deletion timestamp.
        kuberay: `Ready` if the API server serves RayJobs.
        attempts: by child name: the latest attempt, the next one, and earlier ones that still have objects.
        references: the resources that it refers to.
        now: the time of the observation.
        suspend: `spec.suspend`, also if `resource` is None.
        run_policy: `spec.runPolicy`, also if `resource` is None.
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
    kuberay: KubeRay
    attempts: Mapping[str, AttemptFacts]
    references: tuple[ReferenceFacts, ...]
    now: datetime
    suspend: bool
    run_policy: RunPolicy
