"""What keeps an attempt's pods from running: lifted from where KubeRay leaves it, with what to do."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from pydantic.alias_generators import to_camel

from hindcast.api.attempt import Pool
from hindcast_operator.facts import AttemptFacts, PodFacts
from hindcast_operator.manifests.sizes import resources_field
from hindcast_operator.planning.reasons import Reason
from hindcast_operator.times import after

KUBERAY_SILENCE_SECONDS: Final = 45
"""KubeRay processes a new RayJob within a second or two, somewhat later when busy."""

MAX_QUOTE_LENGTH: Final = 300

_POOLS: Final = ("head", "learner", "data", "runner", "submitter")
_IMAGE: Final = (
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "RegistryUnavailable",
)
_START: Final = ("CrashLoopBackOff", "CreateContainerError", "RunContainerError", "StartError")
_QUOTA: Final = ("exceeded quota", "failed quota", "usage per Pod", "usage per Container", "LimitRange")
POD_LOSSES: Final = (Reason.OUT_OF_MEMORY, Reason.EVICTED, Reason.NODE_UNREACHABLE)
"""Reasons that end pods, rather than keep them from starting."""


@dataclass(frozen=True)
class Diagnosis:
    """What is wrong with an attempt's pods, in one sentence that says what to do."""

    reason: Reason
    message: str


def kuberay_deadline(attempt: AttemptFacts) -> datetime | None:
    """Until when KubeRay should have processed the RayJob; None where it has."""
    job = attempt.ray_job
    if job is None or job.suspended or job.deployment_status:
        return None
    return after(job.created, KUBERAY_SILENCE_SECONDS)


def diagnose(
    attempt: AttemptFacts, image: str, resolved: Mapping[str, Any], now: datetime
) -> Diagnosis | None:
    """The first thing that keeps the attempt's pods from running; None where nothing does.

    Args:
        attempt: what exists of it.
        image: its runtime image.
        resolved: `status.resolved`, for the sizes that the pools have.
        now: the time.
    """
    due = kuberay_deadline(attempt)
    if due is not None and now >= due:
        return Diagnosis(
            Reason.KUBERAY_NOT_ANSWERING,
            f"KubeRay has not processed RayJob {attempt.child} for {KUBERAY_SILENCE_SECONDS} seconds; check the "
            "KubeRay operator's pod, its log, and the namespaces that it watches",
        )
    if attempt.submitter_failure is not None:
        return _refused_pods("the submitter's pod", attempt.submitter_failure)
    if attempt.ray_cluster is not None and attempt.ray_cluster.replica_failure is not None:
        return _refused_pods("a pod of the Ray cluster", attempt.ray_cluster.replica_failure)
    return next((found for pod in _in_order(attempt.pods) if (found := _of_pod(pod, image, resolved))), None)


def memory_hint(pool: Pool | None, resolved: Mapping[str, Any]) -> str:
    """Which field to raise for more memory in a pool, and its value now."""
    if pool is None:
        return "raise the memory of its pool (spec.cluster.resources.<pool>.memory)"
    size = _memory(pool, resolved)
    now = f" (now {size})" if size else ""
    return f"raise {_resources(pool)}.memory{now}"


def quote(text: str) -> str:
    """A message of another component, on one line, cut to a readable length."""
    line = " ".join(text.split())
    return line if len(line) <= MAX_QUOTE_LENGTH else line[: MAX_QUOTE_LENGTH - 1] + "…"


def _in_order(pods: Iterable[PodFacts]) -> list[PodFacts]:
    return sorted(
        (pod for pod in pods if not pod.deleting), key=lambda pod: (_POOLS.index(pod.pool), pod.name)
    )


def _of_pod(pod: PodFacts, image: str, resolved: Mapping[str, Any]) -> Diagnosis | None:
    name = f"pod {pod.name} ({pod.pool})"
    if not pod.ready and pod.out_of_memory:
        hint = memory_hint(pod.pool, resolved) if pod.pool != "submitter" else "see podOverrides"
        return Diagnosis(Reason.OUT_OF_MEMORY, f"{name} ran out of memory and was killed; {hint}")
    if pod.reason == "Evicted":
        return Diagnosis(
            Reason.EVICTED, f"{name} was evicted from its node (disk or memory pressure, or a drain)"
        )
    if pod.unreachable_since is not None:
        return Diagnosis(Reason.NODE_UNREACHABLE, f"the node of {name} is unreachable")
    if pod.unschedulable is not None:
        return Diagnosis(Reason.UNSCHEDULABLE, _unschedulable(name, pod))
    if pod.waiting is not None:
        return _waiting(name, image, *pod.waiting) or _mounts(name, pod)
    return _mounts(name, pod)


def _unschedulable(name: str, pod: PodFacts) -> str:
    scheduler, field = pod.unschedulable or "", _resources(pod.pool)
    fixes = {
        "nvidia.com/gpu": "add GPU nodes or lower spec.learners.gpus",
        "Insufficient cpu": f"add nodes or lower {field}.cpu",
        "Insufficient memory": f"add nodes or lower {field}.memory",
        "Insufficient ephemeral-storage": f"add nodes or lower {field}.ephemeralStorage",
        "taint": "add nodes or tolerate the taint (spec.cluster.tolerations)",
        "selector": "add matching nodes or change spec.cluster.nodeSelector",
        "affinity": "add matching nodes or change spec.cluster.nodeSelector",
        "": "resolve what the scheduler reports",
    }
    fix = next(fix for sign, fix in fixes.items() if sign in scheduler)
    return f"no node can run {name}: {quote(scheduler).rstrip('.')}; {fix}"


def _waiting(name: str, image: str, reason: str, message: str) -> Diagnosis | None:
    if reason in _IMAGE:
        return Diagnosis(Reason.IMAGE_PULL_FAILED, _image_message(name, image, reason, message))
    if reason == "CreateContainerConfigError":
        text = f"{name} is missing what its containers need: {quote(message)}; create it"
        return Diagnosis(Reason.CONTAINER_CONFIG_INVALID, text)
    if reason in _START:
        text = f"{name} cannot start ({reason}); inspect it with kubectl describe pod and kubectl logs"
        return Diagnosis(Reason.CONTAINER_START_FAILED, text)
    return None


def _image_message(name: str, image: str, reason: str, message: str) -> str:
    # The kubelet alternates between two reasons and texts while it retries: only what both have in common is shown.
    if reason == "InvalidImageName":
        return f"image {image} of {name} is not a valid name; correct spec.cluster.image"
    credentials = any(word in message.lower() for word in ("unauthorized", "denied", "forbidden"))
    trouble = "needs credentials" if credentials else "cannot be pulled"
    fix = "correct spec.cluster.image or set spec.cluster.imagePullSecrets"
    return f"image {image} of {name} {trouble}; {fix}"


def _mounts(name: str, pod: PodFacts) -> Diagnosis | None:
    if pod.mount_failure is None or pod.phase != "Pending":
        return None
    text = f"a volume of {name} cannot be mounted: {quote(pod.mount_failure)}; create what is missing"
    return Diagnosis(Reason.MOUNT_FAILED, text)


def _refused_pods(what: str, message: str) -> Diagnosis:
    # Each try names another pod: only the text after its name stays the same.
    said = quote(message.rpartition("is forbidden: ")[2])
    if "violates PodSecurity" in message:
        return Diagnosis(Reason.POD_SECURITY_VIOLATION, f"Pod Security rejected {what}: {said}")
    if any(word in message for word in _QUOTA):
        return Diagnosis(Reason.QUOTA_EXCEEDED, f"a quota rejected {what}: {said}")
    return Diagnosis(Reason.PODS_REFUSED, f"the API server rejected {what}: {said}")


def _resources(pool: str) -> str:
    return f"spec.cluster.resources.{to_camel(resources_field(pool))}"


def _memory(pool: Pool, resolved: Mapping[str, Any]) -> str | None:
    value = resolved.get("pools", {}).get(pool, {}).get("memory", {}).get("value")
    return None if value is None else str(value)
