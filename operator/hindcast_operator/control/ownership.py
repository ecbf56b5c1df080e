"""Whose an object is that has a name we need."""

from typing import Any, Literal

from hindcast.api.base import GROUP
from hindcast_operator import names
from hindcast_operator.control import trim
from hindcast_operator.control.cache import Resource


def whose(found: dict[str, Any], resource: Resource) -> Literal["ours", "going", "foreign"]:
    """Whose an object is. That of an earlier resource of the same name goes by itself."""
    if "deletionTimestamp" in found["metadata"]:
        return "going"
    if trim.owner_uid(found) == resource.uid:
        return "ours"
    for owner in found["metadata"].get("ownerReferences") or ():
        group = owner["apiVersion"].partition("/")[0]
        if (group, owner["kind"], owner["name"]) == (GROUP, resource.key.kind, resource.key.name):
            return "going"
    return "foreign"


def owner_of(found: dict[str, Any]) -> str:
    """Whose an object is, in words."""
    for owner in found["metadata"].get("ownerReferences") or ():
        if owner.get("controller"):
            return f"{owner['kind']}/{owner['name']}"
    managers = [entry.get("manager", "") for entry in found["metadata"].get("managedFields") or ()]
    return f"someone else (made by {managers[0]})" if managers and managers[0] != names.MANAGER else "no one"
