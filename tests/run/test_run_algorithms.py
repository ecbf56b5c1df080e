"""Every algorithm, the package's and those in files outside it, through all that a training does: one harness."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson
import pytest
import torch
import yaml

from fake_cuda_graph import FakeCudaGraph
from hindcast import AlgorithmConfig
from hindcast.algorithms import REGISTRY
from hindcast.api import load_resources
from hindcast.errors import Interrupted
from hindcast.learn.compiling import compile_losses
from hindcast.learn.learner import Learner
from hindcast.learn.update_graphs import GRAPHS, CudaGraph
from hindcast.models.policy_files import WEIGHTS
from hindcast.run import offline_trainer
from hindcast.run.execute import execute
from hindcast.run.interruption import Interruption
from layers import repeats
from no_device_reads import NoDeviceReads
from support import MemoryReporter, StopAfter, record, recording, train, training

FILES = Path(__file__).parents[1] / "learn"
SIZE = 24
ITERATIONS, UPDATES = 3, 9
SHARED_UPDATES = repeats(60, soak=200)
SAMPLER = {"timestepsPerUpdate": 2, "warmupTimesteps": 20, "capacity": 60}


class Case(NamedTuple):
    """An algorithm: its name or path, options, those of its model and what Python calls the latter.

    It learns from `data`; where it draws from all data they are not streamed, and where its losses draw noise several
    learners do not do what one does. One that plays draws half of its batches from `plays`, an environment.
    """

    path: str
    options: dict[str, Any]
    model: dict[str, Any] = {}
    model_config: dict[str, Any] = {}
    data: str = "walks"
    streams: bool = True
    has_noise: bool = False
    plays: str | None = None


OUTSIDE = {
    "own MARWIL": Case("learn_marwil:MARWIL", {"targetsEvery": 4}),
    "own IQL": Case("learn_iql:IQL", {"gamma": 0.95}),
    "own DQN": Case("learn_dqn:DQN", {"nStep": 3, "prioritized": False}),
    "own DQN with priorities": Case("learn_dqn:DQN", {"nStep": 3}, streams=False),
    "own LSTM BC": Case(
        "learn_lstm_bc:LSTMBC", {}, {"cellSize": 8, "maxSeqLen": 4}, {"lstm_cell_size": 8, "max_seq_len": 4}
    ),
}
SMALL = {"contextLength": 4, "embedSize": 8, "numHeads": 2, "numLayers": 1, "returnScale": 10.0, "lr": 1e-2}
PRIORITIES = {"prioritizedReplay": True, "nStep": 3, "numQuantiles": 4}
CASES = {
    **OUTSIDE,
    "BC": Case("BC", {"lr": 1e-3}),
    "MARWIL": Case("MARWIL", {"lr": 1e-3, "targetsEvery": 4}),
    "IQL": Case("IQL", {}),
    "DQN": Case("DQN", {}),
    "DQN with priorities": Case("DQN", PRIORITIES, streams=False),
    "DiscreteCQL": Case("DiscreteCQL", {"lr": 1e-3}),
    "CQL": Case("CQL", {"numActions": 2, "lagrangian": True, "bcIters": 11}, data="steered", has_noise=True),
    "SAC": Case("SAC", {}, data="steered", has_noise=True),
    "SAC that plays": Case("SAC", {}, data="steered", has_noise=True, plays="toy_environments:Steered"),
    "DQN that plays": Case(
        "DQN", {**PRIORITIES, "epsilon": [[0, 1], [90, 0.1]]}, streams=False, plays="toy_environments:Walk"
    ),
    "TD3BC": Case("TD3BC", {}, data="steered", has_noise=True),
    "ReBRAC": Case("ReBRAC", {}, data="steered", has_noise=True),
    "DecisionTransformer": Case("DecisionTransformer", {"dropout": 0.0, **SMALL}),
    "DecisionTransformer with dropout": Case("DecisionTransformer", SMALL, data="steered", has_noise=True),
    "FQL": Case("FQL", {"flowSteps": 3}, data="steered", has_noise=True),
    "FQL with chunks": Case("FQL", {"flowSteps": 3, "actionChunk": 3}, data="steered", has_noise=True),
}
algorithms = pytest.mark.parametrize("name", CASES)
STREAMED = [name for name, case in CASES.items() if case.streams]


@pytest.fixture(scope="module")
def data(walks: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By name: episodes with discrete actions, and with continuous ones."""
    steered = tmp_path_factory.mktemp("recorded") / "steered"
    record(recording(steered, environment={"id": "toy_environments:Steered"}))
    return {"walks": walks, "steered": steered}


@pytest.fixture(scope="module", autouse=True)
def _on_the_path() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FILES)
        yield


class Fit(NamedTuple):
    """What a training came to: the results of its iterations without what depends on the time, its weights."""

    results: list[dict[str, Any]]
    weights: bytes


def spec_of(name: str, **pipeline: Any) -> dict[str, Any]:
    case = CASES[name]
    return {
        "algorithm": case.path,
        "config": {},
        "customConfig" if ":" in case.path else "config": {"trainBatchSizePerLearner": SIZE, **case.options},
        "model": {"fcnetHiddens": [16], **case.model},
        "stop": {"iterations": ITERATIONS},
        "pipeline": {"windowSteps": 60, "datasetNumItersPerLearner": UPDATES, **pipeline},
        **({"environment": {"id": case.plays}} if case.plays else {}),
    }


def inputs_of(name: str, data: dict[str, Path]) -> list[dict[str, Any]]:
    recorded = {"path": str(data[CASES[name].data])}
    if CASES[name].plays is None:
        return [recorded]
    return [{**recorded, "weight": 0.5}, {"sampler": SAMPLER, "weight": 0.5}]


def fit(
    name: str, folder: Path, data: dict[str, Path], interruption: Interruption | None = None, **pipeline: Any
) -> Fit:
    train(training(folder, "", input=inputs_of(name, data), **spec_of(name, **pipeline)), interruption)
    return fitted(folder)


def fitted(folder: Path) -> Fit:
    run = folder / "test" / "r1"
    lines = [orjson.loads(line) for line in (run / "results.jsonl").read_text().splitlines()]
    return Fit([without_times(line) for line in lines], (run / "module" / WEIGHTS).read_bytes())


def without_times(result: dict[str, Any]) -> dict[str, Any]:
    return {
        key: value
        for key, value in result.items()
        if key not in ("time_total_s", "timesteps_per_s", "timers")
    }


@pytest.fixture(scope="module")
def resident(data: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Fit]:
    """Each of them in memory and never interrupted."""
    return {name: fit(name, tmp_path_factory.mktemp("resident"), data) for name in CASES}


def test_every_algorithm_is_here() -> None:
    offline = {name for name, kind in REGISTRY.items() if "OfflineTraining" in kind.kinds}
    assert offline == {case.path for case in CASES.values()} - {case.path for case in OUTSIDE.values()}


@pytest.mark.parametrize("name", OUTSIDE)
def test_is_a_short_file(name: str) -> None:
    file = FILES / f"{CASES[name].path.partition(':')[0]}.py"
    assert len(file.read_text().splitlines()) < 150


@algorithms
def test_learns(name: str, resident: dict[str, Fit]) -> None:
    first, *_, last = (result["learners"]["default_policy"] for result in resident[name].results)
    assert last["total_loss"] < first["total_loss"]


def test_remembers(recalled: Path, tmp_path: Path) -> None:
    """Where BC without a memory stays at chance, in test_run_recurrent.py."""
    spec = spec_of("own LSTM BC") | {
        "customConfig": {"trainBatchSizePerLearner": 280},
        "model": {"fcnetHiddens": [16], "cellSize": 16, "maxSeqLen": 7},
        "pipeline": {"datasetNumItersPerLearner": 25},
        "environment": {"id": "toy_environments:Recall"},
        "evaluation": {"interval": 4, "duration": 40},
        "stop": {"updates": 100},
    }
    train(training(tmp_path, recalled, **spec))
    assert fitted(tmp_path).results[-1]["evaluation"]["env_runners"]["episode_return_mean"] == 1


@pytest.mark.gpu
@pytest.mark.parametrize("name", STREAMED)
def test_streams_what_memory_does_not_hold(
    name: str, resident: dict[str, Fit], data: dict[str, Path], tmp_path: Path
) -> None:
    assert fit(name, tmp_path, data, residentBudget="1Ki") == resident[name]


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "budget"), [*((name, None) for name in CASES), *((name, "1Ki") for name in STREAMED)]
)
def test_goes_on_bit_for_bit(
    name: str, budget: str | None, resident: dict[str, Fit], data: dict[str, Path], tmp_path: Path
) -> None:
    for updates in (13, 5):  # in the middle of an iteration and of a window, and once more after going on
        with pytest.raises(Interrupted):
            fit(name, tmp_path, data, StopAfter(updates), residentBudget=budget)
    assert fit(name, tmp_path, data, residentBudget=budget) == resident[name]


@pytest.mark.parametrize("name", [name for name in CASES if name not in OUTSIDE])
def test_an_update_reads_nothing_from_the_device(
    name: str, data: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a device never waits for Python, and an update can be captured."""
    move = Learner._compute_update

    def moved(*arguments: Any) -> Any:
        with NoDeviceReads():
            return move(*arguments)

    monkeypatch.setattr(Learner, "_compute_update", moved)
    fit(name, tmp_path, data, datasetNumItersPerLearner=2)


@pytest.mark.gpu
@pytest.mark.parametrize("name", [name for name in CASES if name not in OUTSIDE])
def test_recorded_updates_are_what_they_would_be_otherwise(
    name: str,
    resident: dict[str, Fit],
    data: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No number of Python's changes from update to update: an update repeated in place does what the next would."""
    launched: Counter[FakeCudaGraph] = Counter()

    class TapeGraph(CudaGraph):
        def __init__(self, *_: Any) -> None:
            self._tape = FakeCudaGraph()

        def warm_up(self, call: Callable[[], Any]) -> Any:
            return call()

        def record(self, call: Callable[[], Any]) -> Any:
            with self._tape:
                return call()

        def launch(self) -> None:
            if launched[self._tape]:  # recording has run it once
                self._tape.replay()
            launched[self._tape] += 1

    if torch.cuda.is_available():  # recorded are those of `resident`
        monkeypatch.delitem(GRAPHS, "cuda")
        assert fit(name, tmp_path, data) == resident[name]
        return
    monkeypatch.setitem(GRAPHS, "cpu", TapeGraph)
    assert fit(name, tmp_path, data) == resident[name]
    assert launched.total() >= ITERATIONS * UPDATES - 3 * len(launched) > 0


@pytest.mark.parametrize("name", ["BC", "IQL", "CQL"])
def test_compiled_it_goes_on_bit_for_bit(
    name: str,
    resident: dict[str, Fit],
    data: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the backend that needs no compiler, and does not change the order of a sum."""
    monkeypatch.setattr(offline_trainer, "compile_losses", partial(compile_losses, backend="aot_eager"))
    spec = {**spec_of(name), "input": inputs_of(name, data), "learners": {"compile": True}}
    with pytest.raises(Interrupted):
        train(training(tmp_path, "", **spec), StopAfter(13))
    train(training(tmp_path, "", **spec))
    assert fitted(tmp_path) == resident[name]


@pytest.mark.slow
@algorithms
def test_is_named_in_a_file(
    name: str, resident: dict[str, Fit], data: dict[str, Path], tmp_path: Path
) -> None:
    document = {
        "apiVersion": "hindcast.dev/v1alpha1",
        "kind": "OfflineTraining",
        "metadata": {"name": "test"},
        "spec": {
            **spec_of(name),
            "input": inputs_of(name, data),
            "checkpoint": {"path": str(tmp_path / "runs")},
        },
    }
    if ":" in CASES[name].path:
        del document["spec"]["config"]
    (tmp_path / "training.yaml").write_text(yaml.safe_dump(document))
    execute(load_resources(tmp_path / "training.yaml"), MemoryReporter())
    assert fitted(tmp_path / "runs") == resident[name]


@algorithms
def test_is_built_in_python(
    name: str, resident: dict[str, Fit], data: dict[str, Path], tmp_path: Path
) -> None:
    case = CASES[name]
    options = {snake(key): value for key, value in case.options.items()}
    config = (
        AlgorithmConfig(case.path)
        .training(train_batch_size_per_learner=SIZE, **options)
        .rl_module(model_config={"fcnet_hiddens": [16], **case.model_config})
        .offline_data(input_=str(data[case.data]), window_steps=60, dataset_num_iters_per_learner=UPDATES)
    )
    if case.plays:
        config.environment(case.plays).training(sampler=SAMPLER)
        config.offline_data(input_={str(data[case.data]): 0.5, "sampler": 0.5})
    with config.build_algo() as algo:
        results = [algo.train() for _ in range(2)]
        saved = algo.save_to_path(tmp_path / "saved")
    with config.build_algo() as algo:
        algo.restore_from_path(saved)
        results.append(algo.train())
        weights = algo.get_policy().to_files()[WEIGHTS]
    assert Fit([without_times(result) for result in results], weights) == resident[name]


def snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)


@pytest.mark.slow
@pytest.mark.soak
def test_two_learners_do_what_one_does(data: dict[str, Path], tmp_path: Path) -> None:
    """Over many updates in float64, where the order of a sum is all that differs."""
    from learn_ranks import in_float64, in_ranks

    paths = {name: data[case.data] for name, case in CASES.items() if not case.has_noise}
    jobs = {
        name: training(tmp_path / name, "", input=inputs_of(name, data), **spec_of(name)) for name in paths
    }
    arguments = {name: (in_float64, resource, paths[name], SHARED_UPDATES) for name, resource in jobs.items()}
    together = in_ranks(2, **arguments)
    for name, resource in jobs.items():
        alone = in_float64(None, resource, paths[name], SHARED_UPDATES)
        for losses in together[name]:
            np.testing.assert_allclose(losses, alone, rtol=1e-6, err_msg=name)


@pytest.mark.slow
def test_two_learners_with_noise_and_dropout_resume_bit_for_bit(
    data: dict[str, Path], tmp_path: Path
) -> None:
    """Both have the same weights, whether they were interrupted or not."""
    from learn_ranks import in_ranks, weights_after

    stops = {"never": (), "twice": (2, 1)}
    noisy = [name for name, case in CASES.items() if case.has_noise and case.plays is None]
    jobs = {
        f"{name} {stop}": (
            weights_after,
            training(tmp_path / name / stop, "", input=inputs_of(name, data), **with_dropout(name)),
            data[CASES[name].data],
            looks,
        )
        for name in noisy
        for stop, looks in stops.items()
    }
    found = in_ranks(2, **jobs)
    for name in noisy:
        first, *others = [*found[f"{name} never"], *found[f"{name} twice"]]
        for other in others:
            for leaf, expected in first.items():
                np.testing.assert_array_equal(other[leaf], expected, err_msg=f"{name}: {leaf}")


def with_dropout(name: str) -> dict[str, Any]:
    """The spec, with dropout in networks that take it."""
    spec = spec_of(name)
    return spec | {"model": {**spec["model"], "dropout": 0.2}} if name == "TD3BC" else spec
