"""Names, labels and owners of the objects."""

from collections.abc import Mapping
from typing import Any

from hindcast.api import Resource
from hindcast.api.attempt import Attempt
from hindcast_operator.names import account_name, labels


def metadata(
    resource: Resource, attempt: Attempt, name: str, more: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Of an attempt's own object. `more` labels never hide ours."""
    own = labels(resource, attempt.revision, attempt.number)
    return _metadata(resource, attempt, name, {**(more or {}), **own})


def shared_metadata(resource: Resource, attempt: Attempt) -> dict[str, Any]:
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
