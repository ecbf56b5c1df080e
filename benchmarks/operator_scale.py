"""The operator with 1,000 resources on a real API server, this script playing KubeRay.

    KUBECONFIG=… python benchmarks/operator_scale.py [--resources 1000]

Needs an API server with KubeRay's CRDs and no KubeRay (`../shared/cluster/cluster control-plane`). CPU is the
operator's own process, so that what else runs on the machine counts little; latency and wall time do feel it.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "tests"), str(HERE.parent / "tests" / "control_plane")]

from fake_kuberay import FakeKubeRay, current_timestamp  # noqa: E402
from kubernetes import client, watch  # noqa: E402
from operator_process import OperatorProcess, create_account, delete_account  # noqa: E402
from resources import recording  # noqa: E402

from api_server import ApiServer, collection, wait_for  # noqa: E402

TICKS = os.sysconf("SC_CLK_TCK")
GROUP = ("hindcast.dev", "v1alpha1", "offlinerecordings")
REST_SECONDS = 30
CHANGES = 300


@dataclass(frozen=True)
class Row:
    """A line of the table: what was measured, and the target."""

    what: str
    found: str
    target: str


class Cluster:
    """A namespace with many recordings."""

    def __init__(self, api: ApiServer, namespace: str, count: int) -> None:
        self.api = api
        self.namespace = namespace
        self.names = [f"walks-{number:04}" for number in range(count)]
        self.kuberay = FakeKubeRay(api, namespace)
        self._pool = ThreadPoolExecutor(6)

    def for_each_name(self, do: Callable[[str], object]) -> None:
        """For each recording, some at a time."""
        list(self._pool.map(do, self.names))

    def accept(self, name: str) -> None:
        """As `kubectl create`."""
        self.api.create(recording(name), self.namespace)

    def take_up(self, name: str) -> None:
        """KubeRay takes up its RayJob."""
        self.kuberay.set_status(
            f"{name}-r1-1", jobDeploymentStatus="Initializing", startTime=current_timestamp()
        )

    def refuse(self, name: str) -> None:
        """KubeRay calls its RayJob wrong, which ends it."""
        self.kuberay.set_status(f"{name}-r1-1", jobDeploymentStatus="ValidationFailed")

    def states(self) -> list[str]:
        """The state of each recording."""
        found = self.api.request(
            "GET", collection("hindcast.dev/v1alpha1", "offlinerecordings", self.namespace)
        )
        return [item.get("status", {}).get("state", "") for item in found["items"]]

    def all_are(self, state: str) -> bool:
        """Return whether every recording is in a state."""
        return self.states() == [state] * len(self.names)


def cpu_seconds(pid: int) -> float:
    """CPU time of a process, its own and the kernel's for it."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def peak_memory(pid: int) -> float:
    """MB that a process has had at most."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def measure(cluster: Cluster, operator: Callable[[], OperatorProcess]) -> Iterable[Row]:
    """The rows, as they are measured."""
    count = len(cluster.names)
    with operator() as running:
        wait_for(lambda: running.has_logged("filled"), "the operator runs", 60)
        pid, began = running.process.pid, cpu_seconds(running.process.pid)
        start_time = time.monotonic()
        cluster.for_each_name(cluster.accept)
        wait_for(lambda: cluster.all_are("Starting"), "each has its RayJob and status", 600)
        yield Row(
            f"{count} accepted, each with RayJob and status: CPU",
            f"{cpu_seconds(pid) - began:.1f} s",
            "≤ 60 s",
        )
        yield Row("… wall", f"{time.monotonic() - start_time:.0f} s", "")
        cluster.for_each_name(cluster.take_up)
        settle(running)
        writes, began = running.num_writes(), cpu_seconds(pid)
        time.sleep(REST_SECONDS)
        yield Row(f"writes at rest, in {REST_SECONDS} s", f"{running.num_writes() - writes:.0f}", "0")
        yield Row("CPU at rest", f"{100 * (cpu_seconds(pid) - began) / REST_SECONDS:.1f} %", "< 5 %")
        delays = latencies(cluster)
        yield Row(
            f"RayJob's change to our status, p50 / p99 of {len(delays)}",
            f"{quantiles(delays, n=100)[49]:.3f} s / {quantiles(delays, n=100)[98]:.3f} s",
            "p99 < 1 s",
        )
        yield Row("peak memory", f"{peak_memory(pid):.0f} MB", "< 300 MB")
        settle(running)
    start_time = time.monotonic()
    with operator() as second_operator:
        wait_for(lambda: second_operator.has_logged("listens"), "the operator is back", 60)
        wait_for(lambda: looks(second_operator) >= count, "each was looked at", 120)
        yield Row(f"restart until {count} were looked at", f"{time.monotonic() - start_time:.1f} s", "< 30 s")
        time.sleep(5)
        yield Row("writes after the restart", f"{second_operator.num_writes():.0f}", "0")
        yield Row(
            "peak memory after the restart", f"{peak_memory(second_operator.process.pid):.0f} MB", "< 300 MB"
        )


def settle(operator: OperatorProcess) -> None:
    """Return when nothing was written for five seconds."""
    before = -1.0
    while (now := operator.num_writes()) != before:
        before = now
        time.sleep(5)


def looks(operator: OperatorProcess) -> float:
    """Reconciliations so far."""
    return sum(operator.samples("hindcast_reconciles_total").values())


def latencies(cluster: Cluster) -> list[float]:
    """Seconds from the answer to a change of a RayJob to the watch's event with our status."""
    change_times: dict[str, float] = {}
    status_times: dict[str, float] = {}
    stop = threading.Event()

    def see() -> None:
        custom = client.CustomObjectsApi(cluster.api.client)
        group, version, plural = GROUP
        for event in watch.Watch().stream(
            custom.list_namespaced_custom_object,
            group,
            version,
            cluster.namespace,
            plural,
            timeout_seconds=180,
        ):
            name, status = event["object"]["metadata"]["name"], event["object"].get("status", {})
            if status.get("state") == "Failed":
                status_times.setdefault(name, time.monotonic())
            if stop.is_set():
                return

    watcher = threading.Thread(target=see, daemon=True)
    watcher.start()
    time.sleep(2)
    sample = cluster.names[:CHANGES]
    for name in sample:
        cluster.refuse(name)
        change_times[name] = time.monotonic()
        time.sleep(0.05)
    wait_for(lambda: len(status_times) >= len(sample), "each change is seen", 60)
    stop.set()
    return [status_times[name] - change_times[name] for name in sample]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--resources", type=int, default=1000)
    arguments = parser.parse_args()
    namespace = f"scale-{uuid.uuid4().hex[:8]}"
    rows: list[Row] = []
    with ApiServer.from_kubeconfig(os.environ["KUBECONFIG"]) as api, tempfile.TemporaryDirectory() as folder:
        api.apply_crds(sorted((HERE.parent / "crds").glob("*.yaml")))
        api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        kubeconfig, starts = create_account(api, namespace, Path(folder)), iter(range(9))

        def operator() -> OperatorProcess:
            log = Path(folder) / f"operator-{next(starts)}.log"
            return OperatorProcess(kubeconfig, log, "--namespace", namespace, "--log-level", "info")

        try:
            for row in measure(Cluster(api, namespace, arguments.resources), operator):
                print(f"{row.what}: {row.found}", flush=True)
                rows.append(row)
        finally:
            delete_account(api, namespace)
            api.delete(f"/api/v1/namespaces/{namespace}")
    table = Table("what", "measured", "target", title=f"The operator with {arguments.resources} resources")
    for row in rows:
        table.add_row(row.what, row.found, row.target)
    Console().print(table)


if __name__ == "__main__":
    main()
