"""What every pod of a run may not do: the rules of `restricted` Pod Security."""

from typing import Any, Final

USER: Final = 1000
"""uid and gid of all containers; the image's user."""

POD: Final[dict[str, Any]] = {
    "runAsNonRoot": True,
    "runAsUser": USER,
    "runAsGroup": USER,
    "fsGroup": USER,
    # A large volume is not walked through at every start.
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}

ANY_POD: Final[dict[str, Any]] = {field: POD[field] for field in ("runAsNonRoot", "seccompProfile")}
"""What pod overrides cannot take away; the rest, such as the uid, is theirs."""

ANY_CONTAINER: Final[dict[str, Any]] = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
}
"""The same, of any container, also those that pod overrides bring."""

CONTAINER: Final[dict[str, Any]] = {**ANY_CONTAINER, "readOnlyRootFilesystem": True}
"""Of containers that Hindcast makes: they write to volumes alone."""
