"""The ConfigMap that carries the resource to an attempt, and its report back."""

from typing import Any

from hindcast.api import Resource
from hindcast.api.attempt import ATTEMPT_KEY, INTENT_KEY, RESOURCE_KEY, Attempt
from hindcast_operator.manifests.metadata import metadata
from hindcast_operator.manifests.yaml_text import yaml_text


def config_map(resource: Resource, attempt: Attempt) -> dict[str, Any]:
    """The operator's half of it; the runtime writes `report.json`."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(resource, attempt, attempt.child),
        "data": {
            RESOURCE_KEY: resource_yaml(resource, attempt.namespace),
            ATTEMPT_KEY: attempt.model_dump_json(by_alias=True, exclude_none=True, indent=2) + "\n",
            INTENT_KEY: "",
        },
    }


def resource_yaml(resource: Resource, namespace: str) -> str:
    """The resource as `hindcast.api.load_resources` reads it.

    Fields that have their defaults are left out: an image of another version may have fields that this one
    does not know, or know fewer.
    """
    labels = {"labels": dict(resource.metadata.labels)} if resource.metadata.labels else {}
    document = {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {"name": resource.metadata.name, "namespace": namespace, **labels},
        "spec": resource.spec.model_dump(mode="json", by_alias=True, exclude_defaults=True),
    }
    return yaml_text(document)
