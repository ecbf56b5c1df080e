"""Pods, storage and placement of a run on a cluster. Checked everywhere, used only there. Helm sets defaults."""

from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field

from hindcast.api.base import FreeForm, Labels, Model, NonNegative, ShortText, Text
from hindcast.api.lists import ListMap
from hindcast.api.quantity import Cpus, Quantity
from hindcast.api.rules import Rule, field_value, is_one_of, is_set

# Well-known variables with credentials for storage. Inline values would be readable by everyone who can read the
# resource.
CREDENTIAL_VARIABLES: Final = (
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AZURE_CLIENT_SECRET",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_CONNECTION_STRING",
    "AZURE_STORAGE_KEY",
    "AZURE_STORAGE_SAS_TOKEN",
)

RayVersion = Annotated[str, Field(max_length=32, pattern=r"^[0-9]+\.[0-9]+\.[0-9]+$")]


class NameRef(Model):
    """An object in the same namespace."""

    name: ShortText
    """Its name."""


class KeyRef(Model):
    """One key of a Secret or ConfigMap."""

    name: ShortText
    """Name of the object."""
    key: ShortText
    """Key in it."""
    optional: bool = False
    """Start even when the object or the key is missing."""


class EnvVarSource(Model):
    """The source of a variable's value."""

    exactly_one: ClassVar = ("secret_key_ref", "config_map_key_ref")

    secret_key_ref: KeyRef | None = None
    """A key of a Secret."""
    config_map_key_ref: KeyRef | None = None
    """A key of a ConfigMap."""


class EnvVar(Model):
    """An environment variable of all containers of the run."""

    exactly_one: ClassVar = ("value", "value_from")
    rules: ClassVar = (
        Rule(
            is_set("value").implies(~is_one_of("name", *CREDENTIAL_VARIABLES)),
            "sets {0}, a credential, inline; use valueFrom.secretKeyRef or envFrom",
            field="value",
            values=(field_value("name"),),
        ),
    )

    name: ShortText
    """Name of the variable."""
    value: Annotated[str, Field(max_length=4096)] | None = None
    """Its value. Well-known names of storage credentials are refused here."""
    value_from: EnvVarSource | None = None
    """The source of its value."""


class EnvFrom(Model):
    """All keys of a Secret or ConfigMap as environment variables."""

    exactly_one: ClassVar = ("secret_ref", "config_map_ref")

    secret_ref: NameRef | None = None
    """A Secret, such as the one with the storage credentials."""
    config_map_ref: NameRef | None = None
    """A ConfigMap."""
    prefix: ShortText | None = None
    """Prefix of each variable's name."""


class Claim(Model):
    """A PersistentVolumeClaim."""

    claim_name: ShortText
    """Its name."""


class SecretVolume(Model):
    """A Secret as files."""

    secret_name: ShortText
    """Its name."""


class EmptyDir(Model):
    """Scratch space that is deleted with the pod."""

    size_limit: Quantity | None = None
    """Maximum size in bytes. Default: the node's limit."""
    medium: Literal["", "Memory"] = ""
    """`Memory` keeps it in RAM, counted against the container's memory."""


class Volume(Model):
    """A volume mounted into all containers of the run."""

    exactly_one: ClassVar = ("persistent_volume_claim", "config_map", "secret", "empty_dir")

    name: Annotated[str, Field(min_length=1, max_length=63)]
    """Name of the volume."""
    mount_path: Annotated[str, Field(min_length=1, max_length=1024, pattern="^/")]
    """Absolute path in the containers."""
    sub_path: Text | None = None
    """Path inside the volume. Default: its root."""
    read_only: bool = False
    """Mount it read-only."""
    persistent_volume_claim: Claim | None = None
    """A PersistentVolumeClaim (ReadWriteMany when there is more than one pod)."""
    config_map: NameRef | None = None
    """A ConfigMap as files."""
    secret: SecretVolume | None = None
    """A Secret as files."""
    empty_dir: EmptyDir | None = None
    """Scratch space."""


class Toleration(Model):
    """A taint of nodes that the pods tolerate."""

    key: ShortText | None = None
    """Key of the taint. Default: all."""
    operator: Literal["Exists", "Equal"] = "Equal"
    """`Exists` ignores the value."""
    value: Annotated[str, Field(max_length=253)] | None = None
    """Value of the taint."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Effect of the taint. Default: all."""
    toleration_seconds: NonNegative | None = None
    """Seconds to stay on a node tainted NoExecute. Default: no limit."""


class PodResources(Model):
    """Size of the pods of one pool. Values that are set take precedence over computed ones."""

    cpu: Cpus | None = None
    """CPUs per pod."""
    memory: Quantity | None = None
    """Memory per pod (request and limit)."""
    ephemeral_storage: Quantity | None = None
    """Scratch disk per pod, including spilled objects."""
    shared_memory: Quantity | None = None
    """Size of /dev/shm per pod (part of its memory)."""


class PoolResources(Model):
    """Pod sizes of the pools."""

    head: PodResources = PodResources()
    """The Ray head: the driver, no tasks."""
    runner: PodResources = PodResources()
    """Environment runners of a recording."""
    data_worker: PodResources = PodResources()
    """Data workers of a training."""
    learner: PodResources = PodResources()
    """Learners of a training."""


class PodOverrides(Model):
    """Pod templates merged over the generated ones (strategic merge). The platform may refuse parts."""

    all: FreeForm | None = None
    """For every pod of the run; in the submitter's pod, `containers` has no effect. Ray's container is called `ray`."""
    head: FreeForm | None = None
    """For the head's pod."""
    runner: FreeForm | None = None
    """For pods of environment runners."""
    data_worker: FreeForm | None = None
    """For pods of data workers."""
    learner: FreeForm | None = None
    """For pods of learners."""


class Code(Model):
    """Custom code: environment class, connectors, algorithm, packages."""

    at_least_one: ClassVar = ("config_map", "runtime_env")

    config_map: NameRef | None = None
    """A ConfigMap with Python files; they can be imported by their names."""
    runtime_env: FreeForm | None = None
    """A Ray runtime environment (`pip`, `working_dir`, `py_modules`, `env_vars` …)."""


class Scheduling(Model):
    """Queueing and priority."""

    queue_name: ShortText | None = None
    """Kueue LocalQueue. Default: the platform's, else none."""
    priority_class_name: ShortText | None = None
    """PriorityClass of the pods and of the workload."""
    labels: Labels = {}
    """Labels for other schedulers, put on the RayJob."""
    avoid_disruption: bool | None = None
    """Ask Cluster Autoscaler and Karpenter not to empty the pods' nodes to save costs. Default: the platform's, else
    false."""


class ClusterSpec(Model):
    """Everything about the pods of a run. All of it has platform defaults."""

    image: Text | None = None
    """Runtime image."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    """When the image is pulled. Default: Kubernetes' rule."""
    image_pull_secrets: Annotated[list[NameRef], Field(max_length=16), ListMap("name")] = []
    """Secrets for pulling the image."""
    ray_version: RayVersion | None = None
    """Ray's version in the image. Default: the version in the platform's image."""
    service_account_name: ShortText | None = None
    """Service account of the pods. Default: one is created for the run."""
    resources: PoolResources = PoolResources()
    """Pod sizes. Default: computed, with the reasons in status.resolved."""
    node_selector: Labels = {}
    """Node labels that the pods need."""
    tolerations: Annotated[list[Toleration], Field(max_length=32)] = []
    """Taints that the pods tolerate."""
    volumes: Annotated[list[Volume], Field(max_length=32), ListMap("name")] = []
    """Volumes mounted into the pods."""
    env: Annotated[list[EnvVar], Field(max_length=128), ListMap("name")] = []
    """Environment variables."""
    env_from: Annotated[list[EnvFrom], Field(max_length=32)] = []
    """Secrets and ConfigMaps as environment variables."""
    code: Code | None = None
    """Custom code."""
    pod_overrides: PodOverrides = PodOverrides()
    """Pod templates merged over the generated ones."""
    scheduling: Scheduling = Scheduling()
    """Queueing and priority."""
