"""Tests against a real API server: the one that KUBECONFIG names, with the CRDs of this tree."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from fake_kuberay import FakeKubeRay, PlayKubeRay, Script, succeeds_at_once
from operator_process import OperatorProcess, RunOperator, create_account, delete_account
from resources import TeamNamespace

from api_server import ApiServer
from warm_python import WarmPython, warm_python

CRDS = Path(__file__).parents[2] / "crds"


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker of tests that need the API server for themselves."""
    config.addinivalue_line(
        "markers", "alone: changes what all tests of an API server share; runs without others"
    )


@pytest.fixture(scope="session")
def api() -> Iterator[ApiServer]:
    """The API server, with this tree's CRDs applied."""
    kubeconfig = os.environ.get("KUBECONFIG")
    if not kubeconfig:
        missing = pytest.fail if os.environ.get("HINDCAST_REQUIRE_CLUSTER") == "1" else pytest.skip
        missing("KUBECONFIG is not set: these tests need an API server (`make e2e` starts one)")
    with ApiServer.from_kubeconfig(kubeconfig) as server:
        server.apply_crds(sorted(CRDS.glob("*.yaml")))
        yield server


@pytest.fixture
def namespace(api: ApiServer) -> Iterator[str]:
    """A fresh namespace, deleted afterwards."""
    name = f"test-{uuid.uuid4().hex[:10]}"
    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield name
    api.delete(f"/api/v1/namespaces/{name}")


@pytest.fixture
def team(api: ApiServer, namespace: str) -> TeamNamespace:
    return TeamNamespace(api, namespace)


@pytest.fixture
def other_team(api: ApiServer, namespace: str) -> Iterator[TeamNamespace]:
    """Another fresh namespace, deleted afterwards."""
    name = f"{namespace}-b"
    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield TeamNamespace(api, name)
    api.delete(f"/api/v1/namespaces/{name}")


@pytest.fixture(scope="session")
def dry_run_namespace() -> str:
    """An existing namespace for requests that store nothing: creating one would take longer than such a test."""
    return "default"


@pytest.fixture(scope="session")
def warm_operator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmPython]:
    """A Python process that has imported the operator, and from which operators start without importing it again."""
    folder = tmp_path_factory.mktemp("warm-operator")
    with warm_python(folder, modules=("hindcast_operator.__main__",)) as warm:
        yield warm


@pytest.fixture
def run_operator(
    api: ApiServer, namespace: str, tmp_path: Path, warm_operator: WarmPython
) -> Iterator[RunOperator]:
    """`run_operator(*flags)` starts an operator for the test's namespace, with the chart's rights.

    `everywhere` makes it serve all namespaces; `server` is another address of the API server; `fault`, `setup`
    and `python` are passed to `OperatorProcess`.
    """
    with ExitStack() as stack:

        def run(
            *flags: str,
            fault: str = "",
            setup: str = "",
            server: str | None = None,
            everywhere: bool = False,
            python: str | None = None,
        ) -> OperatorProcess:
            number = len(list(tmp_path.glob("operator-*.log")))
            kubeconfig = create_account(api, namespace, tmp_path, server)
            namespace_flags = () if everywhere else ("--namespace", namespace)
            log = tmp_path / f"operator-{number}.log"
            python = python or str(warm_operator.folder / "python")
            process = OperatorProcess(
                kubeconfig, log, *namespace_flags, *flags, fault=fault, setup=setup, python=python
            )
            return stack.enter_context(process)

        yield run
    delete_account(api, namespace)


@pytest.fixture
def play_kuberay(api: ApiServer, namespace: str) -> Iterator[PlayKubeRay]:
    """`play_kuberay(script)` starts a fake KubeRay for the RayJobs of the test's namespace."""
    with ExitStack() as stack:

        def play(script: Script = succeeds_at_once) -> FakeKubeRay:
            return stack.enter_context(FakeKubeRay(api, namespace, script).run_in_background())

        yield play
