"""`hindcast run --ray`: a Ray cluster that already runs, here the tests' own, to which the command connects."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ray

from hindcast.api.pipeline import DataWorkersSpec
from hindcast.api.training import LearnersSpec
from hindcast.cluster.learners import train
from hindcast.cluster.mailbox import Mailbox
from hindcast.cluster.pools import RayPlacement
from hindcast.errors import Interrupted, SpecError
from hindcast.run.interruption import Interruption
from support import sources, training
from user_errors import raises_user_error
from warm_python import WarmPython


@pytest.mark.ray
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("ray_here")
def test_command_trains_with_two_learners_on_a_running_cluster(
    tmp_path: Path, walks: Path, warm: WarmPython
) -> None:
    resource = training("runs", walks, learners={"replicas": 2, "device": "cpu"}, stop={"updates": 4})
    text = resource.model_dump_json(by_alias=True, exclude_none=True, exclude_unset=True)
    (tmp_path / "resource.yaml").write_text(text)  # JSON is YAML
    address = ray.get_runtime_context().gcs_address
    command = [str(warm.folder / "hindcast"), "run", "resource.yaml", "--ray", address, "--json"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    assert json.loads(process.stdout)["metrics"]["timesteps"] == 4 * 64
    assert (tmp_path / "runs/test/r1/success.json").exists()


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`nodes({"CPU": 4}, {"CPU": 4})` makes Ray report these nodes, and one that is dead."""

    def set_nodes(*resources: dict[str, float]) -> None:
        dead = {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}}
        monkeypatch.setattr(
            ray, "nodes", lambda: [dead, *({"Alive": True, "Resources": r} for r in resources)]
        )

    return set_nodes


@pytest.mark.parametrize(
    ("resources", "learners", "expected"),
    [
        ([{"CPU": 8.0}], {"replicas": 2}, (2, None)),
        ([{"CPU": 8.0}], {"replicas": 9, "cpus": 2}, (4, "9 learners clamped to 4")),
        ([{"CPU": 8.0, "GPU": 2.0}], {"gpus": 4, "cpus": 4}, (2, "4 learners clamped to 2")),
        ([{"CPU": 3.0}, {"CPU": 3.0}], {"replicas": 3, "cpus": 2}, (2, "3 learners clamped to 2")),
        ([{"CPU": 8.0}, {"CPU": 1.0, "GPU": 2.0}, {}], {"replicas": 1, "cpus": 2}, (1, None)),
    ],
)
def test_learners_are_clamped_to_the_nodes_of_the_cluster(
    nodes: Any, resources: list[Any], learners: dict[str, Any], expected: tuple[int, str | None]
) -> None:
    nodes(*resources)
    count, note = RayPlacement().num_learners(LearnersSpec.model_validate(learners))
    assert (count, note and note.split(":")[0]) == expected


def test_gpus_that_no_node_has_are_refused(nodes: Any) -> None:
    nodes({"CPU": 8.0}, {"CPU": 2.0, "GPU": 1.0})
    message = (
        "asks for 4 CPUs and 1 GPUs for each learner, but no node of the Ray cluster has as many: "
        "8 CPUs and 0 GPUs, 2 CPUs and 1 GPUs."
    )
    with raises_user_error(SpecError, message, field="spec.learners"):
        RayPlacement().num_learners(LearnersSpec(gpus=1))


@pytest.mark.parametrize(
    ("resources", "learners", "gpus", "has_room"),
    [
        ([{"CPU": 8.0, "GPU": 2.0}], {"replicas": 2, "gpus": 1}, 1, False),
        ([{"CPU": 8.0, "GPU": 2.0}], {"replicas": 1, "gpus": 1}, 1, True),
        ([{"CPU": 8.0, "GPU": 2.0}], {"replicas": 2, "gpus": 1}, 0, True),
        ([{"CPU": 8.0, "GPU": 1.0}] * 2, {"replicas": 1, "gpus": 1}, 1, True),
        ([{"CPU": 8.0, "GPU": 1.0}] * 2, {"gpus": 0.5}, 1, True),
        ([{"CPU": 8.0, "GPU": 1.0}] * 2, {"replicas": 2, "gpus": 0.5}, 1, False),
        ([{"CPU": 8.0}], {"replicas": 1}, 1, False),
        ([{"CPU": 8.0, "GPU": 1.0}], {"replicas": 8}, 1, True),
    ],
)
def test_data_workers_without_a_gpu_beside_learners_are_refused(
    nodes: Any, resources: list[Any], learners: dict[str, Any], gpus: float, has_room: bool
) -> None:
    nodes(*resources)
    learners_spec, workers = LearnersSpec.model_validate(learners), DataWorkersSpec(gpus=gpus)
    if has_room:
        RayPlacement().check_gpus(learners_spec, workers)
        return
    message = "is 1, but .* may take all GPUs of the Ray cluster: request fewer for spec.learners"
    with raises_user_error(SpecError, message, field="spec.pipeline.dataWorkers.gpus"):
        RayPlacement().check_gpus(learners_spec, workers)


@pytest.mark.ray
@pytest.mark.usefixtures("ray_here")
def test_stop_request_ends_the_wait_for_the_first_learners_cpus(tmp_path: Path, walks: Path) -> None:
    resource = training(tmp_path, walks, learners={"cpus": 1000})
    interruption = Interruption()
    interruption.is_requested = True
    with pytest.raises(Interrupted):
        train(resource, sources(resource), Mailbox.open(), RayPlacement(), interruption.check)


@pytest.mark.parametrize("pool", ["data", "runner"])
def test_workers_reserve_no_cpus_that_learners_may_take(pool: Any) -> None:
    assert RayPlacement().options(pool, 1, 2) == {
        "num_cpus": 0,
        "num_gpus": 2,
        "scheduling_strategy": "SPREAD",
    }
    assert RayPlacement().options("learner", 1.5) == {"num_cpus": 2}
