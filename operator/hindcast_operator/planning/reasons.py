"""Why: every word that a condition, an event or a run's entry may give as its reason, with what to do about it."""

from enum import StrEnum
from typing import Literal

EventType = Literal["Normal", "Warning"]


class Reason(StrEnum):
    """A reason: its word, and what `docs/reasons.md` says of it.

    Attributes:
        type: of the event that announces it.
        meaning: what happened.
        action: what the reader should do; "nothing" where it goes on by itself.
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
    def of(cls, word: str) -> "Reason":
        """The reason of that word. Raises ValueError where there is none."""
        return cls(word)  # type: ignore[call-arg]

    # -- on the way ------------------------------------------------------------------------------------------
    ACCEPTED = "Accepted", "Normal", "The resource was seen; its attempt is being created.", "nothing"
    ATTEMPT_CREATED = "AttemptCreated", "Normal", "An attempt and its RayJob are created.", "nothing"
    REFERENCE_MISSING = (
        *("ReferenceMissing", "Warning", "A recording or training that it refers to does not exist."),
        "create it, or correct the name; the run begins when it is complete",
    )
    REFERENCE_UNFINISHED = (
        *("ReferenceUnfinished", "Normal", "A recording or training that it refers to is not complete yet."),
        "nothing",
    )
    INPUTS_READY = "InputsReady", "Normal", "All that it refers to is complete.", "nothing"
    QUEUED = (
        *("Queued", "Normal", "Kueue holds the RayJob back until there is quota; no deadline runs."),
        "nothing; `kubectl get workloads` shows the queue",
    )
    CLUSTER_STARTING = (
        *("ClusterStarting", "Normal", "The pods start; the attempt has not reported yet."),
        "nothing",
    )
    CLUSTER_READY = "ClusterReady", "Normal", "The pods run and the attempt reports.", "nothing"
    RUNNING = "Running", "Normal", "The attempt reports.", "nothing"
    RETRYING = "Retrying", "Normal", "An attempt was lost; the next one begins after a pause.", "nothing"
    CLEANING_UP = (
        *("CleaningUp", "Normal", "Pods and objects of an earlier attempt or resource are still going."),
        "nothing; on an unreachable node it takes up to 5 minutes",
    )
    SUSPENDING = (
        *("Suspending", "Normal", "The attempt was asked to checkpoint and end."),
        "nothing; it ends after runPolicy.suspendGraceSeconds at the latest",
    )
    SUSPENDED = (
        *("Suspended", "Normal", "spec.suspend is true: no pods; the checkpoint is kept."),
        "set spec.suspend to false to go on",
    )
    PREEMPTED = (
        *("Preempted", "Normal", "Kueue took the nodes of a running attempt away."),
        "nothing; the next attempt queues and goes on at the last checkpoint",
    )
    SUPERSEDED = (
        *("Superseded", "Normal", "spec.revision was raised while the run went on; it was deleted."),
        "nothing; the new revision starts",
    )

    # -- finished --------------------------------------------------------------------------------------------
    SUCCEEDED = "Succeeded", "Normal", "The run is complete.", "nothing"
    ALREADY_FINISHED = (
        *("AlreadyFinished", "Normal", "The output already carried the success marker of this run."),
        "nothing; raise spec.revision to run again",
    )
    INVALID_SPEC = (
        *("InvalidSpec", "Warning", "The spec is wrong in a way that admission cannot see."),
        "correct the field that the message names; raise spec.revision if the run had started",
    )
    INVALID_DATA = (
        *("InvalidData", "Warning", "The data cannot be used."),
        "mend the data or the input that the message names, and raise spec.revision",
    )
    OUTPUT_CONFLICT = (
        *("OutputConflict", "Warning", "The output folder holds the results of another spec."),
        "choose another path, or raise spec.revision",
    )
    USER_CODE_FAILED = (
        *("UserCodeFailed", "Warning", "An exception in the user's own code; never retried."),
        "correct the code at the file and line that the message names, and raise spec.revision",
    )
    NO_CUDA_DEVICE = (
        *("NoCudaDevice", "Warning", "A learner was given a GPU and finds no CUDA device."),
        "mend the node's driver or the image, or set spec.learners.device: cpu; raise spec.revision",
    )
    INTERNAL_ERROR = (
        *("InternalError", "Warning", "A defect of Hindcast."),
        "report it with the run's log (`hindcast logs KIND/NAME`)",
    )
    BACKOFF_LIMIT_EXCEEDED = (
        *("BackoffLimitExceeded", "Warning", "As many attempts were lost as runPolicy.backoffLimit allows."),
        "mend the cause of the last loss, and raise spec.revision",
    )
    DEADLINE_EXCEEDED = (
        *("DeadlineExceeded", "Warning", "All attempts together took runPolicy.activeDeadlineSeconds."),
        "raise the deadline or the pools, and raise spec.revision",
    )
    START_DEADLINE_EXCEEDED = (
        *("StartDeadlineExceeded", "Warning", "No report within runPolicy.startDeadlineSeconds."),
        "mend what the message names, and raise spec.revision; without a known cause it is retried",
    )
    INVALID_RAY_JOB = (
        *("InvalidRayJob", "Warning", "KubeRay refuses the RayJob (ValidationFailed)."),
        "correct the field (often podOverrides) that the message names, and raise spec.revision",
    )

    # -- held: somebody must do something, then it goes on by itself -----------------------------------------
    DEPENDENCY_FAILED = (
        *("DependencyFailed", "Warning", "A recording or training that it refers to has failed."),
        "mend that one and raise its revision; this one goes on when it is complete",
    )
    REFUSED_BY_PLATFORM = (
        *("RefusedByPlatform", "Warning", "The platform does not allow what the spec asks for."),
        "change the field that the message names, or ask for the chart's value",
    )
    NAME_CONFLICT = (
        *("NameConflict", "Warning", "An object of a name that the attempt needs belongs to someone else."),
        "rename the resource, or delete that object",
    )
    CREATION_REFUSED = (
        *("CreationRefused", "Warning", "The API server refuses to create one of the attempt's objects."),
        "do what the message says (quota, policy, RBAC); it is tried again every minute",
    )
    SPEC_CHANGED = (
        *(
            "SpecChanged",
            "Warning",
            "Run-defining fields changed at the same revision; the run is not touched.",
        ),
        "raise spec.revision to run with the change, or take it back",
    )

    # -- what a starting or running attempt may lack; waited for until the start deadline --------------------
    KUBERAY_NOT_INSTALLED = (
        *("KubeRayNotInstalled", "Warning", "The cluster has no RayJobs."),
        "install KubeRay 1.6 or later; the run goes on by itself",
    )
    KUBERAY_NOT_ANSWERING = (
        *("KubeRayNotAnswering", "Warning", "KubeRay has not taken up the RayJob for 45 seconds."),
        "look at the KubeRay operator's pod and log, and at the namespaces that it watches",
    )
    UNSCHEDULABLE = (
        *("Unschedulable", "Warning", "No node has room for a pod, or none that it may use."),
        "add nodes, or change the resources, node selector or tolerations that the message names",
    )
    IMAGE_PULL_FAILED = (
        *("ImagePullFailed", "Warning", "The runtime image cannot be pulled."),
        "correct spec.cluster.image or imagePullSecrets",
    )
    CONTAINER_CONFIG_INVALID = (
        *(
            "ContainerConfigInvalid",
            "Warning",
            "A Secret, ConfigMap or key that a container needs is missing.",
        ),
        "create it; the pod starts by itself then",
    )
    MOUNT_FAILED = (
        *(
            "MountFailed",
            "Warning",
            "A volume cannot be mounted: often a missing ConfigMap, Secret or claim.",
        ),
        "create what the message names; the pod starts by itself then",
    )
    CONTAINER_START_FAILED = (
        *("ContainerStartFailed", "Warning", "A container cannot start, or ends again and again."),
        "look at the pod: `kubectl describe pod` and `kubectl logs`",
    )
    QUOTA_EXCEEDED = (
        *("QuotaExceeded", "Warning", "A ResourceQuota or LimitRange does not let a pod be made."),
        "free or raise the namespace's quota",
    )
    POD_SECURITY_VIOLATION = (
        *(
            "PodSecurityViolation",
            "Warning",
            "The namespace's Pod Security level does not let a pod be made.",
        ),
        "drop what the message names from podOverrides, or change the namespace's level",
    )
    PODS_REFUSED = (
        *("PodsRefused", "Warning", "The API server does not let a pod be made."),
        "do what the message says (admission webhooks, policies)",
    )

    # -- how attempts are lost -------------------------------------------------------------------------------
    OUT_OF_MEMORY = (
        *("OutOfMemory", "Warning", "A container or worker process was killed for memory."),
        "raise the memory that the message names (it applies from the next attempt on)",
    )
    EVICTED = (
        *("Evicted", "Warning", "A node evicted a pod: disk, memory or a drain."),
        "nothing; if it comes back, raise the pool's ephemeralStorage or memory",
    )
    NODE_UNREACHABLE = (
        *("NodeUnreachable", "Warning", "A node does not answer."),
        "nothing; after 5 minutes the attempt counts as lost",
    )
    WORKER_LOST = "WorkerLost", "Warning", "A Ray worker or its node was lost.", "nothing; it is retried"
    STORAGE_FAILED = (
        *("StorageFailed", "Warning", "Storage failed for longer than the runtime retries."),
        "see that the storage answers; it is retried",
    )
    TERMINATED = "Terminated", "Warning", "The driver was told to end.", "nothing; it is retried"
    LOST_DRIVER = (
        *("LostDriver", "Warning", "The RayJob or its head ended without the attempt's last report."),
        "nothing, it is retried; `hindcast logs KIND/NAME` shows how far it came",
    )
    NO_HEARTBEAT = (
        *("NoHeartbeat", "Warning", "No report for runPolicy.stallTimeoutSeconds."),
        "nothing, it is retried; look at the head's node if it comes back",
    )
    NO_PROGRESS = (
        *("NoProgress", "Warning", "Reports, but no progress for runPolicy.stallTimeoutSeconds."),
        "it is retried; raise the timeout if a step takes this long",
    )
    RAY_JOB_DELETED = (
        *("RayJobDeleted", "Warning", "Someone deleted the RayJob of a running attempt."),
        "nothing, it is retried; use spec.suspend to stop a run",
    )
    SUBMISSION_FAILED = (
        *("SubmissionFailed", "Warning", "KubeRay could not submit the job to the Ray cluster."),
        "nothing, it is retried; look at the submitter's log if it comes back",
    )
