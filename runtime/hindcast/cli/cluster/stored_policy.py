"""The policy that a resource of a cluster has left on storage."""

from __future__ import annotations

from hindcast.api import validate_resource
from hindcast.cli.cluster.access import Raw
from hindcast.cli.cluster.stored_log import volume_of
from hindcast.cli.cluster.target import Target
from hindcast.errors import StorageError, UserError
from hindcast.storage.location import resolve


def stored_policy(found: Raw, target: Target) -> str:
    """Where it lies: a training's best checkpoint, else its latest; a recording's dataset.

    Args:
        found: the resource, with its status.
        target: its name.

    Raises:
        UserError: there is none yet, or it cannot be read from here; the sentence says where it lies and how to get it.
    """
    status = found.get("status") or {}
    checkpoint = status.get("checkpoint") or {}
    path = checkpoint.get("best") or checkpoint.get("path") or (status.get("output") or {}).get("path")
    if path is None:
        raise UserError(
            f"{target} has no policy yet, it is {status.get('state') or 'not seen by the operator'}: "
            f"`hindcast status {target}` says why."
        )
    try:
        location = resolve(path)
        if location.exists():
            return str(path)
    except StorageError as error:
        raise StorageError(
            f"the policy of {target} lies at {path}, which cannot be read from here: {error}"
        ) from error
    if location.is_local:
        where = volume_of(validate_resource(found), path)
        raise UserError(f"the policy of {target} lies at {path} on {where}, then export the copy")
    raise UserError(
        f"the policy of {target} is no longer at {path}: the run goes on, or its folder was deleted"
    )
