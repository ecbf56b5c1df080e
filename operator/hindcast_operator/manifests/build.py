"""The objects of an attempt, and what would be created for resources without a cluster."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hindcast.api import OfflineTraining, Resource, spec_hash
from hindcast.api.attempt import Attempt, ResolvedInput
from hindcast_operator.defaults import Defaults
from hindcast_operator.manifests.effective import effective_resource
from hindcast_operator.manifests.objects import Manifest, config_map, role, role_binding, service_account
from hindcast_operator.manifests.rayjob import ray_job
from hindcast_operator.manifests.sizes import Sizes, compute_sizes
from hindcast_operator.manifests.storage import run_folder
from hindcast_operator.names import child_name, references


def build(resource: Resource, attempt: Attempt) -> list[Manifest]:
    """ConfigMap, ServiceAccount, Role, RoleBinding and RayJob of an attempt, in the order of creation.

    All are owned by the resource where `attempt.uid` is set. No ServiceAccount is made where
    `spec.cluster.serviceAccountName` names one.

    Args:
        resource: `effective`.
        attempt: which attempt, and what it is given.
    """
    manifests = [
        config_map(resource, attempt),
        service_account(resource, attempt),
        role(resource, attempt),
        role_binding(resource, attempt),
        ray_job(resource, attempt, compute_sizes(resource, attempt.inputs)),
    ]
    if resource.spec.cluster.service_account_name is not None:
        manifests = [manifest for manifest in manifests if manifest["kind"] != "ServiceAccount"]
    return manifests


# -- without a cluster --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RenderedAttempt:
    """The first attempt of a resource.

    Attributes:
        resource: `effective`.
        sizes: of its pools, with the reasons.
        manifests: what is created, in this order. Nothing is owned: there is no uid yet.
        unknown: `Kind/name` of what it refers to and was not given.
    """

    resource: Resource
    sizes: Sizes
    manifests: list[Manifest]
    unknown_references: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "kind": self.resource.kind,
            "name": self.resource.metadata.name,
            "resolved": self.sizes.to_status(),
            "unknown": list(self.unknown_references),
            "manifests": self.manifests,
        }


def render(resources: Sequence[Resource], defaults: Defaults, namespace: str) -> list[RenderedAttempt]:
    """The first attempt of each resource, in their order.

    Args:
        resources: as written. References among them are resolved; the contents of a recording's dataset are known
            where its `status` is given.
        defaults: the platform's.
        namespace: of the resources that name none.
    """
    merged = [_placed(effective_resource(resource, defaults), namespace) for resource in resources]
    outputs = {}
    for own, full in zip(resources, merged, strict=True):
        outputs[full.metadata.namespace, f"{full.kind}/{full.metadata.name}"] = _output(own, full)
    return [_rendered(own, full, outputs) for own, full in zip(resources, merged, strict=True)]


def _placed(resource: Resource, namespace: str) -> Resource:
    placed = {"namespace": resource.metadata.namespace or namespace}
    return resource.model_copy(update={"metadata": resource.metadata.model_copy(update=placed)})


def _rendered(
    own: Resource, full: Resource, outputs: Mapping[tuple[str | None, str], ResolvedInput]
) -> RenderedAttempt:
    namespace = full.metadata.namespace
    spec = full.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    wanted = [f"{kind}/{name}" for kind, name in references(full.kind, spec)]
    inputs = {key: outputs[namespace, key] for key in wanted if (namespace, key) in outputs}
    attempt = Attempt(
        revision=full.spec.revision,
        number=1,
        ray_job_name=child_name(full.kind, full.metadata.name, full.spec.revision, 1),
        namespace=namespace or "",
        spec_hash=spec_hash(own),
        inputs=inputs,
    )
    unknown = tuple(key for key in wanted if key not in inputs)
    return RenderedAttempt(full, compute_sizes(full, inputs), build(full, attempt), unknown)


def _output(own: Resource, full: Resource) -> ResolvedInput:
    """What the resource provides to others, now or once it has run."""
    status = own.status
    if isinstance(full, OfflineTraining):
        checkpoint = status.checkpoint if status is not None else None
        return ResolvedInput(
            path=run_folder(full) if checkpoint is None else checkpoint.best_path or checkpoint.path
        )
    if status is None or status.output is None:
        return ResolvedInput(path=full.spec.output.path)
    return ResolvedInput.model_validate(status.output.model_dump())
