"""`hindcast logs`: logs of existing pods, of deleted pods, and in a folder."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from cluster_objects import make_attempt, make_pod, make_recording, make_training, running_status
from command_result import Hindcast
from fake_cluster import FakeCluster

from hindcast.api import validate_resource
from hindcast.cli.cluster.run_storage import log_path
from hindcast.run.claim import log_file

LOST_ATTEMPT = make_attempt(1, outcome="Lost", reason="LostDriver", endTime="2026-11-21T06:01:00Z")


@pytest.fixture
def cluster(cluster: FakeCluster) -> FakeCluster:
    """Serve a running training without pods."""
    cluster.add(make_training(running_status()))
    return cluster


def make_stored_training(folder: Path, *attempts: dict, **spec: object) -> dict:
    """Return a training with these attempts, newest first; sets the storage root, in place, to a local folder."""
    attempts[0]["inputs"] = {"defaults": {"storageRoot": str(folder)}}
    return make_training(running_status(runs=list(attempts)), **spec)


def write_log(folder: Path, job_name: str, text: str, log_folder: str = "rl/runs/clone/r1/logs") -> Path:
    """Write the log of an attempt below a storage root."""
    file = folder / log_folder / f"{job_name}.log"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def test_running_attempt_log_comes_from_submitter(hindcast: Hindcast, cluster: FakeCluster) -> None:
    cluster.pods = [make_pod("head"), make_pod("submitter", "first"), make_pod("submitter", "second")]
    cluster.pods[2]["metadata"]["creationTimestamp"] = "2026-11-21T06:05:00Z"
    cluster.logs = {
        ("first", "submitter"): "no\n",
        ("second", "submitter"): "\x1b[36miteration\x1b[39m 1\nStörung\n",
    }
    result = hindcast("logs", "training/clone")
    assert (result.code, result.out, result.err) == (0, "iteration 1\nStörung\n", "")


def test_json_prints_document_per_line(hindcast: Hindcast, cluster: FakeCluster) -> None:
    cluster.pods = [make_pod("submitter", "submitter")]
    cluster.logs = {("submitter", "submitter"): "iteration 1\nloss 0.5"}
    result = hindcast("logs", "training/clone", "--json")
    assert [json.loads(line) for line in result.out.splitlines()] == [
        {"line": "iteration 1"},
        {"line": "loss 0.5"},
    ]


def test_follow_waits_for_driver(hindcast: Hindcast, cluster: FakeCluster) -> None:
    def change(reads: int) -> None:
        phases = {2: "Pending", 4: "Running"}
        if reads in phases:
            cluster.pods = [make_pod("submitter", "submitter", phase=phases[reads])]

    cluster.before_read = change
    cluster.logs = {("submitter", "submitter"): "iteration 1\n"}
    result = hindcast("logs", "training/clone", "--follow")
    assert (result.code, result.out) == (0, "iteration 1\n")
    assert result.err == "waiting for the driver of attempt 2 to start\n"
    assert cluster.requests[-1].endswith("follow=true")


def test_follow_of_attempt_that_never_started_ends(
    hindcast: Hindcast, cluster: FakeCluster, tmp_path: Path
) -> None:
    def change(reads: int) -> None:
        if reads == 2:
            failed_attempt = make_attempt(2, outcome="Failed", reason="StartDeadlineExceeded")
            cluster.add(make_stored_training(tmp_path, failed_attempt))

    cluster.add(make_stored_training(tmp_path, make_attempt(2)))
    cluster.before_read = change
    result = hindcast("logs", "training/clone", "--follow")
    assert result.code == 1
    assert f"the pods are gone; the log is at {tmp_path}/rl/runs/clone/r1/logs/clone-t1-2.log" in result.err


def test_driver_not_started_has_no_log(hindcast: Hindcast, cluster: FakeCluster) -> None:
    cluster.pods = [make_pod("submitter", phase="Pending")]
    hindcast("logs training/clone").assert_refused(
        1, "attempt 2 of OfflineTraining/clone has no log yet: Attempt 2 is running: Training\n"
    )


def test_resource_without_attempts_gives_reason(hindcast: Hindcast, cluster: FakeCluster) -> None:
    cluster.add(
        make_training({"state": "Waiting", "message": "Waiting for OfflineRecording/expert to complete"})
    )
    hindcast("logs training/clone").assert_refused(
        1, "has no attempts yet: Waiting for OfflineRecording/expert to complete"
    )


def test_finished_attempt_log_comes_from_run_folder(
    hindcast: Hindcast, cluster: FakeCluster, tmp_path: Path
) -> None:
    cluster.add(make_stored_training(tmp_path, make_attempt(2), dict(LOST_ATTEMPT)))
    cluster.pods = [make_pod("submitter", "second")]
    cluster.logs = {("second", "submitter"): "second\n"}
    write_log(tmp_path, "clone-t1-1", "first\n")
    assert hindcast("logs", "otr/clone").out == "second\n"
    assert hindcast("logs", "otr/clone", "--attempt", 1).out == "first\n"


def test_log_is_read_from_folder_of_its_revision(
    hindcast: Hindcast, cluster: FakeCluster, tmp_path: Path
) -> None:
    cluster.add(make_stored_training(tmp_path, dict(LOST_ATTEMPT), revision=3))
    write_log(tmp_path, "clone-t1-1", "first\n")
    assert hindcast("logs", "otr/clone").out == "first\n"


def test_log_of_pod_deleted_meanwhile_comes_from_storage(
    hindcast: Hindcast, cluster: FakeCluster, tmp_path: Path
) -> None:
    cluster.add(make_stored_training(tmp_path, dict(LOST_ATTEMPT)))
    cluster.pods = [make_pod("submitter", "gone", attempt=1)]
    write_log(tmp_path, "clone-t1-1", "first\n")
    assert hindcast("logs", "otr/clone").out == "first\n"


def test_unknown_attempt_is_refused(hindcast: Hindcast, cluster: FakeCluster) -> None:
    hindcast("logs otr/clone --attempt 7").assert_refused(
        1, "revision 1 of OfflineTraining/clone has no attempt 7; its attempts: 1, 2\n"
    )


def test_log_on_cluster_volume_says_how_to_copy_files(hindcast: Hindcast, cluster: FakeCluster) -> None:
    volume = {"name": "data", "mountPath": "/mnt/data", "persistentVolumeClaim": {"claimName": "shared"}}
    spec = {"checkpoint": {"path": "/mnt/data/runs"}, "cluster": {"volumes": [volume]}}
    cluster.add(make_training(running_status(runs=[dict(LOST_ATTEMPT)]), **spec))
    hindcast("logs otr/clone").assert_refused(
        1,
        "the pods are gone; the log is at /mnt/data/runs/clone/r1/logs/clone-t1-1.log on the claim shared "
        '(mounted at /mnt/data): start a pod `files` that mounts it (docs/cluster.md, "Files on a volume"), copy them '
        "with `kubectl cp rl/files:/mnt/data/runs/clone/r1/logs/clone-t1-1.log clone-t1-1.log`\n",
    )


def test_unreadable_storage_is_named(hindcast: Hindcast, cluster: FakeCluster) -> None:
    checkpoint = {"path": "nosuch://bucket/runs"}
    cluster.add(make_training(running_status(runs=[dict(LOST_ATTEMPT)]), checkpoint=checkpoint))
    path = "nosuch://bucket/runs/clone/r1/logs/clone-t1-1.log"
    sentence = f"the log is at {path}, which cannot be read from here: no file system"
    hindcast("logs otr/clone").assert_refused(5, sentence)


def test_without_runtime_extra_names_log_path(
    hindcast: Hindcast, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.add(make_training(running_status(runs=[dict(LOST_ATTEMPT)])))
    monkeypatch.setitem(sys.modules, "hindcast.storage.location", None)
    hindcast("logs otr/clone").assert_refused(
        1, "the log is at s3://bucket/rl/runs/clone/r1/logs/clone-t1-1.log: copy it from there"
    )


# -- paths of logs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "memory://bucket/x",
        "memory://bucket/x/",
        "/mnt/data",
        "file:///mnt/x",
        "relative/x",
        "s3://bucket/x?y",
        "/mnt/x?y",
    ],
)
def test_log_path_matches_driver(path: str) -> None:
    for raw in (make_training(checkpoint={"path": path}, revision=3), make_recording(output={"path": path})):
        resource = validate_resource({key: value for key, value in raw.items() if key != "status"})
        assert log_path(resource, "clone-t3-1") == str(log_file(resource, "clone-t3-1"))


def test_log_path_keeps_uri_options_at_the_end() -> None:
    raw = make_training(checkpoint={"path": "hdfs://host/x?user=me"})
    resource = validate_resource({key: value for key, value in raw.items() if key != "status"})
    assert log_path(resource, "c") == "hdfs://host/x/clone/r1/logs/c.log?user=me"


def test_log_of_folder_is_that_of_latest_or_given_attempt(hindcast: Hindcast, tmp_path: Path) -> None:
    for child in ("clone-t1-9", "clone-t1-10", "clone-t1-2"):
        write_log(tmp_path, child, f"{child}\n", "logs")
    result = hindcast("logs", tmp_path)
    assert (result.code, result.out) == (0, "clone-t1-10\n")
    assert result.err == f"{tmp_path}/logs/clone-t1-10.log\n"
    assert hindcast("logs", tmp_path, "--attempt", 2).out == "clone-t1-2\n"
    hindcast("logs", tmp_path, "--attempt", 3).assert_refused(
        1, "has no log of attempt 3; attempts of revision 1 with a log: 2, 9, 10"
    )


def test_log_of_dataset_is_read_from_its_state_folder(hindcast: Hindcast, tmp_path: Path) -> None:
    write_log(tmp_path, "expert-r1-1", "recorded\n", "_hindcast/logs")
    assert hindcast("logs", tmp_path).out == "recorded\n"


def test_local_run_has_no_log(hindcast: Hindcast, tmp_path: Path) -> None:
    hindcast("logs", tmp_path).assert_refused(
        1, f"{tmp_path} contains no logs: only attempts on a cluster write them\n"
    )
