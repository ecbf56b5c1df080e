"""The RayJob of an attempt, for KubeRay 1.6."""

import json
from typing import Any, Final

from hindcast.api import Resource
from hindcast.api.attempt import POOL_LABEL, Attempt
from hindcast.api.run_policy import RunPolicy
from hindcast_operator.manifests import security
from hindcast_operator.manifests.objects import metadata
from hindcast_operator.manifests.pods import Template, ray_pod, submitter_pod
from hindcast_operator.manifests.quantities import MI, format_bytes
from hindcast_operator.manifests.sizes import PoolSize, Sizes
from hindcast_operator.manifests.volumes import ATTEMPT_FOLDER, SPILL_FOLDER, writable_folders

QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
ENTRYPOINT: Final = f"python -m hindcast.cluster {ATTEMPT_FOLDER}"
"""The driver of an attempt."""
BACKSTOP_SECONDS: Final = 900
"""How much later than the operator KubeRay ends an overdue run. It only matters while the operator is down."""
_MAX_SECONDS: Final = 2**31 - 1


def ray_job(resource: Resource, attempt: Attempt, sizes: Sizes) -> dict[str, Any]:
    """Build the RayJob: one cluster, one submission, and no retries by KubeRay."""
    scheduling = resource.spec.cluster.scheduling
    queue = {QUEUE_LABEL: scheduling.queue_name} if scheduling.queue_name else {}
    code = resource.spec.cluster.code
    runtime_env = code.runtime_env if code is not None else None
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {
            **metadata(resource, attempt, extra_labels={**scheduling.labels, **queue}),
            # KubeRay copies it to the RayCluster. Without it, the job would be submitted again to a restarted head.
            "annotations": {"ray.io/disable-provisioned-head-restart": "true"},
        },
        "spec": {
            "entrypoint": ENTRYPOINT,
            "submissionMode": "K8sJobMode",
            "backoffLimit": 0,
            "shutdownAfterJobFinishes": True,
            **ray_job_deadlines(resource.spec.run_policy),
            **({"runtimeEnvYAML": json.dumps(runtime_env)} if runtime_env else {}),
            "submitterPodTemplate": submitter_pod(resource, attempt),
            "rayClusterSpec": _cluster(resource, attempt, sizes),
        },
    }


def ray_job_deadlines(policy: RunPolicy) -> dict[str, int]:
    """Return KubeRay's deadlines: a backstop behind the operator's own, and for how long finished pods are kept."""
    seconds_by_field = {
        "ttlSecondsAfterFinished": policy.ttl_seconds_after_finished,
        "preRunningDeadlineSeconds": policy.start_deadline_seconds + BACKSTOP_SECONDS,
    }
    if policy.active_deadline_seconds is not None:
        seconds_by_field["activeDeadlineSeconds"] = (
            policy.active_deadline_seconds + policy.start_deadline_seconds + BACKSTOP_SECONDS
        )
    return {name: min(seconds, _MAX_SECONDS) for name, seconds in seconds_by_field.items()}


def _cluster(resource: Resource, attempt: Attempt, sizes: Sizes) -> dict[str, Any]:
    return {
        "rayVersion": resource.spec.cluster.ray_version,
        "authOptions": {"mode": "token"},
        **(_autoscaling() if any(size.is_autoscaled for size in sizes.workers) else {}),
        "headGroupSpec": _group(sizes.head, ray_pod(resource, attempt, sizes.head)),
        "workerGroupSpecs": [
            {
                "groupName": size.pool,
                "replicas": size.num_pods,
                "minReplicas": size.num_pods,
                "maxReplicas": size.max_pods,
                **_group(size, ray_pod(resource, attempt, size)),
            }
            for size in sizes.workers
        ],
    }


def _group(size: PoolSize, template: Template) -> dict[str, Any]:
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


def _autoscaling() -> dict[str, Any]:
    """Return the autoscaler's settings. KubeRay adds its container to the head's pod, where it shares the volumes."""
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
            "volumeMounts": [mount for _, mount in writable_folders()],
        },
    }
