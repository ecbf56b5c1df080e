"""Trainings by each algorithm, of the package and in files outside it: streaming, resuming, compiling, learners."""

from __future__ import annotations

import time
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pytest
import torch
import yaml
from drawn_trainings import draw_trainings, write_data

from fake_cuda_graph import TapeGraph
from hindcast import AlgorithmConfig
from hindcast.algorithms import REGISTRY
from hindcast.api import load_resources
from hindcast.errors import Interrupted
from hindcast.learn.compiling import compile_losses
from hindcast.learn.learner import Learner
from hindcast.learn.update_graphs import GRAPHS
from hindcast.models.policy_files import WEIGHTS
from hindcast.run.execute import execute
from hindcast.run.interruption import Interruption
from hindcast.run.training import offline_trainer
from layers import repeats, slow_except
from no_device_reads import NoDeviceReads
from resource_examples import make_document
from run_results import read_results, without_times
from support import MemoryReporter, StopAfter, record, recording, train, trainable_space, training

ALGORITHM_FILES = Path(__file__).parents[1] / "learn"
BATCH_SIZE = 24
NUM_ITERATIONS, UPDATES_PER_ITERATION = 3, 9
NUM_COMPARED_UPDATES = repeats(15, soak=200)
NUM_DRAWN_TRAININGS, DRAWN_SEED = repeats(12, soak=60), repeats(0, soak=int(time.time()))
SAMPLER = {"timestepsPerUpdate": 2, "warmupTimesteps": 20, "capacity": 60}


class Case(NamedTuple):
    """An algorithm with its options.

    Attributes:
        path: name or import path.
        options: options of the algorithm, by YAML name.
        model: options of its model, by YAML name.
        model_config: the same options by their Python names.
        data: name of the data that it learns from.
        can_stream: data can be streamed; False for algorithms that draw from all data.
        has_noise: losses draw noise, so several learners differ from one.
        live_environment: environment in which the policy plays half of the batches; None for recorded data only.
    """

    path: str
    options: dict[str, Any]
    model: dict[str, Any] = {}
    model_config: dict[str, Any] = {}
    data: str = "walks"
    can_stream: bool = True
    has_noise: bool = False
    live_environment: str | None = None


OUTSIDE_CASES = {
    "custom MARWIL": Case("learn_marwil:MARWIL", {"targetsEvery": 4}),
    "custom IQL": Case("learn_iql:IQL", {"gamma": 0.95}),
    "custom DQN": Case("learn_dqn:DQN", {"nStep": 3, "prioritized": False}),
    "custom DQN with priorities": Case("learn_dqn:DQN", {"nStep": 3}, can_stream=False),
    "custom LSTM BC": Case(
        "learn_lstm_bc:LSTMBC", {}, {"cellSize": 8, "maxSeqLen": 4}, {"lstm_cell_size": 8, "max_seq_len": 4}
    ),
}
SMALL_TRANSFORMER = {
    "contextLength": 4,
    "embedSize": 8,
    "numHeads": 2,
    "numLayers": 1,
    "returnScale": 10.0,
    "lr": 0.01,
}
MEMORY: tuple[dict[str, Any], dict[str, Any]] = (
    {"recurrent": "GRU", "cellSize": 8, "maxSeqLen": 5},
    {"recurrent": "gru", "lstm_cell_size": 8, "max_seq_len": 5},
)
"""Options of recurrent networks, by YAML and by Python names."""
PRIORITY_OPTIONS = {
    "prioritizedReplay": True,
    "prioritizedReplayBeta": [[0, 0.4], [500, 1.0]],
    "nStep": 3,
    "numQuantiles": 4,
    "adamEpsilon": 1e-4,
    "weightDecay": 1e-3,
}
SPECIAL_CASES = {
    "BC": Case("BC", {"lr": 1e-3}),
    "MARWIL": Case("MARWIL", {"lr": 1e-3, "targetsEvery": 4}),
    "IQL": Case("IQL", {}),
    "MARWIL with memory": Case("MARWIL", {"lr": 1e-3, "targetsEvery": 4}, *MEMORY),
    "IQL with memory": Case("IQL", {"nStep": 3}, *MEMORY),
    "DQN": Case("DQN", {}),
    "DQN with priorities": Case("DQN", PRIORITY_OPTIONS, can_stream=False),
    "DQN with memory that plays": Case(
        "DQN", PRIORITY_OPTIONS, *MEMORY, can_stream=False, live_environment="toy_environments:Walk"
    ),
    "CQL with memory": Case("CQL", {"numActions": 2}, *MEMORY, data="steered", has_noise=True),
    "DiscreteCQL": Case("DiscreteCQL", {"lr": 1e-3}),
    "CQL": Case(
        "CQL",
        {"numActions": 2, "lagrangian": True, "bcIters": 11, "calibrated": True},
        data="steered",
        has_noise=True,
    ),
    "SAC that plays": Case(
        "SAC",
        {"numCritics": 3, "diversity": 0.5},
        data="steered",
        has_noise=True,
        live_environment="toy_environments:SteeredWalk",
    ),
    "DQN that plays": Case(
        "DQN",
        {**PRIORITY_OPTIONS, "epsilon": [[0, 1], [90, 0.1]]},
        can_stream=False,
        live_environment="toy_environments:Walk",
    ),
    "DecisionTransformer": Case("DecisionTransformer", {"dropout": 0.0, **SMALL_TRANSFORMER}),
    "DecisionTransformer with dropout": Case(
        "DecisionTransformer",
        SMALL_TRANSFORMER,
        {"fcnetHiddens": [256, 256], "observationFilter": "None"},
        {"fcnet_hiddens": [256, 256], "observation_filter": "none"},
        data="steered",
        has_noise=True,
    ),
    # With its own step size, the loss falls too little in 27 updates.
    "TD3BC": Case("TD3BC", {"actorLr": 0.003, "criticLr": 0.003}, data="steered", has_noise=True),
    "FQL": Case("FQL", {"flowSteps": 3}, data="steered", has_noise=True),
    "FQL with chunks that plays": Case(
        "FQL",
        {"flowSteps": 3, "actionChunk": 3},
        data="steered",
        has_noise=True,
        live_environment="toy_environments:SteeredWalk",
    ),
    "ReBRAC that plays": Case(
        "ReBRAC",
        {"actorBeta": [[0, 0.02], [500, 0.01]]},
        data="steered",
        has_noise=True,
        live_environment="toy_environments:SteeredWalk",
    ),
}
ACTION_SPACES = {"steered": gym.spaces.Box(-1, 1, (1,)), "walks": gym.spaces.Discrete(2)}
"""Name of data -> space of its actions. A default case gets the first that its algorithm can train on."""
DEFAULT_CASES = {
    name: Case(name, {}, data=data, has_noise=True)
    for name, algorithm_class in REGISTRY.items()
    if "OfflineTraining" in algorithm_class.kinds and name not in SPECIAL_CASES
    for data, space in ACTION_SPACES.items()
    if trainable_space(name, *ACTION_SPACES.values()) is space
}
CASES = {**OUTSIDE_CASES, **SPECIAL_CASES, **DEFAULT_CASES}
QUICK_CASES = ["BC", "MARWIL", "IQL", "CQL", "DQN with priorities", "DecisionTransformer", "IQL with memory"]
STREAMING_CASES = [name for name, case in CASES.items() if case.can_stream]


@pytest.fixture(scope="module")
def data(walks: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Name -> folder of episodes, with discrete or continuous actions."""
    steered_folder = tmp_path_factory.mktemp("recorded") / "steered"
    record(recording(steered_folder, environment={"id": "toy_environments:SteeredWalk"}))
    return {"walks": walks, "steered": steered_folder}


@pytest.fixture(scope="module", autouse=True)
def _algorithm_files_on_path() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ALGORITHM_FILES)
        yield


class Fit(NamedTuple):
    """Results of a training: its iterations without times, and its final weights."""

    results: list[dict[str, Any]]
    weights: bytes


def make_spec(name: str, **pipeline: Any) -> dict[str, Any]:
    case = CASES[name]
    options_field = "customConfig" if ":" in case.path else "config"
    return {
        "algorithm": case.path,
        "config": {},  # replaces the options of BC in `support.training`
        options_field: {"trainBatchSizePerLearner": BATCH_SIZE, **case.options},
        "model": {"fcnetHiddens": [16], **case.model},
        "stop": {"iterations": NUM_ITERATIONS},
        "pipeline": {"windowSteps": 60, "datasetNumItersPerLearner": UPDATES_PER_ITERATION, **pipeline},
        **({"environment": {"id": case.live_environment}} if case.live_environment else {}),
    }


def make_inputs(name: str, data: dict[str, Path]) -> list[dict[str, Any]]:
    recorded_input = {"path": str(data[CASES[name].data])}
    if CASES[name].live_environment is None:
        return [recorded_input]
    return [{**recorded_input, "weight": 0.5}, {"sampler": SAMPLER, "weight": 0.5}]


def fit(
    name: str, folder: Path, data: dict[str, Path], interruption: Interruption | None = None, **pipeline: Any
) -> Fit:
    train(training(folder, "", input=make_inputs(name, data), **make_spec(name, **pipeline)), interruption)
    return read_fit(folder)


def read_fit(folder: Path) -> Fit:
    return Fit(without_times(read_results(folder)), (folder / "test/r1/module" / WEIGHTS).read_bytes())


@pytest.fixture(scope="module")
def resident_fits(data: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Fit]:
    """Case -> fit of an uninterrupted training on resident data."""
    return {name: fit(name, tmp_path_factory.mktemp("resident"), data) for name in CASES}


@pytest.mark.parametrize("name", OUTSIDE_CASES)
def test_algorithm_outside_package_has_fewer_than_150_lines(name: str) -> None:
    file = ALGORITHM_FILES / f"{CASES[name].path.partition(':')[0]}.py"
    assert len(file.read_text().splitlines()) < 150


@pytest.mark.parametrize("name", CASES)
def test_training_lowers_loss(name: str, resident_fits: dict[str, Fit]) -> None:
    first_metrics, *_, last_metrics = (
        result["learners"]["default_policy"] for result in resident_fits[name].results
    )
    assert last_metrics["total_loss"] < first_metrics["total_loss"]


def test_age_of_targets_is_reported(resident_fits: dict[str, Fit]) -> None:
    ages = [result["targets_age"] for result in resident_fits["MARWIL"].results]
    assert len(ages) == NUM_ITERATIONS
    assert all(1 <= age <= 4 for age in ages)


def test_timesteps_of_sequences_include_padding(resident_fits: dict[str, Fit]) -> None:
    """A batch of 24 timesteps has four sequences of 5."""
    result = resident_fits["IQL with memory"].results[-1]
    assert result["num_env_steps_trained_lifetime"] == result["num_updates_lifetime"] * 4 * 5


def test_lstm_recalls_cue(recall_data: Path, tmp_path: Path) -> None:
    """BC without memory stays at chance, see test_run_recurrent.py."""
    spec = make_spec("custom LSTM BC") | {
        "customConfig": {"trainBatchSizePerLearner": 280},
        "model": {"fcnetHiddens": [16], "cellSize": 16, "maxSeqLen": 7},
        "pipeline": {"datasetNumItersPerLearner": 25},
        "environment": {"id": "toy_environments:Recall"},
        "evaluation": {"interval": 4, "duration": 40},
        "stop": {"updates": 100},
    }
    train(training(tmp_path, recall_data, **spec))
    assert read_fit(tmp_path).results[-1]["evaluation"]["env_runners"]["episode_return_mean"] == 1


@pytest.mark.gpu
@pytest.mark.parametrize("name", slow_except(QUICK_CASES, STREAMING_CASES))
def test_streaming_equals_resident(
    name: str, resident_fits: dict[str, Fit], data: dict[str, Path], tmp_path: Path
) -> None:
    assert fit(name, tmp_path, data, residentBudget="1Ki") == resident_fits[name]


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "budget"),
    slow_except(
        [(name, None) for name in QUICK_CASES],
        [*((name, None) for name in CASES), *((name, "1Ki") for name in STREAMING_CASES)],
    ),
)
def test_resume_is_bit_exact(
    name: str, budget: str | None, resident_fits: dict[str, Fit], data: dict[str, Path], tmp_path: Path
) -> None:
    for updates in (13, 5):  # within an iteration and a window, and once more after resuming
        with pytest.raises(Interrupted):
            fit(name, tmp_path, data, StopAfter(updates), residentBudget=budget)
    assert fit(name, tmp_path, data, residentBudget=budget) == resident_fits[name]


@pytest.mark.parametrize(
    "name", slow_except(QUICK_CASES, [name for name in CASES if name not in OUTSIDE_CASES])
)
def test_update_reads_nothing_from_device(
    name: str, data: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device must not wait for Python, and an update must be capturable."""
    compute_update = Learner._compute_update

    def compute_without_reads(*arguments: Any) -> Any:
        with NoDeviceReads():
            return compute_update(*arguments)

    monkeypatch.setattr(Learner, "_compute_update", compute_without_reads)
    fit(name, tmp_path, data, datasetNumItersPerLearner=2)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "name", slow_except(QUICK_CASES, [name for name in CASES if name not in OUTSIDE_CASES])
)
def test_captured_updates_equal_eager_updates(
    name: str,
    resident_fits: dict[str, Fit],
    data: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A graph repeats an update with the Python numbers that it had when it was recorded, so none may change later."""
    graphs: list[TapeGraph] = []

    def make_graph(*arguments: Any) -> TapeGraph:
        graphs.append(TapeGraph(*arguments))
        return graphs[-1]

    if torch.cuda.is_available():  # `resident_fits` has captured updates
        monkeypatch.delitem(GRAPHS, "cuda")
        assert fit(name, tmp_path, data) == resident_fits[name]
        return
    monkeypatch.setitem(GRAPHS, "cpu", make_graph)
    assert fit(name, tmp_path, data) == resident_fits[name]
    num_launches = [graph.num_launches for graph in graphs if graph.num_launches]
    # Before each recording, three updates warm up without a launch.
    assert sum(num_launches) >= NUM_ITERATIONS * UPDATES_PER_ITERATION - 3 * len(num_launches) > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["BC", "IQL", "CQL"])
def test_resume_with_compiled_losses_is_bit_exact(
    name: str,
    resident_fits: dict[str, Fit],
    data: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Uses the backend that needs no compiler and does not change the order of sums."""
    monkeypatch.setattr(offline_trainer, "compile_losses", partial(compile_losses, backend="aot_eager"))
    spec = {**make_spec(name), "input": make_inputs(name, data), "learners": {"compile": True}}
    with pytest.raises(Interrupted):
        train(training(tmp_path, "", **spec), StopAfter(13))
    train(training(tmp_path, "", **spec))
    assert read_fit(tmp_path) == resident_fits[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["BC", "custom LSTM BC", "SAC that plays"])
def test_training_from_yaml_equals_resident(
    name: str, resident_fits: dict[str, Fit], data: dict[str, Path], tmp_path: Path
) -> None:
    checkpoint = {"path": str(tmp_path / "runs")}
    spec = {**make_spec(name), "input": make_inputs(name, data), "checkpoint": checkpoint}
    if ":" in CASES[name].path:
        del spec["config"]
    (tmp_path / "training.yaml").write_text(yaml.safe_dump(make_document("OfflineTraining", spec)))
    execute(load_resources(tmp_path / "training.yaml"), MemoryReporter())
    assert read_fit(tmp_path / "runs") == resident_fits[name]


@pytest.mark.parametrize("name", slow_except(QUICK_CASES, CASES))
def test_training_in_python_equals_resident(
    name: str, resident_fits: dict[str, Fit], data: dict[str, Path], tmp_path: Path
) -> None:
    case = CASES[name]
    options = {to_snake_case(key): value for key, value in case.options.items()}
    config = (
        AlgorithmConfig(case.path)
        .training(train_batch_size_per_learner=BATCH_SIZE, **options)
        .rl_module(model_config={"fcnet_hiddens": [16], **case.model_config})
        .offline_data(
            input_=str(data[case.data]), window_steps=60, dataset_num_iters_per_learner=UPDATES_PER_ITERATION
        )
    )
    if case.live_environment:
        config.environment(case.live_environment).training(sampler=SAMPLER)
        config.offline_data(input_={str(data[case.data]): 0.5, "sampler": 0.5})
    with config.build_algo() as algo:
        results = [algo.train() for _ in range(2)]
        checkpoint = algo.save_to_path(tmp_path / "saved")
    with config.build_algo() as algo:
        algo.restore_from_path(checkpoint)
        results.append(algo.train())
        weights = algo.get_policy().to_files()[WEIGHTS]
    assert Fit(without_times(results), weights) == resident_fits[name]


def to_snake_case(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)


@pytest.mark.slow
@pytest.mark.soak
def test_two_learners_compute_losses_of_one(data: dict[str, Path], tmp_path: Path) -> None:
    """In float64 over many updates, where only the order of sums differs, with random combinations of options too."""
    from learn_ranks import run_in_ranks, train_in_float64

    arguments = {
        name: (
            training(tmp_path / name, "", input=make_inputs(name, data), **make_spec(name)),
            data[case.data],
            NUM_COMPARED_UPDATES,
        )
        for name, case in CASES.items()
        if not case.has_noise
    }
    drawn_trainings = draw_trainings(DRAWN_SEED, tmp_path / "drawn", write_data(tmp_path / "drawn_data"))
    for name, *argument in islice(drawn_trainings, NUM_DRAWN_TRAININGS):
        arguments[name] = (*argument, NUM_COMPARED_UPDATES)
    results_of_two = run_in_ranks(
        2, **{name: (train_in_float64, *argument) for name, argument in arguments.items()}
    )
    for name, argument in arguments.items():
        losses_of_one, weights_of_one = train_in_float64(None, *argument)
        for losses, weights in results_of_two[name]:
            np.testing.assert_allclose(losses, losses_of_one, rtol=1e-6, err_msg=name)
            for leaf, values in weights_of_one.items():
                np.testing.assert_allclose(
                    weights[leaf], values, rtol=1e-5, atol=1e-8, err_msg=f"{name} {leaf}"
                )


@pytest.mark.slow
def test_two_learners_with_noise_and_dropout_resume_bit_exactly(
    data: dict[str, Path], tmp_path: Path
) -> None:
    """Both learners end with equal weights, with and without interruptions."""
    from learn_ranks import run_in_ranks, train_with_stops

    stops_by_name = {"never": (), "twice": (2, 1)}  # numbers of checks after which the leader stops
    noisy_names = [name for name, case in CASES.items() if case.has_noise and case.live_environment is None]
    jobs = {
        f"{name} {stop_name}": (
            train_with_stops,
            training(
                tmp_path / name / stop_name, "", input=make_inputs(name, data), **make_spec_with_dropout(name)
            ),
            data[CASES[name].data],
            stops,
        )
        for name in noisy_names
        for stop_name, stops in stops_by_name.items()
    }
    weights = run_in_ranks(2, **jobs)
    for name in noisy_names:
        reference_weights, *other_weights = [*weights[f"{name} never"], *weights[f"{name} twice"]]
        for tensors in other_weights:
            for leaf, expected in reference_weights.items():
                np.testing.assert_array_equal(tensors[leaf], expected, err_msg=f"{name}: {leaf}")


def make_spec_with_dropout(name: str) -> dict[str, Any]:
    """Return the spec, with dropout for TD3BC: one algorithm with dense networks suffices."""
    spec = make_spec(name)
    return spec | {"model": {**spec["model"], "dropout": 0.2}} if name == "TD3BC" else spec
