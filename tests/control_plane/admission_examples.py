"""What each rule of the CRDs takes and refuses, by the rule's place and sentence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from api_server import Object
from hindcast.api.checks import NO_FILTER_STATISTICS, PRIORITIES_WITH_REPLACEMENT, PRIORITIES_WITH_STREAMING
from hindcast.api.input import ONLY_WEIGHT_WITH_SAMPLER
from hindcast.api.options import algorithms, live_algorithms

REF = {"name": "a"}
ONE_OF_SOURCE = "exactly one of path, recordingRef, sampler is needed"
CREDENTIALS = "contains credentials; use a Secret (spec.cluster.envFrom) or the service account instead"
LOST = "would be lost with the pod; use object storage, a mounted volume or a relative path"
ENV_CREDENTIAL = "is a credential; use valueFrom.secretKeyRef or envFrom, never inline"
NO_ENVIRONMENT: Object = {"environment": None}
OF_THESE = f"only {', '.join(live_algorithms())} can learn from a sampler"
EXPERTS = [name for name in live_algorithms() if name in algorithms("OfflineRecording")]
OF_EXPERTS = f"only {', '.join(EXPERTS)} can learn from a sampler"
SAMPLER: Object = {"path": None, "sampler": {}}
FILTERED: Object = {"model": {"observationFilter": "MeanStd"}}


def judged(stop: Object | None = None, **offline: Any) -> Object:
    return {"evaluation": {"offline": {"heldOut": 0.1} | offline}} | ({"stop": stop} if stop else {})


def played(*sources: Object, **spec: Any) -> Object:
    """What an algorithm that plays learns from. One source stands in the place of the small spec's path."""
    if len(sources) > 1:
        sources = tuple({key: value for key, value in each.items() if value is not None} for each in sources)
    return {"algorithm": "DQN", "input": list(sources), "stop": {"epochs": None, "updates": 5}} | spec


def by_priority(pipeline: Object, algorithm: str = "DQN") -> Object:
    return chosen(algorithm, prioritizedReplay=True) | {"pipeline": pipeline}


def chosen(algorithm: str, **config: Any) -> Object:
    return {"algorithm": algorithm, "config": config}


@dataclass(frozen=True)
class Examples:
    """Values at a rule's place: those that it takes, and those that it alone refuses."""

    good: tuple[Any, ...]
    bad: tuple[Any, ...]


# Rules that stand at several places, by their sentence.
ANYWHERE = {
    CREDENTIALS: Examples(
        good=(
            "s3://bucket/a@b:c",
            "s3://anonymous@bucket/data",
            "gs://anonymous@bucket",
            "abfss://container@account.dfs.core.windows.net/data",
            "relative/user:x@y",
            "/data/?token",
        ),
        bad=(
            "s3://key:secret@bucket/data",
            "s3://anonymous:secret@bucket/data",
            "https://user@host/data",
            "https://anonymous@host/data",
            "abfss://user:secret@account/data",
            "s3://bucket/data?endpoint=x&SECRET_KEY=abc",
            "https://account.blob/data?sig=abc",
        ),
    ),
    LOST: Examples(
        good=("tmp/data", "/tmpfs/data", "/data/tmp", "file:///mnt/data", "memory/data"),
        bad=("/tmp", "/tmp/data", "file:///var/tmp/data", "/dev/shm/data", "memory://data"),
    ),
    "burnIn must be less than maxSeqLen: otherwise no timestep is left to learn from": Examples(
        good=({"burnIn": 19}, {"burnIn": 20, "maxSeqLen": 21}, {"maxSeqLen": 1}),
        bad=({"burnIn": 20}, {"burnIn": 3, "maxSeqLen": 3}),
    ),
    "logStdMin must be less than logStdMax; one that is not given is -logStdClip or logStdClip": Examples(
        good=({"logStdMin": -5, "logStdMax": 2}, {"logStdMin": -5.5, "logStdClip": 1}, {"logStdMax": -19}),
        bad=({"logStdMin": 2, "logStdMax": -5}, {"logStdMin": 20}, {"logStdMax": -2, "logStdClip": 1.5}),
    ),
}

# Rules by the place in the spec and their sentence.
EXAMPLES: dict[tuple[str, str], Examples] = {
    (".policy", "exactly one of train, checkpoint, trainingRef, random is needed"): Examples(
        good=(
            {"random": {}},
            {"random": None, "checkpoint": {"path": "runs/a"}},
            {"random": None, "trainingRef": REF},
            {"random": None, "train": {"stop": {"timesteps": 1}}},
        ),
        bad=({"random": None}, {"trainingRef": REF}, {"checkpoint": {"path": "a"}, "trainingRef": REF}),
    ),
    (".policy.train.stop", "at least one of episodeReturnMean, timesteps, iterations is needed"): Examples(
        good=({"episodeReturnMean": 450.5}, {"iterations": 3}, {"timesteps": 5, "iterations": 3}),
        bad=({"timesteps": None},),
    ),
    (".duration", "exactly one of episodes, timesteps is needed"): Examples(
        good=({"episodes": 3}, {"episodes": None, "timesteps": 3}),
        bad=({"episodes": None}, {"timesteps": 3}),
    ),
    (
        ".output",
        "compressColumns needs format SampleBatch; Parquet's columns are compressed by compression",
    ): Examples(
        good=({"compressColumns": []}, {"compressColumns": ["obs"], "format": "SampleBatch"}),
        bad=({"compressColumns": ["obs"]}, {"compressColumns": ["obs"], "format": "JSON"}),
    ),
    (".output", "encoding MessagePack needs format Episodes"): Examples(
        good=({"encoding": "MessagePack"}, {"encoding": "Arrow", "format": "Columns"}),
        bad=({"encoding": "MessagePack", "format": "Columns"}, {"encoding": "MessagePack", "format": "JSON"}),
    ),
    ("", "only some entries of input have weights; give one to each, or to none"): Examples(
        good=(
            {"input": [{"path": "a", "weight": 0.4}, {"path": "b", "weight": 0.6}]},
            {"input": [{"path": "a"}, {"path": "b"}]},
        ),
        bad=({"input": [{"path": "a", "weight": 0.4}, {"path": "b"}]},),
    ),
    ("", "input has a sampler, but the spec has no environment to sample from"): Examples(
        good=(played(SAMPLER), NO_ENVIRONMENT),
        bad=(played(SAMPLER) | NO_ENVIRONMENT,),
    ),
    ("", "a sampler combined with other inputs needs weights; give one to each"): Examples(
        good=(played(SAMPLER), played({"path": "a", "weight": 0.4}, SAMPLER | {"weight": 0.6})),
        bad=(played({"path": "a"}, SAMPLER),),
    ),
    ("", ONLY_WEIGHT_WITH_SAMPLER): Examples(
        good=(played(SAMPLER | {"weight": 1, "format": "Auto", "filter": []}),),
        bad=(
            played(SAMPLER | {"format": "CSV"}),
            played(SAMPLER | {"top": 0.5}),
            played(SAMPLER | {"columns": ["obs"]}),
            played(SAMPLER | {"filter": [{"column": "a", "op": "==", "value": 1}]}),
        ),
    ),
    ("", "input has several samplers; give one"): Examples(
        good=(played(SAMPLER),),
        bad=(played(SAMPLER | {"weight": 0.5}, SAMPLER | {"weight": 0.5}),),
    ),
    (
        "",
        "stop.epochs counts passes over recorded data only; with a sampler use updates or timesteps",
    ): Examples(
        good=(played(SAMPLER), {"stop": {"epochs": 2}}),
        bad=(played(SAMPLER, stop={"epochs": 2}),),
    ),
    ("", OF_THESE): Examples(
        good=(played(SAMPLER), played(SAMPLER, algorithm="mypkg:MyAlgo"), played(SAMPLER, algorithm="SAC")),
        bad=(played(SAMPLER, algorithm="BC"), played(SAMPLER, algorithm="TD3BC")),
    ),
    (".policy.train", OF_EXPERTS): Examples(
        good=({"algorithm": "DQN", "sampler": {}}, {"algorithm": "PPO"}),
        bad=({"sampler": {}}, {"algorithm": "PPO", "sampler": {"capacity": 5}}),
    ),
    ("", f"model.observationFilter {NO_FILTER_STATISTICS}"): Examples(
        good=(
            FILTERED,
            played(SAMPLER),
            played(SAMPLER) | FILTERED | {"initialCheckpoint": "s3://bucket/runs/a"},
            played({"path": "a", "weight": 1}, SAMPLER | {"weight": 1}) | FILTERED,
        ),
        bad=(played(SAMPLER) | FILTERED,),
    ),
    ("", f"pipeline.residency {PRIORITIES_WITH_STREAMING}"): Examples(
        good=(
            by_priority({"residency": "Resident"}),
            by_priority({"residency": "Streaming"}) | played(SAMPLER),
            {"algorithm": "DQN", "pipeline": {"residency": "Streaming"}},
        ),
        bad=(
            by_priority({"residency": "Streaming"}),
            by_priority({"residency": "Streaming"}, algorithm="DiscreteCQL"),
        ),
    ),
    ("", f"pipeline.sampling {PRIORITIES_WITH_REPLACEMENT}"): Examples(
        good=(by_priority({"sampling": "Epochs"}), {"pipeline": {"sampling": "WithReplacement"}}),
        bad=(by_priority({"sampling": "WithReplacement"}),),
    ),
    ("", "config.embedSize must be a multiple of numHeads"): Examples(
        good=(
            chosen("DecisionTransformer", embedSize=130),
            chosen("DecisionTransformer", embedSize=130, numHeads=5),
            chosen("DecisionTransformer", numHeads=4),
        ),
        bad=(
            chosen("DecisionTransformer", embedSize=130, numHeads=4),
            chosen("DecisionTransformer", numHeads=3),
        ),
    ),
    ("", "config.contextLength must be at most trainBatchSizePerLearner"): Examples(
        good=(
            chosen("DecisionTransformer", contextLength=1280),
            chosen("DecisionTransformer", trainBatchSizePerLearner=20),
        ),
        bad=(
            chosen("DecisionTransformer", contextLength=1281),
            chosen("DecisionTransformer", trainBatchSizePerLearner=19),
        ),
    ),
    ("", "config.actionChunk must be at most trainBatchSizePerLearner"): Examples(
        good=(chosen("FQL", actionChunk=5), chosen("FQL", actionChunk=257, trainBatchSizePerLearner=512)),
        bad=(chosen("FQL", actionChunk=257),),
    ),
    (".policy.train", "config.minibatchSize must be at most trainBatchSizePerLearner"): Examples(
        good=(chosen("PPO", minibatchSize=4000), chosen("SAC", trainBatchSizePerLearner=64)),
        bad=(chosen("PPO", minibatchSize=4001), chosen("PPO", trainBatchSizePerLearner=127)),
    ),
    ("", "there is evaluation, but no environment to evaluate in"): Examples(
        good=({"evaluation": {"interval": 2}}, NO_ENVIRONMENT, judged() | NO_ENVIRONMENT),
        bad=({"evaluation": {"interval": 2}} | NO_ENVIRONMENT,),
    ),
    (
        "",
        "there is stop.episodeReturnMean, but no evaluation.interval to measure it",
    ): Examples(
        good=(
            {"stop": {"episodeReturnMean": 1}, "evaluation": {"interval": 2}},
            {"stop": {"iterations": 1}, "evaluation": {"duration": 3}},
        ),
        bad=(
            {"stop": {"episodeReturnMean": 1}},
            {"stop": {"episodeReturnMean": -0.5}, "evaluation": {}},
        ),
    ),
    ("", "there is stop.episodeReturnMean, but no environment to measure it"): Examples(
        good=(
            {"stop": {"episodeReturnMean": 1}, "evaluation": {"interval": 2}},
            judged() | NO_ENVIRONMENT,
        ),
        bad=(
            {
                "stop": {"episodeReturnMean": 1},
                "evaluation": {"interval": 2, "offline": {"heldOut": 0.1}},
                **NO_ENVIRONMENT,
            },
        ),
    ),
    (
        "",
        "there is stop.estimatedReturn, but no evaluation.offline with an interval and estimates to compute it",
    ): Examples(
        good=(judged(stop={"estimatedReturn": 1}, interval=2, estimates=["wis"]), judged(estimates=["dm"])),
        bad=(
            {"stop": {"estimatedReturn": 1}},
            judged(stop={"estimatedReturn": 1}, interval=2),
            judged(stop={"estimatedReturn": 1}, estimates=["wis"]),
        ),
    ),
    (
        "",
        "there is stop.validationLoss, but no evaluation.offline.interval to compute it",
    ): Examples(
        good=(judged(stop={"validationLoss": 0.5}, interval=2),),
        bad=({"stop": {"validationLoss": 0.5}}, judged(stop={"validationLoss": 0.5})),
    ),
    (
        "",
        "there is evaluation.offline.heldOut, but no recorded data to hold out; use evaluation.offline.input",
    ): Examples(
        good=(judged(), played(SAMPLER) | judged(heldOut=None, input=["s3://bucket/recorded"])),
        bad=(played(SAMPLER) | judged(),),
    ),
    (
        "",
        "there is evaluation.offline.setAside, but no recorded data to set aside",
    ): Examples(
        good=(judged(setAside=0.1),),
        bad=(played(SAMPLER) | judged(heldOut=None, input=["s3://bucket/recorded"], setAside=0.1),),
    ),
    (".evaluation.referenceReturns", "random must be below expert"): Examples(
        good=({"random": -1.5, "expert": 0},),
        bad=({"random": 1, "expert": 1}, {"random": 2, "expert": 1}),
    ),
    (".evaluation.offline", "exactly one of heldOut, input is needed"): Examples(
        good=({"heldOut": 0.1}, {"heldOut": None, "input": ["s3://bucket/recorded"]}),
        bad=({"heldOut": None}, {"heldOut": 0.1, "input": ["s3://bucket/recorded"]}),
    ),
    ("", "customConfig is for custom algorithms; use config"): Examples(
        good=({"algorithm": "mypkg.mod:MyAlgo", "customConfig": {"any": ["thing"]}}, {"config": {}}),
        bad=({"customConfig": {"lr": 1}},),
    ),
    ("", "a custom algorithm takes customConfig, not config"): Examples(
        good=({"algorithm": "mypkg:MyAlgo"}, {"config": {"lr": 1.0e-3}}),
        bad=({"algorithm": "mypkg:MyAlgo", "config": {"lr": 1.0e-3}},),
    ),
    (".input[]", ONE_OF_SOURCE): Examples(
        good=({"path": "a"}, {"path": None, "recordingRef": REF}),
        bad=({"path": None}, {"recordingRef": REF}),
    ),
    (".pipeline.dataWorkers", "replicas excludes minReplicas and maxReplicas"): Examples(
        good=({"replicas": 0}, {"minReplicas": 1, "maxReplicas": 2}),
        bad=({"replicas": 2, "minReplicas": 1, "maxReplicas": 2},),
    ),
    (
        ".pipeline.dataWorkers",
        "minReplicas and maxReplicas are given together, and minReplicas ≤ maxReplicas",
    ): Examples(
        good=({"minReplicas": 2, "maxReplicas": 2}, {}),
        bad=({"minReplicas": 2}, {"maxReplicas": 2}, {"minReplicas": 3, "maxReplicas": 2}),
    ),
    (".evaluation", "duration Auto needs parallelToTraining"): Examples(
        good=({"duration": "Auto", "parallelToTraining": True}, {"duration": 5}),
        bad=({"duration": "Auto"}, {"duration": "Auto", "parallelToTraining": False}),
    ),
    (".evaluation", "customFunction excludes parallelToTraining"): Examples(
        good=({"customFunction": "a:b"}, {"customFunction": "a:b", "parallelToTraining": False}),
        bad=({"customFunction": "a:b", "parallelToTraining": True},),
    ),
    (
        ".stop",
        "at least one of episodeReturnMean, estimatedReturn, validationLoss, iterations, timesteps, updates, epochs is "
        "needed",
    ): Examples(
        good=({"epochs": 0.5}, {"epochs": None, "updates": 5}, {"timesteps": 5, "iterations": 5}),
        bad=({"epochs": None},),
    ),
    (
        ".cluster.volumes[]",
        "exactly one of persistentVolumeClaim, configMap, secret, emptyDir is needed",
    ): Examples(
        good=tuple(
            {"name": "a", "mountPath": "/a"} | source
            for source in (
                {"persistentVolumeClaim": {"claimName": "a"}},
                {"configMap": REF},
                {"secret": {"secretName": "a"}},
                {"emptyDir": {}},
            )
        ),
        bad=(
            {"name": "a", "mountPath": "/a"},
            {"name": "a", "mountPath": "/a", "emptyDir": {}, "configMap": REF},
        ),
    ),
    (".cluster.env[]", "exactly one of value, valueFrom is needed"): Examples(
        good=(
            {"name": "A", "value": ""},
            {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "a", "key": "b"}}},
        ),
        bad=(
            {"name": "A"},
            {"name": "A", "value": "x", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}},
        ),
    ),
    (".cluster.env[]", ENV_CREDENTIAL): Examples(
        good=(
            {"name": "AWS_REGION", "value": "eu"},
            {"name": "AWS_SECRET_ACCESS_KEY", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}},
        ),
        bad=(
            {"name": "AWS_SECRET_ACCESS_KEY", "value": "x"},
            {"name": "AZURE_STORAGE_KEY", "value": ""},
        ),
    ),
    (
        ".cluster.env[].valueFrom",
        "exactly one of secretKeyRef, configMapKeyRef is needed",
    ): Examples(
        good=({"secretKeyRef": {"name": "a", "key": "b"}},),
        bad=(
            {},
            {"secretKeyRef": {"name": "a", "key": "b"}, "configMapKeyRef": {"name": "a", "key": "b"}},
        ),
    ),
    (".cluster.envFrom[]", "exactly one of secretRef, configMapRef is needed"): Examples(
        good=({"secretRef": REF}, {"configMapRef": REF, "prefix": "A_"}),
        bad=({}, {"secretRef": REF, "configMapRef": REF}),
    ),
    (".cluster.code", "at least one of configMap, runtimeEnv is needed"): Examples(
        good=({"configMap": REF}, {"runtimeEnv": {"pip": ["a"]}}, {"configMap": REF, "runtimeEnv": {}}),
        bad=({},),
    ),
}
