"""`hindcast export training/NAME`: the policy of a run on a cluster, if its storage can be read from here."""

from __future__ import annotations

from pathlib import Path

from cluster_objects import make_training, running_status
from command_result import Hindcast
from fake_cluster import FakeCluster

from hindcast import Policy
from support import WALK, make_policy


def test_export_of_cluster_training_uses_best_checkpoint(
    hindcast: Hindcast, cluster: FakeCluster, tmp_path: Path
) -> None:
    policy = make_policy(WALK)
    policy.save(tmp_path / "best")
    cluster.add(
        make_training(running_status(checkpoint={"path": "/gone", "bestPath": str(tmp_path / "best")}))
    )
    result = hindcast("export training/clone --format safetensors", tmp_path / "out")
    assert result.code == 0, result.err
    assert Policy.load(tmp_path / "out").digest == policy.digest


def test_export_from_cluster_volume_says_how_to_copy_files(hindcast: Hindcast, cluster: FakeCluster) -> None:
    claim = {"name": "data", "mountPath": "/data", "persistentVolumeClaim": {"claimName": "runs"}}
    path = "/data/rl/clone/r1/checkpoints/c"
    cluster.add(make_training(running_status(checkpoint={"path": path}), cluster={"volumes": [claim]}))
    result = hindcast("export otr/clone out")
    result.assert_refused(1, f"the policy of OfflineTraining/clone is at {path} on the claim runs")
    assert (
        "copy them with `kubectl cp rl/files:/data/rl/clone/r1/checkpoints/c clone-c`, and export"
        in result.err
    )


def test_export_without_checkpoint_is_refused(hindcast: Hindcast, cluster: FakeCluster) -> None:
    cluster.add(make_training(running_status(checkpoint={})))
    hindcast("export training/clone out").assert_refused(
        1, "OfflineTraining/clone has no policy yet: its state is Running. Run `hindcast status"
    )
