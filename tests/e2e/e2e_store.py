"""An S3 server on this machine, behind a proxy that fails requests, as pods reach it.

E2E_HOST    address of this machine for pods; default: that of the cluster's only node, which must then be this machine
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
    """A bucket of the test's own.

    Attributes:
        name: of the bucket.
        files: its file system, without faults.
        faults: what happens to the requests of pods.
    """

    name: str
    files: pafs.S3FileSystem
    faults: Faults

    @property
    def uri(self) -> str:
        return f"s3://{self.name}"

    @property
    def variables(self) -> dict[str, str]:
        """The environment of a process that uses it, the key aside."""
        endpoint = f"http://{_host()}:{self.faults.port}"
        return {"AWS_ENDPOINT_URL": endpoint, "AWS_REGION": "us-east-1"}

    def cluster(self) -> Object:
        """`spec.cluster` for pods that use it: the key comes from a Secret."""
        return {
            "envFrom": [{"secretRef": {"name": "storage"}}],
            "env": [{"name": name, "value": value} for name, value in self.variables.items()],
            "resources": {"learner": {"memory": "4Gi"}},  # a part of the shuffle lies there
        }

    def put_secret(self, kube: Kube) -> None:
        """The key, as a user puts it there."""
        keys = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
        literals = [f"--from-literal={name}={value}" for name, value in keys.items()]
        kube.kubectl("create", "secret", "generic", "storage", *literals)

    def read(self, path: str) -> bytes:
        """An object."""
        with self.files.open_input_file(path) as stream:
            return bytes(stream.read())

    def names(self, folder: str) -> list[str]:
        """All objects below a folder."""
        selector = pafs.FileSelector(f"{self.name}/{folder}", recursive=True, allow_not_found=True)
        return sorted(info.path for info in self.files.get_file_info(selector) if info.is_file)


@contextmanager
def bucket(folder: Path, *faults: Fault) -> Iterator[Bucket]:
    """A server with one bucket, which fails the requests of pods like this."""
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
            faults_of_proxy.begin(*faults)
            yield Bucket("lake", files, faults_of_proxy)
    finally:
        server.kill()


def _host() -> str:
    host = os.environ.get("E2E_HOST")
    if host:
        return host
    (node,) = json.loads(run("kubectl", "get", "nodes", "--output", "json"))["items"]
    return next(
        str(address["address"]) for address in node["status"]["addresses"] if address["type"] == "InternalIP"
    )
