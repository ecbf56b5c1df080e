"""Volumes of a run's pods."""

from typing import Any, Final

from hindcast.api.attempt import ATTEMPT_KEY, RESOURCE_KEY
from hindcast.api.cluster import ClusterSpec, Volume
from hindcast_operator.manifests.quantities import format_bytes
from hindcast_operator.manifests.sizes import PoolSize

ATTEMPT_FOLDER: Final = "/etc/hindcast/attempt"
CODE_FOLDER: Final = "/etc/hindcast/code"
SPILL_FOLDER: Final = "/var/spill"
HOME: Final = "/home/hindcast"
_TOKEN_FOLDER: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
_TOKEN_SECONDS: Final = 600
"""Life of the head's token, the shortest that Kubernetes allows. The token of a ServiceAccount that was deleted and
restored is refused until the kubelet renews it, at 80 % of its life: with the usual hour, 48 minutes of silence."""

_PREFIX: Final = "hindcast-"
"""Prefix of the operator's volumes, so that their names never collide with a user's."""

MountedVolume = tuple[dict[str, Any], dict[str, Any]]
"""An entry of a pod's `volumes`, and the entry of a container's `volumeMounts` that mounts this volume."""


def make_volumes(cluster: ClusterSpec, size: PoolSize, child_name: str) -> list[MountedVolume]:
    """Return the volumes of a Ray pod: the user's, then those of the operator that have other mount paths."""
    operator_volumes = [
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
        operator_volumes.append(
            _volume("attempt", ATTEMPT_FOLDER, configMap={"name": child_name, "items": files}, read_only=True)
        )
        operator_volumes.append(token_volume())
    if cluster.code is not None and cluster.code.config_map is not None:
        name = cluster.code.config_map.name
        operator_volumes.append(_volume("code", CODE_FOLDER, configMap={"name": name}, read_only=True))
    user_volumes = [_user_volume(volume) for volume in cluster.volumes]
    used_paths = {mount["mountPath"] for _, mount in user_volumes}
    return user_volumes + [entry for entry in operator_volumes if entry[1]["mountPath"] not in used_paths]


def writable_folders() -> list[MountedVolume]:
    """Return the writable folders that a container with a read-only root file system needs."""
    return [_volume("tmp", "/tmp", emptyDir={}), _volume("home", HOME, emptyDir={})]


def token_volume() -> MountedVolume:
    """Return the volume that replaces the one which Kubernetes would mount, with a token of a shorter life."""
    sources: list[dict[str, Any]] = [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": _TOKEN_SECONDS}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {
            "downwardAPI": {
                "items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}],
            }
        },
    ]
    return _volume("token", _TOKEN_FOLDER, projected={"sources": sources}, read_only=True)


def _volume(name: str, path: str, *, read_only: bool = False, **source: Any) -> MountedVolume:
    mount = {"name": _PREFIX + name, "mountPath": path} | ({"readOnly": True} if read_only else {})
    return {"name": _PREFIX + name, **source}, mount


def _user_volume(volume: Volume) -> MountedVolume:
    mount_fields = {"mount_path", "sub_path", "read_only"}
    source = volume.model_dump(by_alias=True, exclude_defaults=True, exclude=mount_fields)
    return source, volume.model_dump(by_alias=True, exclude_defaults=True, include={"name", *mount_fields})
