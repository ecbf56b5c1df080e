"""What is mounted into a run's pods."""

from typing import Any, Final

from hindcast.api.attempt import ATTEMPT_KEY, RESOURCE_KEY
from hindcast.api.cluster import ClusterSpec, Volume
from hindcast_operator.manifests.quantities import format_bytes
from hindcast_operator.manifests.sizes import PoolSize

ATTEMPT_FOLDER: Final = "/etc/hindcast/attempt"
CODE_FOLDER: Final = "/etc/hindcast/code"
SPILL_FOLDER: Final = "/var/spill"
HOME: Final = "/home/hindcast"

_PREFIX: Final = "hindcast-"
"""Begins the names of our own volumes, so that they never collide with a user's."""

MountedVolume = tuple[dict[str, Any], dict[str, Any]]
"""A volume and its mount."""


def volumes(cluster: ClusterSpec, size: PoolSize, child: str) -> list[MountedVolume]:
    """Of a Ray pod: the user's, then our own unless the user's are mounted in their place."""
    own = [
        *writable_folders(),
        _volume(
            "shm",
            "/dev/shm",
            emptyDir={"medium": "Memory", "sizeLimit": format_bytes(size.shared_memory_bytes)},
        ),
        _volume("spill", SPILL_FOLDER, emptyDir={"sizeLimit": format_bytes(size.spill_bytes)}),
    ]
    if size.pool == "head":
        files = [{"key": key, "path": key} for key in (RESOURCE_KEY, ATTEMPT_KEY)]
        own.append(
            _volume("attempt", ATTEMPT_FOLDER, configMap={"name": child, "items": files}, read_only=True)
        )
    if cluster.code is not None and cluster.code.config_map is not None:
        name = cluster.code.config_map.name
        own.append(_volume("code", CODE_FOLDER, configMap={"name": name}, read_only=True))
    given = [_given(volume) for volume in cluster.volumes]
    taken = {mount["mountPath"] for _, mount in given}
    return given + [entry for entry in own if entry[1]["mountPath"] not in taken]


def writable_folders() -> list[MountedVolume]:
    """What a container with a read-only root file system needs."""
    return [_volume("tmp", "/tmp", emptyDir={}), _volume("home", HOME, emptyDir={})]


def _volume(name: str, path: str, *, read_only: bool = False, **source: Any) -> MountedVolume:
    mount = {"name": _PREFIX + name, "mountPath": path} | ({"readOnly": True} if read_only else {})
    return {"name": _PREFIX + name, **source}, mount


def _given(volume: Volume) -> MountedVolume:
    of_mount = {"mount_path", "sub_path", "read_only"}
    source = volume.model_dump(by_alias=True, exclude_defaults=True, exclude=of_mount)
    return source, volume.model_dump(by_alias=True, exclude_defaults=True, include={"name", *of_mount})
