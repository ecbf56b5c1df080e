"""Valid and invalid examples for each rule of the CRDs, by the rule's path and message."""

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
LOST_WITH_POD = "would be lost with the pod; use object storage, a mounted volume or a relative path"
ENV_CREDENTIAL = "is a credential; use valueFrom.secretKeyRef or envFrom, never inline"
NO_ENVIRONMENT: Object = {"environment": None}
ONLY_LIVE_ALGORITHMS = f"only {', '.join(live_algorithms())} can learn from a sampler"
LIVE_EXPERTS = [name for name in live_algorithms() if name in algorithms("OfflineRecording")]
ONLY_LIVE_EXPERTS = f"only {', '.join(LIVE_EXPERTS)} can learn from a sampler"
SAMPLER: Object = {"path": None, "sampler": {}}
OBSERVATION_FILTER: Object = {"model": {"observationFilter": "MeanStd"}}


def offline_evaluation_spec(stop: Object | None = None, **offline: Any) -> Object:
    return {"evaluation": {"offline": {"heldOut": 0.1} | offline}} | ({"stop": stop} if stop else {})


def live_training_spec(*sources: Object, **spec: Any) -> Object:
    """Return a change to an algorithm that learns from live samples.

    One source is merged into the small spec's source, where None removes a field. Of several sources, which replace it,
    fields with None are left out.
    """
    if len(sources) > 1:
        sources = tuple(
            {key: value for key, value in source.items() if value is not None} for source in sources
        )
    return {"algorithm": "DQN", "input": list(sources), "stop": {"epochs": None, "updates": 5}} | spec


def prioritized_replay_spec(pipeline: Object, algorithm: str = "DQN") -> Object:
    return algorithm_config_spec(algorithm, prioritizedReplay=True) | {"pipeline": pipeline}


def algorithm_config_spec(algorithm: str, **config: Any) -> Object:
    return {"algorithm": algorithm, "config": config}


@dataclass(frozen=True)
class Examples:
    """Values at a rule's node.

    Attributes:
        good: values that all rules accept.
        bad: values that only this rule refuses.
    """

    good: tuple[Any, ...]
    bad: tuple[Any, ...]


# Examples of rules that occur at several paths, by the rule's message.
EXAMPLES_BY_SENTENCE = {
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
    LOST_WITH_POD: Examples(
        good=("tmp/data", "/tmpfs/data", "/data/tmp", "file:///mnt/data", "memory/data"),
        bad=("/tmp", "/tmp/data", "file:///var/tmp/data", "/dev/shm/data", "memory://data"),
    ),
    "burnIn must be less than maxSeqLen: otherwise no timestep is left to learn from": Examples(
        good=({"burnIn": 19}, {"burnIn": 20, "maxSeqLen": 21}, {"maxSeqLen": 1}),
        bad=({"burnIn": 20}, {"burnIn": 3, "maxSeqLen": 3}),
    ),
    "logStdMin must be less than logStdMax; they default to -logStdClip and logStdClip": Examples(
        good=({"logStdMin": -5, "logStdMax": 2}, {"logStdMin": -5.5, "logStdClip": 1}, {"logStdMax": -19}),
        bad=({"logStdMin": 2, "logStdMax": -5}, {"logStdMin": 20}, {"logStdMax": -2, "logStdClip": 1.5}),
    ),
}

# Examples of all other rules, by the rule's path in the spec and its message.
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
        "compressColumns needs format SampleBatch; to compress Parquet, set compression",
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
        good=(live_training_spec(SAMPLER), NO_ENVIRONMENT),
        bad=(live_training_spec(SAMPLER) | NO_ENVIRONMENT,),
    ),
    ("", "a sampler combined with other inputs needs weights; give one to each"): Examples(
        good=(
            live_training_spec(SAMPLER),
            live_training_spec({"path": "a", "weight": 0.4}, SAMPLER | {"weight": 0.6}),
        ),
        bad=(live_training_spec({"path": "a"}, SAMPLER),),
    ),
    ("", ONLY_WEIGHT_WITH_SAMPLER): Examples(
        good=(live_training_spec(SAMPLER | {"weight": 1, "format": "Auto", "filter": []}),),
        bad=(
            live_training_spec(SAMPLER | {"format": "CSV"}),
            live_training_spec(SAMPLER | {"top": 0.5}),
            live_training_spec(SAMPLER | {"columns": ["obs"]}),
            live_training_spec(SAMPLER | {"filter": [{"column": "a", "op": "==", "value": 1}]}),
        ),
    ),
    ("", "input has several samplers; give one"): Examples(
        good=(live_training_spec(SAMPLER),),
        bad=(live_training_spec(SAMPLER | {"weight": 0.5}, SAMPLER | {"weight": 0.5}),),
    ),
    (
        "",
        "stop.epochs counts passes over recorded data only; with a sampler use updates or timesteps",
    ): Examples(
        good=(live_training_spec(SAMPLER), {"stop": {"epochs": 2}}),
        bad=(live_training_spec(SAMPLER, stop={"epochs": 2}),),
    ),
    ("", ONLY_LIVE_ALGORITHMS): Examples(
        good=(
            live_training_spec(SAMPLER),
            live_training_spec(SAMPLER, algorithm="mypkg:MyAlgo"),
            live_training_spec(SAMPLER, algorithm="SAC"),
        ),
        bad=(live_training_spec(SAMPLER, algorithm="BC"), live_training_spec(SAMPLER, algorithm="TD3BC")),
    ),
    (".policy.train", ONLY_LIVE_EXPERTS): Examples(
        good=({"algorithm": "DQN", "sampler": {}}, {"algorithm": "PPO"}),
        bad=({"sampler": {}}, {"algorithm": "PPO", "sampler": {"capacity": 5}}),
    ),
    ("", f"model.observationFilter {NO_FILTER_STATISTICS}"): Examples(
        good=(
            OBSERVATION_FILTER,
            live_training_spec(SAMPLER),
            live_training_spec(SAMPLER) | OBSERVATION_FILTER | {"initialCheckpoint": "s3://bucket/runs/a"},
            live_training_spec({"path": "a", "weight": 1}, SAMPLER | {"weight": 1}) | OBSERVATION_FILTER,
        ),
        bad=(live_training_spec(SAMPLER) | OBSERVATION_FILTER,),
    ),
    ("", f"pipeline.residency {PRIORITIES_WITH_STREAMING}"): Examples(
        good=(
            prioritized_replay_spec({"residency": "Resident"}),
            prioritized_replay_spec({"residency": "Streaming"}) | live_training_spec(SAMPLER),
            {"algorithm": "DQN", "pipeline": {"residency": "Streaming"}},
        ),
        bad=(
            prioritized_replay_spec({"residency": "Streaming"}),
            prioritized_replay_spec({"residency": "Streaming"}, algorithm="DiscreteCQL"),
        ),
    ),
    ("", f"pipeline.sampling {PRIORITIES_WITH_REPLACEMENT}"): Examples(
        good=(prioritized_replay_spec({"sampling": "Epochs"}), {"pipeline": {"sampling": "WithReplacement"}}),
        bad=(prioritized_replay_spec({"sampling": "WithReplacement"}),),
    ),
    ("", "config.embedSize must be a multiple of numHeads"): Examples(
        good=(
            algorithm_config_spec("DecisionTransformer", embedSize=130),
            algorithm_config_spec("DecisionTransformer", embedSize=130, numHeads=5),
            algorithm_config_spec("DecisionTransformer", numHeads=4),
        ),
        bad=(
            algorithm_config_spec("DecisionTransformer", embedSize=130, numHeads=4),
            algorithm_config_spec("DecisionTransformer", numHeads=3),
        ),
    ),
    ("", "config.contextLength must be at most trainBatchSizePerLearner"): Examples(
        good=(
            algorithm_config_spec("DecisionTransformer", contextLength=1280),
            algorithm_config_spec("DecisionTransformer", trainBatchSizePerLearner=20),
        ),
        bad=(
            algorithm_config_spec("DecisionTransformer", contextLength=1281),
            algorithm_config_spec("DecisionTransformer", trainBatchSizePerLearner=19),
        ),
    ),
    ("", "config.actionChunk must be at most trainBatchSizePerLearner"): Examples(
        good=(
            algorithm_config_spec("FQL", actionChunk=5),
            algorithm_config_spec("FQL", actionChunk=257, trainBatchSizePerLearner=512),
        ),
        bad=(algorithm_config_spec("FQL", actionChunk=257),),
    ),
    (".policy.train", "config.minibatchSize must be at most trainBatchSizePerLearner"): Examples(
        good=(
            algorithm_config_spec("PPO", minibatchSize=4000),
            algorithm_config_spec("SAC", trainBatchSizePerLearner=64),
        ),
        bad=(
            algorithm_config_spec("PPO", minibatchSize=4001),
            algorithm_config_spec("PPO", trainBatchSizePerLearner=127),
        ),
    ),
    (
        "",
        "evaluation requires an environment to evaluate in, evaluation.offline or evaluation.gate",
    ): Examples(
        good=(
            {"evaluation": {"interval": 2}},
            NO_ENVIRONMENT,
            offline_evaluation_spec() | NO_ENVIRONMENT,
            {"evaluation": {"gate": {"returns": {"low": 0, "high": 1}}}} | NO_ENVIRONMENT,
        ),
        bad=({"evaluation": {"interval": 2}} | NO_ENVIRONMENT,),
    ),
    (
        "",
        "stop.episodeReturnMean requires evaluation.interval to measure it",
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
    ("", "stop.episodeReturnMean requires an environment to measure it"): Examples(
        good=(
            {"stop": {"episodeReturnMean": 1}, "evaluation": {"interval": 2}},
            offline_evaluation_spec() | NO_ENVIRONMENT,
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
        "stop.estimatedReturn requires evaluation.offline with an interval and estimates to compute it",
    ): Examples(
        good=(
            offline_evaluation_spec(stop={"estimatedReturn": 1}, interval=2, estimates=["wis"]),
            offline_evaluation_spec(estimates=["dm"]),
        ),
        bad=(
            {"stop": {"estimatedReturn": 1}},
            offline_evaluation_spec(stop={"estimatedReturn": 1}, interval=2),
            offline_evaluation_spec(stop={"estimatedReturn": 1}, estimates=["wis"]),
        ),
    ),
    (
        "",
        "stop.validationLoss requires evaluation.offline.interval to compute it",
    ): Examples(
        good=(offline_evaluation_spec(stop={"validationLoss": 0.5}, interval=2),),
        bad=({"stop": {"validationLoss": 0.5}}, offline_evaluation_spec(stop={"validationLoss": 0.5})),
    ),
    (
        "",
        "evaluation.offline.heldOut requires recorded data in input; or use evaluation.offline.input",
    ): Examples(
        good=(
            offline_evaluation_spec(),
            live_training_spec(SAMPLER)
            | offline_evaluation_spec(heldOut=None, input=["s3://bucket/recorded"]),
        ),
        bad=(live_training_spec(SAMPLER) | offline_evaluation_spec(),),
    ),
    (
        "",
        "evaluation.offline.setAside requires recorded data in input",
    ): Examples(
        good=(offline_evaluation_spec(setAside=0.1),),
        bad=(
            live_training_spec(SAMPLER)
            | offline_evaluation_spec(heldOut=None, input=["s3://bucket/recorded"], setAside=0.1),
        ),
    ),
    (".evaluation.referenceReturns", "random must be below expert"): Examples(
        good=({"random": -1.5, "expert": 0},),
        bad=({"random": 1, "expert": 1}, {"random": 2, "expert": 1}),
    ),
    (".evaluation.gate.returns", "low must be below high"): Examples(
        good=({"low": -1.5, "high": 0},),
        bad=({"low": 1, "high": 1}, {"low": 2, "high": 1}),
    ),
    (".evaluation.gate", "by must be below returns.high - returns.low"): Examples(
        good=({"returns": {"low": 0, "high": 1}}, {"returns": {"low": -1, "high": 1}, "by": 1.5}),
        bad=({"returns": {"low": 0, "high": 1}, "by": 1},),
    ),
    (".evaluation.offline", "exactly one of heldOut, input is needed"): Examples(
        good=({"heldOut": 0.1}, {"heldOut": None, "input": ["s3://bucket/recorded"]}),
        bad=({"heldOut": None}, {"heldOut": 0.1, "input": ["s3://bucket/recorded"]}),
    ),
    ("", "customConfig is for custom algorithms; use config"): Examples(
        good=({"algorithm": "mypkg.mod:MyAlgo", "customConfig": {"any": ["thing"]}}, {"config": {}}),
        bad=({"customConfig": {"lr": 1}},),
    ),
    ("", "config does not apply to a custom algorithm; use customConfig"): Examples(
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
        "set both minReplicas and maxReplicas, with minReplicas ≤ maxReplicas",
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
