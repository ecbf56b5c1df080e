"""The objects of an attempt, in the order in which they are created."""

from typing import Any

from hindcast.api import Resource
from hindcast.api.attempt import Attempt
from hindcast_operator.manifests.access import role, role_binding, service_account
from hindcast_operator.manifests.config_map import config_map
from hindcast_operator.manifests.rayjob import ray_job
from hindcast_operator.manifests.sizing import sizes

Manifest = dict[str, Any]


def build(resource: Resource, attempt: Attempt) -> list[Manifest]:
    """ConfigMap, ServiceAccount, Role, RoleBinding and RayJob of an attempt, in the order of creation.

    All are owned by the resource where `attempt.uid` is set. No ServiceAccount is made where
    `spec.cluster.serviceAccountName` names one.

    Args:
        resource: `effective`.
        attempt: which attempt, and what it is given.
    """
    manifests = [
        config_map(resource, attempt),
        service_account(resource, attempt),
        role(resource, attempt),
        role_binding(resource, attempt),
        ray_job(resource, attempt, sizes(resource, attempt.inputs)),
    ]
    if resource.spec.cluster.service_account_name is not None:
        manifests = [manifest for manifest in manifests if manifest["kind"] != "ServiceAccount"]
    return manifests
