"""What a run may do on the API server: read and patch the ConfigMap of the current attempt, and nothing else."""

from typing import Any

from hindcast.api import Resource
from hindcast.api.attempt import Attempt
from hindcast_operator.manifests.metadata import shared_metadata

_RBAC = "rbac.authorization.k8s.io"


def service_account(resource: Resource, attempt: Attempt) -> dict[str, Any]:
    """The account of the run's pods; the head's pod alone mounts its token."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": shared_metadata(resource, attempt),
        "automountServiceAccountToken": False,
    }


def role(resource: Resource, attempt: Attempt) -> dict[str, Any]:
    """Naming the next attempt's ConfigMap takes the voice of the one before."""
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "Role",
        "metadata": shared_metadata(resource, attempt),
        "rules": [
            {
                "apiGroups": [""],
                "resources": ["configmaps"],
                "resourceNames": [attempt.child],
                "verbs": ["get", "patch"],
            }
        ],
    }


def role_binding(resource: Resource, attempt: Attempt) -> dict[str, Any]:
    """The role, given to the account that the pods have: our own, or the one that the resource names."""
    about = shared_metadata(resource, attempt)
    account = resource.spec.cluster.service_account_name or about["name"]
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": about,
        "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": about["name"]},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": attempt.namespace}],
    }
