"""End-to-end tests: a cluster that runs pods, KubeRay in it, the chart installed as a user installs it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import e2e_cluster
import pytest
from e2e_kube import Kube


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Time for pods to start. Without a cluster the tests are skipped; where one is required, that fails."""
    own = [item for item in items if Path(__file__).parent in item.path.parents]
    for item in own:
        item.add_marker(pytest.mark.timeout(900))
    if os.environ.get("KUBECONFIG") or os.environ.get("HINDCAST_REQUIRE_CLUSTER") == "1":
        return
    reason = "needs a cluster that runs pods: set KUBECONFIG, or use `make e2e`"
    for item in own:
        item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def release() -> Iterator[None]:
    """The chart, installed for the session."""
    e2e_cluster.install()
    yield
    e2e_cluster.uninstall()


@pytest.fixture
def kube(release: None, request: pytest.FixtureRequest) -> Iterator[Kube]:
    """A fresh restricted namespace with storage."""
    word = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")
    with e2e_cluster.namespace(f"e2e-{word.removeprefix('test-')}"[:50].rstrip("-")) as found:
        yield found
