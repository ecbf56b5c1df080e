"""The operator with 1,300 resources on a real API server, this script playing KubeRay and 1,000 live runs.

    KUBECONFIG=… python benchmarks/operator_scale.py [--resources 1300] [--tenants 199] [--hostile 5000]

Needs an API server with KubeRay's CRDs and no KubeRay (`../shared/cluster/cluster control-plane`). CPU time is
that of the operator's process, so other programs affect it little; they do affect latency and wall time.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
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
LABEL = "scale.example.com/tenant"
REST_SECONDS = 30
LIVE_SECONDS = 90
REPORT_INTERVAL_SECONDS = 30
CHANGES = 300
INVALID = {"runPolicy": {"stallTimeoutSeconds": 10}}
"""A field that admission accepts and the operator refuses."""


@dataclass(frozen=True)
class Row:
    """A row of the table: name and value of a measurement, and its target."""

    name: str
    value: str
    target: str


class Tenants:
    """Namespaces with recordings, which are spread over them."""

    def __init__(self, api: ApiServer, namespaces: list[str], count: int) -> None:
        self.api = api
        self.namespaces = namespaces
        self.label = namespaces[0]
        self.recordings = [(namespaces[i % len(namespaces)], f"walks-{i:04}") for i in range(count)]
        self.kuberay = {namespace: FakeKubeRay(api, namespace) for namespace in namespaces}
        self._pool = ThreadPoolExecutor(6)

    def for_each(self, function: Callable[..., object]) -> None:
        """Call a function with namespace and name of each recording, six at a time."""
        list(self._pool.map(function, *zip(*self.recordings, strict=True)))

    def create(self, namespace: str, name: str) -> None:
        """Create a recording, as `kubectl create` does."""
        recording = make_recording(name)
        recording["metadata"]["labels"] = {LABEL: self.label}
        self.api.create(recording, namespace)

    def initialise(self, namespace: str, name: str) -> None:
        """Report a recording's RayJob as initialising, as KubeRay does."""
        self.kuberay[namespace].set_status(
            f"{name}-r1-1", jobDeploymentStatus="Initializing", startTime=current_timestamp()
        )

    def start(self, namespace: str, name: str) -> None:
        """Report a recording's RayJob as running, as KubeRay does."""
        self.kuberay[namespace].set_status(f"{name}-r1-1", jobDeploymentStatus="Running", jobStatus="RUNNING")

    def fail_validation(self, namespace: str, name: str) -> None:
        """Report a recording's RayJob as invalid, as KubeRay does, which ends it."""
        self.kuberay[namespace].set_status(f"{name}-r1-1", jobDeploymentStatus="ValidationFailed")

    @contextmanager
    def reports(self) -> Iterator[None]:
        """Let each recording report its progress every 30 seconds for the duration of the block."""
        stop, start_time = threading.Event(), time.monotonic()

        def report() -> None:
            for episodes in range(1, 1000):
                for i, (namespace, name) in enumerate(self.recordings):
                    due = start_time + REPORT_INTERVAL_SECONDS * (episodes - 1 + i / len(self.recordings))
                    if stop.wait(max(due - time.monotonic(), 0.0)):
                        return
                    progress = {"episodes": episodes, "summary": f"{episodes}/1000 episodes"}
                    self.kuberay[namespace].write_report(f"{name}-r1-1", progress=progress)

        reporter = threading.Thread(target=report)
        reporter.start()
        try:
            yield
        finally:
            stop.set()
            reporter.join()

    def states(self) -> list[str]:
        """Return the state of each recording."""
        response = self.api.request(
            "GET",
            collection("hindcast.dev/v1alpha1", "offlinerecordings"),
            labelSelector=f"{LABEL}={self.label}",
        )
        return [item.get("status", {}).get("state", "") for item in response["items"]]

    def all_are(self, state: str) -> bool:
        """Return True if every recording is in a state."""
        return self.states() == [state] * len(self.recordings)


def flood(kubeconfig: str, namespace: str, count: int) -> None:
    """Create many resources at once, every second one of which the operator refuses."""
    with ApiServer.from_kubeconfig(kubeconfig) as api, ThreadPoolExecutor(6) as pool:
        documents = [make_recording(f"x-{i:04}", **(INVALID if i % 2 else {})) for i in range(count)]
        list(pool.map(lambda document: api.create(document, namespace), documents))


def delete_namespace(kubeconfig: str, namespace: str) -> None:
    """Delete a namespace under all its resources, and wait until it is gone."""
    with ApiServer.from_kubeconfig(kubeconfig) as api, suppress(RefusalError):
        api.delete(f"/api/v1/namespaces/{namespace}")
        while True:
            api.request("GET", f"/api/v1/namespaces/{namespace}")
            time.sleep(1)


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process, in user and in kernel mode."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def peak_memory_mb(pid: int) -> float:
    """Return the peak memory of a process in MB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def measure(
    tenants: Tenants,
    hostile_process: Callable[..., multiprocessing.Process],
    operator: Callable[[], OperatorProcess],
) -> Iterable[Row]:
    """Yield the rows of the table as they are measured.

    `hostile_process` returns a process in which a hostile tenant calls a function; without one, it returns None.
    """
    count = len(tenants.recordings)
    with operator() as first_operator:
        wait_for(lambda: first_operator.has_logged("cache filled"), "the operator runs", 60)
        pid, cpu_before = first_operator.process.pid, cpu_seconds(first_operator.process.pid)
        start_time = time.monotonic()
        tenants.for_each(tenants.create)
        wait_for(lambda: tenants.all_are("Starting"), "each has its RayJob and status", 600)
        yield Row(
            f"{count} accepted, each with RayJob and status: CPU",
            f"{cpu_seconds(pid) - cpu_before:.1f} s",
            "≤ 60 s per 1,000",
        )
        yield Row("… wall", f"{time.monotonic() - start_time:.0f} s", "")
        tenants.for_each(tenants.initialise)
        settle(first_operator)
        writes, cpu_before = first_operator.read_num_writes(), cpu_seconds(pid)
        time.sleep(REST_SECONDS)
        yield Row(
            f"writes at rest, in {REST_SECONDS} s", f"{first_operator.read_num_writes() - writes:.0f}", "0"
        )
        yield Row("CPU at rest", f"{100 * (cpu_seconds(pid) - cpu_before) / REST_SECONDS:.1f} %", "< 5 %")
        changes = [tenants.recordings.pop() for _ in range(min(CHANGES, count - 1))]
        for disturbance, recordings in ((flood, changes[::2]), (delete_namespace, changes[1::2])):
            latencies = measure_latencies(tenants, recordings, hostile_process(disturbance))
            yield latency_row(latencies, disturbance)
        yield Row("peak memory", f"{peak_memory_mb(pid):.0f} MB", "< 300 MB")
        settle(first_operator)
    start_time = time.monotonic()
    with operator() as second_operator:
        pid = second_operator.process.pid
        wait_for(lambda: second_operator.has_logged("listening"), "the operator is back", 60)
        wait_for(lambda: num_reconciles(second_operator) >= count, "each was reconciled", 120)
        yield Row(f"restart until {count} were looked at", f"{time.monotonic() - start_time:.1f} s", "< 30 s")
        time.sleep(5)
        yield Row("writes after the restart", f"{second_operator.read_num_writes():.0f}", "0")
        yield Row("peak memory after the restart", f"{peak_memory_mb(pid):.0f} MB", "< 300 MB")
        tenants.for_each(tenants.start)
        with tenants.reports():
            time.sleep(REPORT_INTERVAL_SECONDS)  # until each has reported
            writes, cpu_before = second_operator.read_num_writes(), cpu_seconds(pid)
            time.sleep(LIVE_SECONDS)
            num_live = tenants.states().count("Running")
            cpu_share = (cpu_seconds(pid) - cpu_before) / LIVE_SECONDS
            num_writes = second_operator.read_num_writes() - writes
        yield Row(
            f"{num_live} live runs, each with a report every {REPORT_INTERVAL_SECONDS} s: CPU",
            f"{cpu_share:.2f} cores",
            "< 0.3 cores per 1,000",
        )
        yield Row("… writes", f"{num_writes / LIVE_SECONDS:.1f}/s", "< 40/s per 1,000")
        yield Row("… peak memory", f"{peak_memory_mb(pid):.0f} MB", "< 300 MB")


def latency_row(latencies: list[float], disturbance: Callable[..., None]) -> Row:
    """Return the row of the latencies that were measured beside a disturbance."""
    percentiles = quantiles(latencies, n=100)
    name = f"RayJob's change to our status, p50 / p99 of {len(latencies)} ({disturbance.__name__})"
    return Row(name, f"{percentiles[49]:.3f} s / {percentiles[98]:.3f} s", "p99 < 2 s")


def settle(operator: OperatorProcess) -> None:
    """Wait until the operator has written nothing for five seconds."""
    num_writes_before = -1.0
    while (num_writes := operator.read_num_writes()) != num_writes_before:
        num_writes_before = num_writes
        time.sleep(5)


def num_reconciles(operator: OperatorProcess) -> float:
    """Return the number of reconciliations so far."""
    return sum(operator.read_samples("hindcast_reconciles_total").values())


def measure_latencies(
    tenants: Tenants, recordings: list[tuple[str, str]], disturbance: multiprocessing.Process | None
) -> list[float]:
    """Return the seconds from each change of a RayJob to the watch event with the resource's new status.

    The changes are spread over the time that the disturbance takes, 150 s at most.
    """
    change_times: dict[str, float] = {}
    status_times: dict[str, float] = {}
    stop = threading.Event()

    def watch_statuses() -> None:
        custom = client.CustomObjectsApi(tenants.api.client)
        selector = f"{LABEL}={tenants.label}"
        for event in watch.Watch().stream(
            custom.list_cluster_custom_object, *GROUP, label_selector=selector, timeout_seconds=400
        ):
            name, status = event["object"]["metadata"]["name"], event["object"].get("status", {})
            if status.get("state") == "Failed":
                status_times.setdefault(name, time.monotonic())
            if stop.is_set():
                return

    watcher = threading.Thread(target=watch_statuses, daemon=True)
    watcher.start()
    time.sleep(2)
    if disturbance is not None:
        disturbance.start()
    for namespace, name in recordings:
        tenants.fail_validation(namespace, name)
        change_times[name] = time.monotonic()
        time.sleep(1.0 if disturbance is not None and disturbance.is_alive() else 0.05)
    wait_for(lambda: status_times.keys() >= change_times.keys(), "each change is seen", 60)
    stop.set()
    if disturbance is not None:
        disturbance.join()
    return [status_times[name] - change_times[name] for name in change_times]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--resources", type=int, default=CHANGES + 1000)
    parser.add_argument("--tenants", type=int, default=199)
    parser.add_argument(
        "--hostile", type=int, default=0, help="resources of a hostile tenant (default: no tenant)"
    )
    arguments = parser.parse_args()
    kubeconfig = os.environ["KUBECONFIG"]
    prefix = f"scale-{uuid.uuid4().hex[:8]}"
    hostile_namespace = f"{prefix}-hostile"
    namespaces = [f"{prefix}-{i}" for i in range(arguments.tenants)]
    all_namespaces = [*namespaces, *([hostile_namespace] if arguments.hostile else [])]
    rows: list[Row] = []
    with ApiServer.from_kubeconfig(kubeconfig) as api, tempfile.TemporaryDirectory() as folder:
        api.apply_crds(sorted((HERE.parent / "crds").glob("*.yaml")))
        for name in all_namespaces:
            api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        account, log_numbers = create_account(api, namespaces[0], Path(folder)), iter(range(9))

        def operator() -> OperatorProcess:
            log = Path(folder) / f"operator-{next(log_numbers)}.log"
            return OperatorProcess(account, log, "--log-level", "info")

        def hostile_process(disturbance: Callable[..., None]) -> multiprocessing.Process | None:
            if not arguments.hostile:
                return None
            count = (arguments.hostile,) if disturbance is flood else ()
            target_arguments = (kubeconfig, hostile_namespace, *count)
            return multiprocessing.get_context("spawn").Process(target=disturbance, args=target_arguments)

        try:
            for row in measure(Tenants(api, namespaces, arguments.resources), hostile_process, operator):
                print(f"{row.name}: {row.value}", flush=True)
                rows.append(row)
        finally:
            delete_account(api, namespaces[0])
            for name in all_namespaces:
                with suppress(RefusalError):  # the hostile one is gone
                    api.delete(f"/api/v1/namespaces/{name}")
    table = Table("what", "measured", "target", title=f"The operator with {arguments.resources} resources")
    for row in rows:
        table.add_row(row.name, row.value, row.target)
    Console().print(table)


if __name__ == "__main__":
    main()
