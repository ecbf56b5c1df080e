"""The operator with 1,000 resources on a real API server, this script playing KubeRay.

    KUBECONFIG=… python benchmarks/operator_scale.py [--resources 1000] [--hostile 5000]

Needs an API server with KubeRay's CRDs and no KubeRay (`../shared/cluster/cluster control-plane`). CPU time is
that of the operator's process, so other programs affect it little; they do affect latency and wall time.
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
from contextlib import suppress
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
from resources import make_recording  # noqa: E402

from api_server import ApiServer, RefusalError, collection, wait_for  # noqa: E402

TICKS = os.sysconf("SC_CLK_TCK")
GROUP = ("hindcast.dev", "v1alpha1", "offlinerecordings")
REST_SECONDS = 30
CHANGES = 300


@dataclass(frozen=True)
class Row:
    """A row of the table: name and value of a measurement, and its target."""

    name: str
    value: str
    target: str


class Cluster:
    """A namespace with many recordings."""

    def __init__(self, api: ApiServer, namespace: str, count: int) -> None:
        self.api = api
        self.namespace = namespace
        self.names = [f"walks-{index:04}" for index in range(count)]
        self.kuberay = FakeKubeRay(api, namespace)
        self._pool = ThreadPoolExecutor(6)

    def storm(self) -> None:
        """Create all recordings at once, and then delete the namespace under them."""
        self.for_each_name(self.create)
        self.api.delete(f"/api/v1/namespaces/{self.namespace}")

    def for_each_name(self, function: Callable[[str], object]) -> None:
        """Call a function for each recording, six at a time."""
        list(self._pool.map(function, self.names))

    def create(self, name: str) -> None:
        """Create a recording, as `kubectl create` does."""
        self.api.create(make_recording(name), self.namespace)

    def initialise(self, name: str) -> None:
        """Report a recording's RayJob as initialising, as KubeRay does."""
        self.kuberay.set_status(
            f"{name}-r1-1", jobDeploymentStatus="Initializing", startTime=current_timestamp()
        )

    def fail_validation(self, name: str) -> None:
        """Report a recording's RayJob as invalid, as KubeRay does, which ends it."""
        self.kuberay.set_status(f"{name}-r1-1", jobDeploymentStatus="ValidationFailed")

    def states(self) -> list[str]:
        """Return the state of each recording."""
        response = self.api.request(
            "GET", collection("hindcast.dev/v1alpha1", "offlinerecordings", self.namespace)
        )
        return [item.get("status", {}).get("state", "") for item in response["items"]]

    def all_are(self, state: str) -> bool:
        """Return True if every recording is in a state."""
        return self.states() == [state] * len(self.names)


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process, in user and in kernel mode."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def peak_memory_mb(pid: int) -> float:
    """Return the peak memory of a process in MB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def measure(
    cluster: Cluster, hostile: Cluster | None, operator: Callable[[], OperatorProcess]
) -> Iterable[Row]:
    """Yield the rows of the table as they are measured. A hostile tenant storms while latencies are measured."""
    count = len(cluster.names)
    with operator() as first_operator:
        wait_for(lambda: first_operator.has_logged("cache filled"), "the operator runs", 60)
        pid, cpu_before = first_operator.process.pid, cpu_seconds(first_operator.process.pid)
        start_time = time.monotonic()
        cluster.for_each_name(cluster.create)
        wait_for(lambda: cluster.all_are("Starting"), "each has its RayJob and status", 600)
        yield Row(
            f"{count} accepted, each with RayJob and status: CPU",
            f"{cpu_seconds(pid) - cpu_before:.1f} s",
            "≤ 60 s",
        )
        yield Row("… wall", f"{time.monotonic() - start_time:.0f} s", "")
        cluster.for_each_name(cluster.initialise)
        settle(first_operator)
        writes, cpu_before = first_operator.read_num_writes(), cpu_seconds(pid)
        time.sleep(REST_SECONDS)
        yield Row(
            f"writes at rest, in {REST_SECONDS} s", f"{first_operator.read_num_writes() - writes:.0f}", "0"
        )
        yield Row("CPU at rest", f"{100 * (cpu_seconds(pid) - cpu_before) / REST_SECONDS:.1f} %", "< 5 %")
        storm = threading.Thread(target=hostile.storm if hostile else lambda: None)
        storm.start()
        latencies = measure_latencies(cluster)
        storm.join()
        yield Row(
            f"RayJob's change to our status, p50 / p99 of {len(latencies)}",
            f"{quantiles(latencies, n=100)[49]:.3f} s / {quantiles(latencies, n=100)[98]:.3f} s",
            "p99 < 2 s" if hostile else "p99 < 1 s",
        )
        yield Row("peak memory", f"{peak_memory_mb(pid):.0f} MB", "< 300 MB")
        settle(first_operator)
    start_time = time.monotonic()
    with operator() as second_operator:
        wait_for(lambda: second_operator.has_logged("listening"), "the operator is back", 60)
        wait_for(lambda: num_reconciles(second_operator) >= count, "each was reconciled", 120)
        yield Row(f"restart until {count} were looked at", f"{time.monotonic() - start_time:.1f} s", "< 30 s")
        time.sleep(5)
        yield Row("writes after the restart", f"{second_operator.read_num_writes():.0f}", "0")
        yield Row(
            "peak memory after the restart",
            f"{peak_memory_mb(second_operator.process.pid):.0f} MB",
            "< 300 MB",
        )


def settle(operator: OperatorProcess) -> None:
    """Wait until the operator has written nothing for five seconds."""
    num_writes_before = -1.0
    while (num_writes := operator.read_num_writes()) != num_writes_before:
        num_writes_before = num_writes
        time.sleep(5)


def num_reconciles(operator: OperatorProcess) -> float:
    """Return the number of reconciliations so far."""
    return sum(operator.read_samples("hindcast_reconciles_total").values())


def measure_latencies(cluster: Cluster) -> list[float]:
    """Return the seconds from each change of a RayJob to the watch event with the resource's new status."""
    change_times: dict[str, float] = {}
    status_times: dict[str, float] = {}
    stop = threading.Event()

    def watch_statuses() -> None:
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

    watcher = threading.Thread(target=watch_statuses, daemon=True)
    watcher.start()
    time.sleep(2)
    sample = cluster.names[:CHANGES]
    for name in sample:
        cluster.fail_validation(name)
        change_times[name] = time.monotonic()
        time.sleep(0.05)
    wait_for(lambda: len(status_times) >= len(sample), "each change is seen", 60)
    stop.set()
    return [status_times[name] - change_times[name] for name in sample]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--resources", type=int, default=1000)
    parser.add_argument(
        "--hostile", type=int, default=0, help="resources of a hostile tenant (default: no tenant)"
    )
    arguments = parser.parse_args()
    namespace = f"scale-{uuid.uuid4().hex[:8]}"
    namespaces = [namespace, f"{namespace}-hostile"] if arguments.hostile else [namespace]
    rows: list[Row] = []
    with ApiServer.from_kubeconfig(os.environ["KUBECONFIG"]) as api, tempfile.TemporaryDirectory() as folder:
        api.apply_crds(sorted((HERE.parent / "crds").glob("*.yaml")))
        for name in namespaces:
            api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        flags = [flag for name in namespaces for flag in ("--namespace", name)]
        hostile = Cluster(api, namespaces[1], arguments.hostile) if arguments.hostile else None
        kubeconfig, log_numbers = create_account(api, namespace, Path(folder)), iter(range(9))

        def operator() -> OperatorProcess:
            log = Path(folder) / f"operator-{next(log_numbers)}.log"
            return OperatorProcess(kubeconfig, log, *flags, "--log-level", "info")

        try:
            for row in measure(Cluster(api, namespace, arguments.resources), hostile, operator):
                print(f"{row.name}: {row.value}", flush=True)
                rows.append(row)
        finally:
            delete_account(api, namespace)
            for name in namespaces:
                with suppress(RefusalError):  # the storm has deleted its namespace
                    api.delete(f"/api/v1/namespaces/{name}")
    table = Table("what", "measured", "target", title=f"The operator with {arguments.resources} resources")
    for row in rows:
        table.add_row(row.name, row.value, row.target)
    Console().print(table)


if __name__ == "__main__":
    main()
