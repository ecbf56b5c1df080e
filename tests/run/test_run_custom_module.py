"""A custom network in training, interruption, evaluation, recording and loading."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hindcast import PPOConfig, RLModuleSpec
from hindcast.errors import DataError, Interrupted, SpecError, UserError
from hindcast.models.policy import Policy
from hindcast.run.checkpoint_evaluation import evaluate_checkpoint
from hindcast.run.execute import FileReferences, check_early
from hindcast.run.interruption import Interruption
from module_toys import Net
from support import (
    WALK,
    MemoryReporter,
    StopAfter,
    episode_hashes,
    read_all,
    record,
    recording,
    train,
    training,
)
from warm_python import WarmPython

NET_MODEL = {"moduleClass": "module_toys:Net", "moduleOptions": {"units": 6, "dropout": 0.3}}


def fit(
    folder: Path,
    data: Path,
    interruption: Interruption | None = None,
    reporter: MemoryReporter | None = None,
    **spec: Any,
) -> Policy:
    """Clone the data and return the final policy; the run folder is `folder/test/r1`."""
    fields = {
        "model": NET_MODEL,
        "stop": {"updates": 9},
        "pipeline": {"datasetNumItersPerLearner": 3},
        **spec,
    }
    return Policy.load(train(training(folder, data, **fields), interruption, reporter).metrics["checkpoint"])


@pytest.fixture(scope="module")
def trained_run(walks: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder of a training with parallel evaluation."""
    folder = tmp_path_factory.mktemp("trained_run")
    evaluation = {"interval": 1, "duration": 4, "parallelToTraining": True}
    fit(folder, walks, environment=WALK, evaluation=evaluation)
    return folder / "test" / "r1"


def test_interrupted_training_equals_uninterrupted_training(walks: Path, tmp_path: Path) -> None:
    reference = fit(tmp_path / "uninterrupted", walks)
    for updates in (4, 3):
        with pytest.raises(Interrupted):
            fit(tmp_path / "interrupted", walks, StopAfter(updates))
    resumed_policy = fit(tmp_path / "interrupted", walks)
    assert resumed_policy.digest == reference.digest
    assert isinstance(resumed_policy.module, Net)
    assert resumed_policy.module.calls == 9
    assert resumed_policy.module.pi.in_features == 6


def test_dropout_resumes_exactly(walks: Path, tmp_path: Path) -> None:
    spec = {"model": {"fcnetHiddens": [16], "dropout": 0.4, "layerNorm": True}, "environment": WALK}
    spec["evaluation"] = {"interval": 1, "duration": 3}
    reference = fit(tmp_path / "uninterrupted", walks, **spec)
    with pytest.raises(Interrupted):
        fit(tmp_path / "interrupted", walks, StopAfter(5), **spec)
    assert fit(tmp_path / "interrupted", walks, **spec).digest == reference.digest
    assert fit(tmp_path / "unevaluated", walks, **{**spec, "evaluation": None}).digest == reference.digest


@pytest.mark.parametrize("name", ["Net", "SumOfObservations"])
def test_evaluation_does_not_change_training(name: str, walks: Path, tmp_path: Path) -> None:
    model = {"moduleClass": f"module_toys:{name}", "maxSeqLen": 4}
    reference = fit(tmp_path / "reference", walks, model=model)
    evaluation = {"interval": 1, "duration": 4}
    assert (
        fit(tmp_path / "evaluated", walks, model=model, environment=WALK, evaluation=evaluation).digest
        == reference.digest
    )


@pytest.mark.slow
def test_new_process_loads_module_only_if_class_is_allowed(trained_run: Path, warm: WarmPython) -> None:
    code = (
        "import sys, hindcast\n"
        "allowed = sys.argv[2:]\n"
        "policy = hindcast.Policy.load(sys.argv[1], allow_classes=allowed)\n"
        "print(policy([0.1, 0.2, 0.3, 0.4]), type(policy.module).__name__)"
    )
    command = [str(warm.folder / "python"), "-c", code, str(trained_run)]
    environment = {"PYTHONPATH": ":".join(filter(None, sys.path))}
    completed = subprocess.run(
        [*command, "module_toys:Net"], env=environment, capture_output=True, text=True, check=False
    )
    assert completed.stdout.split()[-1] == "Net", completed.stderr
    refused_process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (
        "Hindcast never imports a class only because a file names it. If you trust the class, import it first"
        in refused_process.stderr
    )


def test_custom_policy_is_recorded_and_evaluated(trained_run: Path, tmp_path: Path) -> None:
    policy = {"checkpoint": {"path": str(trained_run)}, "moduleClass": "module_toys:Net"}
    resource = recording(tmp_path / "one", policy=policy, duration={"episodes": 12})
    record(resource)
    with pytest.raises(Interrupted):
        record(recording(tmp_path / "two", policy=policy, duration={"episodes": 12}), StopAfter(5))
    record(recording(tmp_path / "two", policy=policy, duration={"episodes": 12}))
    assert episode_hashes(read_all(tmp_path / "one")) == episode_hashes(read_all(tmp_path / "two"))
    assert evaluate_checkpoint(trained_run, episodes=2, module_class="module_toys:Net").report.returns


def test_warm_start_requires_same_class_and_options(trained_run: Path, walks: Path, tmp_path: Path) -> None:
    start_fields = {"initialCheckpoint": str(trained_run), "stop": {"updates": 1}}
    assert fit(tmp_path / "same", walks, **start_fields).module.calls == 10
    with pytest.raises(SpecError, match=r"has model\.moduleOptions .* this training has"):
        fit(tmp_path / "other", walks, **start_fields, model={**NET_MODEL, "moduleOptions": {"units": 7}})
    with pytest.raises(SpecError, match=r"has model\.moduleClass module_toys:Net, this training has None"):
        fit(tmp_path / "default", walks, **start_fields, model={})


def test_expert_with_custom_module_is_checked_and_trained(tmp_path: Path) -> None:
    reporter = MemoryReporter()
    train_policy = {
        "model": {"moduleClass": "module_toys:UnusedLayer"},
        "config": {"trainBatchSizePerLearner": 64, "minibatchSize": 32, "numEpochs": 1},
        "stop": {"iterations": 1},
    }
    with pytest.raises(UserError, match=r"UnusedLayer\._forward .* but no 'vf_preds'"):
        record(recording(tmp_path / "a", policy={"train": train_policy}), reporter=reporter)
    train_policy["model"] = {"moduleClass": "module_toys:Net"}
    record(
        recording(tmp_path / "b", policy={"train": train_policy}, duration={"episodes": 4}), reporter=reporter
    )
    assert isinstance(Policy.load(tmp_path / "b" / "_hindcast" / "policy").module, Net)


def test_suspicious_module_is_noted_before_training(walks: Path, tmp_path: Path) -> None:
    reporter = MemoryReporter()
    fit(tmp_path, walks, reporter=reporter, model={"moduleClass": "module_toys:UnusedLayer"})
    assert [
        note
        for note in reporter.notes
        if "UnusedLayer.unused_layer" in note and "they are never trained" in note
    ]


def test_algorithm_that_ignores_module_class_is_refused(walks: Path, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="OwnPolicy builds its own policy, LinearModule: its networks"):
        fit(
            tmp_path,
            walks,
            algorithm="module_toys:OwnPolicy",
            config={},
            model={"moduleClass": "module_toys:Net"},
        )


def test_missing_module_is_reported_before_run(tmp_path: Path) -> None:
    missing_model = {"moduleClass": "nowhere:Net"}
    expert = {"train": {"model": missing_model, "stop": {"iterations": 1}}}
    for resource in (
        training(tmp_path, "data", model=missing_model),
        recording(tmp_path / "out", policy=expert),
    ):
        with pytest.raises(SpecError, match="there is no module 'nowhere'"):
            check_early(resource, FileReferences({}))


def test_builder_trains_saves_and_restores_custom_module(tmp_path: Path) -> None:
    config = (
        PPOConfig()
        .environment("toy_environments:Walk")
        .training(train_batch_size_per_learner=64, minibatch_size=32, num_epochs=1)
        .rl_module(rl_module_spec=RLModuleSpec(Net, {"units": 5}))
    )
    with config.build_algo() as algo:
        algo.train()
        checkpoint = algo.save_to_path(tmp_path / "saved")
        digest = algo.get_policy().digest
    with type(algo).from_checkpoint(checkpoint) as restored_algo:
        assert restored_algo.get_policy().digest == digest
        assert restored_algo.get_module().pi.in_features == 5
    other_config = config.copy(copy_frozen=False).rl_module(rl_module_spec=RLModuleSpec(Net, {"units": 6}))
    with (
        other_config.build_algo() as algo,
        pytest.raises(DataError, match="was trained with module_options="),
    ):
        algo.restore_from_path(checkpoint)
