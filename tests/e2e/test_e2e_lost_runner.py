"""If a runner is deleted while it writes a file, no episode is lost and none is recorded twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from e2e_cluster import copy_from_claim
from e2e_kube import Kube
from e2e_resources import CODE_CLUSTER, make_code_config_map, make_recording, slow_environment_code

from support import episode_hashes, read_all, record
from support import recording as local_recording

NUM_EPISODES = 8_000


def test_recording_is_complete_after_deleted_runner(
    kube: Kube, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared_spec: dict[str, Any] = {
        "environment": {"id": "slow:Slow"},
        "duration": {"episodes": NUM_EPISODES},
        "seed": 3,
    }
    cluster_settings = {
        "runners": {"replicas": 2, "envsPerRunner": 8},
        "output": {"path": "walks", "maxRowsPerFile": 1000},
        "cluster": CODE_CLUSTER,
    }
    kube.apply(
        make_code_config_map(slow=slow_environment_code(0.01)),
        make_recording("walks", **shared_spec, **cluster_settings),
    )
    kube.wait("episodes recorded", lambda: kube.get_num_episodes("walks") > 500)
    deleted_runner = kube.list_pods("runner", "walks")[0]["metadata"]["name"]
    kube.delete("pod", deleted_runner, "--grace-period=0", "--force", "--wait=false")
    assert kube.get_num_episodes("walks") < NUM_EPISODES - 2 * 8, (
        "the recording was complete before the runner was deleted"
    )
    status = kube.wait_for_state("OfflineRecording", "walks", "Succeeded")

    assert status["output"]["episodes"] == NUM_EPISODES
    dataset = read_all(copy_from_claim(kube, "walks", tmp_path))
    (tmp_path / "slow.py").write_text(slow_environment_code(0))
    monkeypatch.syspath_prepend(tmp_path)
    record(
        local_recording(
            tmp_path / "uninterrupted",
            policy={"random": {}},
            runners={"envsPerRunner": 8},
            output={"maxRowsPerFile": 1000},
            **shared_spec,
        )
    )
    assert episode_hashes(dataset) == episode_hashes(read_all(tmp_path / "uninterrupted"))
