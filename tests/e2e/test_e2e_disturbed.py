"""Live runs while the control plane, KubeRay and nodes fail: they end as if undisturbed.

`make e2e PARTS=disturbed` runs this test on a cluster of `../shared/cluster`, which it stops and starts in parts.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from e2e_cluster import DATA_FOLDER, SYSTEM_NAMESPACE, copy_from_claim, copy_to_claim, run_in_reader_pod
from e2e_kube import Kube, Object, run
from e2e_resources import (
    CODE_CLUSTER,
    make_code_config_map,
    make_recording,
    make_training,
    slow_training_code,
)

from support import record
from support import recording as local_recording

CLUSTER = Path(os.environ.get("CLUSTER", Path(__file__).parents[3] / "shared" / "cluster" / "cluster"))
pytestmark = [
    pytest.mark.soak,
    pytest.mark.minutes,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not CLUSTER.exists(), reason="stops and starts parts of ../shared/cluster"),
]
OPERATOR = ("--namespace", SYSTEM_NAMESPACE, "deployment/hindcast")
KUBERAY = ("--namespace", "kuberay-system", "deployment/kuberay-operator")
ITERATIONS = 1000
STEPPED_CLOCK = """
import datetime as real, time
from hindcast_operator import times
from hindcast_operator.control import act, api, lease
from hindcast_operator.__main__ import main

start = time.monotonic()


class SteppedTime(real.datetime):
    @classmethod
    def now(cls, tz=None):
        step = real.timedelta(minutes=31 if time.monotonic() - start > 15 else 0)
        return real.datetime.now(tz) + step


times.datetime = act.datetime = api.datetime = lease.datetime = SteppedTime
main()
"""
"""An operator with a system clock that is set ahead by 31 minutes."""


def test_live_runs_survive_disturbances(kube: Kube, tmp_path: Path) -> None:
    """A training with one learner and one with two live through everything, and continue where a drain stops them."""
    slow_file = f"{DATA_FOLDER}/{kube.namespace}/slow"
    runs = start_runs(kube, tmp_path, slow_file, one={}, two={"learners": {"replicas": 2}})
    kube.wait_for_iteration("one", 2)
    kube.wait_for_iteration("two", 2)

    restart_api_server()
    assert_alive(kube, runs)
    run_with_stepped_clock(tmp_path, seconds=45)
    assert_alive(kube, runs)
    for kind in ("configmaps", "roles", "rolebindings"):
        kube.kubectl("delete", kind, "--selector", "app.kubernetes.io/managed-by=hindcast-operator")
    assert_alive(kube, runs)
    with failing_webhook(kube), scaled_down(KUBERAY):
        kube.apply(make_recording("late"))
        kube.wait_for_message("late", "webhook", "OfflineRecording")
        assert_alive(kube, runs)
    kube.wait_for_state("OfflineRecording", "late", "Succeeded")
    for number, version in enumerate(("1.5", "1.6", "1.5", "1.6")):
        run(str(CLUSTER), "kuberay", version, timeout=300)
        assert_alive(kube, runs)
        if number == 0:
            kube.apply(make_recording("with-older-kuberay"))
            kube.wait_for_state("OfflineRecording", "with-older-kuberay", "Succeeded")

    for name, pool, attempt in (("two", "learner", 1), ("one", "head", 2)):
        iteration = kube.get_status("OfflineTraining", name)["progress"]["iteration"]
        kube.delete("pod", kube.list_pods(pool, name)[0]["metadata"]["name"], "--wait=false")
        assert wait_for_resumption(kube, name, attempt) >= iteration, "no checkpoint of the drained pod"
    run_in_reader_pod(kube, "rm", slow_file)
    assert_equal_to_undisturbed(kube, runs, tmp_path)


def test_run_survives_node_without_power(kube: Kube, tmp_path: Path) -> None:
    """The node of the learner loses its power, with all containers, and comes back: the same attempt goes on."""
    last_node = len(list((Path(os.environ["KUBECONFIG"]).parents[1] / "log/pids").glob("kubelet*")))
    if last_node == 1:
        pytest.skip("needs a cluster of two nodes: `cluster up --nodes 2 --gpus 2`")
    slow_file = f"{DATA_FOLDER}/{kube.namespace}/slow"
    toleration = {"key": "nvidia.com/gpu", "operator": "Exists"}
    placement = {"nodeSelector": {"accelerator": "fake"}, "tolerations": [toleration]}
    cluster = CODE_CLUSTER | {"podOverrides": {"learner": {"spec": placement}}}
    checkpoint = {"path": "runs", "every": 5}
    runs = start_runs(kube, tmp_path, slow_file, one={"cluster": cluster, "checkpoint": checkpoint})
    kube.wait_for_iteration("one", 10)

    run(str(CLUSTER), "node-stop", str(last_node))
    try:
        kube.wait_for_message("one", "unreachable", seconds=180)
    finally:
        run(str(CLUSTER), "node-start", str(last_node))
    assert wait_for_resumption(kube, "one") >= 5, "no checkpoint of the lost learner"
    run_in_reader_pod(kube, "rm", slow_file)
    assert_equal_to_undisturbed(kube, runs, tmp_path)
    assert [entry["attempt"] for entry in kube.get_status("OfflineTraining", "one")["runs"]] == [1]


# -- runs ---------------------------------------------------------------------------------------------------


def start_runs(kube: Kube, folder: Path, slow_file: str, **specs: Object) -> list[str]:
    """Apply slow trainings, by name. Return their names."""
    record(local_recording(folder / "data", environment={"id": "CartPole-v1"}))
    copy_to_claim(kube, folder / "data", "data")
    run_in_reader_pod(kube, "touch", slow_file)
    trainings = [make_slow_training(name, **spec) for name, spec in specs.items()]
    kube.apply(make_code_config_map(slow=slow_training_code(slow_file)), *trainings)
    return list(specs)


def make_slow_training(name: str, **spec: Any) -> Object:
    return make_training(
        name,
        "data",
        callbacks=["slow:SlowTraining"],
        pipeline={"dataWorkers": {"replicas": 0}, "datasetNumItersPerLearner": 20},
        stop={"iterations": ITERATIONS},
        **{"cluster": CODE_CLUSTER, "checkpoint": {"path": "runs", "every": 1000}, **spec},
    )


def assert_alive(kube: Kube, names: list[str]) -> None:
    """Check that each training goes on: two new iterations are reported, in the first attempt."""
    for name in names:
        iteration = kube.get_status("OfflineTraining", name)["progress"]["iteration"]
        kube.wait_for_iteration(name, iteration + 2)
        assert [entry["attempt"] for entry in kube.get_status("OfflineTraining", name)["runs"]] == [1]


def assert_equal_to_undisturbed(kube: Kube, names: list[str], folder: Path) -> None:
    """Wait for the trainings, and compare their losses with those of a training on this machine."""
    from hindcast.api.loading import validate_resource
    from hindcast.datasets.opening import open_dataset
    from hindcast.pipeline.offline_data import Source
    from hindcast.run.interruption import Interruption
    from hindcast.run.training.training_run import TrainingRun
    from support import MemoryReporter

    for name in names:
        kube.wait_for_state("OfflineTraining", name, "Succeeded")
        (folder / name).mkdir()
        cluster_losses = read_losses(copy_from_claim(kube, f"runs/{name}/r1", folder / name))
        spec = (kube.get("OfflineTraining", name) or {})["spec"]
        batch_size = spec["config"]["trainBatchSizePerLearner"] * spec.get("learners", {}).get("replicas", 1)
        resource = make_training(
            name,
            str(folder / "data"),
            config=spec["config"] | {"trainBatchSizePerLearner": batch_size},
            pipeline={"dataWorkers": {"replicas": 0}, "datasetNumItersPerLearner": 20},
            stop={"iterations": ITERATIONS},
            checkpoint={"path": str(folder / "local"), "every": 1000},
        )
        sources = [Source("data", open_dataset(folder / "data"))]
        TrainingRun(validate_resource(resource), sources, MemoryReporter(), Interruption()).execute()
        assert len(cluster_losses) == ITERATIONS
        assert cluster_losses == pytest.approx(read_losses(folder / "local" / name / "r1"), rel=1e-3)


def read_losses(run_folder: Path) -> list[float]:
    """Return the loss of each iteration."""
    lines = (run_folder / "results.jsonl").read_bytes().splitlines()
    return [orjson.loads(line)["learners"]["default_policy"]["total_loss"] for line in lines]


def wait_for_resumption(kube: Kube, name: str, attempt: int = 1) -> int:
    """Wait until an attempt's log says that the training resumed, and return the iteration at which it did."""
    log = f"{DATA_FOLDER}/{kube.namespace}/runs/{name}/r1/logs/{name}-t1-{attempt}.log"

    def read_iteration() -> str:
        process = run_in_reader_pod(kube, "sh", "-c", f"cat {log} || true", stdout=subprocess.PIPE)
        _, _, rest = process.stdout.decode().rpartition("resuming at update")
        return rest.partition("(iteration ")[2].partition(")")[0]

    return int(kube.wait(f"attempt {attempt} of {name} resumes", read_iteration))


# -- disturbances -------------------------------------------------------------------------------------------


def restart_api_server() -> None:
    """Kill the API server, and start it again after ten seconds."""
    home = Path(os.environ["KUBECONFIG"]).parents[1]
    os.kill(int((home / "log/pids/kube-apiserver").read_text().split()[0]), signal.SIGKILL)
    time.sleep(10)
    run(
        str(CLUSTER),
        "up",
        "--gpus",
        "2",
        "--nodes",
        str(len(list((home / "log/pids").glob("kubelet*")))),
        timeout=300,
    )


def run_with_stepped_clock(folder: Path, seconds: float) -> None:
    """Let an operator with a clock that steps serve the runs instead of the one in the cluster."""
    values = json.loads(
        run("kubectl", "get", "configmap", "--namespace", SYSTEM_NAMESPACE, "hindcast-defaults", "-o", "json")
    )
    (file_name, text), *_ = values["data"].items()
    defaults = folder / file_name
    defaults.write_text(text)
    with scaled_down(OPERATOR):
        command = [
            sys.executable,
            "-c",
            STEPPED_CLOCK,
            "--listen",
            "127.0.0.1:0",
            "--defaults",
            str(defaults),
        ]
        with (folder / "operator.log").open("w") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        time.sleep(seconds)
        assert process.poll() is None
        process.terminate()
        process.wait(30)


@contextmanager
def scaled_down(deployment: tuple[str, ...]) -> Iterator[None]:
    """Stop a deployment for the duration of the block."""
    run("kubectl", "scale", "--replicas=0", *deployment)
    try:
        yield
    finally:
        run("kubectl", "scale", "--replicas=1", *deployment)
        run("kubectl", "rollout", "status", *deployment, "--timeout=120s")


@contextmanager
def failing_webhook(kube: Kube) -> Iterator[None]:
    """Let a webhook that does not answer refuse all new RayJobs of the namespace."""
    webhook = {
        "name": "away.example.com",
        "clientConfig": {"url": "https://127.0.0.1:1/validate"},
        "rules": [
            {
                "apiGroups": ["ray.io"],
                "apiVersions": ["v1"],
                "operations": ["CREATE"],
                "resources": ["rayjobs"],
            }
        ],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": kube.namespace}},
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    configuration = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": kube.namespace},
        "webhooks": [webhook],
    }
    run("kubectl", "apply", "--filename", "-", stdin=json.dumps(configuration))
    try:
        yield
    finally:
        run("kubectl", "delete", "validatingwebhookconfiguration", kube.namespace)
