"""What was observed of one resource and all that belongs to it: plain values, taken at one moment."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal

from hindcast.api import OfflineRecording, OfflineTraining
from hindcast.api.attempt import Pool, Report, ResolvedInput
from hindcast.api.run_policy import RunPolicy

KubeRay = Literal["Ready", "NotInstalled"]
DEADLINE_FIELDS: Final = ("ttlSecondsAfterFinished", "preRunningDeadlineSeconds", "activeDeadlineSeconds")
"""Fields of a RayJob that may change while it runs: KubeRay reads them each time it looks at it."""


@dataclass(frozen=True)
class ObjectFacts:
    """An object that has, or should have, the resource as its controller.

    Attributes:
        owner_uid: uid of its controller; None where it has none.
        deleting: it has a deletion timestamp.
    """

    name: str
    uid: str
    owner_uid: str | None
    deleting: bool

    def is_current(self, uid: str) -> bool:
        """Whether it is the own object of the resource of that uid, and is not being deleted."""
        return self.owner_uid == uid and not self.deleting


@dataclass(frozen=True)
class RayJobFacts(ObjectFacts):
    """A RayJob.

    Attributes:
        suspended: `spec.suspend`, which belongs to Kueue.
        job_status: Ray's view: "", PENDING, RUNNING, STOPPED, SUCCEEDED, FAILED.
        deployment_status: KubeRay's: "", Initializing, Waiting, Running, Complete, Failed, Suspending, Suspended,
            Retrying, ValidationFailed.
        reason: of a failure, one word.
        message: may contain logs of the job: never copied, except of ValidationFailed.
        started: `status.startTime`: when KubeRay began with it; of a queued one, after it was let in.
        ended: `status.endTime`.
        deadlines: KubeRay's own: those of `DEADLINES` that its spec has.
    """

    created: datetime
    suspended: bool = False
    job_status: str = ""
    deployment_status: str = ""
    reason: str = ""
    message: str = ""
    started: datetime | None = None
    ended: datetime | None = None
    deadlines: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class RayClusterFacts:
    """The RayCluster of a RayJob.

    Attributes:
        replica_failure: why pods cannot be made (quota, Pod Security).
    """

    name: str
    replica_failure: str | None = None


@dataclass(frozen=True)
class PodFacts:
    """A pod of an attempt.

    Attributes:
        pool: its pool, or `submitter`.
        phase: Pending, Running, Succeeded, Failed, Unknown.
        reason: of a failed pod: `Evicted`, `NodeLost`, `Preempting` …
        ready: all containers are ready.
        deleting: it has a deletion timestamp.
        unreachable_since: since when its node has been unreachable.
        unschedulable: the scheduler's message.
        waiting: reason and message of the first container (init containers first) that waits:
            `ImagePullBackOff`, `CreateContainerConfigError` …
        mount_failure: the latest FailedMount or FailedAttachVolume event's message, of a pod whose containers
            do not start.
        out_of_memory: a container was killed for memory, now or before its last restart.
    """

    name: str
    pool: Pool | Literal["submitter"]
    created: datetime
    phase: str
    ready: bool = False
    deleting: bool = False
    reason: str = ""
    unreachable_since: datetime | None = None
    unschedulable: str | None = None
    waiting: tuple[str, str] | None = None
    mount_failure: str | None = None
    out_of_memory: bool = False


@dataclass(frozen=True)
class ConfigMapFacts(ObjectFacts):
    """An attempt's ConfigMap.

    Attributes:
        intent: what the operator wants of the attempt.
        report: what the attempt says; None before its first beat, or where it cannot be read.
        beat_seen: when this operator first saw the report's beat.
        moved_seen: when this operator first saw the report's progress where it is.
    """

    intent: str = ""
    report: Report | None = None
    beat_seen: datetime | None = None
    moved_seen: datetime | None = None


@dataclass(frozen=True)
class AttemptFacts:
    """All that exists of an attempt; nothing of one that is gone or was never created.

    Attributes:
        submitter_failure: why the submitter's Job cannot make its pod (quota, Pod Security): the event's message.
        conflict: an object that has a name the attempt needs and is not ours: `Kind/name` and owner.
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
        state: `Circular` is one that has not started and refers to this one.
        input: what it provides, once it is complete.
    """

    kind: str
    name: str
    state: Literal["Missing", "Circular", "Unfinished", "Complete", "Failed"]
    input: ResolvedInput | None = None


@dataclass(frozen=True)
class Facts:
    """What was observed of one resource.

    Attributes:
        resource: as the user wrote it; None where it is not valid, for `problems`.
        problems: what is wrong with it that admission could not see.
        status: the current `.status`, plain.
        deleting: it has a deletion timestamp.
        kuberay: whether the API server knows RayJobs.
        attempts: by child name: those in `status.runs` that are not known to be gone, and the next one.
        references: the resources it refers to.
        now: the time.
        suspend: its `spec.suspend`, also where `resource` is None.
        run_policy: its `spec.runPolicy` likewise.
    """

    kind: str
    namespace: str
    name: str
    uid: str
    generation: int
    resource: OfflineRecording | OfflineTraining | None
    problems: tuple[str, ...]
    status: Mapping[str, Any]
    deleting: bool
    kuberay: KubeRay
    attempts: Mapping[str, AttemptFacts]
    references: tuple[ReferenceFacts, ...]
    now: datetime
    suspend: bool
    run_policy: RunPolicy
