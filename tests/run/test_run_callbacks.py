"""A user's callbacks hear of a training from a file and of one in Python, and their mistakes are a sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest

from hindcast import BCConfig, Callbacks
from hindcast.errors import Interrupted, SpecError, UserCodeError
from hindcast.report.results import read_results
from hindcast.storage.location import resolve
from support import WALK, After, train, training

HERE = "test_run_callbacks"


class Heard(Callbacks):
    """Notes what it hears; adds a number to results."""

    events: ClassVar[list[str]] = []

    def _note(self, event: str, algorithm: Any) -> None:
        assert algorithm.get_policy().module is algorithm.get_module()
        self.events.append(f"{event} {algorithm.iteration}")

    def on_algorithm_init(self, *, algorithm: Any, **kwargs: Any) -> None:
        self._note("init", algorithm)

    def on_checkpoint_loaded(self, *, algorithm: Any, **kwargs: Any) -> None:
        self._note("loaded", algorithm)

    def on_train_result(self, *, algorithm: Any, result: dict[str, Any], **kwargs: Any) -> None:
        self._note("result", algorithm)
        result["doubled"] = 2 * result["training_iteration"]

    def on_evaluate_start(self, *, algorithm: Any, **kwargs: Any) -> None:
        self._note("start", algorithm)

    def on_evaluate_end(self, *, algorithm: Any, evaluation_metrics: dict[str, Any], **kwargs: Any) -> None:
        assert evaluation_metrics["env_runners"]["num_episodes"] == 2
        self._note(f"end of {evaluation_metrics['training_iteration']}", algorithm)


class Raising(Callbacks):
    def on_train_result(self, **kwargs: Any) -> None:
        raise KeyError("no such thing")


class Unwritable(Callbacks):
    def on_train_result(self, *, result: dict[str, Any], **kwargs: Any) -> None:
        result["object"] = object()


class OfEpisodes(Callbacks):
    def on_episode_end(self, **kwargs: Any) -> None:
        pass


@pytest.fixture
def events() -> list[str]:
    Heard.events.clear()
    return Heard.events


def spec(*names: str, **more: Any) -> dict[str, Any]:
    return {"callbacks": [f"{HERE}:{name}" for name in names], **more}


def test_a_training_tells_them(walks: Path, tmp_path: Path, events: list[str]) -> None:
    evaluated = {"environment": WALK, "evaluation": {"interval": 2, "duration": 2}}
    resource = training(tmp_path, walks, **spec("Heard", **evaluated))
    with pytest.raises(Interrupted):
        train(resource, After(20))
    train(resource)
    first, again = events[: events.index("loaded 2") - 1], events[events.index("loaded 2") - 1 :]
    assert first == ["init 0", "result 1", "start 2", "end of 2 2", "result 2"]
    assert again == ["init 2", "loaded 2", "result 3"]
    results = read_results(resolve(tmp_path / "test" / "r1"))
    assert [result["doubled"] for result in results] == [2, 4, 6]


def test_beside_training_they_hear_when_it_begins_and_when_it_is_collected(
    walks: Path, tmp_path: Path, events: list[str]
) -> None:
    evaluation = {"interval": 1, "duration": 2, "parallelToTraining": True}
    train(training(tmp_path, walks, **spec("Heard", environment=WALK, evaluation=evaluation)))
    assert events == [
        *("init 0", "result 1", "start 1"),
        *("end of 1 2", "result 2", "start 2"),
        *("end of 2 3", "result 3", "start 3", "end of 3 3"),
    ]


def test_an_algorithm_in_python_tells_them(walks: Path, tmp_path: Path, events: list[str]) -> None:
    config = (
        BCConfig()
        .environment("toy_environments:Walk")
        .offline_data(input_=str(walks), dataset_num_iters_per_learner=1)
        .evaluation(evaluation_interval=2, evaluation_duration=2)
        .callbacks(callbacks_class=Heard)
    )
    with config.build_algo() as algo:
        assert [algo.train()["doubled"] for _ in range(2)] == [2, 4]
        algo.restore_from_path(algo.save_to_path(tmp_path / "saved"))
    assert events == ["init 0", "result 1", "start 2", "end of 2 2", "result 2", "loaded 2"]
    assert config.to_resource().spec.callbacks == [f"{HERE}:Heard"]


@pytest.mark.parametrize(
    ("name", "error", "sentence"),
    [
        ("Raising", UserCodeError, r"Raising.on_train_result raised KeyError at .*test_run_callbacks.py:\d+"),
        ("Unwritable", UserCodeError, "Unwritable.on_train_result raised TypeError"),
        ("OfEpisodes", SpecError, "OfEpisodes overrides on_episode_end, which nothing calls: episodes are"),
        ("Missing", SpecError, f"spec.callbacks is '{HERE}:Missing': the module '{HERE}' has no 'Missing'"),
        ("WALK", SpecError, "which is no subclass of Callbacks"),
    ],
)
def test_mistakes(name: str, error: type[Exception], sentence: str, walks: Path, tmp_path: Path) -> None:
    with pytest.raises(error, match=sentence):
        train(training(tmp_path, walks, **spec(name)))


def test_functions_are_told_to_be_methods() -> None:
    with pytest.raises(SpecError, match="write them as methods of a subclass of Callbacks"):
        BCConfig().callbacks(on_train_result=print)
