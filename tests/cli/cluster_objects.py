"""Resources and pods as an API server returns them."""

from __future__ import annotations

from typing import Any

from fake_cluster import NAMESPACE

Raw = dict[str, Any]

CREATION_TIME = "2026-11-21T06:00:00Z"
SIZES: Raw = {
    "pools": {
        "head": {
            "pods": {"value": 1, "reason": "supervises"},
            "cpu": {"value": 0.54, "reason": "0.5 + 0.02 for each other pod (2)"},
            "gpus": {"value": 0, "reason": "CPUs only"},
            "memory": {
                "value": "2Gi",
                "reason": "768Mi Ray's daemons + 1Gi driver, mailbox and job supervisor",
            },
        },
        "data": {
            "pods": {"value": "2 to 8", "reason": "minReplicas and maxReplicas"},
            "cpu": {"value": 1, "reason": "spec.pipeline.dataWorkers.cpus"},
            "gpus": {"value": 0, "reason": "CPUs only"},
            "memory": {"value": "3Gi", "reason": "256Mi Ray's daemons + 704Mi a worker"},
        },
        "learner": {
            "pods": {"value": 1, "reason": "spec.learners.replicas"},
            "cpu": {"value": 4, "reason": "4 for each GPU"},
            "gpus": {"value": 1, "reason": "spec.learners.gpus"},
            "memory": {"value": "10Gi", "reason": "256Mi Ray's daemons + 1Gi a learner"},
        },
    }
}
PROGRESS: Raw = {
    "iteration": 30,
    "percentage": 30.0,
    "estimatedRemainingSeconds": 724,
    "summary": "30/100 iterations",
    "episodeReturn": "312.5",
    "lastReportTime": "2026-11-21T06:09:48Z",
    "metrics": {
        "loss": 0.1234,
        "episodeReturnMean": 312.5,
        "timestepsPerSecond": 12345.6,
        "dataWaitShare": 0.034,
        "learnerPeakBytes": 1.5 * 2**30,
        "entropy": 0.5,
    },
}
CHECKPOINT: Raw = {
    "path": "s3://bucket/runs/clone/r1/checkpoints/checkpoint-300",
    "iteration": 30,
    "saveTime": "2026-11-21T06:08:00Z",
    "bestPath": "s3://bucket/runs/clone/r1/checkpoints/checkpoint-200",
    "bestEpisodeReturnMean": 330.0,
}


def make_condition(
    type_: str, is_true: bool, reason: str, message: str = "", transition_time: str = "2026-11-21T06:02:00Z"
) -> Raw:
    return {
        "type": type_,
        "status": "True" if is_true else "False",
        "reason": reason,
        "message": message,
        "lastTransitionTime": transition_time,
    }


def make_attempt(attempt: int = 1, revision: int = 1, letter: str = "t", **fields: Any) -> Raw:
    """Return an attempt, an entry of status.runs; `letter` is t for a training and r for a recording."""
    return {
        "revision": revision,
        "attempt": attempt,
        "rayJobName": f"clone-{letter}{revision}-{attempt}",
        "specHash": "0123456789abcdef",
        "startTime": "2026-11-21T06:00:05Z",
        "admissionTime": "2026-11-21T06:00:05Z",
        "inputs": {"defaults": {"storageRoot": "s3://bucket"}},
        **fields,
    }


def make_training(status: Raw | None = None, name: str = "clone", **spec: Any) -> Raw:
    """Return a training; without a status, no operator has processed it."""
    return {
        "apiVersion": "hindcast.dev/v1alpha1",
        "kind": "OfflineTraining",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "generation": 1,
            "creationTimestamp": CREATION_TIME,
        },
        "spec": {
            "algorithm": "BC",
            "input": [{"recordingRef": {"name": "expert"}}],
            "stop": {"iterations": 100},
            "checkpoint": {"path": "runs"},
            **spec,
        },
        "status": {"observedGeneration": -1} if status is None else {"observedGeneration": 1, **status},
    }


def make_recording(status: Raw | None = None, **spec: Any) -> Raw:
    """Return a recording; without a status, no operator has processed it."""
    resource = make_training(status, name="expert")
    resource["kind"] = "OfflineRecording"
    resource["spec"] = {
        "environment": {"id": "CartPole-v1"},
        "policy": {"random": {}},
        "duration": {"episodes": 500},
        "output": {"path": "data"},
        **spec,
    }
    return resource


def running_status(**status: Any) -> Raw:
    """Return the status of a training whose second attempt is running, after the first was lost."""
    lost_attempt = make_attempt(
        1, outcome="Lost", reason="OutOfMemory", message="A learner ran out of memory"
    )
    lost_attempt |= {"endTime": "2026-11-21T06:01:05Z"}
    second_attempt = make_attempt(
        2, retries=1, startTime="2026-11-21T06:01:30Z", firstReportTime="2026-11-21T06:02:00Z"
    )
    return {
        "state": "Running",
        "message": "Attempt 2 is running: Training",
        "conditions": [
            make_condition("Ready", True, "Running"),
            make_condition("ClusterReady", True, "ClusterReady"),
        ],
        "rayJobName": "clone-t1-2",
        "progress": PROGRESS,
        "checkpoint": CHECKPOINT,
        "resolved": SIZES,
        "runs": [second_attempt, lost_attempt],
        **status,
    }


def make_pod(
    pool: str,
    name: str | None = None,
    *,
    kind: str = "OfflineTraining",
    owner: str = "clone",
    attempt: int = 2,
    phase: str = "Running",
    is_ready: bool = True,
    node: str | None = "node-a",
    restarts: int = 0,
    conditions: tuple[Raw, ...] = (),
    state: Raw | None = None,
) -> Raw:
    """Return a pod of an attempt of revision 1."""
    return {
        "metadata": {
            "name": name or f"{owner}-t1-{attempt}-abcde-{pool}-x7k2p",
            "creationTimestamp": "2026-11-21T06:01:31Z",
            "labels": {
                "hindcast.dev/kind": kind,
                "hindcast.dev/name": owner,
                "hindcast.dev/revision": "1",
                "hindcast.dev/attempt": str(attempt),
                "hindcast.dev/pool": pool,
            },
        },
        "spec": {} if node is None else {"nodeName": node},
        "status": {
            "phase": phase,
            "conditions": [{"type": "Ready", "status": str(is_ready)}, *conditions],
            "containerStatuses": [{"name": "ray", "restartCount": restarts, "state": state or {}}],
        },
    }


UNSCHEDULABLE: Raw = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
}
