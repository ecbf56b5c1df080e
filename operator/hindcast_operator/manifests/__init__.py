"""What an attempt consists of: pure functions from a resource and the platform's defaults to manifests.

`effective` merges the defaults, `refusals` says what cannot be, `sizes` sizes the pools and says why, `build`
makes the objects. No cluster, no client.
"""

from hindcast_operator.manifests.build import build
from hindcast_operator.manifests.effective import effective_resource, effective_run_policy
from hindcast_operator.manifests.rayjob import ray_job_deadlines
from hindcast_operator.manifests.refusals import refusals
from hindcast_operator.manifests.sizes import PoolSize, Sizes, compute_sizes

__all__ = [
    "PoolSize",
    "Sizes",
    "build",
    "compute_sizes",
    "effective_resource",
    "effective_run_policy",
    "ray_job_deadlines",
    "refusals",
]
