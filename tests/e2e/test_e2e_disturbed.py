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
from e2e_cluster import (
    DATA_FOLDER,
    RUNTIME_IMAGE,
    SYSTEM_NAMESPACE,
    copy_from_claim,
    copy_to_claim,
    run_in_reader_pod,
)
from e2e_kube import Kube, Object, run
from e2e_resources import (
    CODE_CLUSTER,
    make_code_config_map,
    make_recording,
    make_training,
    slow_training_code,
)
from e2e_store import Bucket, serve_bucket

from faulty_proxy import Fault
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
AGED_CLOCK = """
from datetime import timedelta
from hindcast_operator import times
from hindcast_operator.__main__ import main

read = times.SteadyClock.__call__
times.SteadyClock.__call__ = lambda clock: read(clock) + timedelta(minutes=61)
main()
"""
"""An operator for which an hour has passed since all objects were created and all attempts ended."""
SLOW_CONNECTOR = """\
import time
from pathlib import Path

from hindcast import ConnectorV2


class SlowConnector(ConnectorV2):
    def __call__(self, *, batch, **_):
        if Path("{file}").exists():
            time.sleep(0.3)
        return batch
"""
"""A connector that takes long for each unit of the data while a file exists."""


def test_live_runs_survive_disturbances(kube: Kube, tmp_path: Path) -> None:
    """Three trainings, one of them with two learners, live through everything, and continue where a drain stops them.

    The third one cannot report from its ServiceAccount's deletion on, until the kubelet renews its token.
    """
    slow_file = f"{DATA_FOLDER}/{kube.namespace}/slow"
    specs: dict[str, Object] = {"one": {}, "two": {"learners": {"replicas": 2}}, "muted": {}}
    all_runs = start_runs(kube, tmp_path, slow_file, **specs)
    for name in all_runs:
        kube.wait_for_iteration(name, 2)

    restart_api_server()
    assert_alive(kube, all_runs)
    kube.delete("serviceaccount", "muted-training")
    runs = ["one", "two"]
    with operator_with_clock(STEPPED_CLOCK, tmp_path):
        time.sleep(45)
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
    assert_alive(kube, ["muted"])
    run_in_reader_pod(kube, "rm", slow_file)
    assert_equal_to_undisturbed(kube, all_runs, tmp_path)


def test_runs_wait_for_storage_and_gpus(kube: Kube, tmp_path: Path) -> None:
    """Storage is away, and other pods hold all GPUs for an hour: the runs wait, and end as if undisturbed."""
    slow_file = f"{DATA_FOLDER}/{kube.namespace}/slow"
    (tmp_path / "lake").mkdir()
    with serve_bucket(tmp_path / "lake") as lake:
        lake.create_secret(kube)
        kube.apply(make_gpu_holder())
        variable = {"name": "HINDCAST_STORAGE_TIMEOUT", "value": "20"}
        cluster = lake.make_cluster_spec() | CODE_CLUSTER
        bucket_spec = {
            "cluster": cluster | {"env": [*cluster["env"], variable]},
            "checkpoint": {"path": f"{lake.uri}/runs", "every": 2},
            "stop": {"iterations": 60},
        }
        learner = {"gpus": 1, "device": "cpu"}
        start_runs(kube, tmp_path, slow_file, stored=bucket_spec, waiting={"learners": learner})
        kube.wait_for_iteration("stored", 5)
        lake.faults.set(Fault(cut=-1))
        kube.wait("the loss of storage is seen", lambda: latest_run(kube, "stored").get("reason"))
        assert latest_run(kube, "stored")["reason"] == "StorageUnavailable"
        kube.wait_for_message("waiting", "nvidia.com/gpu")
        lake.faults.set()

        with operator_with_clock(AGED_CLOCK, tmp_path):
            kube.wait_for_state("OfflineTraining", "stored", "Running")
            assert latest_run(kube, "stored")["attempt"] == 2
            assert latest_run(kube, "stored").get("retries", 0) == 0
            assert latest_run(kube, "waiting")["attempt"] == 1
            run_in_reader_pod(kube, "rm", slow_file)
            kube.delete("pod", "gpu-holder", "--wait=false")
            assert_equal_to_undisturbed(kube, ["stored"], tmp_path, lake)
            assert_equal_to_undisturbed(kube, ["waiting"], tmp_path)
        assert latest_run(kube, "waiting")["attempt"] == 1


def test_pool_of_data_workers_follows_two_learners(kube: Kube, tmp_path: Path) -> None:
    """The pool grows while two learners starve, which the status says within a minute, and then shrinks."""
    slow_file, starving_file = (f"{DATA_FOLDER}/{kube.namespace}/{name}" for name in ("slow", "starving"))
    pipeline = {
        "dataWorkers": {"minReplicas": 1, "maxReplicas": 3, "cpus": 0.1},
        "datasetNumItersPerLearner": 10,
        "residency": "Streaming",
        "windowSteps": 200,
        "connectors": ["starving:SlowConnector"],
    }
    code = {"starving": SLOW_CONNECTOR.format(file=starving_file)}
    spec = {"learners": {"replicas": 2}, "pipeline": pipeline}
    start_runs(kube, tmp_path, slow_file, code, two=spec)
    kube.wait_for_iteration("two", 3)
    run_in_reader_pod(kube, "touch", starving_file)
    run_in_reader_pod(kube, "rm", slow_file)
    kube.wait("the status says that the learners starve", lambda: data_wait_share(kube, "two") > 0.9, 60)
    kube.wait("the pool grows", lambda: len(kube.list_pods("data", "two")) == 3)
    run_in_reader_pod(kube, "mv", starving_file, slow_file)
    kube.wait("the pool shrinks", lambda: len(kube.list_pods("data", "two")) == 1)
    assert latest_run(kube, "two")["attempt"] == 1


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


def start_runs(
    kube: Kube, folder: Path, slow_file: str, code: dict[str, str] | None = None, /, **specs: Object
) -> list[str]:
    """Apply slow trainings, by name, and `code`, the text of further modules. Return the trainings' names."""
    output = {"maxRowsPerFile": 1}
    record(local_recording(folder / "data", environment={"id": "CartPole-v1"}, output=output))
    copy_to_claim(kube, folder / "data", "data")
    run_in_reader_pod(kube, "touch", slow_file)
    trainings = [make_slow_training(name, **spec) for name, spec in specs.items()]
    kube.apply(make_code_config_map(slow=slow_training_code(slow_file), **(code or {})), *trainings)
    return list(specs)


def make_slow_training(name: str, **spec: Any) -> Object:
    return make_training(
        name,
        "data",
        callbacks=["slow:SlowTraining"],
        **{
            "cluster": CODE_CLUSTER,
            "checkpoint": {"path": "runs", "every": 1000},
            "pipeline": {"dataWorkers": {"replicas": 0}, "datasetNumItersPerLearner": 20},
            "stop": {"iterations": ITERATIONS},
            **spec,
        },
    )


def make_gpu_holder() -> Object:
    """Return a pod that holds both GPUs of the cluster."""
    container = {
        "name": "holder",
        "image": RUNTIME_IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sleep", "infinity"],
        "resources": {"limits": {"cpu": "10m", "memory": "64Mi", "nvidia.com/gpu": 2}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    spec = {
        "containers": [container],
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 1000,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "terminationGracePeriodSeconds": 0,
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "gpu-holder"}, "spec": spec}


def latest_run(kube: Kube, name: str) -> Object:
    """Return the entry of a training's latest attempt."""
    return dict(kube.get_status("OfflineTraining", name)["runs"][0])


def data_wait_share(kube: Kube, name: str) -> float:
    """Return the share of their time for which the learners wait for data, as the status says."""
    progress = kube.get_status("OfflineTraining", name)["progress"]
    return float(progress["metrics"]["dataWaitShare"])


def assert_alive(kube: Kube, names: list[str]) -> None:
    """Check that each training goes on: two new iterations are reported, in the first attempt."""
    for name in names:
        iteration = kube.get_status("OfflineTraining", name)["progress"]["iteration"]
        kube.wait_for_iteration(name, iteration + 2)
        assert [entry["attempt"] for entry in kube.get_status("OfflineTraining", name)["runs"]] == [1]


def assert_equal_to_undisturbed(
    kube: Kube, names: list[str], folder: Path, bucket: Bucket | None = None
) -> None:
    """Wait for the trainings, and compare their losses with those of a training on this machine.

    Their results are in the claim, or in a bucket.
    """
    from hindcast.api.loading import validate_resource
    from hindcast.datasets.opening import open_dataset
    from hindcast.pipeline.offline_data import Source
    from hindcast.run.interruption import Interruption
    from hindcast.run.training.training_run import TrainingRun
    from support import MemoryReporter

    for name in names:
        kube.wait_for_state("OfflineTraining", name, "Succeeded")
        (folder / name).mkdir()
        if bucket is None:
            run_folder = copy_from_claim(kube, f"runs/{name}/r1", folder / name)
            cluster_losses = parse_losses((run_folder / "results.jsonl").read_bytes())
        else:
            cluster_losses = parse_losses(bucket.read_object(f"{bucket.name}/runs/{name}/r1/results.jsonl"))
        spec = (kube.get("OfflineTraining", name) or {})["spec"]
        batch_size = spec["config"]["trainBatchSizePerLearner"] * spec.get("learners", {}).get("replicas", 1)
        resource = make_training(
            name,
            str(folder / "data"),
            config=spec["config"] | {"trainBatchSizePerLearner": batch_size},
            pipeline={"dataWorkers": {"replicas": 0}, "datasetNumItersPerLearner": 20},
            stop=spec["stop"],
            checkpoint={"path": str(folder / "local"), "every": 1000},
        )
        sources = [Source("data", open_dataset(folder / "data"))]
        TrainingRun(validate_resource(resource), sources, MemoryReporter(), Interruption()).execute()
        local_losses = parse_losses((folder / "local" / name / "r1" / "results.jsonl").read_bytes())
        assert len(cluster_losses) == spec["stop"]["iterations"]
        assert cluster_losses == pytest.approx(local_losses, rel=1e-3)


def parse_losses(results: bytes) -> list[float]:
    """Return the loss of each iteration."""
    lines = results.splitlines()
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


@contextmanager
def operator_with_clock(program: str, folder: Path) -> Iterator[None]:
    """Let an operator with another clock serve the runs instead of the one in the cluster."""
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
            program,
            "--listen",
            "127.0.0.1:0",
            "--defaults",
            str(defaults),
        ]
        with (folder / "operator.log").open("w") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            yield
            assert process.poll() is None, "the operator has ended"
        finally:
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
