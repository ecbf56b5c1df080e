"""Object stores that the tests start: SeaweedFS for S3, Azurite for Azure.

SeaweedFS also stands in for Google Cloud Storage: its XML interface is like S3, and the proxy translates the rest.

Each server listens on 127.0.0.1 only, stores its data in the test's folder, and can be killed and started again there.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import pyarrow.fs as pafs
import pytest

from faulty_proxy import Faults

SCRIPTS = Path(sys.executable).parent
ROOT = Path(__file__).parents[1]
AZURITE_FOLDER = ROOT / ".cache" / "azurite"
AZURITE = AZURITE_FOLDER / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
AZURE_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="  # Azurite's
)
_START_TIMEOUT_SECONDS = 60.0
_PORT_LOCKS: list[TextIO] = []
"""Locks on the ports that this process has reserved."""
_GOOGLE_BUCKET_ACTIONS = ["Read:google", "Write:google", "List:google"]


class ServerProcess:
    """A server's process, which can be killed and started again."""

    def __init__(
        self, command: list[str], port: int, folder: Path, environment: dict[str, str] | None = None
    ) -> None:
        self._command, self.port, self._folder = command, port, folder
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command, cwd=self._folder, env=self._environment, stdout=log, stderr=log
            )
        deadline = time.monotonic() + _START_TIMEOUT_SECONDS
        while not _accepts_connections(self.port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                log_end = (self._folder / "log").read_text(errors="replace")[-2000:]
                raise RuntimeError(f"{self._command[0]} does not start: {log_end}")
            time.sleep(0.05)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def end(self) -> None:
        """End the process when all data are on disk: Azurite writes them on SIGTERM, SeaweedFS immediately."""
        self._end(signal.SIGTERM if "node" in self._command else signal.SIGKILL)

    def _end(self, signal_number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(signal_number)
            self._process.wait(_START_TIMEOUT_SECONDS)


def seaweed(folder: Path) -> ServerProcess:
    """Make an S3 server.

    `writer` may do everything, `reader` may read. Anyone may read the bucket `public`, and do everything in `google`.
    """
    identities = [
        _identity("writer", "Admin", "Read", "Write", "List", "Tagging"),
        _identity("reader", "Read", "List"),
        {"name": "anonymous", "actions": ["Read:public", "List:public", *_GOOGLE_BUCKET_ACTIONS]},
    ]
    (folder / "s3.json").write_text(json.dumps({"identities": identities}))
    (folder / "data").mkdir(exist_ok=True)
    master, master_rpc, volume, volume_rpc, filer, filer_rpc, port, rpc = free_ports(8)
    options = {
        "dir": "data",
        "ip": "127.0.0.1",
        "ip.bind": "127.0.0.1",
        "master.port": master,
        "master.port.grpc": master_rpc,
        "master.telemetry": "false",
        "master.volumeSizeLimitMB": 64,
        "volume.port": volume,
        "volume.port.grpc": volume_rpc,
        "volume.max": 32,
        "volume.preStopSeconds": 0,
        "filer": "true",
        "filer.port": filer,
        "filer.port.grpc": filer_rpc,
        "filer.localSocket": folder / "filer.sock",
        "s3": "true",
        "s3.port": port,
        "s3.port.grpc": rpc,
        "s3.port.iceberg": 0,
        "s3.port.lance": 0,
        "s3.localSocket": folder / "s3.sock",
        "s3.config": "s3.json",
        "s3.iam": "false",
        "s3.autoCreateBucket": "false",
    }
    flags = [f"-{name}={value}" for name, value in options.items()]
    return ServerProcess([str(SCRIPTS / "weed"), "-logtostderr=true", "server", *flags], port, folder)


def s3_client(user: str, address: str, **options: bool) -> pafs.S3FileSystem:
    """Make a client of SeaweedFS by pyarrow, for the user `writer` or `reader`."""
    return pafs.S3FileSystem(
        access_key=user,
        secret_key=f"{user}-secret",
        endpoint_override=address,
        scheme="http",
        region="us-east-1",
        **options,
    )


def make_buckets(port: int, *names: str) -> None:
    """Create buckets in SeaweedFS; retry, since it accepts connections before it can write."""
    client = s3_client("writer", f"127.0.0.1:{port}", allow_bucket_creation=True)
    deadline = time.monotonic() + _START_TIMEOUT_SECONDS
    while True:
        try:
            for name in names:
                client.create_dir(name)
                with client.open_output_stream(f"{name}/.greeting") as stream:
                    stream.write(b"hello")
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def azurite(folder: Path) -> ServerProcess:
    """Make a server of Azure's blobs, with Azurite's default account."""
    (port,) = free_ports(1)
    options = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(folder)]
    flags = ["--silent", "--skipApiVersionCheck", "--disableTelemetry"]
    return ServerProcess(["node", str(AZURITE), *options, *flags], port, folder)


def make_container(port: int, name: str) -> None:
    """Create a container in Azurite."""
    address = f"127.0.0.1:{port}"
    client = pafs.AzureFileSystem(
        "devstoreaccount1",
        account_key=AZURE_KEY,
        blob_storage_authority=address,
        dfs_storage_authority=address,
        blob_storage_scheme="http",
        dfs_storage_scheme="http",
    )
    client.create_dir(name)


def require(is_available: bool, name: str, remedy: str) -> None:
    """Skip the test if a server is missing, but fail in CI."""
    if is_available:
        return
    message = f"{name} is missing: {remedy}"
    if os.environ.get("CI") == "true" and shutil.which("node"):
        pytest.fail(message)
    pytest.skip(message)


def has_node() -> bool:
    return shutil.which("node") is not None and AZURITE.exists()


@contextmanager
def proxy(upstream: int, address: str = "127.0.0.1") -> Iterator[Faults]:
    """Run a faulty proxy for the port `upstream`, listening on an address; yield its control."""
    command = [sys.executable, str(Path(__file__).with_name("faulty_proxy.py")), str(upstream), address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield Faults(int(process.stdout.readline()))
        finally:
            process.kill()


def free_ports(count: int) -> list[int]:
    """Reserve free ports for as long as this process runs; no other pytest process gets them.

    The ports are below those that the system assigns to connections, so that a killed server can use its port again.
    """
    folder = Path(tempfile.gettempdir()) / "hindcast-test-ports"
    folder.mkdir(exist_ok=True)
    ports: list[int] = []
    for port in range(20_000, 30_000):
        file = (folder / str(port)).open("w")
        if not (_try_lock(file) and _is_free(port)):
            file.close()
            continue
        _PORT_LOCKS.append(file)
        ports.append(port)
        if len(ports) == count:
            return ports
    raise RuntimeError("no ports are left")


def _try_lock(file: TextIO) -> bool:
    """Lock a file for this process; return False if another process has locked it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def _accepts_connections(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def _identity(name: str, *actions: str) -> dict[str, object]:
    return {
        "name": name,
        "credentials": [{"accessKey": name, "secretKey": f"{name}-secret"}],
        "actions": list(actions),
    }
