"""All reasons of conditions, events and entries of `status.runs`, each with a remedy."""

from enum import StrEnum
from typing import Literal

EventType = Literal["Normal", "Warning"]


class Reason(StrEnum):
    """A reason: a word, which is the value, and the rest of a row in `docs/reasons.md`.

    Attributes:
        type: type of the event that announces the reason.
        meaning: what happened.
        action: what the reader should do; "nothing" if no action is needed.
    """

    type: EventType
    meaning: str
    action: str

    def __new__(cls, word: str, type: EventType, meaning: str, action: str) -> "Reason":
        member = str.__new__(cls, word)
        member._value_ = word
        member.type, member.meaning, member.action = type, meaning, action
        return member

    @classmethod
    def from_word(cls, word: str) -> "Reason":
        """Return the reason with this word. Raises ValueError if no reason has it."""
        return cls(word)  # type: ignore[call-arg]

    # Each row: word, type of the event, meaning, action.
    # fmt: off
    # -- in progress -----------------------------------------------------------------------------------------
    ACCEPTED = "Accepted", "Normal", "The resource was accepted; its attempt is being created.", "nothing"
    ATTEMPT_CREATED = "AttemptCreated", "Normal", "An attempt and its RayJob are created.", "nothing"
    REFERENCE_MISSING = ("ReferenceMissing", "Warning",
        "A recording or training to which the resource refers does not exist.",
        "create the missing resource, or correct the name; the run starts once that resource is complete")
    REFERENCE_UNFINISHED = ("ReferenceUnfinished", "Normal",
        "A recording or training to which the resource refers is not complete yet.",
        "nothing")
    INPUTS_READY = "InputsReady", "Normal", "Every resource to which this one refers is complete.", "nothing"
    QUEUED = ("Queued", "Normal", "Kueue keeps the RayJob queued until there is quota; no deadline applies.",
        "nothing; `kubectl get workloads` shows the queue")
    CLUSTER_STARTING = ("ClusterStarting", "Normal", "The pods are starting; the attempt has not reported yet.",
        "nothing")
    CLUSTER_READY = "ClusterReady", "Normal", "The pods are running and the attempt is reporting.", "nothing"
    RUNNING = "Running", "Normal", "The attempt is reporting.", "nothing"
    RETRYING = "Retrying", "Normal", "An attempt was lost; the next one starts after a pause.", "nothing"
    CLEANING_UP = ("CleaningUp", "Normal", "Pods and objects of an earlier attempt or resource are being deleted.",
        "nothing; on an unreachable node it takes up to 5 minutes")
    SUSPENDING = ("Suspending", "Normal", "The attempt was asked to save a checkpoint and stop.",
        "nothing; it stops after runPolicy.suspendGraceSeconds at the latest")
    SUSPENDED = ("Suspended", "Normal", "spec.suspend is true: no pods; the checkpoint is kept.",
        "set spec.suspend to false to resume")
    PREEMPTED = ("Preempted", "Normal", "Kueue preempted a running attempt.",
        "nothing; the next attempt is queued and resumes from the last checkpoint")
    SUPERSEDED = ("Superseded", "Normal", "spec.revision was raised during the run; the attempt was deleted.",
        "nothing; the new revision starts")

    # -- finished --------------------------------------------------------------------------------------------
    SUCCEEDED = "Succeeded", "Normal", "The run is complete.", "nothing"
    ALREADY_FINISHED = ("AlreadyFinished", "Normal", "The output already has the success marker of this run.",
        "nothing; raise spec.revision to run again")
    INVALID_SPEC = ("InvalidSpec", "Warning", "The spec is wrong in a way that admission cannot see.",
        "correct the field that the message names; raise spec.revision if the run had started")
    INVALID_DATA = ("InvalidData", "Warning", "The data cannot be used.",
        "fix the data or the input that the message names, and raise spec.revision")
    OUTPUT_CONFLICT = ("OutputConflict", "Warning", "The output folder contains the results of another spec.",
        "raise spec.revision; for a recording, also set another output.path or output.onExisting: Replace")
    USER_CODE_FAILED = ("UserCodeFailed", "Warning", "An exception in the user's code; never retried.",
        "fix the code at the file and line that the message names, and raise spec.revision")
    NO_CUDA_DEVICE = ("NoCudaDevice", "Warning", "A learner has a GPU but finds no CUDA device.",
        "fix the node's driver or the image, or set spec.learners.device: cpu; raise spec.revision")
    INTERNAL_ERROR = ("InternalError", "Warning", "A bug in Hindcast.",
        "report it with the run's log (`hindcast logs KIND/NAME`)")
    BACKOFF_LIMIT_EXCEEDED = ("BackoffLimitExceeded", "Warning",
        "More attempts were lost than runPolicy.backoffLimit allows.",
        "fix the cause of the last loss, and raise spec.revision")
    DEADLINE_EXCEEDED = ("DeadlineExceeded", "Warning",
        "All attempts together exceeded runPolicy.activeDeadlineSeconds.",
        "raise the deadline or enlarge the pools, and raise spec.revision")
    START_DEADLINE_EXCEEDED = ("StartDeadlineExceeded", "Warning", "No report within runPolicy.startDeadlineSeconds.",
        "fix what the message names, and raise spec.revision; without a known cause it is retried")
    INVALID_RAY_JOB = ("InvalidRayJob", "Warning", "KubeRay rejected the RayJob (ValidationFailed).",
        "correct the field (often podOverrides) that the message names, and raise spec.revision")

    # -- stalled: somebody must act, then the run continues by itself ----------------------------------------
    DEPENDENCY_FAILED = ("DependencyFailed", "Warning",
        "A recording or training to which the resource refers has failed.",
        "fix the other resource and raise its spec.revision; this one continues when the other is complete")
    CIRCULAR_REFERENCE = ("CircularReference", "Warning",
        "The resource and one to which it refers wait for each other.",
        "remove one of the two references")
    REFUSED_BY_PLATFORM = ("RefusedByPlatform", "Warning", "The platform does not allow what the spec asks for.",
        "change the field that the message names, or ask for a change of the chart's values")
    NAME_CONFLICT = ("NameConflict", "Warning", "An object of another owner has a name that the attempt needs.",
        "rename the resource or delete that object")
    CREATION_REFUSED = ("CreationRefused", "Warning", "The API server refused to create one of the attempt's objects.",
        "resolve what the message says (quota, policy, RBAC); it is retried every minute")
    SPEC_CHANGED = ("SpecChanged", "Warning",
        "Run-defining fields changed at the same revision; the run is not affected.",
        "raise spec.revision to run with the change, or revert it")
    CHANGE_WAITS = ("ChangeWaits", "Normal", "Operational fields changed; the running attempt keeps its settings.",
        "nothing; they apply from the next attempt on (set spec.suspend to true and back to start one now)")

    # -- what a starting or running attempt may lack; awaited until the start deadline -----------------------
    KUBERAY_NOT_INSTALLED = ("KubeRayNotInstalled", "Warning", "KubeRay is not installed.",
        "install KubeRay 1.6 or later; the run then continues by itself")
    KUBERAY_NOT_ANSWERING = ("KubeRayNotAnswering", "Warning", "KubeRay has not processed the RayJob for 45 seconds.",
        "check the KubeRay operator's pod and log, and the namespaces that it watches")
    UNSCHEDULABLE = ("Unschedulable", "Warning", "No node that a pod may use has room for it.",
        "add nodes, or change the resources, node selector or tolerations that the message names")
    IMAGE_PULL_FAILED = ("ImagePullFailed", "Warning", "The runtime image cannot be pulled.",
        "correct spec.cluster.image or imagePullSecrets")
    CONTAINER_CONFIG_INVALID = ("ContainerConfigInvalid", "Warning",
        "A Secret, ConfigMap or key that a container needs is missing.",
        "create it; the pod then starts by itself")
    MOUNT_FAILED = ("MountFailed", "Warning", "A volume cannot be mounted: often a missing ConfigMap, Secret or claim.",
        "create what the message names; the pod then starts by itself")
    CONTAINER_START_FAILED = ("ContainerStartFailed", "Warning", "A container cannot start, or keeps crashing.",
        "inspect the pod: `kubectl describe pod` and `kubectl logs`")
    QUOTA_EXCEEDED = ("QuotaExceeded", "Warning", "A ResourceQuota or LimitRange rejected a pod.",
        "free or raise the namespace's quota")
    POD_SECURITY_VIOLATION = ("PodSecurityViolation", "Warning", "The namespace's Pod Security level rejected a pod.",
        "remove what the message names from podOverrides, or change the namespace's level")
    PODS_REFUSED = ("PodsRefused", "Warning", "The API server rejected a pod.",
        "resolve what the message says (admission webhooks, policies)")

    # -- how attempts are lost -------------------------------------------------------------------------------
    OUT_OF_MEMORY = ("OutOfMemory", "Warning", "A container or worker process ran out of memory and was killed.",
        "raise the memory that the message names (it applies from the next attempt on)")
    EVICTED = ("Evicted", "Warning", "A node evicted a pod: disk, memory or a drain.",
        "nothing; if it recurs, raise the pool's ephemeralStorage or memory")
    NODE_UNREACHABLE = ("NodeUnreachable", "Warning", "A node is unreachable.",
        "nothing; after 5 minutes the attempt counts as lost")
    WORKER_LOST = "WorkerLost", "Warning", "A Ray worker or its node was lost.", "nothing; it is retried"
    STORAGE_UNAVAILABLE = ("StorageUnavailable", "Warning",
        "Storage did not answer, or was failing, for longer than the runtime retries.",
        "nothing, unless its address is wrong; it is retried every 2 minutes, regardless of runPolicy.backoffLimit")
    STORAGE_FAILED = ("StorageFailed", "Warning", "Storage rejected a request.",
        "correct what the message names; it is retried")
    TERMINATED = "Terminated", "Warning", "The driver was terminated.", "nothing; it is retried"
    LOST_DRIVER = ("LostDriver", "Warning", "The RayJob or its head ended without a final report from the attempt.",
        "nothing, it is retried; `hindcast logs KIND/NAME` shows how far it got")
    NO_HEARTBEAT = ("NoHeartbeat", "Warning", "No report for runPolicy.stallTimeoutSeconds.",
        "nothing, it is retried; check the head's node if it recurs")
    NO_PROGRESS = ("NoProgress", "Warning",
        "The attempt reports, but has made no progress for runPolicy.stallTimeoutSeconds.",
        "raise the timeout if the run needs this long between two signs of progress; the attempt is retried")
    RAY_JOB_DELETED = ("RayJobDeleted", "Warning",
        "A user or another controller deleted the RayJob of a running attempt.",
        "nothing, it is retried; use spec.suspend to stop a run")
    SUBMISSION_FAILED = ("SubmissionFailed", "Warning", "KubeRay could not submit the job to the Ray cluster.",
        "nothing, it is retried; check the submitter's log if it recurs")
    # fmt: on
