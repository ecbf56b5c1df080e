"""Pod templates of the pools and of the submitter."""

from collections.abc import Sequence
from typing import Any, Final

from hindcast.api import Resource
from hindcast.api.attempt import POOL_LABEL, Attempt, Pool
from hindcast.api.cluster import ClusterSpec
from hindcast_operator.manifests import security
from hindcast_operator.manifests.environment import make_variables
from hindcast_operator.manifests.overrides import strategic_merge
from hindcast_operator.manifests.quantities import GI, MI, format_bytes, format_cpus
from hindcast_operator.manifests.sizes import PoolSize, resources_field
from hindcast_operator.manifests.volumes import HOME, MountedVolume, make_volumes, writable_folders
from hindcast_operator.names import account_name, make_labels

Template = dict[str, Any]

GPU_RESOURCE: Final = "nvidia.com/gpu"
RAY_CONTAINER: Final = "ray"
SUBMITTER: Final = "submitter"
"""Pool label and container name of the pod that submits the driver to Ray and prints its log."""
SUBMITTER_CPUS: Final = 0.1
SUBMITTER_MEMORY_BYTES: Final = 512 * MI

# Succeeds before the raylet has started, and while it runs.
_RAYLET_TEST: Final = "! [ -e /tmp/ray/session_latest/logs/raylet.out ] || grep -qsx raylet /proc/[0-9]*/comm"
RAYLET_PROBE: Final = {
    "exec": {"command": ["sh", "-c", _RAYLET_TEST]},
    "periodSeconds": 10,
    "timeoutSeconds": 5,
    "failureThreshold": 12,
}
"""Probe that restarts a worker's container two minutes after its raylet has ended.

If the kernel kills the raylet's agent because memory ran out, the raylet shuts down as after a request, and
`ray start --block` continues without it. KubeRay's own probe takes ten minutes to notice.
"""

_HEALTH_PROBE: Final = {
    "httpGet": {"path": "/api/local_raylet_healthz", "port": 52365},
    "periodSeconds": 5,
    "timeoutSeconds": 5,
}
"""Ask Ray's agent for the health of its node. Without these probes, KubeRay 1.5 sets some that call wget, which the
image does not have, and no pod becomes ready."""

_TERMINATION_GRACE_SECONDS: Final = 60
"""Time that head and learners get to end. Ray leaves a run 30 seconds to checkpoint (`cluster/draining.py` of the
runtime), and needs some more to end its processes."""

_KEEP_ON_NODE: Final = {
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    "karpenter.sh/do-not-disrupt": "true",
}

# Labels of a resource that are not copied to its pods: Kueue would queue each pod, and GitOps tools would adopt it.
_EXCLUDED_LABEL_PREFIXES: Final = ("kueue.x-k8s.io/", "argocd.argoproj.io/", "app.kubernetes.io/instance")


def build_ray_pod(resource: Resource, attempt: Attempt, size: PoolSize) -> Template:
    """Build the template of a pool's pods. Its first container is always the Ray container, named `ray`."""
    cluster = resource.spec.cluster
    mounted_volumes = make_volumes(cluster, size, attempt.ray_job_name)
    container = {
        "name": RAY_CONTAINER,
        **_image_fields(cluster),
        "env": make_variables(resource, size, attempt),
        "resources": _container_resources(
            size.cpu, size.memory_bytes, size.ephemeral_storage_bytes, size.num_gpus
        ),
        "securityContext": security.CONTAINER_CONTEXT,
        "readinessProbe": _HEALTH_PROBE | {"failureThreshold": 10},
        "livenessProbe": _HEALTH_PROBE | {"failureThreshold": 120} if size.pool == "head" else RAYLET_PROBE,
    }
    if cluster.env_from:
        container["envFrom"] = [_to_plain(source) for source in cluster.env_from]
    if size.pool == "head":
        container["ports"] = [
            {"name": "gcs-server", "containerPort": 6379},
            {"name": "dashboard", "containerPort": 8265},
        ]
    template = _make_template(resource, attempt, size.pool, container, mounted_volumes)
    spec = template["spec"]
    # Only the head talks to the API server.
    spec["automountServiceAccountToken"] = size.pool == "head"
    if size.pool in ("head", "learner"):
        spec["terminationGracePeriodSeconds"] = _TERMINATION_GRACE_SECONDS
    if size.pool == "head":
        spec["restartPolicy"] = "Never"
    if size.num_gpus:
        spec["tolerations"] = [*spec.get("tolerations", []), {"key": GPU_RESOURCE, "operator": "Exists"}]
    pool_override = getattr(cluster.pod_overrides, resources_field(size.pool))
    return _apply_overrides(template, cluster.pod_overrides.all, pool_override)


def build_submitter_pod(resource: Resource, attempt: Attempt) -> Template:
    """Build the template of the pod that submits the driver to Ray and follows its log.

    `podOverrides.all` applies to it, except for its containers.
    """
    cluster = resource.spec.cluster
    container = {
        "name": SUBMITTER,
        **_image_fields(cluster),
        "env": [{"name": "HOME", "value": HOME}],
        "resources": _container_resources(SUBMITTER_CPUS, SUBMITTER_MEMORY_BYTES, GI // 4),
        "securityContext": security.CONTAINER_CONTEXT,
    }
    template = _make_template(resource, attempt, SUBMITTER, container, writable_folders())
    template["spec"] |= {"automountServiceAccountToken": False, "restartPolicy": "Never"}
    shared_override = cluster.pod_overrides.all or {}
    spec = {
        k: v
        for k, v in (shared_override.get("spec") or {}).items()
        if k not in ("containers", "initContainers")
    }
    return _apply_overrides(template, {**shared_override, "spec": spec})


def _make_template(
    resource: Resource,
    attempt: Attempt,
    pool: Pool | str,
    container: dict[str, Any],
    mounted_volumes: Sequence[MountedVolume],
) -> Template:
    cluster = resource.spec.cluster
    user_labels = {
        k: v for k, v in resource.metadata.labels.items() if not k.startswith(_EXCLUDED_LABEL_PREFIXES)
    }
    spec: dict[str, Any] = {
        "serviceAccountName": cluster.service_account_name
        or account_name(resource.kind, resource.metadata.name),
        "enableServiceLinks": False,
        "securityContext": security.POD_CONTEXT,
        "containers": [container | {"volumeMounts": [mount for _, mount in mounted_volumes]}],
        "volumes": [volume for volume, _ in mounted_volumes],
    }
    if cluster.scheduling.priority_class_name is not None:
        spec["priorityClassName"] = cluster.scheduling.priority_class_name
    if cluster.node_selector:
        spec["nodeSelector"] = dict(cluster.node_selector)
    if cluster.tolerations:
        spec["tolerations"] = [_to_plain(toleration) for toleration in cluster.tolerations]
    if cluster.image_pull_secrets:
        spec["imagePullSecrets"] = [_to_plain(secret) for secret in cluster.image_pull_secrets]
    return {
        "metadata": {
            "labels": {
                **user_labels,
                **make_labels(resource.kind, resource.metadata.name, attempt.revision, attempt.number),
                POOL_LABEL: pool,
            }
        }
        | ({"annotations": _KEEP_ON_NODE} if cluster.scheduling.avoid_disruption else {}),
        "spec": spec,
    }


def _apply_overrides(template: Template, *overrides: dict[str, Any] | None) -> Template:
    """Apply overrides to a template. The operator's labels and the security rules of every container are kept."""
    merged_template = template
    for override in overrides:
        merged_template = strategic_merge(merged_template, override or {})
    spec = _restrict(merged_template.get("spec") or {}, security.REQUIRED_POD_CONTEXT)
    for field in ("containers", "initContainers"):
        if spec.get(field):
            spec[field] = [
                _restrict(container, security.REQUIRED_CONTAINER_CONTEXT) for container in spec[field]
            ]
    return {
        **merged_template,
        "metadata": strategic_merge(merged_template.get("metadata") or {}, template["metadata"]),
        "spec": spec,
    }


def _restrict(pod_or_container: dict[str, Any], required_context: dict[str, Any]) -> dict[str, Any]:
    """Return a pod's spec or a container with the required security context; existing values take precedence."""
    return {
        **pod_or_container,
        "securityContext": strategic_merge(required_context, pod_or_container.get("securityContext") or {}),
    }


def _image_fields(cluster: ClusterSpec) -> dict[str, Any]:
    policy = {"imagePullPolicy": cluster.image_pull_policy} if cluster.image_pull_policy else {}
    return {"image": cluster.image, **policy}


def _container_resources(
    num_cpus: float, memory_bytes: int, storage_bytes: int, num_gpus: int = 0
) -> dict[str, Any]:
    devices = {GPU_RESOURCE: str(num_gpus)} if num_gpus else {}
    memory_quantity = format_bytes(memory_bytes)
    return {
        "requests": {
            "cpu": format_cpus(num_cpus),
            "memory": memory_quantity,
            "ephemeral-storage": format_bytes(storage_bytes),
            **devices,
        },
        "limits": {"memory": memory_quantity, **devices},
    }


def _to_plain(model: Any) -> dict[str, Any]:
    plain: dict[str, Any] = model.model_dump(by_alias=True, exclude_none=True)
    return plain
