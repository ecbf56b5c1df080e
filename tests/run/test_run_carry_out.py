"""Files of resources, carried out in the order in which they need each other."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hindcast.api import load_resources
from hindcast.api.loading import LoadedResource
from hindcast.errors import DataError, Interrupted, SpecError
from hindcast.run.execute import FileReferences, execute, execute_training
from hindcast.run.inputs import inputs_of
from hindcast.run.interruption import Interruption, catch_signals
from hindcast.run.placement import LOCAL
from hindcast.run.planning import plan
from hindcast.threads import num_processors
from support import WALK, MemoryReporter, record, recording, training

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
    """`load(("recording", "a", "{random: {}}"), ("training", "b", "recordingRef: {name: a}"))`."""

    def loaded(*parts: tuple[str, str, str]) -> list[LoadedResource]:
        text = ""
        for kind, name, given in parts:
            template = RECORDING if kind == "recording" else TRAINING
            text += template.replace("POLICY", given).replace("INPUT", given).replace("NAME", name)
        file = tmp_path / "file.yaml"
        file.write_text(text.replace("FOLDER", str(tmp_path)))
        return load_resources(file)

    return loaded


CHAIN = (
    ("recording", "again", "{trainingRef: {name: clone}}"),
    ("training", "clone", "recordingRef: {name: first}"),
    ("recording", "first", "{random: {}}"),
)


class TestMistakes:
    def test_one_of_several_is_named(self, load: Load, reporter: MemoryReporter) -> None:
        loaded = load(("recording", "first", "{random: {}}"), ("training", "clone", "path: missing"))
        with pytest.raises(DataError, match=r"file\.yaml:11: OfflineTraining/clone: .*missing"):
            execute(loaded, reporter)

    def test_a_fields_line_is_named(self, load: Load, tmp_path: Path, reporter: MemoryReporter) -> None:
        record(recording(tmp_path / "data"))
        given = f"path: {tmp_path}/data\n  initialCheckpoint: missing"
        with pytest.raises(
            DataError, match=r"file\.yaml:10: OfflineTraining/clone: spec\.initialCheckpoint: missing "
        ):
            execute(load(("training", "clone", given)), reporter)

    def test_what_does_not_fit_the_spaces_is_found_before_another_resource_works(
        self, load: Load, reporter: MemoryReporter
    ) -> None:
        given = "recordingRef: {name: first}\n  model: {distribution: SquashedGaussian}"
        loaded = load(("recording", "first", "{random: {}}"), ("training", "cloned", given))
        with pytest.raises(
            SpecError, match=r"file\.yaml:\d+: OfflineTraining/cloned: spec\.model\.distribution"
        ):
            execute(loaded, reporter)
        assert not reporter.outcomes


class TestOrder:
    @pytest.mark.slow
    def test_what_is_referred_to_comes_first(self, load: Load, reporter: MemoryReporter) -> None:
        outcomes = execute(load(*CHAIN), reporter)
        assert [outcome.resource for outcome in outcomes] == [
            "OfflineRecording/first",
            "OfflineTraining/clone",
            "OfflineRecording/again",
        ]
        assert [outcome.state for outcome in outcomes] == ["Succeeded"] * 3
        assert [outcome.message for outcome in reporter.outcomes] == [outcome.message for outcome in outcomes]
        for outcome in outcomes:
            assert outcome.report is not None
            assert Path(outcome.report).exists()

    @pytest.mark.slow
    def test_the_second_time_all_is_finished(self, load: Load, reporter: MemoryReporter) -> None:
        execute(load(*CHAIN), reporter)
        stages = len(reporter.stages)
        outcomes = execute(load(*CHAIN), reporter)
        assert [outcome.state for outcome in outcomes] == ["AlreadyFinished"] * 3
        assert len(reporter.stages) == stages

    def test_a_circle_is_refused(self, load: Load, reporter: MemoryReporter) -> None:
        resources = load(
            ("recording", "a", "{trainingRef: {name: b}}"), ("training", "b", "recordingRef: {name: a}")
        )
        with pytest.raises(SpecError, match=r"a → OfflineTraining/b|b → OfflineRecording/a"):
            execute(resources, reporter)

    def test_a_training_that_is_not_there(self, load: Load, reporter: MemoryReporter) -> None:
        resources = load(("recording", "a", "{trainingRef: {name: b}}"), ("training", "c", "path: x"))
        with pytest.raises(SpecError, match=r"trainingRef.*no OfflineTraining named 'b'.*files define c"):
            execute(resources, reporter)

    def test_what_is_wrong_with_the_last_is_said_before_the_first_begins(
        self, load: Load, reporter: MemoryReporter, tmp_path: Path
    ) -> None:
        source = "recordingRef: {name: first}\n      format: Images"
        resources = load(("recording", "first", "{random: {}}"), ("training", "clone", source))
        with pytest.raises(SpecError, match=r"spec\.input\[0\]\.format is Images"):
            execute(resources, reporter)
        assert not (tmp_path / "first").exists()


class TestInterruption:
    @pytest.mark.slow
    def test_ctrl_c_stops_at_a_safe_point_and_the_same_command_goes_on(
        self, load: Load, tmp_path: Path
    ) -> None:
        class Stopping(MemoryReporter):
            def progress(self, progress: Any) -> None:
                if progress.done == 10:
                    os.kill(os.getpid(), signal.SIGINT)

        before = signal.getsignal(signal.SIGINT)
        with pytest.raises(Interrupted, match="run the same command again"):
            execute(load(*CHAIN), Stopping())
        assert signal.getsignal(signal.SIGINT) is before
        assert all(outcome.state == "Succeeded" for outcome in execute(load(*CHAIN), MemoryReporter()))

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_the_first_signal_asks_and_the_second_has_its_usual_effect(self, number: signal.Signals) -> None:
        class UsualError(Exception):
            pass

        def usual(*_: object) -> None:
            raise UsualError

        before = signal.signal(number, usual)
        try:
            with catch_signals() as interruption:
                interruption.check()
                os.kill(os.getpid(), number)
                with pytest.raises(Interrupted):
                    interruption.check()
                with pytest.raises(UsualError):
                    os.kill(os.getpid(), number)
            assert signal.getsignal(number) is usual
        finally:
            signal.signal(number, before)


class TestPlan:
    def test_says_what_would_be_done_and_does_nothing(
        self, load: Load, reporter: MemoryReporter, tmp_path: Path
    ) -> None:
        resources = load(*CHAIN)
        execute([loaded for loaded in resources if loaded.resource.metadata.name == "first"], reporter)
        before = sorted(tmp_path.rglob("*"))
        others = [loaded.resource for loaded in resources]
        found = plan(others[1], others)  # type: ignore[arg-type]
        assert sorted(tmp_path.rglob("*")) == before
        assert found["algorithm"] == "BC"
        assert found["inputs"] == [str(tmp_path / "first")]
        assert found["runFolder"] == str(tmp_path / "runs/clone/r1")
        assert found["data"]["batchSize"] == 32
        assert found["data"]["sources"][0]["episodes"] == 20
        assert found["parameters"]["policy"] > 0


def test_replicas_are_clamped_to_the_machine_and_it_says_so() -> None:
    assert LOCAL.replicas(1, "runners") == (1, None)
    count, note = LOCAL.replicas(10_000, "runners")
    assert count == num_processors()
    assert note is not None
    assert f"10000 runners clamped to {num_processors()}" in note


@pytest.mark.slow
def test_dqn_trains_from_old_sample_batches_and_its_report_shows_mean_q(tmp_path: Path) -> None:
    """RLlib's example of 2019; only the lines of JSON are there, without what a recording adds."""
    record(recording(tmp_path / "written", output={"format": "SampleBatch"}))
    old = tmp_path / "old"
    old.mkdir()
    for file in (tmp_path / "written").glob("*.json"):
        shutil.copy(file, old)
    resource = training(
        tmp_path / "runs",
        old,
        environment=WALK,
        algorithm="DQN",
        config={"trainBatchSizePerLearner": 32},
        pipeline={"datasetNumItersPerLearner": 5},
    )
    outcome = execute_training(
        resource, inputs_of(resource, FileReferences({})), MemoryReporter(), Interruption()
    )
    assert (tmp_path / "runs/test/r1/plots/value.png").exists()
    assert outcome.report is not None
    assert "Mean Q" in Path(outcome.report).read_text()
