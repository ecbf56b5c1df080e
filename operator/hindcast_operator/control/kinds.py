"""The kinds of objects that the operator watches, and where the API server keeps them."""

from dataclasses import dataclass
from typing import Final

from hindcast.api.base import GROUP, VERSION
from hindcast_operator import names


@dataclass(frozen=True)
class ObjectKind:
    """A kind of object.

    Attributes:
        group: empty for the core group.
        selector: label selector of the objects that concern us; empty for all.
    """

    name: str
    group: str
    version: str
    plural: str
    selector: str = ""

    @property
    def api_version(self) -> str:
        """As in manifests: `ray.io/v1`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def root(self) -> str:
        """Path of its group and version."""
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"

    def path(self, namespace: str | None, name: str | None = None) -> str:
        """Path of its collection, cluster-wide without a namespace, or of one object."""
        where = f"/namespaces/{namespace}" if namespace else ""
        return f"{self.root}{where}/{self.plural}" + (f"/{name}" if name else "")


RECORDING: Final = ObjectKind("OfflineRecording", GROUP, VERSION, "offlinerecordings")
TRAINING: Final = ObjectKind("OfflineTraining", GROUP, VERSION, "offlinetrainings")
CONFIG_MAP: Final = ObjectKind("ConfigMap", "", "v1", "configmaps", names.SELECTOR)
POD: Final = ObjectKind("Pod", "", "v1", "pods", names.SELECTOR)
RAY_JOB: Final = ObjectKind("RayJob", "ray.io", "v1", "rayjobs", names.SELECTOR)
RAY_CLUSTER: Final = ObjectKind("RayCluster", "ray.io", "v1", "rayclusters", names.SELECTOR)

RESOURCES: Final = (RECORDING, TRAINING)
WATCHED: Final = (*RESOURCES, CONFIG_MAP, POD, RAY_JOB, RAY_CLUSTER)

SERVICE_ACCOUNT: Final = ObjectKind("ServiceAccount", "", "v1", "serviceaccounts")
ROLE: Final = ObjectKind("Role", "rbac.authorization.k8s.io", "v1", "roles")
ROLE_BINDING: Final = ObjectKind("RoleBinding", "rbac.authorization.k8s.io", "v1", "rolebindings")
EVENT: Final = ObjectKind("Event", "events.k8s.io", "v1", "events")
CORE_EVENT: Final = ObjectKind("Event", "", "v1", "events")
LEASE: Final = ObjectKind("Lease", "coordination.k8s.io", "v1", "leases")

BY_NAME: Final = {kind.name: kind for kind in (*WATCHED, SERVICE_ACCOUNT, ROLE, ROLE_BINDING)}
