"""Metadata of a resource, as in Kubernetes, and references to resources."""

import re
from typing import Annotated, Any, Final

from pydantic import AfterValidator, Field, WithJsonSchema, model_validator

from hindcast.api.base import LabelKey, LabelValue, Model

# KubeRay refuses a RayJob with a name of more than 47 characters, and an attempt adds revision and number to it.
NAME_LIMIT: Final = 36
NAME_PATTERN: Final = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
_NAMESPACE_PATTERN: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"

# Fields that the API server adds to an object: `kubectl get -o yaml` shows them, and they do not affect the run.
_SERVER_FIELDS: Final = frozenset(
    {
        "creationTimestamp",
        "deletionGracePeriodSeconds",
        "deletionTimestamp",
        "finalizers",
        "generateName",
        "generation",
        "managedFields",
        "ownerReferences",
        "resourceVersion",
        "selfLink",
        "uid",
    }
)


def _check_name(value: str) -> str:
    if len(value) > NAME_LIMIT or not re.fullmatch(NAME_PATTERN, value):
        raise ValueError(
            f"is {value!r}, expected at most {NAME_LIMIT} lower-case letters, digits and '-', "
            "beginning with a letter and not ending with '-'"
        )
    return value


def make_resource_name(text: str) -> str:
    """Return a valid `metadata.name` of the ASCII letters and digits in a text; "training" if there is no letter."""
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).lstrip("-0123456789")
    return name[:NAME_LIMIT].rstrip("-") or "training"


ResourceName = Annotated[
    str,
    AfterValidator(_check_name),
    WithJsonSchema({"type": "string", "minLength": 1, "maxLength": NAME_LIMIT, "pattern": NAME_PATTERN}),
]


class Metadata(Model):
    """Identity of a resource. Fields that the API server adds are accepted and dropped."""

    name: ResourceName
    """Name, unique per kind and namespace: DNS-1035, at most 36 characters (names of its child objects are longer)."""
    namespace: Annotated[str, Field(max_length=63, pattern=_NAMESPACE_PATTERN)] | None = None
    """Namespace on a cluster. Default: the current one. Not used locally."""
    labels: dict[LabelKey, LabelValue] = {}
    """Labels, also put on the run's pods."""
    annotations: dict[str, str] = {}
    """Annotations. Client-side `kubectl apply` stores the whole resource in one of them."""

    @model_validator(mode="before")
    @classmethod
    def _drop_server_fields(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        return {key: value for key, value in data.items() if key not in _SERVER_FIELDS}


class Reference(Model):
    """A resource in the same namespace (locally: in the same files)."""

    name: ResourceName
    """Its metadata.name."""
