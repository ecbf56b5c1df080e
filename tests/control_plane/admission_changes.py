"""Changes of stored specs, by kind and field.

A change of a number, of a boolean or of an enum follows from the schema and is not in the tables; see `find_change`.
"""

from __future__ import annotations

from typing import Any

from admission_specs import load_schema

from api_server import Object

Change = tuple[Object, Object]
"""A change of the small valid spec before it is stored, and a merge patch of the stored spec."""
Changes = dict[str, dict[str, Change]]
BOX = {"type": "Box", "low": 0, "high": 1, "shape": [2]}


def expert_spec(**train: Any) -> Object:
    return {"policy": {"random": None, "train": {"stop": {"timesteps": 1000}} | train}}


def train_change(**change: Any) -> Object:
    return {"policy": {"train": change}}


def evaluation_change(**change: Any) -> Object:
    return {"evaluation": {"interval": 2} | change}


def offline_evaluation_change(**change: Any) -> Object:
    return {"evaluation": {"offline": {"heldOut": 0.1} | change}}


def gate_change(**change: Any) -> Object:
    return {"evaluation": {"gate": {"returns": {"low": 0, "high": 1}} | change}}


RUN_DEFINING_CHANGES: dict[str, dict[str, Change]] = {
    "OfflineRecording": {
        "environment": ({}, {"environment": {"clipActions": True}}),
        "policy.train.algorithm": (expert_spec(), train_change(algorithm="SAC")),
        "policy.train.config": (expert_spec(config={"gamma": 0.9}), train_change(config={"gamma": 0.8})),
        "policy.train.model": (expert_spec(), train_change(model={"fcnetHiddens": [64]})),
        "policy.train.sampler": (expert_spec(algorithm="DQN"), train_change(sampler={"capacity": 500})),
        "policy.train.initialCheckpoint": (
            expert_spec(),
            train_change(initialCheckpoint="s3://bucket/runs/a/r1"),
        ),
        "policy.train.stop": (expert_spec(), train_change(stop={"timesteps": 2000})),
        "policy.train.evaluation": (expert_spec(), train_change(evaluation={"duration": 3})),
        "policy.checkpoint": (
            {"policy": {"random": None, "checkpoint": {"path": "a"}}},
            {"policy": {"checkpoint": {"path": "b"}}},
        ),
        "policy.trainingRef": (
            {"policy": {"random": None, "trainingRef": {"name": "a"}}},
            {"policy": {"trainingRef": {"name": "b"}}},
        ),
        "policy.random": ({}, {"policy": {"random": None, "trainingRef": {"name": "a"}}}),
        "duration": ({}, {"duration": {"episodes": 6}}),
        "output.path": ({}, {"output": {"path": "s3://bucket/elsewhere"}}),
        "output.maxFileSize": ({"output": {"maxFileSize": "1Mi"}}, {"output": {"maxFileSize": 2**20}}),
        "output.compressColumns": (
            {"output": {"format": "SampleBatch"}},
            {"output": {"compressColumns": ["obs"]}},
        ),
    },
    "OfflineTraining": {
        "algorithm": ({}, {"algorithm": "mypkg:Algorithm"}),
        "config": ({}, {"config": {"trainBatchSizePerLearner": 32}}),
        "model": ({}, {"model": {"fcnetActivation": "relu"}}),
        "rewards": ({}, {"rewards": {"scale": 2.0}}),
        "environment": ({}, {"environment": None}),
        "observationSpace": ({}, {"observationSpace": BOX}),
        "actionSpace": ({"actionSpace": {"type": "Discrete", "n": 2}}, {"actionSpace": None}),
        "input": ({}, {"input": [{"path": "s3://bucket/data"}, {"path": "s3://bucket/more"}]}),
        "pipeline.windowBytes": ({}, {"pipeline": {"windowBytes": "2Gi"}}),
        "pipeline.preLearner": ({}, {"pipeline": {"preLearner": "mypkg:PreLearner"}}),
        "pipeline.offlineData": (
            {"pipeline": {"offlineData": "mypkg:A"}},
            {"pipeline": {"offlineData": "mypkg:B"}},
        ),
        "evaluation.offline.heldOut": (offline_evaluation_change(), offline_evaluation_change(heldOut=0.2)),
        "evaluation.offline.heldOutSeed": (
            offline_evaluation_change(),
            offline_evaluation_change(heldOutSeed=1),
        ),
        "evaluation.offline.setAside": (
            offline_evaluation_change(setAside=0.1),
            offline_evaluation_change(setAside=0.2),
        ),
        "evaluation.gate": (gate_change(), gate_change(by=0.5)),
        "customConfig": (
            {"algorithm": "mypkg:A", "customConfig": {"layers": [{"width": 1}]}},
            {"customConfig": {"layers": [{"width": 2}]}},
        ),
        "pipeline.preLearnerKwargs": (
            {"pipeline": {"preLearnerKwargs": {"a": 1}}},
            {"pipeline": {"preLearnerKwargs": {"a": 2}}},
        ),
        "pipeline.preLearnerBuffer": (
            {"pipeline": {"preLearnerBuffer": {"kwargs": {"a": 1}}}},
            {"pipeline": {"preLearnerBuffer": {"kwargs": {"a": 2}}}},
        ),
        "checkpoint.path": ({}, {"checkpoint": {"path": "s3://bucket/runs"}}),
        "initialCheckpoint": ({}, {"initialCheckpoint": "s3://bucket/runs/a/r1"}),
    },
}
"""Changes of run-defining fields that a rule of the CRD compares."""

_OPERATIONAL_CHANGES_OF_BOTH_KINDS: dict[str, Change] = {
    "cluster": (
        {"cluster": {"image": "a", "env": [{"name": "A", "value": "1"}]}},
        {"cluster": {"image": "b", "env": [], "podOverrides": {"all": {"spec": {"hostname": "a"}}}}},
    ),
    "runPolicy": (
        {"runPolicy": {"backoffLimit": 1}},
        {
            "runPolicy": {
                "backoffLimit": 5,
                "activeDeadlineSeconds": 60,
                "startDeadlineSeconds": 60,
                "stallTimeoutSeconds": 60,
                "suspendGraceSeconds": 0,
                "ttlSecondsAfterFinished": 60,
            }
        },
    ),
}
OPERATIONAL_CHANGES: dict[str, dict[str, Change]] = {
    "OfflineRecording": {
        **_OPERATIONAL_CHANGES_OF_BOTH_KINDS,
        "policy.train.checkpointEvery": (expert_spec(), train_change(checkpointEvery=1)),
        "policy.moduleClass": (
            {"policy": {"random": None, "checkpoint": {"path": "a"}, "moduleClass": "own:Module"}},
            {"policy": {"moduleClass": "own.elsewhere:Module"}},
        ),
        "runners.cpus": ({}, {"runners": {"cpus": 0.5}}),
        "callbacks": ({}, {"callbacks": ["own:Watching"]}),
        "runners.memory": ({"runners": {"memory": "1Gi"}}, {"runners": {"memory": None}}),
    },
    "OfflineTraining": {
        **_OPERATIONAL_CHANGES_OF_BOTH_KINDS,
        "pipeline.dataWorkers": ({}, {"pipeline": {"dataWorkers": {"minReplicas": 1, "maxReplicas": 9}}}),
        "pipeline.residentBudget": ({}, {"pipeline": {"residentBudget": "1Gi"}}),
        "pipeline.diskCache": ({}, {"pipeline": {"diskCache": "1Gi"}}),
        "learners.cpus": ({}, {"learners": {"cpus": 2}}),
        "learners.memory": ({}, {"learners": {"memory": "4Gi"}}),
        "evaluation.runners": (evaluation_change(), {"evaluation": {"runners": 2}}),
        "evaluation.sampleTimeoutSeconds": (evaluation_change(), {"evaluation": {"sampleTimeoutSeconds": 5}}),
        "callbacks": ({}, {"callbacks": ["own:Watching"]}),
    },
}
"""Changes of operational fields, which do not affect the results of a run."""

EXTENDING_CHANGES: dict[str, Change] = {
    "evaluation.interval": (evaluation_change(), {"evaluation": {"interval": 3}}),
    "evaluation.duration": (evaluation_change(), {"evaluation": {"duration": 3}}),
    "evaluation.durationUnit": (evaluation_change(), {"evaluation": {"durationUnit": "Timesteps"}}),
    "evaluation.envsPerRunner": (evaluation_change(), {"evaluation": {"envsPerRunner": 2}}),
    "evaluation.parallelToTraining": (evaluation_change(), {"evaluation": {"parallelToTraining": True}}),
    "evaluation.explore": (evaluation_change(), {"evaluation": {"explore": True}}),
    "evaluation.customFunction": (evaluation_change(), {"evaluation": {"customFunction": "mypkg:play"}}),
    "evaluation.referenceReturns": (
        evaluation_change(),
        {"evaluation": {"referenceReturns": {"random": 1, "expert": 2}}},
    ),
    "evaluation.offline.interval": (
        offline_evaluation_change(),
        {"evaluation": {"offline": {"interval": 3}}},
    ),
    "evaluation.offline.input": (
        {"evaluation": {"offline": {"input": ["s3://bucket/a"]}}},
        {"evaluation": {"offline": {"input": ["s3://bucket/b"]}}},
    ),
    "evaluation.offline.estimates": (
        offline_evaluation_change(),
        {"evaluation": {"offline": {"estimates": ["wis"]}}},
    ),
    "evaluation.offline.explore": (
        offline_evaluation_change(),
        {"evaluation": {"offline": {"explore": True}}},
    ),
    "evaluation.offline.gamma": (offline_evaluation_change(), {"evaluation": {"offline": {"gamma": 0.5}}}),
    "evaluation.offline.clip": (offline_evaluation_change(), {"evaluation": {"offline": {"clip": 2}}}),
    "evaluation.offline.modelUpdates": (
        offline_evaluation_change(),
        {"evaluation": {"offline": {"modelUpdates": 5}}},
    ),
    "stop": ({}, {"stop": {"epochs": 2}}),
}
"""Changes of a training with which its run continues."""

UNTYPED_CHANGES: dict[str, dict[str, tuple[str, Change]]] = {
    "OfflineRecording": {
        "environment.kwargs": ("environment", ({}, {"environment": {"kwargs": {"size": 3}}})),
        "environment.wrappers": (
            "environment",
            (
                {"environment": {"wrappers": [{"name": "mypkg:W", "kwargs": {"a": [1]}}]}},
                {"environment": {"wrappers": [{"name": "mypkg:W", "kwargs": {"a": [2]}}]}},
            ),
        ),
        "policy.train.config.lr": (
            "policy.train.config",
            (expert_spec(config={"lr": 1e-3}), train_change(config={"lr": [[0, 1e-3], [10, 1e-4]]})),
        ),
    },
    "OfflineTraining": {
        "config.lr": ("config", ({"config": {"lr": 1e-3}}, {"config": {"lr": 1e-4}})),
        "observationSpace.low": (
            "observationSpace",
            ({"observationSpace": BOX}, {"observationSpace": {"low": -1}}),
        ),
        "input[].filter[].value": (
            "input",
            (
                {"input": [{"filter": [{"column": "a", "op": "==", "value": 1}]}]},
                {
                    "input": [
                        {"path": "s3://bucket/data", "filter": [{"column": "a", "op": "==", "value": 2}]}
                    ]
                },
            ),
        ),
    },
}
"""Changes within fields that accept several types: parent field, which a rule compares as a whole, and change."""

CHANGES_UNSEEN_BY_RULES: dict[str, dict[str, Change]] = {
    "OfflineRecording": {},
    "OfflineTraining": {"pipeline.connectors": ({}, {"pipeline": {"connectors": ["mypkg:Connector"]}})},
}
"""Changes of run-defining fields that no rule can compare. The spec hash detects them."""


def find_change(table: Changes, kind: str, field: str) -> Change:
    """Return the table's change of a field, else one that follows from the field's schema."""
    if field in table[kind]:
        return table[kind][field]
    schema = load_schema(kind)["properties"]["spec"]
    for name in field.split("."):
        schema = schema["properties"][name]
    change: Any = other_value(schema)
    for name in reversed(field.split(".")):
        change = {name: change}
    return {}, change


def other_value(schema: Object) -> Any:
    """Return a value other than the default."""
    default = schema.get("default")
    if "enum" in schema:
        return next(value for value in schema["enum"] if value != default)
    if schema["type"] == "boolean":
        return not default
    assert schema["type"] in ("integer", "number"), f"add a change of this field to the table: {schema}"
    return (default or schema.get("minimum", 0)) + 1
