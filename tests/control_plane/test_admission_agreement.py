"""`hindcast validate` and the API server accept and refuse the same resources.

`DIFFERENCES` and `INTENDED_DIFFERENCES` list the exceptions.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from admission_specs import (
    API_VERSION,
    KINDS,
    SPECS,
    Node,
    make_document,
    merge_change,
    spec_with_value,
    walk_nodes,
)
from ruamel.yaml import YAML

from api_server import ApiServer, Object, RefusalError, collection, plural
from hindcast.api import load_resources, validate_resource
from hindcast.errors import SpecError
from layers import LAYER

# -- every field of the schema with values of every type ---------------------------------------------------------

VALUES: tuple[Any, ...] = (
    "text",
    "",
    "1Gi",
    "x" * 5000,
    -1,
    0,
    1,
    1.5,
    1e30,
    True,
    [],
    [1],
    [{}],
    {},
    {"a": "b"},
)


def has_several_types(node: Node) -> bool:
    """Return True for a schedule, which is a number or a list. The API server checks its bounds, not its type."""
    return "config" in node.path and "type" not in node.schema


def is_wrapper_or_connector(node: Node) -> bool:
    """Return True within a wrapper or connector, a name or a mapping with name and kwargs, which are not checked."""
    return bool({"wrappers", "connectors"} & set(node.path))


def is_initializer(node: Node) -> bool:
    """Return True within an initialiser, which is also a name or a mapping with name and kwargs."""
    return any(name.endswith("Initializer") for name in node.path)


def is_column_map(node: Node) -> bool:
    """Return True within a map of columns, in which each value is a column's name or a list of names."""
    return "schema" in node.path


DIFFERENCES: dict[str, Callable[[Node], bool]] = {
    "schedules": has_several_types,
    "wrappers and connectors": is_wrapper_or_connector,
    "initialisers": is_initializer,
    "column maps": is_column_map,
}
"""Name -> nodes for which the API server accepts what the loader refuses. The operator reports the loader's message."""


def find_loader_refusal(resource: Object) -> str:
    try:
        validate_resource(json.loads(json.dumps(resource)))
    except SpecError as error:
        return str(error)
    return ""


def find_server_refusal(api: ApiServer, dry_run_namespace: str, resource: Object) -> str:
    """Return the API server's message; empty if it accepts the resource.

    The resource is sent as YAML, as by kubectl. In YAML, 1e3 is an integer.
    """
    path, text = api.path_of(resource, dry_run_namespace), json.dumps(resource)
    try:
        api.request("POST", path, text, "application/yaml", fieldValidation="Strict", dryRun="All")
    except RefusalError as error:
        assert error.status in (400, 422), error
        return error.message
    return ""


def find_nodes_to_check(kind: str) -> list[Node]:
    """Return all nodes below the spec in the soak, else one of each group that server and loader treat alike."""
    all_nodes = list(walk_nodes(kind))[1:]
    if LAYER == "soak":
        return all_nodes
    return list(
        {
            (dump_schema(node), find_accepted_values(node), *find_differences(node)): node
            for node in all_nodes
        }.values()
    )


def find_differences(node: Node) -> list[str]:
    return [name for name, covers in DIFFERENCES.items() if covers(node)]


def dump_schema(node: Node) -> str:
    """Return the schema by which the API server checks a value of a node."""
    schema = {name: part for name, part in node.schema.items() if name != "description"}
    return json.dumps(schema, sort_keys=True)


def find_accepted_values(node: Node) -> tuple[bool, ...]:
    """Return, for each of `VALUES`, True if the loader accepts the value at a node."""
    return tuple(
        not find_loader_refusal(make_document(node.kind, spec_with_value(node, value))) for value in VALUES
    )


@pytest.mark.parametrize("kind", KINDS)
def test_loader_and_server_agree_on_every_field(api: ApiServer, dry_run_namespace: str, kind: str) -> None:
    num_accepted = num_refused = 0
    seen_differences: set[str] = set()
    for node in find_nodes_to_check(kind):
        known_differences = find_differences(node)
        for value in VALUES:
            resource = make_document(kind, spec_with_value(node, value))
            loader_message, server_message = (
                find_loader_refusal(resource),
                find_server_refusal(api, dry_run_namespace, resource),
            )
            if bool(loader_message) == bool(server_message):
                num_accepted += not loader_message
                num_refused += bool(loader_message)
                continue
            messages = f"the loader says {loader_message!r}, the API server {server_message!r}"
            difference = f"{node.field} = {value!r:.60}: {messages}"
            assert known_differences, difference
            assert loader_message, difference
            seen_differences.update(known_differences)
    assert seen_differences == {name for node in walk_nodes(kind) for name in find_differences(node)}
    assert num_accepted > 100
    assert num_refused > 300


# -- resources as people write them ---------------------------------------------------------------------------------

# Name of the case -> change of the kind's small valid spec. If the name begins with `!`, loader and server must refuse.
RECORDINGS = """
plain:                    {}
all of runners:           {runners: {replicas: 5, envsPerRunner: 8, cpus: 0.5, memory: 2Gi}}
memory in bytes:          {runners: {memory: 2147483648}}
"!memory below zero":     {runners: {memory: -1}}
"!memory with a word":    {runners: {memory: 2 gigs}}
"!memory as a fraction":  {runners: {memory: 1.5}}
"!no environments":       {runners: {envsPerRunner: 0}}
whole cpus:               {runners: {cpus: 2}}
thousandths of cpus:      {runners: {cpus: 500m}}
cpus as text:             {runners: {cpus: "0.5"}}
"!cpus 0":                {runners: {cpus: 0}}
"!cpus 0m":               {runners: {cpus: 0m}}
"!cpus of bytes":         {runners: {cpus: 1Gi}}
"!cpus in a list":        {runners: {cpus: [1]}}
"!a variable twice":      {cluster: {env: [{name: A, value: x}, {name: A, value: y}]}}
"!a column twice":        {output: {format: SampleBatch, compressColumns: [obs, obs]}}
count with an exponent:   {duration: {episodes: 1e3}}
"!half an episode":       {duration: {episodes: 1.5}}
"!text for a count":      {duration: {episodes: "500"}}
"!both durations":        {duration: {timesteps: 5}}
an environment class:     {environment: {id: "my.package:Env", kwargs: {size: [1, {a: b}]}}}
wrappers of both forms:   {environment: {wrappers: [ClipReward, {name: "m:W", kwargs: {a: 1}}]}}
"!environment as text":   {environment: CartPole-v1}
"!an empty id":           {environment: {id: ""}}
"!a field of gymnasium":  {environment: {maxSteps: 10}}
"!snake case":            {environment: {max_episode_steps: 10}}
expert:                   {policy: {random: null, train: {stop: {episodeReturnMean: 450}, config: {lr: 3.0e-4}}}}
"!BC as an expert":       {policy: {random: null, train: {algorithm: BC, stop: {timesteps: 10}}}}
expert by SAC:            {policy: {random: null, train: {algorithm: SAC, sampler: {}, stop: {timesteps: 10}}}}
"!sampler of PPO":        {policy: {random: null, train: {sampler: {}, stop: {timesteps: 10}}}}
"!no end of the expert":  {policy: {random: null, train: {stop: {}}}}
schedule:                 {policy: {random: null, train: {stop: {timesteps: 9}, config: {lr: [[0, 1], [9, 0.1]]}}}}
"!negative rate":         {policy: {random: null, train: {stop: {timesteps: 9}, config: {lr: -1}}}}
"!gamma above one":       {policy: {random: null, train: {stop: {timesteps: 9}, config: {gamma: 1.1}}}}
"!unknown option":        {policy: {random: null, train: {stop: {timesteps: 9}, config: {learningRate: 1}}}}
"!a large minibatch":     {policy: {random: null, train: {stop: {timesteps: 9}, config: {minibatchSize: 4001}}}}
"!reference in capitals": {policy: {random: null, trainingRef: {name: BC}}}
relative output:          {output: {path: data/cartpole}}
"!secret in the path":    {output: {path: "s3://key:secret@bucket/x"}}
RLlib's layout:           {output: {encoding: MessagePack}}
"!columns of msgpack":    {output: {encoding: MessagePack, format: Columns}}
packed SampleBatch:       {output: {format: SampleBatch, compressColumns: [obs, new_obs]}}
"!packed columns":        {output: {format: Columns, compressColumns: [obs]}}
"!lower-case enum":       {output: {format: episodes}}
file limits:              {output: {maxRowsPerFile: 25, maxFileSize: 1.5Gi, compression: None}}
"!negative seed":         {seed: -1}
"!seed of 70 bits":       {seed: 1180591620717411303424}
"!revision 0":            {revision: 0}
"!suspend as text":       {suspend: "yes"}
no retries:               {runPolicy: {backoffLimit: 0, ttlSecondsAfterFinished: 0}}
"!deadline 0":            {runPolicy: {activeDeadlineSeconds: 0}}
"!unknown section":       {output: {path: s3://b/x}, outputs: {}}
"""
TRAININGS = """
plain:                    {}
no simulator:
  environment: null
  observationSpace: {type: Box, low: "-inf", high: inf, shape: [4]}
  actionSpace: {type: Discrete, n: 2}
nested space:
  observationSpace: {type: Dict, spaces: {a: {type: Tuple, spaces: [{type: MultiBinary, n: [2, 2]}]}}}
"!unknown space":         {actionSpace: {type: Box2D, low: 0}}
"!space without a type":  {actionSpace: {n: 2}}
options:                  {config: {lr: 8.0e-4, trainBatchSizePerLearner: 1024, gradClip: 10, gradClipBy: Norm}}
"!option of text":        {config: {lr: fast}}
"!option of another":     {config: {gamma: 0.9}}
"!unknown algorithm":     {algorithm: Bc}
"!epsilon above one":     {algorithm: DQN, config: {epsilon: 1.5}}
"!heads of unequal size": {algorithm: DecisionTransformer, config: {embedSize: 130, numHeads: 4}}
"!streamed priorities":   {algorithm: DQN, config: {prioritizedReplay: true}, pipeline: {residency: Streaming}}
"!statistics of nothing":
  algorithm: DQN
  model: {observationFilter: MeanStd}
  input: [{sampler: {}}]
  stop: {epochs: null, updates: 5}
custom algorithm:         {algorithm: "mypkg.mod:MyAlgo", customConfig: {tau: {a: [1, 2]}}}
"!module without class":  {algorithm: "mypkg.mod:"}
"!custom with config":    {algorithm: "mypkg:A", config: {lr: 1}}
"!customConfig of BC":    {customConfig: {a: 1}}
network:                  {model: {fcnetHiddens: [], convFilters: [[16, 8, 4]], distribution: Gaussian}}
"!layer of width 0":      {model: {fcnetHiddens: [256, 0]}}
"!two numbers a filter":  {model: {convFilters: [[16, 8]]}}
"!unknown activation":    {model: {fcnetActivation: ReLU}}
mixed data:               {input: [{path: a, weight: 0.4}, {recordingRef: {name: b}, weight: 0.6}]}
"!weights on some":       {input: [{path: a, weight: 0.4}, {path: b}]}
"!weight 0":              {input: [{path: a, weight: 0}]}
"!no data":               {input: []}
"!one source as mapping": {input: {path: a}}
filters:
  input: [{path: a, filter: [{column: r, op: in, value: [1, 2]}, {column: x, op: "<", value: text}]}]
"!unknown comparison":    {input: [{path: a, filter: [{column: r, op: "=", value: 1}]}]}
schema map:               {input: [{path: a, schema: {obs: observations}, columns: [obs, actions]}]}
schema map to a list:     {input: [{path: a, schema: {obs: [x, y]}}]}
"!schema map to no list":  {input: [{path: a, schema: {obs: []}}]}
"!path and reference":    {input: [{path: a, recordingRef: {name: b}}]}
"!samples of BC":         {input: [{sampler: {}}], stop: {epochs: null, updates: 5}}
live samples:             {algorithm: DQN, input: [{sampler: {capacity: 5}}], stop: {epochs: null, updates: 5}}
files and samples:
  algorithm: SAC
  input: [{path: a, weight: 0.4}, {sampler: {timestepsPerUpdate: 0.5, capacityBytes: 1Gi}, weight: 0.6}]
  stop: {epochs: null, updates: 5}
"!passes over samples":   {algorithm: DQN, input: [{sampler: {}}]}
"!no warm-up below 0":    {algorithm: DQN, input: [{sampler: {warmupTimesteps: -1}}], stop: {epochs: null, updates: 5}}
interval of workers:      {pipeline: {dataWorkers: {minReplicas: 4, maxReplicas: 8}}}
"!half an interval":      {pipeline: {dataWorkers: {minReplicas: 4}}}
custom steps:             {pipeline: {preLearner: "m:P", preLearnerKwargs: {a: {}}, connectors: [{name: "m:C"}]}}
"!class without module":  {pipeline: {preLearner: MyPreLearner}}
evaluation:               {evaluation: {interval: 3, duration: 5, runners: 1, parallelToTraining: true}}
evaluation as long as it takes: {evaluation: {duration: Auto, parallelToTraining: true}}
"!auto alone":            {evaluation: {duration: Auto}}
"!automatic":             {evaluation: {duration: automatic, parallelToTraining: true}}
"!evaluate in nothing":   {environment: null, evaluation: {}}
held out:                 {environment: null, evaluation: {offline: {heldOut: 0.2, interval: 1, estimates: [dr, wis]}}}
until an estimate: {evaluation: {offline: {heldOut: 0.2, interval: 1, estimates: [dm]}}, stop: {estimatedReturn: 5}}
"!estimates nothing":     {evaluation: {offline: {heldOut: 0.2, interval: 1}}, stop: {estimatedReturn: 5}}
"!no such estimate":      {evaluation: {offline: {heldOut: 0.2, estimates: [best]}}}
"!all held out":          {evaluation: {offline: {heldOut: 1}}}
"!unmeasured goal":       {stop: {episodeReturnMean: 450}}
"!no end":                {stop: {epochs: null}}
half an epoch:            {stop: {epochs: 0.5}}
part of a GPU:            {learners: {replicas: 2, gpus: 0.5, device: cuda}}
"!device gpu":            {learners: {device: gpu}}
"!keep nothing":          {checkpoint: {keep: 0}}
warm start:               {initialCheckpoint: runs/a/r1}
"!warm start with a key": {initialCheckpoint: "s3://bucket/x?secret_key=a"}
cluster:
  cluster:
    image: a:b
    rayVersion: 2.60.0
    nodeSelector: {a.b/c: d}
    tolerations: [{operator: Exists}]
    scheduling: {queueName: q}
"!version with a v":      {cluster: {rayVersion: v2.60.0}}
"!label of two words":    {cluster: {nodeSelector: {a: b c}}}
pod sizes:                {cluster: {resources: {head: {cpu: 0.1, memory: 1Gi}, learner: {sharedMemory: 8Gi}}}}
"!unknown pool":          {cluster: {resources: {worker: {cpu: 1}}}}
credentials by reference:
  cluster: {env: [{name: AWS_SECRET_ACCESS_KEY, valueFrom: {secretKeyRef: {name: a, key: b}}}]}
"!credentials inline":    {cluster: {env: [{name: AWS_SECRET_ACCESS_KEY, value: abc}]}}
"!number in env":         {cluster: {env: [{name: A, value: 1}]}}
volumes:                  {cluster: {volumes: [{name: a, mountPath: /a, persistentVolumeClaim: {claimName: b}}]}}
"!relative mount":        {cluster: {volumes: [{name: a, mountPath: a, emptyDir: {}}]}}
"!volume of nothing":     {cluster: {volumes: [{name: a, mountPath: /a}]}}
"!host path":             {cluster: {volumes: [{name: a, mountPath: /a, hostPath: {path: /}}]}}
overrides:                {cluster: {podOverrides: {all: {spec: {any: [thing]}}, learner: {metadata: {}}}}}
"!overrides as text":     {cluster: {podOverrides: {all: x}}}
code:                     {cluster: {code: {configMap: {name: a}, runtimeEnv: {pip: [a]}}}}
"!no code":               {cluster: {code: {}}}
"""


def make_cases() -> list[Any]:
    read = YAML(typ="safe", pure=True).load
    return [
        pytest.param(kind, change, name.startswith("!"), id=f"{kind} {name.lstrip('!')}")
        for kind, text in (("OfflineRecording", RECORDINGS), ("OfflineTraining", TRAININGS))
        for name, change in read(text).items()
    ]


@pytest.mark.parametrize(("kind", "change", "is_refused"), make_cases())
def test_loader_and_server_agree_on_resources(
    api: ApiServer, dry_run_namespace: str, kind: str, change: Object, is_refused: bool
) -> None:
    spec = {name: value for name, value in SPECS[kind].items() if not (name == "input" and name in change)}
    resource = make_document(kind, merge_change(spec, change))
    loader_message, server_message = (
        find_loader_refusal(resource),
        find_server_refusal(api, dry_run_namespace, resource),
    )
    assert (bool(loader_message), bool(server_message)) == (is_refused, is_refused), (
        loader_message,
        server_message,
    )


@pytest.mark.parametrize(
    ("metadata", "is_refused"),
    [
        ({"labels": {"team": "red", "example.com/x": ""}, "annotations": {"a": "b c" * 5000}}, False),
        ({"labels": {"team": "red green"}}, True),
        ({"labels": {"a/b/c": "red"}}, True),
        ({"labels": {"team": 1}}, True),
        ({"annotations": {"a": True}}, True),
        ({"name": "a-1"}, False),
        ({"name": "a" * 37}, True),
        ({"name": "1a"}, True),
        ({"name": "Ab"}, True),
        ({"name": "a_b"}, True),
        ({"name": "ab\n"}, True),
        ({"nam": "ab"}, True),
    ],
)
def test_loader_and_server_agree_on_metadata(
    api: ApiServer, dry_run_namespace: str, metadata: Object, is_refused: bool
) -> None:
    resource = make_document("OfflineTraining", SPECS["OfflineTraining"])
    resource["metadata"] = resource["metadata"] | metadata
    loader_message, server_message = (
        find_loader_refusal(resource),
        find_server_refusal(api, dry_run_namespace, resource),
    )
    assert (bool(loader_message), bool(server_message)) == (is_refused, is_refused), (
        loader_message,
        server_message,
    )


# -- intended differences that do not depend on a field's schema ---------------------------------------------------

EMPTY_FIELD = "an empty field: the API server treats it as absent, the loader refuses it as a likely mistake"
CUSTOM_WITH_EMPTY_CONFIG = "`config: {}` of a custom algorithm: a rule cannot see that it is empty"
LOCAL_PATH = "a path that is lost with the pod, but is valid on one machine"
INTENDED_DIFFERENCES = [
    pytest.param({"seed": None}, True, False, id=EMPTY_FIELD),
    pytest.param({"algorithm": "a:B", "config": {}}, False, True, id=CUSTOM_WITH_EMPTY_CONFIG),
    pytest.param({"checkpoint": {"path": "/tmp/runs"}}, False, True, id=LOCAL_PATH),
]


@pytest.mark.parametrize(("change", "is_refused_by_loader", "is_refused_by_server"), INTENDED_DIFFERENCES)
def test_intended_differences_exist(
    api: ApiServer,
    dry_run_namespace: str,
    change: Object,
    is_refused_by_loader: bool,
    is_refused_by_server: bool,
) -> None:
    resource = make_document("OfflineTraining", SPECS["OfflineTraining"] | change)
    loader_message, server_message = (
        find_loader_refusal(resource),
        find_server_refusal(api, dry_run_namespace, resource),
    )
    assert (bool(loader_message), bool(server_message)) == (is_refused_by_loader, is_refused_by_server), (
        loader_message,
        server_message,
    )


# -- words of YAML ----------------------------------------------------------------------------------------------------

WORDS_WITH_SAME_VALUE = (
    "1",
    "-1",
    "1.5",
    "8e-4",
    "8.0e-4",
    "1e3",
    ".5",
    "true",
    "false",
    "null",
    "~",
    "''",
    "'1'",
    "0x1f",
    "a b",
    "2026-01-01",
    "0o17",
    "1_000",
    "0b11",
)
YAML_1_1_WORDS = ("yes", "on", "010")
"""Words that have another meaning in YAML 1.1, which the API server reads."""


@pytest.mark.parametrize("word", WORDS_WITH_SAME_VALUE + YAML_1_1_WORDS)
def test_yaml_words_have_same_value_for_loader_and_server(
    api: ApiServer, dry_run_namespace: str, tmp_path: Any, word: str
) -> None:
    text = (
        f"apiVersion: {API_VERSION}\nkind: OfflineTraining\nmetadata: {{name: words}}\n"
        "spec:\n  algorithm: mypkg:A\n  input: [{path: a}]\n  stop: {epochs: 1}\n"
        f"  customConfig:\n    word: {word}\n"
    )
    path = collection(API_VERSION, plural("OfflineTraining"), dry_run_namespace)
    response = api.request("POST", path, text, "application/yaml", dryRun="All")
    file = tmp_path / "words.yaml"
    file.write_text(text)
    (loaded_resource,) = load_resources(file)
    server_value, loader_value = response["spec"]["customConfig"], loaded_resource.resource.spec.custom_config
    assert (server_value == loader_value) is (word in WORDS_WITH_SAME_VALUE), (loader_value, server_value)
