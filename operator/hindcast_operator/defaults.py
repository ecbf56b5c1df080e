"""Platform defaults of every run: the chart's `defaults:`, and `--defaults` of `hindcast render`."""

from pathlib import Path
from typing import Any, ClassVar

from pydantic import ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from hindcast.api.base import BackoffLimit, Location, Model, Positive, Text
from hindcast.api.cluster import ClusterSpec, RayVersion
from hindcast.api.run_policy import STALL_TIMEOUT_RULE
from hindcast.api.sentences import problems_of
from hindcast.errors import SpecError


class RunDefaults(Model):
    """Deadlines and retries for resources that do not set them."""

    rules: ClassVar = (STALL_TIMEOUT_RULE,)

    backoff_limit: BackoffLimit | None = None
    """Attempts after the first one."""
    start_deadline_seconds: Positive | None = None
    """Seconds from the start of an attempt (if it is queued: from its admission) to its first heartbeat."""
    stall_timeout_seconds: Positive | None = None
    """Seconds without a heartbeat or without progress after which an attempt counts as lost, at least 60."""


class Defaults(Model):
    """Platform defaults. A resource's own fields take precedence; lists are joined, the resource's entries last."""

    image: Text = "hindcast-runtime:0.1.0"
    """Runtime image, if neither the resource nor `cluster` names one."""
    ray_version: RayVersion = "2.60.0"
    """Ray's version in that image."""
    storage_root: Location | None = None
    """A URI, or a folder on a mounted volume. Relative paths are resolved in `<storageRoot>/<namespace>`; without a
    storage root they are rejected."""
    cluster: ClusterSpec = ClusterSpec()
    """`spec.cluster` of every resource: pull secrets, tolerations, storage credentials, volumes …"""
    run_policy: RunDefaults = RunDefaults()
    """Deadlines and retries."""
    allow_privileged: bool = False
    """Let podOverrides use hostPath, host namespaces and privilege."""
    allow_autoscaling: bool = False
    """Let dataWorkers have minReplicas and maxReplicas: KubeRay then grants the head's account rights over its
    cluster's pods."""


def load_defaults(path: Path) -> Defaults:
    """Load the defaults from a YAML file: the chart's values with a section `defaults:`, or that section alone.

    Raises:
        SpecError: the file cannot be read or is not valid. The message has a line for each problem.
    """
    try:
        values: Any = YAML(typ="safe", pure=True).load(path.read_text()) or {}
    except (OSError, YAMLError, UnicodeDecodeError) as error:
        raise SpecError(f"{path}: {' '.join(str(error).split())}") from error
    if isinstance(values, dict) and "defaults" in values:
        values = values["defaults"] or {}
    if not isinstance(values, dict):
        raise SpecError(
            f"{path}: the file is not a mapping; it must contain the chart's values or their defaults: section"
        )
    try:
        return Defaults.model_validate(values, by_alias=True, by_name=False)
    except ValidationError as error:
        raise SpecError.of(problems_of(error, Defaults, values)).locate(file=str(path)) from error
