"""End-to-end tests: a cluster that runs pods, KubeRay in it, the chart installed as a user installs it."""

from __future__ import annotations

import fcntl
import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import e2e_cluster
import pytest
from e2e_kube import Kube

# Long ones first, so that none begins last. Each process of pytest-xdist is given two of them to begin with.
ORDER = [
    "test_suspended_resumed_and_its_head_deleted",
    "test_what_pods_wait_for",
    "test_a_recording_and_a_training_applied_in_one_file",
    "test_a_quota_that_blocks_only_the_submitter",
    "test_a_table_in_a_bucket_is_prepared_by_data_workers_and_trained_on",
    "test_a_users_exception_in_their_environment",
    "test_a_runner_deleted_in_mid_file",
    "test_out_of_memory_in_a_data_worker_and_in_a_learner",
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Time for pods to start. Without a cluster the tests are skipped; where one is required, that fails."""
    own = [item for item in items if Path(__file__).parent in item.path.parents]
    for item in own:
        item.add_marker(pytest.mark.timeout(1800))
    items.sort(key=lambda item: ORDER.index(item.name) if item.name in ORDER else -1)
    if os.environ.get("KUBECONFIG") or os.environ.get("HINDCAST_REQUIRE_CLUSTER") == "1":
        return
    reason = "needs a cluster that runs pods: set KUBECONFIG, or use `make e2e`"
    for item in own:
        item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def release(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The chart, installed by the first process of the session and removed by the last one."""
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if os.environ.get("PYTEST_XDIST_WORKER") else own
    with _users(shared) as before:
        if before == 0:
            e2e_cluster.install()
    yield
    with _users(shared, -1) as before:
        if before == 1:
            e2e_cluster.uninstall()


@contextmanager
def _users(folder: Path, change: int = 1) -> Iterator[int]:
    """How many processes use the release, while none of them changes that; then there are more or fewer."""
    with (folder / "users").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        before = int(file.read() or 0)
        yield before
        file.truncate(0)
        file.write(str(before + change))


@pytest.fixture
def kube(release: None, request: pytest.FixtureRequest) -> Iterator[Kube]:
    """A fresh restricted namespace with storage."""
    word = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")
    name = f"e2e-{word.removeprefix('test-')}"[:50].rstrip("-")
    with e2e_cluster.namespace(f"{name}-{uuid.uuid4().hex[:5]}") as found:
        yield found
