"""An S3 server on this machine, which pods reach through a proxy that injects faults. Environment variables:

E2E_HOST    address of this machine for pods; default: the address of the cluster's first node, which must then be this
            machine
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow.fs as pafs
from e2e_kube import Kube, Object, run

from faulty_proxy import Fault, Faults
from object_store_servers import proxy, seaweed

KEY, SECRET = "writer", "writer-secret"


@dataclass(frozen=True)
class Bucket:
    """A bucket of an S3 server.

    Attributes:
        name: the bucket's name.
        filesystem: access to the server without faults.
        faults: the faults that the proxy injects into the requests of pods.
    """

    name: str
    filesystem: pafs.S3FileSystem
    faults: Faults

    @property
    def uri(self) -> str:
        return f"s3://{self.name}"

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables of a process that uses the bucket, except the key."""
        endpoint = f"http://{_find_host()}:{self.faults.port}"
        return {"AWS_ENDPOINT_URL": endpoint, "AWS_REGION": "us-east-1"}

    def make_cluster_spec(self) -> Object:
        """Return `spec.cluster` for pods that use the bucket with the key from a Secret."""
        return {
            "envFrom": [{"secretRef": {"name": "storage"}}],
            "env": [{"name": name, "value": value} for name, value in self.variables.items()],
            "resources": {
                "learner": {"memory": "4Gi"}
            },  # the learner holds some of the shuffled rows in memory
        }

    def create_secret(self, kube: Kube) -> None:
        """Create the Secret with the key, as a user does."""
        keys = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
        literals = [f"--from-literal={name}={value}" for name, value in keys.items()]
        kube.kubectl("create", "secret", "generic", "storage", *literals)

    def read_object(self, path: str) -> bytes:
        """Return the content of an object."""
        with self.filesystem.open_input_file(path) as stream:
            return bytes(stream.read())

    def list_objects(self, folder: str) -> list[str]:
        """Return the paths of all objects below a folder."""
        selector = pafs.FileSelector(f"{self.name}/{folder}", recursive=True, allow_not_found=True)
        return sorted(info.path for info in self.filesystem.get_file_info(selector) if info.is_file)


@contextmanager
def serve_bucket(folder: Path, *faults: Fault) -> Iterator[Bucket]:
    """Start a server with one bucket, and a proxy that injects the faults into the requests of pods."""
    server = seaweed(folder)
    try:
        server.start()
        files = pafs.S3FileSystem(
            access_key=KEY,
            secret_key=SECRET,
            endpoint_override=f"http://127.0.0.1:{server.port}",
            region="us-east-1",
            allow_bucket_creation=True,
        )
        files.create_dir("lake")
        with proxy(server.port, "0.0.0.0") as faults_of_proxy:
            faults_of_proxy.set(*faults)
            yield Bucket("lake", files, faults_of_proxy)
    finally:
        server.kill()


def _find_host() -> str:
    host = os.environ.get("E2E_HOST")
    if host:
        return host
    node, *_ = json.loads(run("kubectl", "get", "nodes", "--output", "json"))["items"]
    return next(
        str(address["address"]) for address in node["status"]["addresses"] if address["type"] == "InternalIP"
    )
