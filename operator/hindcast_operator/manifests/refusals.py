"""What cannot run on a cluster, and admission cannot see."""

from hindcast.api import Resource
from hindcast_operator.defaults import Defaults


def refusals(resource: Resource, defaults: Defaults) -> list[str]:
    """One sentence each: the field, what was found, what to do. Empty where the resource can run.

    The resource is `effective`.
    """
    return []
