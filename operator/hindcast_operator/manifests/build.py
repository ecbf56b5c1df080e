"""The objects of an attempt, and their rendering without a cluster."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hindcast.api import OfflineTraining, Resource, spec_hash
from hindcast.api.attempt import Attempt, ResolvedInput
from hindcast_operator.defaults import Defaults
from hindcast_operator.manifests.effective import effective_resource
from hindcast_operator.manifests.objects import (
    Manifest,
    build_config_map,
    build_role,
    build_role_binding,
    build_service_account,
)
from hindcast_operator.manifests.rayjob import build_ray_job
from hindcast_operator.manifests.sizes import Sizes, compute_sizes
from hindcast_operator.manifests.storage import run_folder
from hindcast_operator.names import child_name, find_references


def build(resource: Resource, attempt: Attempt) -> list[Manifest]:
    """Build ConfigMap, ServiceAccount, Role, RoleBinding and RayJob of an attempt, in the order of creation.

    The resource owns all of them if `attempt.uid` is set. The ServiceAccount is missing if the resource sets
    `spec.cluster.serviceAccountName`.

    Args:
        resource: an effective resource.
        attempt: the attempt, with its inputs.
    """
    account = resource.spec.cluster.service_account_name
    reporting = build_reporting(resource.kind, resource.metadata.name, attempt, account, resource)
    sizes = compute_sizes(resource, attempt.inputs, attempt.learner_peak_bytes)
    return [*reporting, build_ray_job(resource, attempt, sizes)]


def build_reporting(
    kind: str, name: str, attempt: Attempt, account: str | None, resource: Resource | None = None
) -> list[Manifest]:
    """Build the objects through which an attempt reports, in the order of creation: those of `build` but the RayJob.

    Args:
        kind: the resource's kind.
        name: the resource's name.
        attempt: the attempt, with its inputs.
        account: the ServiceAccount of the attempt's pods that the user or the platform named; None for their own one.
        resource: the effective resource; None if the attempt has already read it.
    """
    manifests = [
        build_config_map(kind, name, attempt, resource),
        build_service_account(kind, name, attempt),
        build_role(kind, name, attempt),
        build_role_binding(kind, name, attempt, account),
    ]
    return [manifest for manifest in manifests if account is None or manifest["kind"] != "ServiceAccount"]


# -- without a cluster --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RenderedAttempt:
    """The first attempt of a resource, rendered without a cluster.

    Attributes:
        resource: the effective resource.
        sizes: the sizes of its pools, with reasons.
        manifests: its objects, in the order of creation. They have no owner, because the resource has no uid yet.
        unknown_references: `Kind/name` of each resource to which this one refers and that is not among those rendered.
    """

    resource: Resource
    sizes: Sizes
    manifests: list[Manifest]
    unknown_references: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the attempt as JSON values."""
        return {
            "kind": self.resource.kind,
            "name": self.resource.metadata.name,
            "resolved": self.sizes.to_status(),
            "unknown": list(self.unknown_references),
            "manifests": self.manifests,
        }


def render(resources: Sequence[Resource], defaults: Defaults, namespace: str) -> list[RenderedAttempt]:
    """Render the first attempt of each resource, in the order of the resources.

    Args:
        resources: the resources as users wrote them. References among them are resolved; the size of a recording's
            dataset is taken from the recording's `status`, if it has one.
        defaults: the platform's defaults.
        namespace: namespace of the resources that do not set one.
    """
    effective_resources = [
        _with_namespace(effective_resource(resource, defaults), namespace) for resource in resources
    ]
    provided_inputs = {}
    for source, resource in zip(resources, effective_resources, strict=True):
        key = (resource.metadata.namespace, f"{resource.kind}/{resource.metadata.name}")
        provided_inputs[key] = _provided_input(source, resource)
    return [
        _render_attempt(source, resource, provided_inputs)
        for source, resource in zip(resources, effective_resources, strict=True)
    ]


def _with_namespace(resource: Resource, namespace: str) -> Resource:
    update = {"namespace": resource.metadata.namespace or namespace}
    return resource.model_copy(update={"metadata": resource.metadata.model_copy(update=update)})


def _render_attempt(
    source: Resource, resource: Resource, provided_inputs: Mapping[tuple[str | None, str], ResolvedInput]
) -> RenderedAttempt:
    namespace = resource.metadata.namespace
    spec = resource.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    reference_keys = [f"{kind}/{name}" for kind, name in find_references(resource.kind, spec)]
    inputs = {
        key: provided_inputs[namespace, key] for key in reference_keys if (namespace, key) in provided_inputs
    }
    attempt = Attempt(
        revision=resource.spec.revision,
        number=1,
        ray_job_name=child_name(resource.kind, resource.metadata.name, resource.spec.revision, 1),
        namespace=namespace or "",
        spec_hash=spec_hash(source),
        inputs=inputs,
    )
    unknown_references = tuple(key for key in reference_keys if key not in inputs)
    return RenderedAttempt(
        resource, compute_sizes(resource, inputs), build(resource, attempt), unknown_references
    )


def _provided_input(source: Resource, resource: Resource) -> ResolvedInput:
    """Return the input that the resource provides to others: the one in its status, or else the path in its spec.

    Args:
        source: the resource as the user wrote it, with the status if there is one.
        resource: the effective resource.
    """
    status = source.status
    if isinstance(resource, OfflineTraining):
        checkpoint = status.checkpoint if status is not None else None
        return ResolvedInput(
            path=run_folder(resource) if checkpoint is None else checkpoint.best_path or checkpoint.path
        )
    if status is None or status.output is None:
        return ResolvedInput(path=resource.spec.output.path)
    return ResolvedInput.model_validate(status.output.model_dump())
