"""The kinds of objects that the operator watches or writes, and their paths on the API server."""

from dataclasses import dataclass
from typing import Final

from hindcast.api.base import GROUP, VERSION
from hindcast_operator import names


@dataclass(frozen=True)
class ObjectKind:
    """A kind of object.

    Attributes:
        group: API group; empty for the core group.
        selector: label selector of the objects that concern the operator; empty for all.
    """

    name: str
    group: str
    version: str
    plural: str
    selector: str = ""

    @property
    def api_version(self) -> str:
        """The `apiVersion` of manifests: `ray.io/v1`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def root(self) -> str:
        """The path of the kind's API group and version."""
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"

    def path(self, namespace: str | None, name: str | None = None) -> str:
        """Return the path of an object, or of the collection if `name` is None, in a namespace or cluster-wide."""
        namespace_path = f"/namespaces/{namespace}" if namespace else ""
        return f"{self.root}{namespace_path}/{self.plural}" + (f"/{name}" if name else "")


RECORDING: Final = ObjectKind("OfflineRecording", GROUP, VERSION, "offlinerecordings")
TRAINING: Final = ObjectKind("OfflineTraining", GROUP, VERSION, "offlinetrainings")
CONFIG_MAP: Final = ObjectKind("ConfigMap", "", "v1", "configmaps", names.SELECTOR)
POD: Final = ObjectKind("Pod", "", "v1", "pods", names.SELECTOR)
RAY_JOB: Final = ObjectKind("RayJob", "ray.io", "v1", "rayjobs", names.SELECTOR)
RAY_CLUSTER: Final = ObjectKind("RayCluster", "ray.io", "v1", "rayclusters", names.SELECTOR)

RESOURCE_KINDS: Final = (RECORDING, TRAINING)
WATCHED_KINDS: Final = (*RESOURCE_KINDS, CONFIG_MAP, POD, RAY_JOB, RAY_CLUSTER)

SERVICE_ACCOUNT: Final = ObjectKind("ServiceAccount", "", "v1", "serviceaccounts")
ROLE: Final = ObjectKind("Role", "rbac.authorization.k8s.io", "v1", "roles")
ROLE_BINDING: Final = ObjectKind("RoleBinding", "rbac.authorization.k8s.io", "v1", "rolebindings")
EVENT: Final = ObjectKind("Event", "events.k8s.io", "v1", "events")
CORE_EVENT: Final = ObjectKind("Event", "", "v1", "events")
"""Events as the core group serves them: in this form the operator reads those of other components."""
LEASE: Final = ObjectKind("Lease", "coordination.k8s.io", "v1", "leases")

KINDS_BY_NAME: Final = {kind.name: kind for kind in (*WATCHED_KINDS, SERVICE_ACCOUNT, ROLE, ROLE_BINDING)}
