"""Tests against a real API server: the one that KUBECONFIG names, with the CRDs of this tree."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from api_server import ApiServer

CRDS = Path(__file__).parents[2] / "crds"


@pytest.fixture(scope="session")
def api() -> Iterator[ApiServer]:
    """The API server, with this tree's CRDs applied."""
    kubeconfig = os.environ.get("KUBECONFIG")
    if not kubeconfig:
        missing = pytest.fail if os.environ.get("HINDCAST_REQUIRE_CLUSTER") == "1" else pytest.skip
        missing("KUBECONFIG is not set: these tests need an API server (`make e2e` brings one)")
    with ApiServer.of(kubeconfig) as server:
        server.apply_crds(sorted(CRDS.glob("*.yaml")))
        yield server


@pytest.fixture
def namespace(api: ApiServer) -> Iterator[str]:
    """A fresh namespace, deleted afterwards."""
    name = f"test-{uuid.uuid4().hex[:10]}"
    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield name
    api.delete(f"/api/v1/namespaces/{name}")
