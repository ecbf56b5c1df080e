"""Execution of the resources in a file, each after the resources that it refers to."""

from __future__ import annotations

import os
import shutil
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hindcast.api import OfflineTraining, load_resources
from hindcast.api.loading import LoadedResource
from hindcast.errors import DataError, Interrupted, SpecError
from hindcast.models.rl_module import RLModule
from hindcast.report.events import Outcome
from hindcast.run.claim import title
from hindcast.run.execute import FileReferences, execute, execute_training, train_locally
from hindcast.run.inputs import resolve_inputs
from hindcast.run.interruption import Interruption, catch_signals
from hindcast.run.placement import LOCAL
from hindcast.run.planning import plan
from hindcast.threads import num_processors
from layers import slow_except
from support import WALK, MemoryReporter, make_policy, record, recording, training
from user_errors import raises_user_error

RECORDING = """\
apiVersion: hindcast.dev/v1alpha1
kind: OfflineRecording
metadata: {name: NAME}
spec:
  environment: {id: "toy_environments:Walk"}
  policy: POLICY
  duration: {episodes: 20}
  runners: {envsPerRunner: 4}
  output: {path: FOLDER/NAME}
---
"""
TRAINING = """\
apiVersion: hindcast.dev/v1alpha1
kind: OfflineTraining
metadata: {name: NAME}
spec:
  algorithm: BC
  config: {trainBatchSizePerLearner: 32}
  environment: {id: "toy_environments:Walk"}
  input:
    - INPUT
  stop: {iterations: 2}
  checkpoint: {path: FOLDER/runs}
---
"""
Load = Callable[..., list[LoadedResource]]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """A function that loads resources: `load(("recording", "a", "{random: {}}"), ("training", "b", "path: data"))`."""

    def load_definitions(*definitions: tuple[str, str, str]) -> list[LoadedResource]:
        text = ""
        for kind, name, reference in definitions:
            template = RECORDING if kind == "recording" else TRAINING
            text += template.replace("POLICY", reference).replace("INPUT", reference).replace("NAME", name)
        file = tmp_path / "file.yaml"
        file.write_text(text.replace("FOLDER", str(tmp_path)))
        return load_resources(file)

    return load_definitions


CHAIN = (
    ("recording", "again", "{trainingRef: {name: clone}}"),
    ("training", "clone", "recordingRef: {name: first}"),
    ("recording", "first", "{random: {}}"),
)


class TestMistakes:
    def test_error_of_one_of_several_names_resource(self, load: Load, reporter: MemoryReporter) -> None:
        items = load(("recording", "first", "{random: {}}"), ("training", "clone", "path: missing"))
        place = r"file\.yaml:19: OfflineTraining/clone: spec\.input\[0\]\.path: missing "
        with pytest.raises(DataError, match=place):
            execute(items, reporter)

    def test_error_of_field_names_line_before_data_are_opened(
        self, load: Load, reporter: MemoryReporter
    ) -> None:
        source = "path: also-missing\n  initialCheckpoint: missing"
        message = r"file\.yaml:10: OfflineTraining/clone: spec\.initialCheckpoint: missing "
        with pytest.raises(DataError, match=message):
            execute(load(("training", "clone", source)), reporter)

    def test_model_that_does_not_fit_spaces_fails_before_first_resource(
        self, load: Load, reporter: MemoryReporter
    ) -> None:
        source = "recordingRef: {name: first}\n  model: {distribution: SquashedGaussian}"
        items = load(("recording", "first", "{random: {}}"), ("training", "cloned", source))
        message = r"file\.yaml:\d+: OfflineTraining/cloned: spec\.model\.distribution"
        with pytest.raises(SpecError, match=message):
            execute(items, reporter)
        assert not reporter.outcomes


@pytest.mark.parametrize("replicas", slow_except([1], [1, 2]))
def test_environment_is_created_once_per_slot(
    load: Load, reporter: MemoryReporter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replicas: int
) -> None:
    """Two runners are other processes, of which one may record everything; this process then only reads spaces."""
    monkeypatch.setenv("CREATIONS", str(tmp_path / "creations"))
    load(("recording", "first", "{random: {}}"), ("training", "clone", "recordingRef: {name: first}"))
    file = tmp_path / "file.yaml"
    text = file.read_text().replace("envsPerRunner: 4", f"envsPerRunner: 4, replicas: {replicas}")
    file.write_text(text.replace("toy_environments:Walk", "toy_environments:CountedWalk"))
    execute(load_resources(file), reporter)
    counts = Counter((tmp_path / "creations").read_text().split())
    assert counts.pop(str(os.getpid())) == (4 if replicas == 1 else 1)
    assert set(counts.values()) == (set() if replicas == 1 else {4})


class DrawingReporter(MemoryReporter):
    """Draws from torch's generator, as code between the check of a training and its start may."""

    def finished(self, outcome: Outcome) -> None:
        torch.rand(7)
        super().finished(outcome)


def count_network_builds(monkeypatch: pytest.MonkeyPatch) -> list[type[RLModule]]:
    """Return a list to which each module adds its class when it is built."""
    built_classes: list[type[RLModule]] = []
    initialise = RLModule.__init__

    def count_and_initialise(module: RLModule, *arguments: Any, **options: Any) -> None:
        built_classes.append(type(module))
        initialise(module, *arguments, **options)

    monkeypatch.setattr(RLModule, "__init__", count_and_initialise)
    return built_classes


def test_recording_builds_networks_of_checkpoint_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once to copy the policy into the dataset, and once, from there, to play."""
    make_policy(WALK).save(tmp_path / "module")
    built_classes = count_network_builds(monkeypatch)
    record(recording(tmp_path / "data", policy={"checkpoint": {"path": str(tmp_path / "module")}}))
    assert len(built_classes) == 2


def test_networks_are_built_once_and_train_like_networks_built_at_the_start(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    built_classes = count_network_builds(monkeypatch)
    source = "recordingRef: {name: first}\n  model: {dropout: 0.5}"
    items = load(("recording", "first", "{random: {}}"), ("training", "clone", source))
    _, outcome = execute(items, DrawingReporter())
    assert len(built_classes) == 1
    weights = Path(outcome.folder) / "module/weights.safetensors"
    expected_bytes = weights.read_bytes()
    shutil.rmtree(outcome.folder)
    resource = items[1].resource
    assert isinstance(resource, OfflineTraining)
    references = FileReferences({title(item.resource): item.resource for item in items})
    train_locally(resource, resolve_inputs(resource, references), MemoryReporter(), Interruption())
    assert weights.read_bytes() == expected_bytes


class TestOrder:
    @pytest.mark.slow
    def test_referenced_resources_run_first_and_only_once(self, load: Load, reporter: MemoryReporter) -> None:
        outcomes = execute(load(*CHAIN), reporter)
        resources = ["OfflineRecording/first", "OfflineTraining/clone", "OfflineRecording/again"]
        assert [outcome.resource for outcome in outcomes] == resources
        assert [outcome.state for outcome in outcomes] == ["Succeeded"] * 3
        assert [outcome.message for outcome in reporter.outcomes] == [outcome.message for outcome in outcomes]
        for outcome in outcomes:
            assert outcome.report is not None
            assert Path(outcome.report).exists()
        num_stages = len(reporter.stages)
        assert [outcome.state for outcome in execute(load(*CHAIN), reporter)] == ["AlreadyFinished"] * 3
        assert len(reporter.stages) == num_stages
        clone, all_resources = load(*CHAIN)[1].resource, [item.resource for item in load(*CHAIN)]
        rates = plan(clone, all_resources)["measured"]  # type: ignore[arg-type]
        assert rates["by"].endswith(" of this run, the last one with 1 learner")
        assert rates["updatesPerSecond"] > 0
        assert rates["learnerPeakBytes"] > 50 << 20
        assert rates["wholeRunSeconds"] == rates["seconds"]

    def test_circular_references_are_refused(self, load: Load, reporter: MemoryReporter) -> None:
        resources = load(
            ("recording", "a", "{trainingRef: {name: b}}"), ("training", "b", "recordingRef: {name: a}")
        )
        with pytest.raises(SpecError, match=r"a → OfflineTraining/b|b → OfflineRecording/a"):
            execute(resources, reporter)

    def test_unknown_reference_lists_defined_resources(self, load: Load, reporter: MemoryReporter) -> None:
        resources = load(("recording", "a", "{trainingRef: {name: b}}"), ("training", "c", "path: x"))
        with pytest.raises(SpecError, match=r"trainingRef.*no OfflineTraining named 'b'.*files define c"):
            execute(resources, reporter)
        resources = load(("training", "c", "recordingRef: {name: expert}"))
        message = "no OfflineRecording named 'expert'.*the files define none"
        with raises_user_error(SpecError, message, field="spec.input[0].recordingRef", line=9):
            execute(resources, reporter)

    def test_error_of_last_resource_is_raised_before_first_runs(
        self, load: Load, reporter: MemoryReporter, tmp_path: Path
    ) -> None:
        source = "recordingRef: {name: first}\n      format: Images"
        resources = load(("recording", "first", "{random: {}}"), ("training", "clone", source))
        with raises_user_error(SpecError, "is Images", field="spec.input[0].format"):
            execute(resources, reporter)
        assert not (tmp_path / "first").exists()


class TestInterruption:
    @pytest.mark.slow
    def test_ctrl_c_stops_at_safe_point_and_same_command_resumes(self, load: Load, tmp_path: Path) -> None:
        class InterruptingReporter(MemoryReporter):
            def progress(self, progress: Any) -> None:
                if progress.done == 10:
                    os.kill(os.getpid(), signal.SIGINT)

        handler_before = signal.getsignal(signal.SIGINT)
        with pytest.raises(Interrupted, match="run the same command again"):
            execute(load(*CHAIN), InterruptingReporter())
        assert signal.getsignal(signal.SIGINT) is handler_before
        assert all(outcome.state == "Succeeded" for outcome in execute(load(*CHAIN), MemoryReporter()))

    @pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
    def test_first_signal_requests_stop_and_second_has_usual_effect(
        self, signal_number: signal.Signals
    ) -> None:
        class UsualError(Exception):
            pass

        def usual_handler(*_: object) -> None:
            raise UsualError

        handler_before = signal.signal(signal_number, usual_handler)
        try:
            with catch_signals() as interruption:
                interruption.check()
                os.kill(os.getpid(), signal_number)
                with pytest.raises(Interrupted):
                    interruption.check()
                with pytest.raises(UsualError):
                    os.kill(os.getpid(), signal_number)
            assert signal.getsignal(signal_number) is usual_handler
        finally:
            signal.signal(signal_number, handler_before)


class TestPlan:
    def test_plan_describes_training_and_writes_nothing(
        self, load: Load, reporter: MemoryReporter, tmp_path: Path
    ) -> None:
        resources = load(*CHAIN)
        execute([item for item in resources if item.resource.metadata.name == "first"], reporter)
        files_before = sorted(tmp_path.rglob("*"))
        all_resources = [item.resource for item in resources]
        document = plan(all_resources[1], all_resources)  # type: ignore[arg-type]
        assert sorted(tmp_path.rglob("*")) == files_before
        assert document["algorithm"] == "BC"
        assert document["inputs"] == [str(tmp_path / "first")]
        assert document["runFolder"] == str(tmp_path / "runs/clone/r1")
        assert document["data"]["batchSize"] == 32
        assert document["data"]["sources"][0]["episodes"] == 20
        assert document["networks"]["policy"].endswith(" parameters")
        assert "measured" not in document


def test_replicas_are_clamped_to_machine_with_note() -> None:
    assert LOCAL.num_replicas(1, "runners") == (1, None)
    count, note = LOCAL.num_replicas(10_000, "runners")
    assert count == num_processors()
    assert note is not None
    assert f"10000 runners clamped to {num_processors()}" in note


@pytest.mark.slow
def test_dqn_on_sample_batches_reports_mean_q(tmp_path: Path) -> None:
    """RLlib's example of 2019: only JSON lines, without Hindcast's own files."""
    record(recording(tmp_path / "written", output={"format": "SampleBatch"}))
    batches_folder = tmp_path / "batches"
    batches_folder.mkdir()
    for file in (tmp_path / "written").glob("*.json"):
        shutil.copy(file, batches_folder)
    resource = training(
        tmp_path / "runs",
        batches_folder,
        environment=WALK,
        algorithm="DQN",
        config={"trainBatchSizePerLearner": 32},
        pipeline={"datasetNumItersPerLearner": 5},
    )
    outcome = execute_training(
        resource, resolve_inputs(resource, FileReferences({})), MemoryReporter(), Interruption()
    )
    assert (tmp_path / "runs/test/r1/plots/value.png").exists()
    assert outcome.report is not None
    assert "Mean Q" in Path(outcome.report).read_text()
