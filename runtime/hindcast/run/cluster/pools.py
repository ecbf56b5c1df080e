"""The pools of a cluster: which pods of an attempt do which part of its work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hindcast.api.attempt import POOL_LABEL, Attempt, Pool


@dataclass(frozen=True)
class Pools:
    """Where the work of one attempt lands. It pickles.

    Args:
        attempt: which attempt of which run this is, and what it was given.
        labelled: nodes say by a label which pool they are in; False for a Ray without pools.
    """

    attempt: Attempt
    labelled: bool = True

    def options(self, pool: Pool, cpus: float = 0, gpus: float = 0) -> dict[str, Any]:
        """Ray's options for a task or actor in a pool."""
        options: dict[str, Any] = {"num_cpus": cpus}
        if gpus:
            options["num_gpus"] = gpus
        if self.labelled:
            options["label_selector"] = {POOL_LABEL: pool}
        return options
