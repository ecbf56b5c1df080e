"""Load resources from YAML: what users may write, and one sentence for each mistake."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hindcast.api import OfflineRecording, OfflineTraining, document_of, load_resources, validate_resource
from hindcast.api.documents import read_documents
from hindcast.errors import SpecError
from layers import examples
from user_errors import raises_user_error

RECORDING = """\
apiVersion: hindcast.dev/v1alpha1
kind: OfflineRecording
metadata: {name: expert}
spec:
  environment: {id: CartPole-v1}
  policy:
    train: {algorithm: PPO, stop: {episodeReturnMean: 450}}
  duration: {episodes: 500}
  output: {path: data}
"""
TRAINING = """\
apiVersion: hindcast.dev/v1alpha1
kind: OfflineTraining
metadata: {name: clone}
spec:
  algorithm: BC
  config: {lr: 8e-4}
  input:
    - recordingRef: {name: expert}
  stop: {epochs: 3}
"""


def write_file(folder: Path, text: str, name: str = "run.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def list_problems(folder: Path, text: str) -> list[str]:
    """Return the lines of the error for a file, without the folder's name."""
    path = write_file(folder, text)
    with pytest.raises(SpecError) as error:
        load_resources([path])
    return str(error.value).replace(f"{folder}/", "").splitlines()


def test_load_returns_both_kinds_in_order_with_their_lines(tmp_path: Path) -> None:
    path = write_file(tmp_path, f"# a comment\n{RECORDING}---\n{TRAINING}---\n")
    recording, training = load_resources([path])
    assert isinstance(recording.resource, OfflineRecording)
    assert isinstance(training.resource, OfflineTraining)
    assert (recording.line, training.line) == (2, 12)
    assert training.file == str(path)
    assert training.at("spec", "input", 0, "recordingRef") == f"{path}:19"
    assert training.at("spec", "nothing", "there") == f"{path}:15"
    assert training.resource.spec.config == {"lr": 0.0008}


def test_load_reads_json(tmp_path: Path) -> None:
    (loaded_resource,) = load_resources([write_file(tmp_path, TRAINING)])
    text = json.dumps(document_of(loaded_resource.resource))
    (reloaded_resource,) = load_resources(write_file(tmp_path, text, "run.json"))
    assert reloaded_resource.resource == loaded_resource.resource


def test_load_reads_merge_keys_and_anchors(tmp_path: Path) -> None:
    text = TRAINING.replace("config: {lr: 8e-4}", "model: &m {fcnetHiddens: [8]}")
    text = f"{text}---\n" + text.replace("clone", "other").replace("&m {", "{<<: &n {frameStack: 4}, ")
    base, merged = load_resources([write_file(tmp_path, text)])
    assert base.resource.spec.model.frame_stack == 1  # type: ignore[union-attr]
    assert merged.resource.spec.model.frame_stack == 4  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "algorithm: BC",
            "algoritm: BC",
            "run.yaml:5: spec.algoritm is not a field; did you mean 'algorithm'?",
        ),
        ("lr: 8e-4", "lr: fast", "run.yaml:6: spec.config.lr is 'fast' (text), expected a number or a list"),
        ("lr: 8e-4", "lr: ~", "run.yaml:6: spec.config.lr is empty, expected a number or a list"),
        ("lr: 8e-4", "lrr: 1", "run.yaml:6: spec.config.lrr is not a field; did you mean 'lr'?"),
        ("lr: 8e-4", "lr: -1", "run.yaml:6: spec.config.lr is -1, expected at least 0 or a list"),
        (
            "lr: 8e-4",
            "lr: [[0, 1], [5, x]]",
            "run.yaml:6: spec.config.lr[1][1] is 'x' (text), expected a number",
        ),
        (
            "lr: 8e-4",
            "clipParam: 0.2",
            "run.yaml:6: spec.config.clipParam does not apply to BC; it is a field of PPO",
        ),
        ("  algorithm: BC\n", "", "run.yaml:4: spec.algorithm is missing"),
        (
            "algorithm: BC",
            "algorithm: BCC",
            "run.yaml:5: spec.algorithm is 'BCC', which is not an algorithm; did you mean 'BC'?",
        ),
        (
            "algorithm: BC",
            "algorithm: PPO",
            "run.yaml:5: spec.algorithm is PPO, which an OfflineTraining cannot use; it can use ",
        ),
        ("stop: {epochs: 3}", "stop: {epochs: 3", "run.yaml:10: is not valid YAML: "),
        (
            "  stop:",
            "\tstop:",
            "run.yaml:9: is not valid YAML: the line begins with a tab; indent with spaces",
        ),
        ("kind: OfflineTraining", "kind: OfflineTrainin", "did you mean 'OfflineTraining'?"),
        ("kind: OfflineTraining\n", "", "run.yaml:1: kind is missing, expected OfflineRecording or Off"),
        (
            "v1alpha1",
            "v1",
            "run.yaml:1: apiVersion is 'hindcast.dev/v1' (text), expected hindcast.dev/v1alpha1",
        ),
        ("epochs: 3", "epochs: 3, epochs: 4", "run.yaml:9: spec.stop.epochs is given twice, first on line 9"),
        ("epochs: 3", "epochs: !!set x", "has the YAML tag tag:yaml.org,2002:set, which is not supported"),
        (
            "{name: expert}",
            "expert",
            "run.yaml:8: spec.input[0].recordingRef is 'expert' (text), expected a map",
        ),
        ("recordingRef: {name: expert}", "x", "run.yaml:8: spec.input[0] is 'x' (text), expected a mapping"),
        ("{epochs: 3}", "[]", "run.yaml:9: spec.stop is a list, expected a mapping"),
        (
            "stop:",
            "pipeline: {sampling: Epoch}\n  stop:",
            "run.yaml:9: spec.pipeline.sampling is 'Epoch' (text), expected Epochs or WithReplacement; "
            "did you mean 'Epochs'?",
        ),
        (
            "stop:",
            "pipeline: {validateData: yes}\n  stop:",
            "run.yaml:9: spec.pipeline.validateData is 'yes' (text), expected true or false",
        ),
        (
            "stop:",
            "learners: {replicas: 1.5}\n  stop:",
            "run.yaml:9: spec.learners.replicas is 1.5, expected a whole number",
        ),
        (
            "stop:",
            "observationSpace: {type: Bax}\n  stop:",
            "spec.observationSpace is 'Bax' (text), expected Box, Discrete, MultiDiscrete, MultiBinary, "
            "Text, Dict, Tuple; did you mean 'Box'?",
        ),
        (
            "stop:",
            "evaluation: {interval: 1}\n  stop:",
            "run.yaml:9: spec.evaluation requires an environment to evaluate in, evaluation.offline or evaluation.gate",
        ),
        (
            "stop:",
            "model: {useLstm: true}\n  stop:",
            "run.yaml:9: spec.model.useLstm is not a field; here it is 'recurrent: LSTM'",
        ),
        ("stop:", "max_episode_steps: 3\n  stop:", "run.yaml:9: spec.max_episode_steps is not a field"),
        ("metadata: {name: clone}", "metadata: {}", "run.yaml:3: metadata.name is missing"),
    ],
)
def test_mistake_in_training_is_reported_in_one_sentence(
    tmp_path: Path, old: str, new: str, expected: str
) -> None:
    assert old in TRAINING
    messages = list_problems(tmp_path, TRAINING.replace(old, new))
    assert len(messages) == 1
    assert expected in messages[0]


def test_two_policies_or_none_are_refused(tmp_path: Path) -> None:
    messages = list_problems(tmp_path, RECORDING.replace("  duration:", "    random: {}\n  duration:"))
    assert messages == [
        "run.yaml:6: spec.policy: exactly one of train, checkpoint, trainingRef, random is needed, "
        "found train and random"
    ]
    messages_without_policy = list_problems(
        tmp_path, RECORDING.replace("\n    train: {algorithm: PPO, stop: {episodeReturnMean: 450}}", " {}")
    )
    assert messages_without_policy[0].endswith("found none")


def test_options_of_expert_are_checked(tmp_path: Path) -> None:
    messages = list_problems(tmp_path, RECORDING.replace("PPO,", "PPO, config: {clipParam: x, lrr: 1},"))
    assert messages == [
        "run.yaml:7: spec.policy.train.config.clipParam is 'x' (text), expected a number",
        "run.yaml:7: spec.policy.train.config.lrr is not a field; did you mean 'lr'?",
    ]


def test_load_reports_all_problems_of_all_files(tmp_path: Path) -> None:
    first_file = write_file(
        tmp_path, RECORDING.replace("500", "many").replace("path: data", "path: data, format: X"), "a.yaml"
    )
    second_file = write_file(tmp_path, TRAINING.replace("8e-4", "fast") + "---\na: b: c\n", "b.yaml")
    with pytest.raises(SpecError) as error:
        load_resources([first_file, second_file, tmp_path / "c.yaml"])
    message_starts = [
        line.removeprefix(f"{tmp_path}/").split(" is ")[0] for line in str(error.value).splitlines()
    ]
    assert message_starts == [
        "a.yaml:8: spec.duration.episodes",
        "a.yaml:9: spec.output.format",
        "b.yaml:6: spec.config.lr",
        "b.yaml:11:",
        "c.yaml: there",
    ]


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n---\n"])
def test_empty_file_is_refused(tmp_path: Path, text: str) -> None:
    (message,) = list_problems(tmp_path, text)
    assert (
        message
        == "run.yaml: contains no resource; begin it with apiVersion: hindcast.dev/v1alpha1 and a kind"
    )


def test_unreadable_file_is_refused_with_the_reason(tmp_path: Path) -> None:
    binary_file = tmp_path / "model.yaml"
    binary_file.write_bytes(b"\xff\xfe\x00\x81")
    for path, message in (
        (tmp_path / "none.yaml", "there is no such file"),
        (tmp_path, "is a folder; name the YAML files in it"),
        (binary_file, "is not a text file in UTF-8 (byte 0)"),
    ):
        with pytest.raises(SpecError) as error:
            load_resources(path)
        assert str(error.value) == f"{path}: {message}"


def test_missing_file_is_refused_with_a_similar_name(tmp_path: Path) -> None:
    write_file(tmp_path, TRAINING)
    with pytest.raises(SpecError, match=r"run.yml: there is no such file; did you mean 'run.yaml'\?$"):
        load_resources(tmp_path / "run.yml")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("visits.csv", b"patient,dose\n1,2\n"),
        ("visits.jsonl", b'{"patient": 1}\n{"patient": 2}\n'),
        ("visits.json", b'{"patient": [1, 2]}'),
        ("visits.parquet", b"PAR1\xff\xfe"),
        ("visits.tsv", b""),
    ],
)
def test_data_in_place_of_a_resource_name_the_command_that_writes_one(
    tmp_path: Path, name: str, content: bytes
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(SpecError) as error:
        load_resources(path)
    assert str(error.value) == (
        f"{path}: is not a resource, which is YAML; if it is data, `hindcast init {path}` writes a resource for it"
    )


def test_two_resources_with_one_name_are_refused(tmp_path: Path) -> None:
    messages = list_problems(tmp_path, f"{TRAINING}---\n{TRAINING}")
    assert messages == [
        "run.yaml:13: metadata.name is 'clone', which is the name of another "
        "OfflineTraining (run.yaml:3); rename one"
    ]
    same_name_other_kind = f"{TRAINING}---\n{RECORDING.replace('name: expert', 'name: clone')}"
    assert len(load_resources([write_file(tmp_path, same_name_other_kind)])) == 2


def test_document_that_is_not_a_resource_is_refused(tmp_path: Path) -> None:
    assert list_problems(tmp_path, "- 1\n") == [
        "run.yaml:1: the document is a list, expected a resource: apiVersion, kind, metadata, spec"
    ]


def test_recursive_and_exploding_aliases_are_refused(tmp_path: Path) -> None:
    (message,) = list_problems(tmp_path, TRAINING.replace("{lr: 8e-4}", "&a {lr: *a}"))
    assert "contains itself" in message
    bomb = "\n".join(["a0: &a0 [x, x]"] + [f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 40)])
    assert any("too many values" in line for line in list_problems(tmp_path, bomb))


def test_options_of_custom_algorithm_are_not_checked_and_an_expert_cannot_have_one(tmp_path: Path) -> None:
    text = TRAINING.replace("algorithm: BC", "algorithm: my.code:Mine").replace("config:", "customConfig:")
    (loaded_resource,) = load_resources([write_file(tmp_path, text)])
    assert isinstance(loaded_resource.resource, OfflineTraining)
    assert loaded_resource.resource.spec.custom_config == {"lr": 0.0008}
    expert = RECORDING.replace("PPO", "my.code:Mine")
    assert (
        "cannot" in list_problems(tmp_path, expert)[0]
        or "not an algorithm" in list_problems(tmp_path, expert)[0]
    )


def test_validate_checks_plain_values_like_a_file() -> None:
    spec = {"algorithm": "BC", "input": [{"path": "data"}], "stop": {"epochs": 1}}
    data = {"apiVersion": "hindcast.dev/v1alpha1", "kind": "OfflineTraining", "metadata": {"name": "a"}}
    assert isinstance(validate_resource(data | {"spec": spec}), OfflineTraining)
    with raises_user_error(
        SpecError, r"is 'fast' \(text\), expected a number or a list$", field="spec.config.lr"
    ):
        validate_resource(data | {"spec": spec | {"config": {"lr": "fast"}}})


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=40),
    lambda children: (
        st.lists(children, max_size=4) | st.dictionaries(st.text(max_size=40), children, max_size=4)
    ),
    max_leaves=20,
)


@pytest.mark.slow
@examples(100)
@given(value=st.dictionaries(st.text(min_size=1, max_size=40), json_values, min_size=1, max_size=4))
def test_load_reads_any_json_back(tmp_path_factory: pytest.TempPathFactory, value: object) -> None:
    path = write_file(tmp_path_factory.getbasetemp(), json.dumps(value), "any.json")
    (document,) = read_documents(path)
    assert document.problems == []
    assert document.value == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8e-4", 0.0008),
        ("1e6", 1e6),
        ("1_000", 1000),
        ("0x1F", 31),
        ("0o17", 15),
        ("017", 17),
        ("-.inf", float("-inf")),
        ("yes", "yes"),
        ("on", "on"),
        ("true", True),
        ("~", None),
        ("2026-11-20", "2026-11-20"),
        ("'8'", "8"),
    ],
)
def test_scalars_are_read_as_yaml_1_2(tmp_path: Path, text: str, value: object) -> None:
    (document,) = read_documents(write_file(tmp_path, f"a: {text}\n"))
    assert document.value == {"a": value}
    assert type(document.value["a"]) is type(value)


TRAINING_WITH_CLUSTER = """\
apiVersion: hindcast.dev/v1alpha1
kind: OfflineTraining
metadata: {name: cartpole-bc}
spec:
  algorithm: BC
  config: {lr: 8.0e-4, trainBatchSizePerLearner: 1024}
  environment: {id: CartPole-v1}
  input:
    - recordingRef: {name: cartpole-expert}
      weight: 0.4
    - path: s3://bucket/more/*.parquet
      weight: 0.6
      schema: {obs: observation}
      filter: [{column: length, op: ">=", value: 20}]
  pipeline:
    dataWorkers: {minReplicas: 4, maxReplicas: 8}
    prefetchBatches: 2
  learners: {replicas: 2, gpus: 1}
  evaluation: {interval: 3, duration: Auto, runners: 1, parallelToTraining: true}
  stop: {episodeReturnMean: 450}
  checkpoint: {path: s3://bucket/runs, every: 10, keep: 3}
  suspend: false
  cluster:
    image: registry/hindcast:1
    envFrom: [{secretRef: {name: storage}}]
    volumes: [{name: data, mountPath: /data, persistentVolumeClaim: {claimName: data}}]
    code: {configMap: {name: my-code}}
    podOverrides: {learner: {spec: {nodeSelector: {gpu: h100}}}}
    scheduling: {queueName: team, labels: {team: red}}
  runPolicy: {backoffLimit: 1, activeDeadlineSeconds: 3600}
"""


def test_cluster_sections_are_read(tmp_path: Path) -> None:
    (loaded_resource,) = load_resources(write_file(tmp_path, TRAINING_WITH_CLUSTER))
    spec = loaded_resource.resource.spec
    assert isinstance(loaded_resource.resource, OfflineTraining)
    assert spec.cluster.pod_overrides.learner == {"spec": {"nodeSelector": {"gpu": "h100"}}}
    assert loaded_resource.resource.spec.pipeline.data_workers.interval == (4, 8)
    assert loaded_resource.resource.spec.input[1].schema_map == {"obs": "observation"}
    messages = list_problems(
        tmp_path, TRAINING_WITH_CLUSTER.replace("queueName", "queue").replace("secretRef", "secret")
    )
    assert [line.split(" is ")[0] for line in messages] == [
        "run.yaml:25: spec.cluster.envFrom[0].secret",
        "run.yaml:29: spec.cluster.scheduling.queue",
    ]
