"""Manifests of an attempt: pure functions of a resource and the platform's defaults.

`effective_resource` merges the defaults, `find_refusals` lists what cannot run, `compute_sizes` sizes the pools with
reasons, `build` builds the objects. No cluster, no client.
"""

from hindcast_operator.manifests.build import build, build_reporting
from hindcast_operator.manifests.effective import effective_resource, effective_run_policy
from hindcast_operator.manifests.rayjob import ray_job_deadlines
from hindcast_operator.manifests.refusals import find_refusals
from hindcast_operator.manifests.sizes import PoolSize, Sizes, compute_sizes

__all__ = [
    "PoolSize",
    "Sizes",
    "build",
    "build_reporting",
    "compute_sizes",
    "effective_resource",
    "effective_run_policy",
    "find_refusals",
    "ray_job_deadlines",
]
