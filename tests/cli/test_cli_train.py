"""`hindcast train`: RLlib's command line creates the same resource as YAML."""

import json

import pytest

from hindcast.api import load_resources
from hindcast.datasets.opening import open_dataset

CONFIG = (
    '{"input": "data", "lr": 0.01, "train_batch_size_per_learner": 32, "dataset_num_iters_per_learner": 2}'
)
TWO_ITERATIONS = '{"training_iteration": 2}'
OUTPUT = ("--run", "PPO", "--env", "CartPole-v1", "--config", '{"output": "o"}', "--stop", TWO_ITERATIONS)


def spec_of_dry_run(hindcast, *arguments):
    """Return the spec of the resource that `hindcast train ARGUMENTS --dry-run` prints."""
    result = hindcast("train", *arguments, "--dry-run", "--json")
    assert result.code == 0, result.err
    return json.loads(result.out)["spec"]


def test_train_writes_and_runs_yaml(hindcast, finished_folder, tmp_path):
    arguments = [
        "--run",
        "BC",
        "--env",
        "CartPole-v1",
        "--config",
        CONFIG,
        "--stop",
        TWO_ITERATIONS,
        "--local-dir",
        tmp_path,
    ]
    result = hindcast("train", *arguments, "--checkpoint-freq", "1", "--keep-checkpoints-num", "2")
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
    second_result = hindcast("train", *arguments, "--checkpoint-freq", "1", "--keep-checkpoints-num", "2")
    assert "has already finished" in second_result.out


def test_input_weights_and_exploration_options_of_rllib_2019_are_translated(hindcast, resources):
    config = """{
        "input": {"/tmp/cartpole-out": 0.4, "hdfs://host/archive/cartpole": 0.3, "sampler": 0.3,},
        "exploration_final_eps": 0,
        "exploration_fraction": 0}"""
    arguments = [
        "--run=DQN",
        "--env=CartPole-v1",
        "--stop",
        '{"timesteps_total": 1000}',
        f"--config={config}",
    ]
    spec = spec_of_dry_run(hindcast, *arguments)
    assert [source["weight"] for source in spec["input"]] == [0.4, 0.3, 0.3]
    assert (spec["config"], spec["stop"]) == ({"epsilon": 0}, {"timesteps": 1000})
    decay_arguments = [
        *arguments[:4],
        "--config",
        '{"exploration_final_eps": 0.1, "schedule_max_timesteps": 500}',
    ]
    assert spec_of_dry_run(hindcast, *decay_arguments, "--stop", TWO_ITERATIONS)["config"] == {
        "epsilon": [[0, 1.0], [50, 0.1]]
    }


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
    arguments = [
        "train",
        "--run",
        run,
        "--config",
        json.dumps(config),
        "--local-dir",
        tmp_path / "runs",
        "--json",
    ]
    result = hindcast(*arguments, "--stop", TWO_ITERATIONS)
    assert result.code == 0, result.err
    document = json.loads(result.out)
    assert document["result"]["training_iteration"] == 2
    num_steps = open_dataset(str(tmp_path / "out")).num_steps
    if run == "PPO":
        assert num_steps == document["result"]["num_env_steps_sampled_lifetime"]
    assert num_steps > 0
    # The same command shows the result, one with a later stop continues.
    assert json.loads(hindcast(*arguments, "--stop", TWO_ITERATIONS).out) == document
    longer = json.loads(hindcast(*arguments, "--stop", '{"training_iteration": 3}').out)
    assert longer["result"]["training_iteration"] == 3
    assert open_dataset(str(tmp_path / "out")).num_steps > num_steps


def test_options_without_effect_are_noted(hindcast, resources):
    arguments = ["--run", "BC", "--env", "CartPole-v1", "--stop", TWO_ITERATIONS, "--dry-run"]
    result = hindcast("train", *arguments, "--config", '{"input": "data", "log_level": "WARN"}')
    assert result.code == 0
    assert "log_level: logging.getLogger" in result.err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--run", "PG", "--stop", TWO_ITERATIONS], "algorithm is 'PG', which is not an algorithm"),
        (["--run", "DQN"], "--stop is missing"),
        (
            ["--run", "DQN", "--stop", '{"time_total_s": 3}'],
            "--stop: time_total_s is not a stop criterion; expected one of ",
        ),
        (["--run", "DQN", "--stop", TWO_ITERATIONS], "input_ is missing"),
        (
            ["--run", "BC", "--config", "[1]", "--stop", TWO_ITERATIONS],
            "--config is '[1]', expected a mapping",
        ),
        (["--run", "BC", "--config", "{", "--stop", TWO_ITERATIONS], "--config is not valid YAML: "),
        (
            ["--run", "BC", "--config", '{"lr": 1, "lr": 2}', "--stop", TWO_ITERATIONS],
            "--config: lr is given twice",
        ),
        (["--run", "BC", "--config", '{"imput": "x"}', "--stop", TWO_ITERATIONS], "did you mean 'input_'"),
        (
            ["--run", "BC", "--config", '{"train_batch_size": 4}', "--stop", TWO_ITERATIONS],
            "use train_batch_size_per_learner",
        ),
        (
            ["--run", "DQN", "--config", '{"exploration_fraction": "x"}', "--stop", TWO_ITERATIONS],
            "expected a number",
        ),
        (
            [*OUTPUT, "--dry-run"],
            "--dry-run does not apply with an output: the episodes of the training are recorded",
        ),
        ([*OUTPUT, "--keep-checkpoints-num", "1"], "--keep-checkpoints-num does not apply with an output"),
        (
            [
                "--run",
                "BC",
                "--env",
                "CartPole-v1",
                "--stop",
                TWO_ITERATIONS,
                "--config",
                '{"input": "d", "output": "o"}',
            ],
            "output: BC plays no episodes while it trains",
        ),
    ],
)
def test_invalid_options_are_refused_in_one_sentence(hindcast, resources, arguments, sentence):
    result = hindcast("train", *arguments)
    assert result.code == 2
    assert sentence in result.err
    assert result.err.count("\n") == 1
