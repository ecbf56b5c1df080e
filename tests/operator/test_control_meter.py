"""Metrics of runs: the duration of attempts, and the time for which GPUs waited for work."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from control_cluster import FakeCluster
from prometheus_client import REGISTRY

from hindcast.api import validate_resource
from hindcast.api.attempt import Report
from hindcast.api.run_policy import RunPolicy
from hindcast_operator.control.api import ApiError
from hindcast_operator.control.metrics import RunMeter
from hindcast_operator.facts import AttemptFacts, ConfigMapFacts, Facts, PodFacts

NOW = datetime(2026, 11, 21, 6, tzinfo=UTC)
TRAINING = {
    "apiVersion": "hindcast.dev/v1alpha1",
    "kind": "OfflineTraining",
    "metadata": {"name": "clone"},
    "spec": {
        "algorithm": "BC",
        "input": [{"path": "s3://b/x"}],
        "stop": {"epochs": 1},
        "learners": {"replicas": 2, "gpus": 4},
    },
}


def make_facts(seconds: float, phase: str, fraction: float | None, **status: Any) -> Facts:
    """Return facts of a training with two learners of four GPUs each.

    Args:
        seconds: time of the observation, in seconds after `NOW`.
        phase: phase of the learners' pods.
        fraction: reported fraction of the time for which the training waits for data; None without a report.
        status: the stored status.
    """
    pods = tuple(PodFacts(name, "learner", NOW, phase) for name in ("a", "b"))
    report = None
    if fraction is not None:
        progress = {"metrics": {"dataWaitShare": fraction}}
        report = Report.model_validate(
            {"number": 1, "reportTime": "t", "lastProgressTime": "t", "progress": progress}
        )
    config_map = ConfigMapFacts("clone-t1-1", "c", "u", False, report=report)
    attempt = AttemptFacts("clone-t1-1", config_map=config_map, pods=pods)
    return Facts(
        kind="OfflineTraining",
        namespace="meter",
        name="clone",
        uid="u",
        generation=1,
        resource=validate_resource(TRAINING),
        problems=(),
        status=status,
        is_deleting=False,
        has_kuberay=True,
        attempts={"clone-t1-1": attempt},
        references=(),
        now=NOW + timedelta(seconds=seconds),
        suspend=False,
        run_policy=RunPolicy(),
    )


def read_gpu_wait_seconds() -> float:
    return REGISTRY.get_sample_value("hindcast_gpu_wait_seconds_total", {"namespace": "meter"}) or 0.0


def test_gpu_wait_counts_start_and_data_wait_share() -> None:
    meter, seconds_before = RunMeter(), read_gpu_wait_seconds()
    meter.update(make_facts(0, "Pending", None), {})
    meter.update(make_facts(10, "Running", None), {})
    assert read_gpu_wait_seconds() == seconds_before, "pods that do not run hold no GPU"
    meter.update(make_facts(20, "Running", None), {})
    assert read_gpu_wait_seconds() - seconds_before == 10 * 8
    meter.update(make_facts(120, "Running", 0.25), {})
    assert read_gpu_wait_seconds() - seconds_before == 10 * 8 + 100 * 8 * 0.25
    meter.update(make_facts(130, "Succeeded", 0.25), {})
    meter.update(make_facts(500, "Running", 0.25), {})
    assert read_gpu_wait_seconds() - seconds_before == 10 * 8 + 100 * 8 * 0.25


def test_end_of_attempt_is_counted_once_with_duration() -> None:
    labels = {"kind": "OfflineTraining", "outcome": "Lost"}
    read_count = lambda: REGISTRY.get_sample_value("hindcast_run_seconds_count", labels) or 0.0  # noqa: E731
    read_seconds = lambda: REGISTRY.get_sample_value("hindcast_run_seconds_sum", labels) or 0.0  # noqa: E731
    meter, count_before, seconds_before = RunMeter(), read_count(), read_seconds()
    running_entry = {"rayJobName": "clone-t1-1", "startTime": "2026-11-21T06:00:00Z"}
    ended_entry = running_entry | {"outcome": "Lost", "endTime": "2026-11-21T06:02:00Z"}
    meter.update(make_facts(0, "Running", None), {"runs": [running_entry]})
    facts_at_end = replace(make_facts(120, "Running", None), status={"runs": [running_entry]})
    meter.update(facts_at_end, {"runs": [ended_entry]})
    meter.update(replace(facts_at_end, status={"runs": [ended_entry]}), {"runs": [ended_entry]})
    assert (read_count(), read_seconds()) == (count_before + 1, seconds_before + 120)


def test_end_of_attempt_is_counted_once_although_its_status_is_written_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Regression: each failed write counted the end anew."""
    labels = {"kind": "OfflineTraining", "outcome": "Lost"}
    read_count = lambda: REGISTRY.get_sample_value("hindcast_run_seconds_count", labels) or 0.0  # noqa: E731

    async def reconcile_until_written() -> None:
        cluster = FakeCluster()
        await cluster.start_run()
        cluster.now += timedelta(minutes=31)
        write_status = cluster.write_status
        monkeypatch.setattr(cluster, "write_status", fail)
        for _ in range(3):
            with pytest.raises(ApiError):
                await cluster.reconcile()
        monkeypatch.setattr(cluster, "write_status", write_status)
        await cluster.reconcile()

    async def fail(*_: Any) -> None:
        raise ApiError(500, "InternalError", "etcdserver: leader changed")

    count_before = read_count()
    asyncio.run(reconcile_until_written())
    assert read_count() == count_before + 1
