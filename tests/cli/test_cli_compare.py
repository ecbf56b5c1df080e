"""`hindcast compare training/NAME`: results of runs on a cluster, if their storage can be read from here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cluster_objects import make_attempt, make_training, running_status
from command_result import Hindcast
from fake_cluster import NAMESPACE, FakeCluster

from hindcast.api import validate_resource
from hindcast.run.claim import claim
from hindcast.storage.location import resolve

VOLUME = {"name": "data", "mountPath": "/data", "persistentVolumeClaim": {"claimName": "runs"}}


def add_run(cluster: FakeCluster, root: Path, name: str, loss: float) -> None:
    """Add a training whose platform stores runs below `root`, and its run folder with one result."""
    attempt = make_attempt(2, revision=3, inputs={"defaults": {"storageRoot": str(root)}})
    document = cluster.add(make_training(running_status(runs=[attempt]), name, seed=int(loss)))
    folder = root / NAMESPACE / "runs" / name / "r3"
    folder.mkdir(parents=True)
    training = validate_resource({**document, "status": None})
    claim(resolve(str(folder)), training, has_progress=False)
    result = f'{{"training_iteration": 1, "learners": {{"default_policy": {{"total_loss": {loss}}}}}}}\n'
    (folder / "results.jsonl").write_text(result)


def test_compare_of_cluster_trainings_reads_their_run_folders(
    hindcast: Hindcast, cluster: FakeCluster, tmp_path: Path
) -> None:
    for name, loss in {"clone-1": 1, "clone-2": 2}.items():
        add_run(cluster, tmp_path, name, loss)
    result = hindcast("compare training/clone-1 otr/clone-2 --json")
    assert result.code == 0, result.err
    (group,) = json.loads(result.out)["groups"]
    assert (group["mean"], [run["name"] for run in group["runs"]]) == (1.5, ["clone-1", "clone-2"])


def test_compare_of_unreadable_run_says_where_it_is(hindcast: Hindcast, cluster: FakeCluster) -> None:
    attempt = make_attempt(inputs={"defaults": {"storageRoot": "/data"}})
    cluster.add(make_training(running_status(runs=[attempt]), cluster={"volumes": [VOLUME]}))
    result = hindcast("compare training/clone")
    result.assert_refused(
        1, "the run folder of OfflineTraining/clone is at /data/rl/runs/clone/r1 on the claim runs"
    )
    assert (
        "copy them with `kubectl cp rl/files:/data/rl/runs/clone/r1 clone-r1`, and compare the copy"
        in result.err
    )


def test_compare_refuses_what_has_no_results(hindcast: Hindcast, cluster: FakeCluster) -> None:
    cluster.add(make_training())
    hindcast("compare training/clone").assert_refused(1, "has no results yet: its state is Unseen")
    hindcast("compare recording/data").assert_refused(2, "does not exist in namespace rl")
    hindcast("compare runs -n rl").assert_refused(
        2, "apply only to training/NAME on a cluster; runs is a path"
    )


def test_compare_refuses_name_that_is_a_folder_too(
    hindcast: Hindcast, cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("training/clone").mkdir(parents=True)
    hindcast("compare training/clone").assert_refused(2, "write ./training/clone for the folder")
    hindcast("compare training/clone -n rl").assert_refused(2, "does not exist in namespace rl")
