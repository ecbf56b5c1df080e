"""A runner that dies in the middle of a file: nothing is lost, nothing is recorded twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from e2e_cluster import copy_out
from e2e_kube import Kube
from e2e_resources import CODE_CLUSTER, code_config_map, recording, slow_environment

from support import episode_hashes, read_all, record
from support import recording as local_recording

EPISODES = 8_000


def test_recording_is_complete_after_deleted_runner(
    kube: Kube, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec: dict[str, Any] = {
        "environment": {"id": "slow:Slow"},
        "duration": {"episodes": EPISODES},
        "seed": 3,
    }
    files_before = {
        "runners": {"replicas": 2, "envsPerRunner": 8},
        "output": {"path": "walks", "maxRowsPerFile": 1000},
        "cluster": CODE_CLUSTER,
    }
    kube.apply(code_config_map(slow=slow_environment(0.01)), recording("walks", **spec, **files_before))
    kube.wait("episodes recorded", lambda: kube.episodes("walks") > 500)
    victim = kube.pods("runner", "walks")[0]["metadata"]["name"]
    kube.delete("pod", victim, "--grace-period=0", "--force", "--wait=false")
    assert kube.episodes("walks") < EPISODES - 2 * 8, "it was over before the runner died"
    status = kube.wait_for_state("OfflineRecording", "walks", "Succeeded")

    assert status["output"]["episodes"] == EPISODES
    dataset = read_all(copy_out(kube, "walks", tmp_path))
    (tmp_path / "slow.py").write_text(slow_environment(0))
    monkeypatch.syspath_prepend(tmp_path)
    record(
        local_recording(
            tmp_path / "alone",
            policy={"random": {}},
            runners={"envsPerRunner": 8},
            output={"maxRowsPerFile": 1000},
            **spec,
        )
    )
    assert episode_hashes(dataset) == episode_hashes(read_all(tmp_path / "alone"))
