"""Ray options of tasks and actors in pools."""

from __future__ import annotations

import pytest

from hindcast.api.attempt import Attempt
from hindcast.cluster.pools import Pools

ATTEMPT = Attempt(
    revision=1, number=1, ray_job_name="test-r1-1", namespace="tests", uid="4f1c", spec_hash="-"
)


@pytest.mark.parametrize(("cpus", "num_cpus"), [(0.5, 1), (1.0, 1), (1.5, 2), (3.0, 3), (0.0, 0)])
def test_options_round_cpus_up(cpus: float, num_cpus: int) -> None:
    assert Pools(ATTEMPT).options("runner", cpus)["num_cpus"] == num_cpus


def test_options_select_pool_if_nodes_are_labelled() -> None:
    assert Pools(ATTEMPT).options("data")["label_selector"] == {"hindcast.dev/pool": "data"}
    assert "label_selector" not in Pools(ATTEMPT, has_pool_labels=False).options("data")
