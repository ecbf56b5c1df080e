"""Valid resources, and resources with one mistake each, for the loader and for the API server.

The tables contain changes of a small valid spec: merge patches, in which null removes a field. A list with one entry is
merged into one with one entry.
"""

from __future__ import annotations

from typing import Any, get_args

from ruamel.yaml import YAML

from hindcast.api.input import PrepareSpec
from hindcast.api.options import algorithms, live_algorithms, schemas

KNOWN_TO_LOADER_ONLY = ("spec.input[0].readOptions has", "spec.pipeline.connectors[0]")
"""Beginnings of mistakes that no rule finds, since they are about names in lists of the loader."""
API_VERSION = "hindcast.dev/v1alpha1"
KINDS = ("OfflineRecording", "OfflineTraining")
SPECS: dict[str, dict[str, Any]] = {
    "OfflineRecording": {
        "environment": {"id": "CartPole-v1"},
        "policy": {"random": {}},
        "duration": {"episodes": 5},
        "output": {"path": "s3://bucket/data"},
    },
    "OfflineTraining": {
        "algorithm": "BC",
        "environment": {"id": "CartPole-v1"},
        "input": [{"path": "s3://bucket/data"}],
        "stop": {"epochs": 1},
    },
}

_TRAININGS = algorithms("OfflineTraining")
_ALGORITHM_LISTS = {
    "ONLINE_ALGORITHMS": live_algorithms(),
    "RECURRENT_ALGORITHMS": [name for name in _TRAININGS if schemas()[name]["x-recurrent"]],
    "TRAINING_ALGORITHMS": _TRAININGS,
}
"""Words in the tables -> names that take their places."""


def merge_change(base: Any, change: Any) -> Any:
    """Apply a merge patch. If both are lists with one entry, the entries are merged."""
    if isinstance(base, list) and isinstance(change, list) and len(base) == len(change) == 1:
        return [merge_change(base[0], change[0])]
    if not isinstance(base, dict) or not isinstance(change, dict):
        return change
    result = dict(base)
    for name, value in change.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merge_change(result.get(name), value)
    return result


def make_document(kind: str, spec: dict[str, Any], name: str = "test") -> dict[str, Any]:
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}


def changed_spec(kind: str, change: dict[str, Any]) -> dict[str, Any]:
    """Return the kind's small valid spec with a change."""
    result: dict[str, Any] = merge_change(SPECS[kind], change)
    return result


_VALID_RECORDINGS = """
- {}
- {runners: {replicas: 5, envsPerRunner: 8, cpus: 0.5, memory: 2Gi}}
- {runners: {memory: 2147483648, cpus: 2}}
- {runners: {cpus: 500m}}
- {runners: {cpus: "0.5"}}
- {duration: {episodes: 1e3}}
- {duration: {episodes: null, timesteps: 3}}
- {environment: {id: "my.package:Env", kwargs: {size: [1, {a: b}]}}}
- {environment: {wrappers: [ClipReward, {name: "m:W", kwargs: {a: 1}}]}}
- {policy: {random: null, checkpoint: {path: runs/a}}}
- {policy: {random: null, trainingRef: {name: a}}}
- {policy: {random: null, train: {stop: {episodeReturnMean: 450.5}, config: {lr: 3.0e-4}}}}
- {policy: {random: null, train: {stop: {timesteps: 9, iterations: 3}, config: {lr: [[0, 1], [9, 0.1]]}}}}
- {policy: {random: null, train: {algorithm: SAC, sampler: {}, stop: {timesteps: 10}}}}
- {policy: {random: null, train: {stop: {timesteps: 9}, model: {observationFilter: MeanStd}}}}
- {policy: {random: null, train: {algorithm: SAC, stop: {timesteps: 9}, initialCheckpoint: a,
    model: {observationFilter: MeanStd}}}}
- {policy: {random: null, train: {stop: {timesteps: 9}, config: {minibatchSize: 4000}}}}
- {output: {path: data/cartpole}}
- {output: {encoding: MessagePack}}
- {output: {format: SampleBatch, compressColumns: [obs, new_obs]}}
- {output: {format: Columns, compressColumns: [], compression: zstd}}
- {output: {maxRowsPerFile: 25, maxFileSize: 1.5Gi, compression: None}}
- {runPolicy: {backoffLimit: 0, ttlSecondsAfterFinished: 0}}
"""
_VALID_TRAININGS = """
- {}
- environment: null
  observationSpace: {type: Box, low: "-inf", high: inf, shape: [4]}
  actionSpace: {type: Discrete, n: 2}
- observationSpace: {type: Dict, spaces: {a: {type: Tuple, spaces: [{type: MultiBinary, n: [2, 2]}]}}}
- {config: {lr: 8.0e-4, trainBatchSizePerLearner: 1024, gradClip: 10, gradClipBy: Norm}}
- {algorithm: "mypkg.mod:MyAlgo", customConfig: {tau: {a: [1, 2]}}}
- {algorithm: "mypkg:A", model: {moduleClass: "m:M", recurrent: LSTM, distribution: Deterministic}}
- {algorithm: "mypkg:A", input: [{path: null, sampler: {}}], stop: {epochs: null, updates: 5}}
- {model: {fcnetHiddens: [], convFilters: [[16, 8, 4]], distribution: Gaussian}}
- {model: {burnIn: 20, maxSeqLen: 21, recurrent: GRU}}
- {model: {maxSeqLen: 1, logStdMin: -5, logStdMax: 2}}
- {model: {logStdMin: -5.5, logStdClip: 6, observationFilter: MeanStd}}
- {model: {logStdMax: -19}}
- {model: {recurrent: LSTM, maxSeqLen: 16}, config: {trainBatchSizePerLearner: 16}}
- {input: [{path: a, weight: 0.4}, {recordingRef: {name: b}, weight: 0.6}]}
- {input: [{path: a, filter: [{column: r, op: in, value: [1, 2]}, {column: x, op: "<", value: text}]}]}
- {input: [{path: a, schema: {obs: observations, state: [x, y]}, columns: [obs, actions]}]}
- {input: [{path: "s3://anonymous@bucket/data"}]}
- {input: [{path: "abfss://container@account.dfs.core.windows.net/data"}]}
- {input: [{path: "relative/user:x@y"}]}
- {input: [{path: "/data/?token"}]}
- {input: [{path: "/tmpfs/data"}]}
- {algorithm: DQN, input: [{path: null, sampler: {capacity: 5}, format: Auto, filter: []}],
   stop: {epochs: null, updates: 5}}
- algorithm: SAC
  input: [{path: a, weight: 0.4}, {sampler: {timestepsPerUpdate: 0.5, capacityBytes: 1Gi}, weight: 0.6}]
  stop: {epochs: null, updates: 5}
  model: {observationFilter: MeanStd}
- {algorithm: DQN, input: [{path: null, sampler: {}}], stop: {epochs: null, updates: 5}, initialCheckpoint: a,
   model: {observationFilter: MeanStd}, config: {prioritizedReplay: true}, pipeline: {residency: Streaming}}
- {algorithm: DQN, config: {prioritizedReplay: true}, pipeline: {residency: Resident, sampling: Epochs}}
- {algorithm: DQN, pipeline: {residency: Streaming, sampling: WithReplacement}, learners: {compile: true}}
- {algorithm: DecisionTransformer, config: {embedSize: 130, numHeads: 5, contextLength: 1280}}
- {algorithm: DecisionTransformer, config: {embedSize: 130, trainBatchSizePerLearner: 20}}
- {algorithm: FQL, config: {actionChunk: 257, trainBatchSizePerLearner: 512}}
- {algorithm: IQL, config: {nStep: 5}, rewards: {scale: 1000, shift: -1, clip: 5, normalize: ReturnRange},
   model: {preset: RLlib, policy: {dropout: 0.1}, critics: {layerNorm: true, fcnetHiddens: []}}}
- {pipeline: {dataWorkers: {minReplicas: 2, maxReplicas: 2}}}
- {pipeline: {dataWorkers: {replicas: 0}, preLearner: "m:P", preLearnerKwargs: {a: {}}, connectors: [{name: "m:C"}]}}
- {evaluation: {interval: 3, duration: 5, runners: 1, parallelToTraining: true}}
- {evaluation: {duration: Auto, parallelToTraining: true}}
- {evaluation: {customFunction: "a:b", referenceReturns: {random: -1.5, expert: 0}}}
- {environment: null, evaluation: {gate: {returns: {low: -1, high: 1}, by: 1.5}}}
- {evaluation: {interval: 2}, stop: {episodeReturnMean: 1}}
- {environment: null, evaluation: {offline: {heldOut: 0.2, setAside: 0.1, interval: 1, estimates: [dr, wis]}}}
- {evaluation: {offline: {heldOut: 0.2, interval: 1, estimates: [dm]}}, stop: {estimatedReturn: 5, validationLoss: 1}}
- {algorithm: DQN, input: [{path: null, sampler: {}}], stop: {epochs: null, updates: 5},
   evaluation: {offline: {input: ["s3://bucket/recorded"]}}}
- {stop: {epochs: 0.5, timesteps: 5, iterations: 5}}
- {learners: {replicas: 2, gpus: 0.5, device: cuda}, initialCheckpoint: runs/a/r1}
- cluster:
    image: a:b
    rayVersion: 2.60.0
    nodeSelector: {a.b/c: d}
    tolerations: [{operator: Exists}]
    scheduling: {queueName: q}
    resources: {head: {cpu: 0.1, memory: 1Gi}, learner: {sharedMemory: 8Gi}}
    env: [{name: AWS_SECRET_ACCESS_KEY, valueFrom: {secretKeyRef: {name: a, key: b}}}, {name: A, value: ""}]
    envFrom: [{secretRef: {name: a}}, {configMapRef: {name: a}, prefix: A_}]
    volumes: [{name: a, mountPath: /a, persistentVolumeClaim: {claimName: b}}, {name: b, mountPath: /b, emptyDir: {}}]
    podOverrides: {all: {spec: {any: [thing]}}, learner: {metadata: {}}}
    code: {configMap: {name: a}, runtimeEnv: {pip: [a]}}
"""

# Sentence about a mistake, without "spec." -> changes that contain the mistake and no other.
_INVALID_RECORDINGS = """
"policy: exactly one of train, checkpoint, trainingRef, random is needed, found none": [{policy: {random: null}}]
"policy: exactly one of train, checkpoint, trainingRef, random is needed, found trainingRef and random":
  - {policy: {trainingRef: {name: a}}}
"policy.train.stop: at least one of episodeReturnMean, timesteps, iterations is needed, found none":
  - {policy: {random: null, train: {stop: {}}}}
"duration: exactly one of episodes, timesteps is needed, found episodes and timesteps": [{duration: {timesteps: 3}}]
"output.compressColumns requires format SampleBatch, not JSON; to compress Parquet, set compression":
  - {output: {compressColumns: [obs], format: JSON}}
"output.encoding is MessagePack, which requires format Episodes, not Columns":
  - {output: {encoding: MessagePack, format: Columns}}
"output.compression is zstd, but CSV is text, which is not compressed; zstd requires format Episodes or Columns":
  - {output: {compression: zstd, format: CSV}}
"output.path contains credentials; use a Secret (spec.cluster.envFrom), the service account or the environment instead":
  - {output: {path: "s3://key:secret@bucket/data"}}
  - {output: {path: "s3://anonymous:secret@bucket/data"}}
  - {output: {path: "https://anonymous@host/data"}}
  - {output: {path: "abfss://user:secret@account/data"}}
  - {output: {path: "s3://anonymous@bucket/data?endpoint=x&SECRET_KEY=abc"}}
"policy.train.sampler does not apply to PPO; it is an option for DQN, SAC":
  - {policy: {random: null, train: {sampler: {capacity: 5}, stop: {timesteps: 10}}}}
"policy.train.model.observationFilter is MeanStd, which computes its statistics from recorded data, but there are no \\
  recorded data: leave it out, and scale observations in a wrapper of the environment":
  - {policy: {random: null, train: {algorithm: SAC, stop: {timesteps: 9}, model: {observationFilter: MeanStd}}}}
"policy.train.model.distribution is SquashedDeterministic, which PPO cannot train: use Auto, Categorical, \\
  JointCategorical, Gaussian, SquashedGaussian, BoundedGaussian":
  - {policy: {random: null, train: {stop: {timesteps: 9}, model: {distribution: SquashedDeterministic}}}}
"policy.train.model.distribution is Deterministic, which SAC cannot train: use Auto, Gaussian, SquashedGaussian, \\
  BoundedGaussian":
  - {policy: {random: null, train: {algorithm: SAC, stop: {timesteps: 9}, model: {distribution: Deterministic}}}}
"policy.train.config.minibatchSize is 4001, expected at most spec.policy.train.config.trainBatchSizePerLearner, 4000":
  - {policy: {random: null, train: {stop: {timesteps: 9}, config: {minibatchSize: 4001}}}}
"policy.train.model.maxSeqLen is 257, expected at most spec.policy.train.config.trainBatchSizePerLearner, 256":
  - {policy: {random: null, train: {algorithm: DQN, stop: {timesteps: 9}, model: {recurrent: GRU, maxSeqLen: 257}}}}
"policy.train.config.nStep is 5, expected at most spec.policy.train.model.maxSeqLen, 4: targets of recurrent \\
  networks do not reach further than a sequence":
  - {policy: {random: null, train: {algorithm: SAC, stop: {timesteps: 9}, model: {recurrent: GRU, maxSeqLen: 4},
      config: {nStep: 5}}}}
"policy.train.config.qSubset is 3, expected at most spec.policy.train.config.numCritics, 2":
  - {policy: {random: null, train: {algorithm: SAC, stop: {timesteps: 9}, config: {qSubset: 3}}}}
"policy.train.algorithm is BC, which an OfflineRecording cannot use; it can use DQN, PPO, SAC":
  - {policy: {random: null, train: {algorithm: BC, stop: {timesteps: 10}}}}
"policy.train.model.recurrent is LSTM, but PPO learns from single timesteps and cannot train a recurrent policy: use \\
  DQN, SAC, or give it the last observations with spec.policy.train.model.frameStack":
  - {policy: {random: null, train: {stop: {timesteps: 10}, model: {recurrent: LSTM}}}}
"policy.train.model.moduleClass does not apply to DQN, which builds its own policy: leave it out":
  - {policy: {random: null, train: {algorithm: DQN, stop: {timesteps: 10}, model: {moduleClass: "m:M"}}}}
"runPolicy.stallTimeoutSeconds is 59, expected at least 60, because a live run may report only every 30 seconds":
  - {runPolicy: {stallTimeoutSeconds: 59}}
"""
_INVALID_TRAININGS = """
"input[0]: exactly one of path, recordingRef, sampler is needed, found path and recordingRef":
  - {input: [{recordingRef: {name: b}}]}
"input has weights on some entries only; give one to each, or to none":
  - {input: [{path: a, weight: 0.4}, {path: b}]}
"input has a sampler, but the spec has no environment to sample from":
  - {algorithm: DQN, input: [{path: null, sampler: {}}], stop: {epochs: null, updates: 5}, environment: null}
"input combines a sampler with other inputs, which requires weights; give one to each":
  - {algorithm: DQN, input: [{path: a}, {sampler: {}}], stop: {epochs: null, updates: 5}}
"input has several samplers; keep one":
  - {algorithm: DQN, input: [{sampler: {}, weight: 1}, {sampler: {}, weight: 1}], stop: {epochs: null, updates: 5}}
"input has a sampler, which BC cannot learn from; a sampler is for ONLINE_ALGORITHMS":
  - {input: [{path: null, sampler: {}}], stop: {epochs: null, updates: 5}}
"stop.epochs counts passes over recorded data only; with a sampler, use updates or timesteps":
  - {algorithm: DQN, input: [{path: null, sampler: {}}]}
"evaluation requires an environment to evaluate in, evaluation.offline or evaluation.gate":
  - {environment: null, evaluation: {interval: 2}}
"stop.episodeReturnMean requires evaluation.interval to measure it":
  - {stop: {episodeReturnMean: 1}}
  - {stop: {episodeReturnMean: -0.5}, evaluation: {duration: 3}}
"stop.episodeReturnMean requires an environment to measure it":
  - {stop: {episodeReturnMean: 1}, environment: null, evaluation: {interval: 2, offline: {heldOut: 0.1}}}
"stop.estimatedReturn requires evaluation.offline with an interval and estimates to compute it":
  - {stop: {estimatedReturn: 1}}
  - {stop: {estimatedReturn: 1}, evaluation: {offline: {heldOut: 0.1, interval: 2}}}
  - {stop: {estimatedReturn: 1}, evaluation: {offline: {heldOut: 0.1, estimates: [wis]}}}
"stop.validationLoss requires evaluation.offline.interval to compute it":
  - {stop: {validationLoss: 1}, evaluation: {offline: {heldOut: 0.1}}}
"evaluation.offline.heldOut requires recorded data in input; or use evaluation.offline.input":
  - {algorithm: DQN, input: [{path: null, sampler: {}}], stop: {epochs: null, updates: 5},
     evaluation: {offline: {heldOut: 0.1}}}
"evaluation.offline.setAside requires recorded data in input":
  - {algorithm: DQN, input: [{path: null, sampler: {}}], stop: {epochs: null, updates: 5},
     evaluation: {offline: {input: ["s3://bucket/recorded"], setAside: 0.1}}}
"customConfig is for custom algorithms; use config": [{customConfig: {a: 1}}]
"config does not apply to a custom algorithm; use customConfig": [{algorithm: "mypkg:A", config: {lr: 1}}]
"model.burnIn is 20, expected less than spec.model.maxSeqLen, 20: otherwise no timestep is left to learn from":
  - {model: {burnIn: 20}}
"model.logStdMin is 2.5, expected less than spec.model.logStdMax, -5; they default to -logStdClip and logStdClip":
  - {model: {logStdMin: 2.5, logStdMax: -5}}
"model.logStdMin is 20, expected less than spec.model.logStdMax, 20; they default to -logStdClip and logStdClip":
  - {model: {logStdMin: 20}}
"model.logStdMin is -1.5, expected less than spec.model.logStdMax, -2; they default to -logStdClip and logStdClip":
  - {model: {logStdMax: -2, logStdClip: 1.5}}
"model.recurrent is GRU, but FQL learns from single timesteps and cannot train a recurrent policy: use \\
  RECURRENT_ALGORITHMS, or give it the last observations with spec.model.frameStack":
  - {algorithm: FQL, model: {recurrent: GRU}}
"config.nStep is 5, expected at most spec.model.maxSeqLen, 4: targets of recurrent networks do not reach further \\
  than a sequence":
  - {algorithm: IQL, model: {recurrent: GRU, maxSeqLen: 4}, config: {nStep: 5}}
"model.maxSeqLen is 257, expected at most spec.config.trainBatchSizePerLearner, 256":
  - {algorithm: IQL, model: {recurrent: LSTM, maxSeqLen: 257}}
"learners.compile is true, but torch.compile does not support the recurrent layer of spec.model.recurrent: leave it \\
  out":
  - {algorithm: IQL, model: {recurrent: GRU}, learners: {compile: true}}
"model.maxSeqLen is 20, expected at most spec.config.trainBatchSizePerLearner, 16":
  - {model: {recurrent: LSTM}, config: {trainBatchSizePerLearner: 16}}
"model.moduleClass does not apply to DiscreteCQL, which builds its own policy: leave it out":
  - {algorithm: DiscreteCQL, model: {moduleClass: "m:M"}}
"model.distribution is Deterministic, which IQL cannot train: use Auto, Categorical, JointCategorical, \\
  Gaussian, SquashedGaussian, BoundedGaussian":
  - {algorithm: IQL, model: {distribution: Deterministic}}
"model.distribution is Categorical, which CQL cannot train: use Auto, Gaussian, SquashedGaussian, BoundedGaussian":
  - {algorithm: CQL, model: {distribution: Categorical}}
"model.distribution is Gaussian, which DiscreteSAC cannot train: use Auto, Categorical, \\
  JointCategorical":
  - {algorithm: DiscreteSAC, model: {distribution: Gaussian}}
"model.distribution is Gaussian, which FQL cannot train: use Auto":
  - {algorithm: FQL, model: {distribution: Gaussian}}
"model.distribution is Categorical, which TD3BC cannot train: use Auto, Deterministic, SquashedDeterministic":
  - {algorithm: TD3BC, model: {distribution: Categorical}}
"model.observationFilter is MeanStd, which computes its statistics from recorded data, but there are no \\
  recorded data: leave it out, and scale observations in a wrapper of the environment":
  - {algorithm: "a:B", input: [{path: null, sampler: {}}], stop: {epochs: null, updates: 5},
     model: {observationFilter: MeanStd}}
"pipeline.residency is Streaming, but spec.config.prioritizedReplay draws from all data: set it to Auto or Resident":
  - {algorithm: DiscreteCQL, config: {prioritizedReplay: true}, pipeline: {residency: Streaming}}
"pipeline.sampling is WithReplacement, but spec.config.prioritizedReplay draws by priority: leave it out":
  - {algorithm: DQN, config: {prioritizedReplay: true}, pipeline: {sampling: WithReplacement}}
"learners.compile is true, but torch.compile does not support the losses of FQL: leave it out":
  - {algorithm: FQL, learners: {compile: true}}
"config.actionChunk does not apply to BC; it is a field of FQL": [{config: {actionChunk: 5}}]
"config.embedSize is 130, expected a multiple of spec.config.numHeads, 4":
  - {algorithm: DecisionTransformer, config: {embedSize: 130, numHeads: 4}}
"config.embedSize is 128, expected a multiple of spec.config.numHeads, 3":
  - {algorithm: DecisionTransformer, config: {numHeads: 3}}
"config.contextLength is 1281, expected at most spec.config.trainBatchSizePerLearner, 1280":
  - {algorithm: DecisionTransformer, config: {contextLength: 1281}}
"rewards does not apply to DecisionTransformer, which scales returns itself (config.returnScale)":
  - {algorithm: DecisionTransformer, rewards: {scale: 2}}
"config.qSubset is 3, expected at most spec.config.numCritics, 2":
  - {algorithm: SAC, config: {qSubset: 3}}
  - {algorithm: CQL, config: {qSubset: 3}}
  - {algorithm: DiscreteSAC, config: {qSubset: 3}}
  - {algorithm: FQL, config: {qSubset: 3}}
  - {algorithm: ReBRAC, config: {qSubset: 3}}
  - {algorithm: TD3BC, config: {qSubset: 3}}
"input[0].readOptions has 'delimter', which no format has; did you mean 'delimiter'?":
  - {input: [{readOptions: {delimter: ";"}}]}
"input[0].readOptions has 'delimter', which CSV does not have; did you mean 'delimiter'?":
  - {input: [{format: CSV, readOptions: {delimter: ";", quoteChar: "'"}}]}
"pipeline.connectors[0] is FrameStackingLearner, which is not needed here. Leave it out: spec.model.frameStack stacks \\
  frames, both in training and in acting": [{pipeline: {connectors: [FrameStackingLearner]}}]
"pipeline.connectors[0] is 'NoSuch', which is neither a library connector nor a \\"package.module:Class\\"; allowed: \\
  AddColumnsFromEpisodesToTrainBatch, AddNextObservationsFromEpisodesToTrainBatch, \\
  AddObservationsFromEpisodesToBatch, ComputeReturnsToGo, GeneralAdvantageEstimation":
  - {pipeline: {connectors: [{name: NoSuch}]}}
"evaluation.gate.returns.low is 2, expected less than spec.evaluation.gate.returns.high, 1":
  - {evaluation: {gate: {returns: {low: 2, high: 1}}}}
"evaluation.gate.by must be less than spec.evaluation.gate.returns.high - spec.evaluation.gate.returns.low":
  - {evaluation: {gate: {returns: {low: 0, high: 1}, by: 1}}}
"evaluation.gate.explore must equal spec.evaluation.offline.explore, so that the evaluated policy is promoted":
  - {evaluation: {gate: {returns: {low: 0, high: 1}}, offline: {heldOut: 0.2, estimates: [pdwis], explore: true}}}
  - {evaluation: {gate: {returns: {low: 0, high: 1}, explore: true}, offline: {heldOut: 0.2, estimates: [dm]}}}
"evaluation.referenceReturns.random is 1.5, expected less than spec.evaluation.referenceReturns.expert, 1":
  - {evaluation: {referenceReturns: {random: 1.5, expert: 1}}}
"evaluation.offline: exactly one of heldOut, input is needed, found none": [{evaluation: {offline: {}}}]
"evaluation.duration is Auto, which requires parallelToTraining: true": [{evaluation: {duration: Auto}}]
"evaluation.customFunction excludes parallelToTraining: custom functions run in the driver only":
  - {evaluation: {customFunction: "a:b", parallelToTraining: true}}
"pipeline.dataWorkers.replicas excludes minReplicas and maxReplicas; set replicas only, or the other two":
  - {pipeline: {dataWorkers: {replicas: 2, minReplicas: 1, maxReplicas: 2}}}
"pipeline.dataWorkers.minReplicas requires maxReplicas; set both": [{pipeline: {dataWorkers: {minReplicas: 2}}}]
"pipeline.dataWorkers.maxReplicas requires minReplicas; set both": [{pipeline: {dataWorkers: {maxReplicas: 2}}}]
"pipeline.dataWorkers.minReplicas is 3, expected at most spec.pipeline.dataWorkers.maxReplicas, 2":
  - {pipeline: {dataWorkers: {minReplicas: 3, maxReplicas: 2}}}
"stop: at least one of episodeReturnMean, estimatedReturn, validationLoss, iterations, timesteps, updates, epochs is \\
  needed, found none": [{stop: {epochs: null}}]
"cluster.volumes[0]: exactly one of persistentVolumeClaim, configMap, secret, emptyDir is needed, found none":
  - {cluster: {volumes: [{name: a, mountPath: /a}]}}
"cluster.env[0]: exactly one of value, valueFrom is needed, found none": [{cluster: {env: [{name: A}]}}]
"cluster.env[0].valueFrom: exactly one of secretKeyRef, configMapKeyRef is needed, found none":
  - {cluster: {env: [{name: A, valueFrom: {}}]}}
"cluster.env[0].value sets AZURE_STORAGE_KEY, a credential, inline; use valueFrom.secretKeyRef or envFrom":
  - {cluster: {env: [{name: AZURE_STORAGE_KEY, value: ""}]}}
"cluster.envFrom[0]: exactly one of secretRef, configMapRef is needed, found none": [{cluster: {envFrom: [{}]}}]
"cluster.code: at least one of configMap, runtimeEnv is needed, found none": [{cluster: {code: {}}}]
"algorithm is PPO, which an OfflineTraining cannot use; it can use TRAINING_ALGORITHMS or package.module:Class":
  - {algorithm: PPO}
"runPolicy.stallTimeoutSeconds is 59, expected at least 60, because a live run may report only every 30 seconds":
  - {runPolicy: {stallTimeoutSeconds: 59}}
"""
_SAMPLER_EXCLUDES = """
{format: CSV, top: 0.5, readOptions: {header: true}, columns: [obs], filter: [{column: a, op: "==", value: 1}],
 schema: {obs: x}, time: {column: a}, compressColumns: [obs], actionsNormalized: true, ignoreFinalObservation: true}
"""


def _read(text: str) -> Any:
    for word, names in _ALGORITHM_LISTS.items():
        text = text.replace(word, ", ".join(names))
    # YAML allows no line break in a key.
    return YAML(typ="safe", pure=True).load(text.replace("\\\n  ", ""))


def valid_changes() -> list[tuple[str, dict[str, Any]]]:
    """Return (kind, change) of valid resources."""
    return [
        (kind, change)
        for kind, text in zip(KINDS, (_VALID_RECORDINGS, _VALID_TRAININGS), strict=True)
        for change in _read(text)
    ]


def invalid_changes() -> list[tuple[str, dict[str, Any], str]]:
    """Return (kind, change, sentence) of resources with one mistake."""
    cases = [
        (kind, change, f"spec.{sentence}")
        for kind, text in zip(KINDS, (_INVALID_RECORDINGS, _INVALID_TRAININGS), strict=True)
        for sentence, changes in _read(text).items()
        for change in changes
    ]
    excluded_fields = _read(_SAMPLER_EXCLUDES) | {
        f"prepare.{field.alias}": next(word for word in get_args(field.annotation) if word != field.default)
        for field in PrepareSpec.model_fields.values()
        if isinstance(field.default, str)
    }
    excluded_fields |= {"prepare.missing": {"pulse": "Mean"}, "prepare.missingIndicators": True}
    for field, value in excluded_fields.items():
        section, _, name = field.partition(".")
        source = {"path": None, "sampler": {}, section: {name: value} if name else value}
        change = {"algorithm": "DQN", "input": [source], "stop": {"epochs": None, "updates": 5}}
        reason = "for which only weight may be set: the other fields are for recorded data"
        cases.append(
            ("OfflineTraining", change, f"spec.input[0].{field} does not apply to a sampler, {reason}")
        )
    return cases
