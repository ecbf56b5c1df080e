"""All reasons of conditions, events and entries of `status.runs`, each with a remedy."""

from enum import StrEnum
from typing import Literal

EventType = Literal["Normal", "Warning"]
Effect = Literal["waits", "lost", "lost, not counted", "final"]
"""Meaning of a reason for the run. "waits": it goes on, or waits, perhaps for a person. "lost": the attempt is lost and
another one starts, which counts against `backoffLimit` unless "not counted". "final": only a higher revision runs."""


class Reason(StrEnum):
    """A reason: a word, which is the value, and the rest of a row in `docs/reasons.md`.

    Attributes:
        type: type of the event that announces the reason.
        effect: what it means for the run.
        meaning: what happened.
        action: what the reader should do; "nothing" if no action is needed.
    """

    type: EventType
    effect: Effect
    meaning: str
    action: str

    def __new__(cls, word: str, type: EventType, effect: Effect, meaning: str, action: str) -> "Reason":
        member = str.__new__(cls, word)
        member._value_ = word
        member.type, member.effect, member.meaning, member.action = type, effect, meaning, action
        return member

    @classmethod
    def _missing_(cls, value: object) -> "Reason":
        """Return a reason for a word of another version of the operator or the runtime."""
        text = "A reason of another version of Hindcast."
        member = str.__new__(cls, value)
        member._name_ = member._value_ = str(value)
        member.type, member.effect, member.meaning, member.action = "Warning", "lost", text, "nothing"
        return member

    @classmethod
    def from_word(cls, word: str) -> "Reason":
        """Return the reason with this word, which may be of another version."""
        return cls(word)  # type: ignore[call-arg]

    # Each row: word, type of the event, effect, meaning, action.
    # fmt: off
    # -- in progress -----------------------------------------------------------------------------------------
    ACCEPTED = "Accepted", "Normal", "waits", "The resource was accepted; its attempt is being created.", "nothing"
    ATTEMPT_CREATED = "AttemptCreated", "Normal", "waits", "An attempt and its RayJob are created.", "nothing"
    REFERENCE_MISSING = ("ReferenceMissing", "Warning", "waits",
        "A recording or training to which the resource refers does not exist.",
        "create the missing resource, or correct the name; the run starts once that resource is complete")
    REFERENCE_UNFINISHED = ("ReferenceUnfinished", "Normal", "waits",
        "A recording or training to which the resource refers is not complete yet.",
        "nothing")
    INPUTS_READY = "InputsReady", "Normal", "waits", "Every resource to which this one refers is complete.", "nothing"
    QUEUED = ("Queued", "Normal", "waits", "Kueue keeps the RayJob queued until there is quota; no deadline applies.",
        "nothing; `kubectl get workloads` shows the queue")
    CLUSTER_STARTING = ("ClusterStarting", "Normal", "waits",
        "The pods are starting; the attempt has not reported yet.",
        "nothing")
    CLUSTER_READY = "ClusterReady", "Normal", "waits", "The pods are running and the attempt is reporting.", "nothing"
    RUNNING = "Running", "Normal", "waits", "The attempt is reporting.", "nothing"
    RETRYING = "Retrying", "Normal", "waits", "An attempt was lost; the next one starts after a pause.", "nothing"
    CLEANING_UP = ("CleaningUp", "Normal", "waits",
        "Pods and objects of an earlier attempt or resource are being deleted.",
        "nothing; on an unreachable node it takes up to 5 minutes")
    SUSPENDING = ("Suspending", "Normal", "waits", "The attempt was asked to save a checkpoint and stop.",
        "nothing; it stops after runPolicy.suspendGraceSeconds at the latest")
    SUSPENDED = ("Suspended", "Normal", "waits", "spec.suspend is true: no pods; the checkpoint is kept.",
        "set spec.suspend to false to resume")
    PREEMPTED = ("Preempted", "Normal", "lost, not counted", "Kueue preempted a running attempt.",
        "nothing; the next attempt is queued and resumes from the last checkpoint")
    SUPERSEDED = ("Superseded", "Normal", "lost, not counted",
        "spec.revision was raised during the run; the attempt was deleted.",
        "nothing; the new revision starts")

    # -- finished --------------------------------------------------------------------------------------------
    SUCCEEDED = "Succeeded", "Normal", "final", "The run is complete.", "nothing"
    ALREADY_FINISHED = ("AlreadyFinished", "Normal", "final", "The output already has the success marker of this run.",
        "nothing; raise spec.revision to run again")
    INVALID_SPEC = ("InvalidSpec", "Warning", "final", "The spec is wrong in a way that admission cannot see.",
        "correct the field that the message names; raise spec.revision if the run had started")
    INVALID_DATA = ("InvalidData", "Warning", "final", "The data cannot be used.",
        "fix the data or the input that the message names, and raise spec.revision")
    OUTPUT_CONFLICT = ("OutputConflict", "Warning", "final", "The output folder contains the results of another spec.",
        "raise spec.revision; for a recording, also set another output.path or output.onExisting: Replace")
    USER_CODE_FAILED = ("UserCodeFailed", "Warning", "final", "An exception in the user's code; never retried.",
        "fix the code at the file and line that the message names, and raise spec.revision")
    NO_CUDA_DEVICE = ("NoCudaDevice", "Warning", "final", "A learner has a GPU but finds no CUDA device.",
        "fix the node's driver or the image, or set spec.learners.device: cpu; raise spec.revision")
    INTERNAL_ERROR = ("InternalError", "Warning", "final", "A bug in Hindcast.",
        "report it with the run's log (`hindcast logs KIND/NAME`)")
    BACKOFF_LIMIT_EXCEEDED = ("BackoffLimitExceeded", "Warning", "final",
        "More attempts were lost than runPolicy.backoffLimit allows.",
        "fix the cause of the last loss, and raise spec.revision")
    DEADLINE_EXCEEDED = ("DeadlineExceeded", "Warning", "final",
        "All attempts together exceeded runPolicy.activeDeadlineSeconds.",
        "raise the deadline or enlarge the pools, and raise spec.revision")
    INVALID_RAY_JOB = ("InvalidRayJob", "Warning", "final", "KubeRay rejected the RayJob (ValidationFailed).",
        "correct the field (often podOverrides) that the message names, and raise spec.revision")

    # -- stalled: somebody must act, then the run continues by itself ----------------------------------------
    DEPENDENCY_FAILED = ("DependencyFailed", "Warning", "waits",
        "A recording or training to which the resource refers has failed.",
        "fix the other resource and raise its spec.revision; this one continues when the other is complete")
    CIRCULAR_REFERENCE = ("CircularReference", "Warning", "waits",
        "The resource and those to which it refers wait for each other.",
        "remove one of the references in the ring that the message names")
    REFUSED_BY_PLATFORM = ("RefusedByPlatform", "Warning", "waits",
        "The platform does not allow what the spec asks for.",
        "change the field that the message names, or ask for a change of the chart's values")
    NAME_CONFLICT = ("NameConflict", "Warning", "waits",
        "An object of another owner has a name that the attempt needs.",
        "rename the resource or delete that object")
    CREATION_REFUSED = ("CreationRefused", "Warning", "waits",
        "The API server refused to create one of the attempt's objects.",
        "resolve what the message says (quota, policy, RBAC); it is retried every minute")
    CREATION_FAILING = ("CreationFailing", "Warning", "waits",
        "The API server cannot create one of the attempt's objects: often a webhook (KubeRay, Kueue) does not answer.",
        "nothing, it is retried every minute; check what the message names if it lasts")
    SPEC_CHANGED = ("SpecChanged", "Warning", "waits",
        "Run-defining fields changed at the same revision; the run is not affected.",
        "raise spec.revision to run with the change, or revert it")
    DEADLINES_REFUSED = ("DeadlinesRefused", "Warning", "waits",
        "The API server refused changed deadlines of the RayJob, which only back up those of the operator.",
        "resolve what the message says; the operator itself applies the changed runPolicy")
    CHANGE_WAITS = ("ChangeWaits", "Normal", "waits",
        "Operational fields changed; the running attempt keeps its settings.",
        "nothing; they apply from the next attempt on (set spec.suspend to true and back to start one now)")

    # -- problems of a starting or running attempt, which waits until they are solved ------------------------
    KUBERAY_NOT_INSTALLED = ("KubeRayNotInstalled", "Warning", "waits", "KubeRay is not installed.",
        "install KubeRay 1.5.1 or later; the run then continues by itself")
    WATCH_FORBIDDEN = ("WatchForbidden", "Warning", "waits",
        "The operator may not watch some kinds of objects in the namespace, so it does not know what exists there.",
        "restore the operator's Role and RoleBinding (the chart's); the run then continues by itself")
    KUBERAY_NOT_ANSWERING = ("KubeRayNotAnswering", "Warning", "waits",
        "KubeRay has not processed the RayJob for 45 seconds.",
        "check the KubeRay operator's pod and log, and the namespaces that it watches")
    UNSCHEDULABLE = ("Unschedulable", "Warning", "waits", "No node that a pod may use has room for it.",
        "add nodes, or change the resources, node selector or tolerations that the message names")
    IMAGE_PULL_FAILED = ("ImagePullFailed", "Warning", "waits", "The runtime image cannot be pulled.",
        "correct spec.cluster.image or imagePullSecrets")
    CONTAINER_CONFIG_INVALID = ("ContainerConfigInvalid", "Warning", "waits",
        "A Secret, ConfigMap or key that a container needs is missing.",
        "create it; the pod then starts by itself")
    MOUNT_FAILED = ("MountFailed", "Warning", "waits",
        "A volume cannot be mounted: often a missing ConfigMap, Secret or claim.",
        "create what the message names; the pod then starts by itself")
    CONTAINER_START_FAILED = ("ContainerStartFailed", "Warning", "waits",
        "A container cannot start, or keeps crashing.",
        "inspect the pod: `kubectl describe pod` and `kubectl logs`")
    QUOTA_EXCEEDED = ("QuotaExceeded", "Warning", "waits", "A ResourceQuota or LimitRange rejected a pod.",
        "free or raise the namespace's quota")
    REPORT_UNREADABLE = ("ReportUnreadable", "Warning", "waits",
        "A part of the attempt's report cannot be read: the runtime is of another version.",
        "nothing, the run is not affected; bring the operator and spec.cluster.image to one version")
    TOKEN_OUTDATED = ("TokenOutdated", "Warning", "waits",
        "The run's ServiceAccount was deleted and created again, so the attempt cannot report for some minutes.",
        "nothing, the run is not affected; it reports again once the kubelet has renewed the token of its head")
    MANY_RUNS_SILENT = ("ManyRunsSilent", "Warning", "waits",
        "Many runs fell silent within a minute, so no further ones are ended for it during the next ten.",
        "check the clock of the operator, and the connections to the API server; `hindcast_verdicts_held` counts them")
    POD_SECURITY_VIOLATION = ("PodSecurityViolation", "Warning", "waits",
        "The namespace's Pod Security level rejected a pod.",
        "remove what the message names from podOverrides, or change the namespace's level")
    PODS_REFUSED = ("PodsRefused", "Warning", "waits", "The API server rejected a pod.",
        "resolve what the message says (admission webhooks, policies)")

    # -- how attempts are lost -------------------------------------------------------------------------------
    OUT_OF_MEMORY = ("OutOfMemory", "Warning", "lost",
        "A container or worker process ran out of memory and was killed.",
        "raise the memory that the message names (it applies from the next attempt on)")
    EVICTED = ("Evicted", "Warning", "lost", "A node evicted a pod because its disk or memory ran short.",
        "nothing; if it recurs, raise the pool's ephemeralStorage or memory")
    DISRUPTED = ("Disrupted", "Warning", "lost, not counted",
        "A pod had to leave its node: a drain, a preemption, a spot node that was taken back.",
        "nothing; the next attempt resumes from the last checkpoint")
    GPUS_RELEASED = ("GpusReleased", "Warning", "lost, not counted",
        "Some learners held GPUs for ten minutes while others found no node, so all were released.",
        "nothing; add GPU nodes, or lower spec.learners.replicas and raise spec.revision")
    NODE_UNREACHABLE = ("NodeUnreachable", "Warning", "lost, not counted", "A node is unreachable.",
        "nothing; after 5 minutes the attempt counts as lost")
    WORKER_LOST = "WorkerLost", "Warning", "lost", "A Ray worker or its node was lost.", "nothing; it is retried"
    STORAGE_UNAVAILABLE = ("StorageUnavailable", "Warning", "lost, not counted",
        "Storage did not answer, or was failing, for longer than the runtime retries.",
        "check its address and credentials if it lasts; it is retried, after pauses from 2 minutes up to an hour")
    STORAGE_FAILED = ("StorageFailed", "Warning", "lost", "Storage rejected a request.",
        "correct what the message names; it is retried")
    TERMINATED = "Terminated", "Warning", "lost", "The driver was terminated.", "nothing; it is retried"
    LOST_DRIVER = ("LostDriver", "Warning", "lost",
        "The RayJob or its head ended without a final report from the attempt.",
        "nothing, it is retried; `hindcast logs KIND/NAME` shows how far it got")
    NO_HEARTBEAT = ("NoHeartbeat", "Warning", "lost", "No report for runPolicy.stallTimeoutSeconds.",
        "nothing, it is retried; check the head's node if it recurs")
    NO_PROGRESS = ("NoProgress", "Warning", "lost",
        "The attempt reports, but has made no progress for runPolicy.stallTimeoutSeconds.",
        "raise the timeout if the run needs this long between two signs of progress; the attempt is retried")
    START_DEADLINE_EXCEEDED = ("StartDeadlineExceeded", "Warning", "lost",
        "No report within runPolicy.startDeadlineSeconds. If a lasting cause is known, the run fails.",
        "if it failed: fix what the message names or raise the deadline, and raise spec.revision; else it is retried")
    RAY_JOB_DELETED = ("RayJobDeleted", "Warning", "lost",
        "A user or another controller deleted the RayJob of a running attempt.",
        "nothing, it is retried; use spec.suspend to stop a run")
    SUBMISSION_FAILED = ("SubmissionFailed", "Warning", "lost", "KubeRay could not submit the job to the Ray cluster.",
        "nothing, it is retried; check the submitter's log if it recurs")
    # fmt: on
