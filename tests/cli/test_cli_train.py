"""`hindcast train`: RLlib's command line creates the same resource as YAML."""

import json

import pytest

from hindcast.api import load_resources
from hindcast.datasets.opening import open_dataset

CONFIG = "{input: data, lr: 0.01, train_batch_size_per_learner: 32, dataset_num_iters_per_learner: 2}"
TWO_ITERATIONS = "--stop '{training_iteration: 2}'"


def spec_of_dry_run(hindcast, options):
    """Return the spec of the resource that `hindcast train OPTIONS --dry-run` prints."""
    result = hindcast(f"train {options} --dry-run --json")
    assert result.code == 0, result.err
    return json.loads(result.out)["spec"]


def test_train_writes_and_runs_yaml(hindcast, finished_folder, tmp_path):
    command = (
        f"train --run BC --env CartPole-v1 {TWO_ITERATIONS} --checkpoint-freq 1 --keep-checkpoints-num 2"
    )
    options = ("--config", CONFIG, "--local-dir", tmp_path)
    result = hindcast(command, *options)
    assert result.code == 0, result.err
    assert "OfflineTraining/bc finished training" in result.out
    assert f"running {tmp_path}/bc.yaml" in result.err
    (entry,) = load_resources(tmp_path / "bc.yaml")
    spec = entry.resource.spec.model_dump(by_alias=True, exclude_unset=True)
    assert spec["checkpoint"] == {"every": 1, "keep": 2, "path": str(tmp_path)}
    assert spec["config"] == {"lr": 0.01, "trainBatchSizePerLearner": 32}
    assert (spec["input"], spec["stop"]) == ([{"path": "data"}], {"iterations": 2})
    assert sorted(path.name for path in (tmp_path / "bc/r1/checkpoints").glob("checkpoint-*")) == [
        "checkpoint-000000002",
        "checkpoint-000000004",
    ]
    assert "has already finished" in hindcast(command, *options).out


def test_input_weights_and_exploration_options_of_rllib_2019_are_translated(hindcast, resources):
    config = """{
        "input": {"/tmp/cartpole-out": 0.4, "hdfs://host/archive/cartpole": 0.3, "sampler": 0.3,},
        "exploration_final_eps": 0,
        "exploration_fraction": 0}"""
    command = "--run=DQN --env=CartPole-v1"
    spec = spec_of_dry_run(hindcast, f"{command} --stop '{{timesteps_total: 1000}}' --config='{config}'")
    assert [source["weight"] for source in spec["input"]] == [0.4, 0.3, 0.3]
    assert (spec["config"], spec["stop"]) == ({"epsilon": 0}, {"timesteps": 1000})
    decay = "--config '{exploration_final_eps: 0.1, schedule_max_timesteps: 500}'"
    spec = spec_of_dry_run(hindcast, f"{command} {TWO_ITERATIONS} {decay}")
    assert spec["config"] == {"epsilon": [[0, 1.0], [50, 0.1]]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("run", "options"),
    [
        ("PPO", {"train_batch_size_per_learner": 300, "num_epochs": 1}),
        ("DQN", {"num_steps_sampled_before_learning_starts": 64, "dataset_num_iters_per_learner": 40}),
    ],
)
def test_output_records_the_experience_of_the_training(hindcast, tmp_path, run, options):
    config = {
        "env": "CartPole-v1",
        "output": str(tmp_path / "out"),
        "output_max_file_size": 5000000,
        **options,
    }
    arguments = ["--config", json.dumps(config), "--local-dir", tmp_path / "runs", "--json"]
    result = hindcast(f"train --run {run} {TWO_ITERATIONS}", *arguments)
    assert result.code == 0, result.err
    document = json.loads(result.out)
    assert document["result"]["training_iteration"] == 2
    num_steps = open_dataset(str(tmp_path / "out")).num_steps
    if run == "PPO":
        assert num_steps == document["result"]["num_env_steps_sampled_lifetime"]
    assert num_steps > 0
    # The same command shows the result, one with a later stop continues.
    assert json.loads(hindcast(f"train --run {run} {TWO_ITERATIONS}", *arguments).out) == document
    longer_result = hindcast(f"train --run {run} --stop '{{training_iteration: 3}}'", *arguments)
    assert json.loads(longer_result.out)["result"]["training_iteration"] == 3
    assert open_dataset(str(tmp_path / "out")).num_steps > num_steps


def test_options_without_effect_are_noted(hindcast, resources):
    command = f"train --run BC --env CartPole-v1 {TWO_ITERATIONS} --dry-run"
    result = hindcast(command, "--config", "{input: data, log_level: WARN}")
    assert result.code == 0
    assert "log_level: logging.getLogger" in result.err
