"""`hindcast run --ray`: a Ray cluster that runs already, here the tests' own, to which the command connects."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import ray

from hindcast.api.training import LearnersSpec
from hindcast.cluster.pools import RayPlacement
from hindcast.errors import SpecError
from support import training
from user_errors import raises_user_error

COMMAND = "from hindcast.cli.main import main; main()"


@pytest.mark.ray
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("ray_here")
def test_command_trains_with_two_learners_on_a_running_cluster(tmp_path: Path, walks: Path) -> None:
    resource = training("runs", walks, learners={"replicas": 2, "device": "cpu"}, stop={"updates": 4})
    text = resource.model_dump_json(by_alias=True, exclude_none=True, exclude_unset=True)
    (tmp_path / "resource.yaml").write_text(text)  # JSON is YAML
    address = ray.get_runtime_context().gcs_address
    command = [sys.executable, "-c", COMMAND, "run", "resource.yaml", "--ray", address, "--json"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    assert json.loads(process.stdout)["metrics"]["timesteps"] == 4 * 64
    assert (tmp_path / "runs/test/r1/success.json").exists()


@pytest.mark.parametrize(
    ("learners", "expected"),
    [
        ({"replicas": 2}, (2, None)),
        ({"replicas": 9, "cpus": 2}, (4, "9 learners clamped to 4: the Ray cluster has room for no more")),
        ({"gpus": 4, "cpus": 4}, (2, "4 learners clamped to 2: the Ray cluster has room for no more")),
    ],
)
def test_learners_are_clamped_to_the_cluster(
    monkeypatch: pytest.MonkeyPatch, learners: dict[str, Any], expected: tuple[int, str | None]
) -> None:
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 8.0, "GPU": 2.0})
    assert RayPlacement().num_learners(LearnersSpec.model_validate(learners)) == expected


def test_gpus_that_the_cluster_lacks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 8.0})
    message = "asks for 4 CPUs and 1 GPUs for each learner, but the Ray cluster has 8 and 0"
    with raises_user_error(SpecError, message, field="spec.learners"):
        RayPlacement().num_learners(LearnersSpec(gpus=1))
