"""Pod templates: one for each pool, and the submitter's."""

from collections.abc import Sequence
from typing import Any, Final

from hindcast.api import Resource
from hindcast.api.attempt import POOL_LABEL, Attempt, Pool
from hindcast.api.cluster import ClusterSpec
from hindcast_operator.manifests import security
from hindcast_operator.manifests.environment import env_from, variables
from hindcast_operator.manifests.overrides import strategic_merge
from hindcast_operator.manifests.quantities import GI, MI, format_bytes, format_cpus
from hindcast_operator.manifests.sizes import PoolSize, resources_field
from hindcast_operator.manifests.volumes import HOME, MountedVolume, volumes, writable_folders
from hindcast_operator.names import account_name, labels

Template = dict[str, Any]

GPU: Final = "nvidia.com/gpu"
RAY_CONTAINER: Final = "ray"
SUBMITTER: Final = "submitter"
SUBMITTER_CPU: Final = 0.1
SUBMITTER_MEMORY: Final = 512 * MI

_HAS_RAYLET: Final = "! [ -e /tmp/ray/session_latest/logs/raylet.out ] || grep -qsx raylet /proc/[0-9]*/comm"
RAYLET_PROBE: Final = {
    "exec": {"command": ["sh", "-c", _HAS_RAYLET]},
    "periodSeconds": 10,
    "timeoutSeconds": 5,
    "failureThreshold": 12,
}
"""Restarts a worker's container two minutes after its raylet has ended.

The raylet ends, as if it had been asked to, when the kernel kills its agent for memory, and `ray start --block` goes
on without it. KubeRay's own probe takes ten minutes to notice.
"""

# Labels that other tools act on: Kueue would queue each pod, GitOps tools would own it.
_KEPT_OFF_PODS: Final = ("kueue.x-k8s.io/", "argocd.argoproj.io/", "app.kubernetes.io/instance")


def ray_pod(resource: Resource, attempt: Attempt, size: PoolSize) -> Template:
    """The template of a pool's pods. The Ray container, the first one, is called `ray` everywhere."""
    cluster = resource.spec.cluster
    mounted = volumes(cluster, size, attempt.ray_job_name)
    container = {
        "name": RAY_CONTAINER,
        **_image(cluster),
        "env": variables(resource, size, attempt),
        **({"envFrom": env_from(cluster.env_from)} if cluster.env_from else {}),
        "resources": _resources(size.cpu, size.memory_bytes, size.ephemeral_storage_bytes, size.num_gpus),
        "securityContext": security.CONTAINER_CONTEXT,
    }
    if size.pool == "head":
        container["ports"] = [
            {"name": "gcs-server", "containerPort": 6379},
            {"name": "dashboard", "containerPort": 8265},
        ]
    else:
        container["livenessProbe"] = RAYLET_PROBE
    template = _template(resource, attempt, size.pool, container, mounted)
    spec = template["spec"]
    # The head alone talks to the API server.
    spec["automountServiceAccountToken"] = size.pool == "head"
    if size.pool == "head":
        spec["restartPolicy"] = "Never"
    if size.num_gpus:
        spec["tolerations"] = [*spec.get("tolerations", []), {"key": GPU, "operator": "Exists"}]
    own = getattr(cluster.pod_overrides, resources_field(size.pool))
    return _overridden(template, cluster.pod_overrides.all, own)


def submitter_pod(resource: Resource, attempt: Attempt) -> Template:
    """The template of the pod that hands the driver to Ray and follows its log.

    Of `podOverrides.all` it takes what concerns the pod, not what concerns containers.
    """
    cluster = resource.spec.cluster
    container = {
        "name": SUBMITTER,
        **_image(cluster),
        "env": [{"name": "HOME", "value": HOME}],
        "resources": _resources(SUBMITTER_CPU, SUBMITTER_MEMORY, GI // 4),
        "securityContext": security.CONTAINER_CONTEXT,
    }
    template = _template(resource, attempt, SUBMITTER, container, writable_folders())
    template["spec"] |= {"automountServiceAccountToken": False, "restartPolicy": "Never"}
    everyone = cluster.pod_overrides.all or {}
    spec = {
        k: v for k, v in (everyone.get("spec") or {}).items() if k not in ("containers", "initContainers")
    }
    return _overridden(template, {**everyone, "spec": spec})


def _template(
    resource: Resource,
    attempt: Attempt,
    pool: Pool | str,
    container: dict[str, Any],
    mounted: Sequence[MountedVolume],
) -> Template:
    cluster = resource.spec.cluster
    handed_on = {k: v for k, v in resource.metadata.labels.items() if not k.startswith(_KEPT_OFF_PODS)}
    spec: dict[str, Any] = {
        "serviceAccountName": cluster.service_account_name
        or account_name(resource.kind, resource.metadata.name),
        "enableServiceLinks": False,
        "securityContext": security.POD_CONTEXT,
        "containers": [container | {"volumeMounts": [mount for _, mount in mounted]}],
        "volumes": [volume for volume, _ in mounted],
    }
    if cluster.scheduling.priority_class_name is not None:
        spec["priorityClassName"] = cluster.scheduling.priority_class_name
    if cluster.node_selector:
        spec["nodeSelector"] = dict(cluster.node_selector)
    if cluster.tolerations:
        spec["tolerations"] = [_plain(toleration) for toleration in cluster.tolerations]
    if cluster.image_pull_secrets:
        spec["imagePullSecrets"] = [_plain(secret) for secret in cluster.image_pull_secrets]
    return {
        "metadata": {
            "labels": {
                **handed_on,
                **labels(resource, attempt.revision, attempt.number),
                POOL_LABEL: pool,
            }
        },
        "spec": spec,
    }


def _overridden(template: Template, *overrides: dict[str, Any] | None) -> Template:
    """The template under its overrides. Our labels are kept, and so are the security rules of every container."""
    merged = template
    for override in overrides:
        merged = strategic_merge(merged, override or {})
    spec = _restricted(merged.get("spec") or {}, security.REQUIRED_POD_CONTEXT)
    for field in ("containers", "initContainers"):
        if spec.get(field):
            spec[field] = [
                _restricted(container, security.REQUIRED_CONTAINER_CONTEXT) for container in spec[field]
            ]
    return {
        **merged,
        "metadata": strategic_merge(merged.get("metadata") or {}, template["metadata"]),
        "spec": spec,
    }


def _restricted(part: dict[str, Any], rules: dict[str, Any]) -> dict[str, Any]:
    return {**part, "securityContext": strategic_merge(rules, part.get("securityContext") or {})}


def _image(cluster: ClusterSpec) -> dict[str, Any]:
    policy = {"imagePullPolicy": cluster.image_pull_policy} if cluster.image_pull_policy else {}
    return {"image": cluster.image, **policy}


def _resources(cpu: float, memory: int, storage: int, gpus: int = 0) -> dict[str, Any]:
    devices = {GPU: str(gpus)} if gpus else {}
    memory_bytes = format_bytes(memory)
    return {
        "requests": {
            "cpu": format_cpus(cpu),
            "memory": memory_bytes,
            "ephemeral-storage": format_bytes(storage),
            **devices,
        },
        "limits": {"memory": memory_bytes, **devices},
    }


def _plain(part: Any) -> dict[str, Any]:
    plain: dict[str, Any] = part.model_dump(by_alias=True, exclude_none=True)
    return plain
