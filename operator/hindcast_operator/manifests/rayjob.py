"""The RayJob of an attempt, for KubeRay 1.5.1 and later; earlier versions lack `authOptions`."""

import json
from typing import Any, Final

from hindcast.api import Resource
from hindcast.api.attempt import POOL_LABEL, Attempt
from hindcast.api.run_policy import RunPolicy
from hindcast_operator.manifests import security
from hindcast_operator.manifests.objects import attempt_metadata
from hindcast_operator.manifests.pods import Template, build_ray_pod, build_submitter_pod
from hindcast_operator.manifests.quantities import MI, format_bytes
from hindcast_operator.manifests.sizes import PoolSize, Sizes
from hindcast_operator.manifests.volumes import ATTEMPT_FOLDER, SPILL_FOLDER, token_volume, writable_folders

QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
ENTRYPOINT: Final = f"python -m hindcast.cluster {ATTEMPT_FOLDER}"
"""The driver's command."""
BACKSTOP_SECONDS: Final = 900
"""KubeRay's deadlines are at least this much later than those of Hindcast's operator. They only matter while Hindcast's
operator is down."""
_MAX_SECONDS: Final = 2**31 - 1
"""Largest value of KubeRay's fields, which are 32-bit integers."""


def build_ray_job(resource: Resource, attempt: Attempt, sizes: Sizes) -> dict[str, Any]:
    """Build the RayJob: one cluster, one submission, and no retries by KubeRay."""
    scheduling = resource.spec.cluster.scheduling
    queue = {QUEUE_LABEL: scheduling.queue_name} if scheduling.queue_name else {}
    code = resource.spec.cluster.code
    runtime_env = code.runtime_env if code is not None else None
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {
            **attempt_metadata(resource.kind, resource.metadata.name, attempt, scheduling.labels | queue),
            # KubeRay copies the annotation to the RayCluster. Without it, KubeRay would restart a head that has ended
            # and submit the job to it again.
            "annotations": {"ray.io/disable-provisioned-head-restart": "true"},
        },
        "spec": {
            "entrypoint": ENTRYPOINT,
            "submissionMode": "K8sJobMode",
            "backoffLimit": 0,
            "shutdownAfterJobFinishes": True,
            **ray_job_deadlines(resource.spec.run_policy),
            **({"runtimeEnvYAML": json.dumps(runtime_env)} if runtime_env else {}),
            "submitterPodTemplate": build_submitter_pod(resource, attempt),
            "rayClusterSpec": _cluster_spec(resource, attempt, sizes),
        },
    }


def ray_job_deadlines(policy: RunPolicy) -> dict[str, int]:
    """Return the deadline fields of a RayJob, in seconds; the operator's own deadline for a run ends earlier."""
    # KubeRay 1.5 does not have preRunningDeadlineSeconds; the operator enforces its own start deadline.
    seconds_by_field = {"ttlSecondsAfterFinished": policy.ttl_seconds_after_finished}
    if policy.active_deadline_seconds is not None:
        seconds_by_field["activeDeadlineSeconds"] = policy.active_deadline_seconds + BACKSTOP_SECONDS
    return {name: min(seconds, _MAX_SECONDS) for name, seconds in seconds_by_field.items()}


def _cluster_spec(resource: Resource, attempt: Attempt, sizes: Sizes) -> dict[str, Any]:
    return {
        "rayVersion": resource.spec.cluster.ray_version,
        "authOptions": {"mode": "token"},
        **(_autoscaling_fields() if any(size.is_autoscaled for size in sizes.workers) else {}),
        "headGroupSpec": _group_spec(sizes.head, build_ray_pod(resource, attempt, sizes.head)),
        "workerGroupSpecs": [
            {
                "groupName": size.pool,
                "replicas": size.num_pods,
                "minReplicas": size.num_pods,
                "maxReplicas": size.max_pods,
                **_group_spec(size, build_ray_pod(resource, attempt, size)),
            }
            for size in sizes.workers
        ],
    }


def _group_spec(size: PoolSize, template: Template) -> dict[str, Any]:
    return {
        "labels": {POOL_LABEL: size.pool},
        "rayStartParams": {
            "num-cpus": str(size.num_cpus),
            "num-gpus": str(size.num_gpus),
            "object-store-memory": str(size.object_store_bytes),
            "object-spilling-directory": SPILL_FOLDER,
        },
        "template": template,
    }


def _autoscaling_fields() -> dict[str, Any]:
    """Return the settings of the autoscaler, a container that KubeRay adds to the head's pod."""
    memory = format_bytes(512 * MI)
    return {
        "enableInTreeAutoscaling": True,
        "autoscalerOptions": {
            "version": "v2",
            "securityContext": security.CONTAINER_CONTEXT,
            "resources": {
                "requests": {"cpu": "100m", "memory": memory},
                "limits": {"memory": memory},
            },
            "volumeMounts": [mount for _, mount in (*writable_folders(), token_volume())],
        },
    }
