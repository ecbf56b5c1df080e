"""The objects of an attempt, in the order in which they are created."""

from typing import Any

from hindcast.api import Resource
from hindcast.api.attempt import Attempt

Manifest = dict[str, Any]


def build(resource: Resource, attempt: Attempt) -> list[Manifest]:
    """ConfigMap, ServiceAccount, Role, RoleBinding and RayJob of an attempt, in the order of creation.

    The resource is `effective`. Without `attempt.uid` nothing is owned.
    No ServiceAccount is made where `spec.cluster.serviceAccountName` names one.
    """
    raise NotImplementedError
