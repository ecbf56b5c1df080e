"""Diagnosis of what keeps an attempt's pods from running.

KubeRay does not report these causes on the RayJob. They are found on pods, RayClusters, Jobs and events.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from pydantic.alias_generators import to_camel

from hindcast_operator.facts import AttemptFacts, PodFacts
from hindcast_operator.manifests.sizes import resources_field
from hindcast_operator.planning.reasons import Reason
from hindcast_operator.times import time_after

KUBERAY_SILENCE_SECONDS: Final = 45
"""KubeRay processes a new RayJob within one or two seconds, somewhat later if it is busy."""

MAX_QUOTE_LENGTH: Final = 300
"""Maximum number of characters of another component's message in a message of ours."""

_POOL_ORDER: Final = ("head", "learner", "data", "runner", "submitter")
_IMAGE_REASONS: Final = (
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "RegistryUnavailable",
)
_START_REASONS: Final = ("CrashLoopBackOff", "CreateContainerError", "RunContainerError", "StartError")
_QUOTA_PHRASES: Final = (
    "exceeded quota",
    "failed quota",
    "usage per Pod",
    "usage per Container",
    "LimitRange",
)
POD_LOSSES: Final = (Reason.OUT_OF_MEMORY, Reason.EVICTED, Reason.DISRUPTED, Reason.NODE_UNREACHABLE)
"""Reasons that end running pods rather than keep them from starting."""


@dataclass(frozen=True)
class Diagnosis:
    """A problem with an attempt's pods, in one sentence, with a remedy if a person has to act."""

    reason: Reason
    message: str


def kuberay_deadline(attempt: AttemptFacts, admitted_at: datetime | None) -> datetime | None:
    """Return when KubeRay should have processed the RayJob; None if it has, or if the RayJob is missing or queued."""
    job = attempt.ray_job
    if job is None or job.is_suspended or job.deployment_status:
        return None
    return time_after(max(job.created_at, admitted_at or job.created_at), KUBERAY_SILENCE_SECONDS)


def diagnose(
    attempt: AttemptFacts,
    image: str,
    resolved: Mapping[str, Any],
    now: datetime,
    admitted_at: datetime | None = None,
) -> Diagnosis | None:
    """Return the first problem that keeps the attempt's pods from running, or None.

    Args:
        attempt: the attempt's objects.
        image: the attempt's runtime image, which the message names.
        resolved: `status.resolved`, which contains the current sizes of the pools; empty if they are not known.
        now: the time of the observation.
        admitted_at: when the RayJob left Kueue's queue; None if it is queued, or if that is not known yet.
    """
    deadline = kuberay_deadline(attempt, admitted_at)
    if deadline is not None and now >= deadline:
        return Diagnosis(
            Reason.KUBERAY_NOT_ANSWERING,
            f"KubeRay has not processed RayJob {attempt.child_name} for {KUBERAY_SILENCE_SECONDS} seconds; check the "
            "KubeRay operator's pod, its log, and the namespaces that it watches",
        )
    if attempt.submitter_failure is not None:
        return _diagnose_refusal("the submitter's pod", attempt.submitter_failure)
    if attempt.ray_cluster is not None and attempt.ray_cluster.replica_failure is not None:
        return _diagnose_refusal("a pod of the Ray cluster", attempt.ray_cluster.replica_failure)
    diagnoses = (_diagnose_pod(pod, image, resolved) for pod in _pods_to_diagnose(attempt.pods))
    return next(filter(None, diagnoses), None)


def memory_hint(pool: str | None, resolved: Mapping[str, Any]) -> str:
    """Return the remedy "raise FIELD" for more memory in a pool, with the current value if it is known."""
    if pool is None or pool not in _POOL_ORDER:
        return "raise the memory of its pool (spec.cluster.resources.<pool>.memory)"
    size = _resolved_memory(pool, resolved)
    current_size = f" (now {size})" if size else ""
    return f"raise {_resources_path(pool, 'memory')}{current_size}"


def quote(text: str) -> str:
    """Return another component's message on one line, cut to `MAX_QUOTE_LENGTH`."""
    line = " ".join(text.split())
    return line if len(line) <= MAX_QUOTE_LENGTH else line[: MAX_QUOTE_LENGTH - 1] + "…"


def _pods_to_diagnose(pods: Sequence[PodFacts]) -> list[PodFacts]:
    """Return the pods, the head's first, without those that are being deleted and submitters that have a successor.

    Two kinds of pods stay among them although they are being deleted, because they are the cause: a disrupted pod, and
    the head's only pod if its node does not answer, so that it is not removed.
    """
    num_heads = sum(pod.pool == "head" for pod in pods)
    last_submitter_time = max((pod.created_at for pod in pods if pod.pool == "submitter"), default=None)
    return sorted(
        (
            pod
            for pod in pods
            if (pod.disrupted_at is not None or not pod.is_deleting or _is_stuck_head(pod, num_heads))
            and (pod.pool != "submitter" or pod.created_at == last_submitter_time)
        ),
        key=lambda pod: (_POOL_ORDER.index(pod.pool), pod.name),
    )


def _is_stuck_head(pod: PodFacts, num_heads: int) -> bool:
    return pod.pool == "head" and num_heads == 1 and pod.unreachable_since is not None


def _diagnose_pod(pod: PodFacts, image: str, resolved: Mapping[str, Any]) -> Diagnosis | None:
    name = f"pod {pod.name} ({pod.pool})"
    if not pod.is_ready and pod.is_oom_killed:
        remedy = memory_hint(pod.pool, resolved)
        if pod.pool == "submitter":
            remedy = "its size is fixed, so report this with the pod's log"
        return Diagnosis(Reason.OUT_OF_MEMORY, f"{name} ran out of memory and was killed; {remedy}")
    if pod.disrupted_at is not None:
        text = f"{name} has to leave its node (a drain, a preemption or a lost spot node)"
        return Diagnosis(Reason.DISRUPTED, text)
    if pod.reason == "Evicted":
        return Diagnosis(Reason.EVICTED, f"{name} was evicted from its node (disk or memory pressure)")
    if pod.unreachable_since is not None:
        return Diagnosis(Reason.NODE_UNREACHABLE, f"the node of {name} is unreachable")
    if pod.scheduling_failure is not None:
        return Diagnosis(Reason.UNSCHEDULABLE, _unschedulable_message(name, pod))
    diagnosis = None if pod.container_wait is None else _diagnose_waiting(name, image, *pod.container_wait)
    return diagnosis or _diagnose_mounts(name, pod)


def _unschedulable_message(name: str, pod: PodFacts) -> str:
    scheduler_message = pod.scheduling_failure or ""
    remedies = {
        # Not the GPUs' name alone: the taint of GPU nodes has it too, and keeps out the pods that need none.
        "Insufficient nvidia.com/gpu": "add GPU nodes or lower spec.learners.gpus",
        "Insufficient cpu": _capacity_remedy(pod.pool, "cpu"),
        "Insufficient memory": _capacity_remedy(pod.pool, "memory"),
        "Insufficient ephemeral-storage": _capacity_remedy(pod.pool, "ephemeralStorage"),
        "taint": "add nodes or tolerate the taint (spec.cluster.tolerations)",
        "selector": "add matching nodes or change spec.cluster.nodeSelector",
        "affinity": "add matching nodes or change spec.cluster.nodeSelector",
        "": "resolve what the scheduler reports",  # any other message
    }
    remedy = next(text for phrase, text in remedies.items() if phrase in scheduler_message)
    return f"no node can run {name}: {quote(scheduler_message).rstrip('.')}; {remedy}"


def _capacity_remedy(pool: str, resource: str) -> str:
    # The submitter's size is fixed.
    return "add nodes" if pool == "submitter" else f"add nodes or lower {_resources_path(pool, resource)}"


def _diagnose_waiting(name: str, image: str, reason: str, message: str) -> Diagnosis | None:
    if reason in _IMAGE_REASONS:
        return Diagnosis(Reason.IMAGE_PULL_FAILED, _image_message(name, image, reason))
    if reason == "CreateContainerConfigError":
        text = f"{name} is missing what its containers need: {quote(message)}; create it"
        return Diagnosis(Reason.CONTAINER_CONFIG_INVALID, text)
    if reason in _START_REASONS:
        text = f"{name} cannot start ({reason}); inspect it with kubectl describe pod and kubectl logs"
        return Diagnosis(Reason.CONTAINER_START_FAILED, text)
    return None


def _image_message(name: str, image: str, reason: str) -> str:
    if reason == "InvalidImageName":
        return f"image {image} of {name} is not a valid name; correct spec.cluster.image"
    # The kubelet's message is not quoted: it alternates between two while it retries, and so would the status.
    remedy = "correct spec.cluster.image or set spec.cluster.imagePullSecrets"
    return f"image {image} of {name} cannot be pulled; {remedy}"


def _diagnose_mounts(name: str, pod: PodFacts) -> Diagnosis | None:
    if pod.mount_failure is None or pod.phase != "Pending":
        return None
    text = f"a volume of {name} cannot be mounted: {quote(pod.mount_failure)}; create what is missing"
    return Diagnosis(Reason.MOUNT_FAILED, text)


def _diagnose_refusal(subject: str, message: str) -> Diagnosis:
    # Each retry names another pod. Only the text after the pod's name is quoted, so that the status does not change.
    quotation = quote(message.rpartition("is forbidden: ")[2])
    reason, refuser = Reason.PODS_REFUSED, "the API server"
    if "violates PodSecurity" in message:
        reason, refuser = Reason.POD_SECURITY_VIOLATION, "Pod Security"
    elif any(word in message for word in _QUOTA_PHRASES):
        reason, refuser = Reason.QUOTA_EXCEEDED, "a quota"
    return Diagnosis(reason, f"{refuser} rejected {subject}: {quotation.rstrip('.')}; {reason.action}")


def _resources_path(pool: str, resource: str) -> str:
    return f"spec.cluster.resources.{to_camel(resources_field(pool))}.{resource}"


def _resolved_memory(pool: str, resolved: Mapping[str, Any]) -> str | None:
    value = resolved.get("pools", {}).get(pool, {}).get("memory", {}).get("value")
    return None if value is None else str(value)
