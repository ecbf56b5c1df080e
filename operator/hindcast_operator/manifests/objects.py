"""The objects of an attempt besides its RayJob: the ConfigMap that it reports in, and access to it."""

from collections.abc import Mapping
from typing import Any, Final

from hindcast.api import Resource
from hindcast.api.attempt import ATTEMPT_KEY, INTENT_KEY, RESOURCE_KEY, Attempt
from hindcast_operator.manifests.yaml_text import yaml_text
from hindcast_operator.names import account_name, labels

Manifest = dict[str, Any]

_RBAC: Final = "rbac.authorization.k8s.io"


def metadata(
    resource: Resource, attempt: Attempt, extra_labels: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Of an attempt's own object. `more` labels never hide ours."""
    own = labels(resource, attempt.revision, attempt.number)
    return _metadata(resource, attempt, attempt.ray_job_name, {**(extra_labels or {}), **own})


def config_map(resource: Resource, attempt: Attempt) -> Manifest:
    """Carries the resource to the attempt, and its report back: the runtime writes `report.json`."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(resource, attempt),
        "data": {
            RESOURCE_KEY: _resource_yaml(resource, attempt.namespace),
            ATTEMPT_KEY: attempt.model_dump_json(by_alias=True, exclude_none=True, indent=2) + "\n",
            INTENT_KEY: "",
        },
    }


def service_account(resource: Resource, attempt: Attempt) -> Manifest:
    """The account of the run's pods; the head's pod alone mounts its token."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": _shared_metadata(resource, attempt),
        "automountServiceAccountToken": False,
    }


def role(resource: Resource, attempt: Attempt) -> Manifest:
    """Read and patch the ConfigMap of the current attempt: naming it takes access from the attempt before."""
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "Role",
        "metadata": _shared_metadata(resource, attempt),
        "rules": [
            {
                "apiGroups": [""],
                "resources": ["configmaps"],
                "resourceNames": [attempt.ray_job_name],
                "verbs": ["get", "patch"],
            }
        ],
    }


def role_binding(resource: Resource, attempt: Attempt) -> Manifest:
    """The role, given to the account that the pods have: our own, or the one that the resource names."""
    about = _shared_metadata(resource, attempt)
    account = resource.spec.cluster.service_account_name or about["name"]
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": about,
        "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": about["name"]},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": attempt.namespace}],
    }


def _resource_yaml(resource: Resource, namespace: str) -> str:
    """The resource as `hindcast.api.load_resources` reads it.

    Fields that have their defaults are left out: an image of another version may have more fields, or fewer.
    """
    labels = {"labels": dict(resource.metadata.labels)} if resource.metadata.labels else {}
    document = {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {"name": resource.metadata.name, "namespace": namespace, **labels},
        "spec": resource.spec.model_dump(mode="json", by_alias=True, exclude_defaults=True),
    }
    return yaml_text(document)


def _shared_metadata(resource: Resource, attempt: Attempt) -> dict[str, Any]:
    """Of an object that the resource's attempts share."""
    return _metadata(resource, attempt, account_name(resource.kind, resource.metadata.name), labels(resource))


def _metadata(resource: Resource, attempt: Attempt, name: str, own: dict[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {"name": name, "namespace": attempt.namespace, "labels": own}
    if attempt.uid:
        owner = {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "name": resource.metadata.name,
            "uid": attempt.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }
        found["ownerReferences"] = [owner]
    return found
