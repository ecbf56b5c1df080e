"""The objects of an attempt other than its RayJob: the ConfigMap for its reports, and access to it."""

from collections.abc import Mapping
from typing import Any, Final

from hindcast.api import Resource
from hindcast.api.attempt import ATTEMPT_KEY, INTENT_KEY, RESOURCE_KEY, Attempt
from hindcast.api.base import API_VERSION
from hindcast_operator.manifests.yaml_text import yaml_text
from hindcast_operator.names import account_name, make_labels

Manifest = dict[str, Any]

_RBAC: Final = "rbac.authorization.k8s.io"


def attempt_metadata(
    kind: str, name: str, attempt: Attempt, extra_labels: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the metadata of an object that only this attempt has. The operator's labels replace `extra_labels`."""
    labels = {**(extra_labels or {}), **make_labels(kind, name, attempt.revision, attempt.number)}
    return _make_metadata(kind, name, attempt, attempt.ray_job_name, labels)


def build_config_map(kind: str, name: str, attempt: Attempt, resource: Resource | None) -> Manifest:
    """Build the ConfigMap that passes the resource to the attempt. The attempt adds its report, `report.json`.

    Without a resource, only an attempt that has already read it can use the ConfigMap.
    """
    resource_field = {} if resource is None else {RESOURCE_KEY: _resource_yaml(resource, attempt.namespace)}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": attempt_metadata(kind, name, attempt),
        "data": {
            **resource_field,
            ATTEMPT_KEY: attempt.model_dump_json(by_alias=True, exclude_none=True, indent=2) + "\n",
            INTENT_KEY: "",
        },
    }


def build_service_account(kind: str, name: str, attempt: Attempt) -> Manifest:
    """Build the ServiceAccount of the run's pods. Only the head's pod mounts its token."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": _shared_metadata(kind, name, attempt),
        "automountServiceAccountToken": False,
    }


def build_role(kind: str, name: str, attempt: Attempt) -> Manifest:
    """Build the Role that permits reading and patching the ConfigMap of the current attempt, and nothing else."""
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "Role",
        "metadata": _shared_metadata(kind, name, attempt),
        "rules": [
            {
                "apiGroups": [""],
                "resources": ["configmaps"],
                # By name: an earlier attempt that still runs loses its access.
                "resourceNames": [attempt.ray_job_name],
                "verbs": ["get", "patch"],
            }
        ],
    }


def build_role_binding(kind: str, name: str, attempt: Attempt, account: str | None) -> Manifest:
    """Build the RoleBinding to the ServiceAccount `account`; if it is None, to that of `build_service_account`."""
    shared_metadata = _shared_metadata(kind, name, attempt)
    subject_name = account or shared_metadata["name"]
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": shared_metadata,
        "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": shared_metadata["name"]},
        "subjects": [{"kind": "ServiceAccount", "name": subject_name, "namespace": attempt.namespace}],
    }


def _resource_yaml(resource: Resource, namespace: str) -> str:
    """Return the resource as YAML that `hindcast.api.load_resources` reads."""
    labels_field = {"labels": dict(resource.metadata.labels)} if resource.metadata.labels else {}
    document = {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {"name": resource.metadata.name, "namespace": namespace, **labels_field},
        # Without defaults: an image of another version may have more fields, or fewer.
        "spec": resource.spec.model_dump(mode="json", by_alias=True, exclude_defaults=True),
    }
    return yaml_text(document)


def _shared_metadata(kind: str, name: str, attempt: Attempt) -> dict[str, Any]:
    """Return the metadata of an object that all attempts of the resource share."""
    return _make_metadata(kind, name, attempt, account_name(kind, name), make_labels(kind, name))


def _make_metadata(
    kind: str, name: str, attempt: Attempt, child: str, labels: dict[str, str]
) -> dict[str, Any]:
    fields: dict[str, Any] = {"name": child, "namespace": attempt.namespace, "labels": labels}
    if attempt.uid:
        owner = {
            "apiVersion": API_VERSION,
            "kind": kind,
            "name": name,
            "uid": attempt.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }
        fields["ownerReferences"] = [owner]
    return fields
