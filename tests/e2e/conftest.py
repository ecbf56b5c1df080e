"""Fixtures of the end-to-end tests, which need a cluster that runs pods and KubeRay. They install the chart."""

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

# The longest tests begin first. pytest-xdist gives each process two tests at the start, so the order pairs long tests
# with short ones.
TEST_ORDER = [
    "test_training_resumes_after_suspend_and_drained_head",
    "test_cause_of_waiting_pods_is_reported",
    "test_recording_and_training_in_one_file_succeed",
    "test_quota_that_blocks_submitter_is_reported",
    "test_table_in_bucket_is_prepared_and_trained_on",
    "test_exception_in_user_environment_fails_run",
    "test_recording_is_complete_after_deleted_runner",
    "test_out_of_memory_names_pool_of_data_worker_and_learner",
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Set timeouts and the order. Skip the tests without a cluster, unless HINDCAST_REQUIRE_CLUSTER=1 requires one."""
    own_items = [item for item in items if Path(__file__).parent in item.path.parents]
    for item in own_items:
        item.add_marker(pytest.mark.timeout(1800))
    items.sort(key=lambda item: TEST_ORDER.index(item.name) if item.name in TEST_ORDER else -1)
    if os.environ.get("KUBECONFIG") or os.environ.get("HINDCAST_REQUIRE_CLUSTER") == "1":
        return
    reason = "needs a cluster that runs pods: set KUBECONFIG, or use `make e2e`"
    for item in own_items:
        item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def release(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The chart, installed by the first process of the session and removed by the last one."""
    base_folder = tmp_path_factory.getbasetemp()
    shared_folder = base_folder.parent if os.environ.get("PYTEST_XDIST_WORKER") else base_folder
    with _count_users(shared_folder) as num_users_before:
        if num_users_before == 0:
            e2e_cluster.install_chart()
    yield
    with _count_users(shared_folder, -1) as num_users_before:
        if num_users_before == 1:
            e2e_cluster.uninstall_chart()


@contextmanager
def _count_users(folder: Path, change: int = 1) -> Iterator[int]:
    """Yield the number of processes that use the release, then add `change` to it. Meanwhile other processes wait."""
    with (folder / "users").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        num_users_before = int(file.read() or 0)
        yield num_users_before
        file.truncate(0)
        file.write(str(num_users_before + change))


@pytest.fixture
def kube(release: None, request: pytest.FixtureRequest) -> Iterator[Kube]:
    """A new restricted namespace with storage."""
    test_name = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")
    name = f"e2e-{test_name.removeprefix('test-')}"[:50].rstrip("-")
    with e2e_cluster.temporary_namespace(f"{name}-{uuid.uuid4().hex[:5]}") as kube_namespace:
        yield kube_namespace
