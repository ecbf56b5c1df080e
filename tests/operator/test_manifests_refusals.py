"""Refusals of resources that cannot run on a cluster: the field, what is wrong, and a remedy."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from hindcast.api import Resource
from hindcast.errors import format_path
from hindcast_operator.defaults import Defaults
from manifest_examples import defaults, list_refusals, recording, training

CLAIM_VOLUME = {"name": "data", "mountPath": "/data", "persistentVolumeClaim": {"claimName": "data"}}


def recording_with_output(path: str, *volumes: dict[str, Any], **cluster: Any) -> Resource:
    return recording(output={"path": path}, cluster={"volumes": list(volumes), **cluster})


def test_valid_resources_are_not_refused() -> None:
    assert list_refusals(recording()) == list_refusals(training()) == []


def test_relative_paths_require_storage_root() -> None:
    resource = training(input=[{"path": "data"}], initialCheckpoint="best")
    assert list_refusals(resource) == []
    problems = list_refusals(resource, Defaults())
    assert [format_path(problem.field) for problem in problems] == [
        "spec.input[0].path",
        "spec.checkpoint.path",
        "spec.initialCheckpoint",
    ]
    assert "relative" in problems[1].what and "URI" in problems[1].remedy


def test_path_outside_storage_root_is_refused() -> None:
    (problem,) = list_refusals(recording_with_output("a/../../b"))
    assert problem.field == ("spec", "output", "path") and problem.remedy == "remove '..'"
    assert list_refusals(recording_with_output("a/../b")) == []


@pytest.mark.parametrize("path", ["/data/run", "/data", "file:///data/run", "/data/../data/x"])
def test_local_path_on_claim_is_allowed(path: str) -> None:
    assert list_refusals(recording_with_output(path, CLAIM_VOLUME)) == []


@pytest.mark.parametrize(
    ("path", "volumes", "reason"),
    [
        ("/elsewhere/run", [CLAIM_VOLUME], "not on a mounted volume"),
        ("/database/run", [CLAIM_VOLUME], "not on a mounted volume"),
        ("~/run", [CLAIM_VOLUME], "not on a mounted volume"),
        ("/data/../run", [CLAIM_VOLUME], "not on a mounted volume"),
        ("/data/run", [CLAIM_VOLUME | {"readOnly": True}], "mounted read-only"),
        ("/scratch/run", [{"name": "s", "mountPath": "/scratch", "emptyDir": {}}], "an emptyDir"),
        (
            "/conf/run",
            [{"name": "c", "mountPath": "/conf", "configMap": {"name": "c"}}],
            "which is read-only",
        ),
        ("/data/s/run", [CLAIM_VOLUME, {"name": "s", "mountPath": "/data/s", "emptyDir": {}}], "an emptyDir"),
    ],
)
def test_output_without_persistent_volume_is_refused(path: str, volumes: list[Any], reason: str) -> None:
    (problem,) = list_refusals(recording_with_output(path, *volumes))
    assert problem.field == ("spec", "output", "path")
    assert path in problem.what and reason in problem.what
    assert "URI" in problem.remedy


def test_storage_root_without_volume_is_refused() -> None:
    (problem,) = list_refusals(training(), Defaults(storage_root="/mnt/root"))
    assert str(problem).startswith("spec.checkpoint.path is /mnt/root/rl/runs, not on a mounted volume")
    cluster = {"volumes": [CLAIM_VOLUME | {"mountPath": "/mnt/root"}]}
    assert list_refusals(training(), defaults(storageRoot="/mnt/root", cluster=cluster)) == []


def test_volume_mounted_by_override_is_accepted() -> None:
    override = {
        "spec": {"containers": [{"name": "ray", "volumeMounts": [{"name": "nfs", "mountPath": "/nfs"}]}]}
    }
    assert list_refusals(recording_with_output("/nfs/run", podOverrides={"all": override})) == []


def test_local_input_is_allowed_without_volume() -> None:
    assert list_refusals(training(input=[{"path": "/opt/data"}])) == []


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        (
            {"pipeline": {"dataWorkers": {"minReplicas": 1, "maxReplicas": 3}}},
            "spec.pipeline.dataWorkers has minReplicas 1 and maxReplicas 3",
        ),
        ({"learners": {"gpus": 0.5}}, "spec.learners.gpus is 0.5, but a pod gets whole GPUs"),
        ({"pipeline": {"dataWorkers": {"gpus": 1.5}}}, "spec.pipeline.dataWorkers.gpus is 1.5"),
        ({"learners": {"device": "cuda"}}, "spec.learners.device is cuda, but spec.learners.gpus is 0"),
        ({"cluster": {"rayVersion": "2.51.1"}}, "spec.cluster.rayVersion is 2.51.1"),
        (
            {"cluster": {"resources": {"learner": {"sharedMemory": "64Mi"}}}},
            "spec.cluster.resources.learner.sharedMemory is 64Mi",
        ),
        (
            {"cluster": {"resources": {"dataWorker": {"memory": "128Mi"}}}},
            "spec.cluster.resources.dataWorker.memory is 128Mi",
        ),
        (
            {"cluster": {"resources": {"head": {"memory": "1Gi", "sharedMemory": "1Gi"}}}},
            "spec.cluster.resources.head.memory is 1Gi",
        ),
        ({"learners": {"memory": "100Mi"}}, "spec.cluster.resources.learner.memory is 100Mi"),
        (
            {"cluster": {"volumes": [CLAIM_VOLUME, CLAIM_VOLUME | {"name": "b"}]}},
            "spec.cluster.volumes has 2 volumes at /data",
        ),
        (
            {"cluster": {"env": [{"name": "HINDCAST_ATTEMPT", "value": "x"}]}},
            "spec.cluster.env sets HINDCAST_ATTEMPT",
        ),
        (
            {"cluster": {"code": {"runtimeEnv": {"working_dir": "./src"}}}},
            "spec.cluster.code.runtimeEnv.working_dir has ./src, a local folder",
        ),
        (
            {"cluster": {"code": {"runtimeEnv": {"py_modules": ["s3://b/m.zip", "mine"]}}}},
            "spec.cluster.code.runtimeEnv.py_modules has mine",
        ),
        (
            {"cluster": {"code": {"runtimeEnv": {"env_vars": {"AWS_SECRET_ACCESS_KEY": "hidden"}}}}},
            "spec.cluster.code.runtimeEnv.env_vars sets AWS_SECRET_ACCESS_KEY inline",
        ),
        (
            {
                "cluster": {
                    "code": {"configMap": {"name": "code"}},
                    "env": [
                        {"name": "PYTHONPATH", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}
                    ],
                }
            },
            "spec.cluster.env sets PYTHONPATH by a reference",
        ),
    ],
)
def test_refusal_names_field_and_remedy(spec: dict[str, Any], sentence: str) -> None:
    (refusal,) = list_refusals(training(**spec))
    assert str(refusal).startswith(sentence)
    assert refusal.remedy
    assert "hidden" not in str(refusal)


def test_defaults_with_invalid_ray_version_are_refused() -> None:
    with pytest.raises(ValidationError, match="rayVersion"):
        defaults(rayVersion="nightly")


def test_replica_interval_is_allowed_by_platform_or_if_constant() -> None:
    interval = training(pipeline={"dataWorkers": {"minReplicas": 1, "maxReplicas": 3}})
    assert list_refusals(interval, defaults(allowAutoscaling=True)) == []
    assert list_refusals(training(pipeline={"dataWorkers": {"minReplicas": 2, "maxReplicas": 2}})) == []
