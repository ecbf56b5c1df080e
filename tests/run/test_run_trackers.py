"""Callbacks that send results to experiment trackers; recorders stand for the trackers' packages."""

import sys
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from hindcast.errors import SpecError
from hindcast.trackers import MLflow, TensorBoard, WandB

RESOURCE = {
    "metadata": {"name": "clone"},
    "spec": {
        "algorithm": "BC",
        "config": {"lr": 0.1},
        "environment": {"id": "reach:Reach", "kwargs": {"token": "secret"}},
        "input": [{"path": "data", "readOptions": {"password": "secret"}}],
    },
}
SETTINGS = {"algorithm": "BC", "config.lr": 0.1, "environment.id": "reach:Reach", "input.0.path": "data"}
RESULT = {"training_iteration": 3, "learners": {"default_policy": {"total_loss": 0.5}}}


@pytest.fixture
def recorder(monkeypatch):
    """Replace both packages by a recorder of their calls."""
    recorder = MagicMock()
    recorder.search_runs.return_value = []
    for name in ("wandb", "mlflow"):
        monkeypatch.setitem(sys.modules, name, recorder)
    for variable in ("WANDB_PROJECT", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(variable, raising=False)
    return recorder


def test_wandb_run_is_identified_by_its_folder_and_gets_settings_without_secrets(recorder):
    for _ in range(2):  # the second one resumes
        tracker = WandB()
        tracker.on_algorithm_init(
            algorithm=None, resource=RESOURCE, folder="runs/clone/r1", metrics_logger=None
        )
    first, second = recorder.init.call_args_list
    assert first == second
    assert first.kwargs["id"] is not None
    assert first.kwargs["config"] == SETTINGS
    assert (first.kwargs["project"], first.kwargs["name"], first.kwargs["resume"]) == (
        "hindcast",
        "clone",
        "allow",
    )
    tracker.on_train_result(algorithm=None, result=RESULT, metrics_logger=None)
    metrics = {"training_iteration": 3.0, "learners/default_policy/total_loss": 0.5}
    recorder.log.assert_called_once_with(metrics, step=3)


@pytest.mark.parametrize("resumes", [False, True])
def test_mlflow_continues_the_run_of_the_same_run_folder(recorder, resumes):
    if resumes:
        recorder.search_runs.return_value = [SimpleNamespace(info=SimpleNamespace(run_id="earlier"))]
    tracker = MLflow()
    tracker.on_algorithm_init(algorithm=None, resource=RESOURCE, folder="runs/clone/r1", metrics_logger=None)
    assert recorder.start_run.call_args.kwargs["run_id"] == ("earlier" if resumes else None)
    assert recorder.log_params.call_count == (0 if resumes else 1)
    tracker.on_train_result(algorithm=None, result=RESULT, metrics_logger=None)
    assert recorder.log_metrics.call_args.kwargs["step"] == 3


def test_tensorboard_hides_results_that_a_resumed_training_repeats(monkeypatch, tmp_path):
    monkeypatch.setenv("TENSORBOARD_LOGDIR", str(tmp_path))
    for iterations in ([1, 2, 3], [3, 4]):  # the second one resumes
        tracker = TensorBoard()
        tracker.on_algorithm_init(
            algorithm=None, resource=RESOURCE, folder="runs/clone/r1", metrics_logger=None
        )
        for iteration in iterations:
            result = RESULT | {"training_iteration": iteration}
            tracker.on_train_result(algorithm=None, result=result, metrics_logger=None)
    (folder,) = tmp_path.iterdir()
    events = EventAccumulator(str(folder))
    events.Reload()
    assert [event.step for event in events.Scalars("learners/default_policy/total_loss")] == [1, 2, 3, 4]
    content = b"".join(file.read_bytes() for file in folder.iterdir())
    assert b"config.lr" in content and b"secret" not in content


def test_tensorboard_keeps_runs_without_folder_apart(tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORBOARD_LOGDIR", str(tmp_path))
    for _ in range(2):
        tracker = TensorBoard()
        tracker.on_algorithm_init(algorithm=None, resource=RESOURCE, folder=None, metrics_logger=None)
        tracker.on_train_result(algorithm=None, result=RESULT, metrics_logger=None)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("tracker", [WandB, MLflow, TensorBoard])
def test_missing_package_is_named_with_its_extra(monkeypatch, tracker):
    monkeypatch.setitem(sys.modules, tracker.package, None)
    with pytest.raises(SpecError, match=f"hindcast-rl\\[{tracker.package}\\]"):
        tracker()
