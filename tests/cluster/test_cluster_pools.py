"""What the parts of a run ask of the pods that were made for them."""

from __future__ import annotations

import pytest

from hindcast.api.attempt import Attempt
from hindcast.cluster.pools import Pools

ATTEMPT = Attempt(
    revision=1, number=1, ray_job_name="test-r1-1", namespace="tests", uid="4f1c", spec_hash="-"
)


@pytest.mark.parametrize(("cpus", "asked"), [(0.5, 1), (1.0, 1), (1.5, 2), (3.0, 3), (0.0, 0)])
def test_a_worker_asks_for_all_cpus_that_its_pod_hands_out(cpus: float, asked: int) -> None:
    assert Pools(ATTEMPT).options("runner", cpus)["num_cpus"] == asked


def test_a_worker_lands_in_its_pool_where_there_are_pools() -> None:
    assert Pools(ATTEMPT).options("data")["label_selector"] == {"hindcast.dev/pool": "data"}
    assert "label_selector" not in Pools(ATTEMPT, has_pool_labels=False).options("data")
