"""Mistakes on the command line are refused in one line, with the exit code of their kind; nothing is written."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_result import Hindcast

TRAIN = "train --run {} --stop '{{training_iteration: 2}}'".format
MISTAKES: dict[str, tuple[int, str]] = {
    "rum": (2, "Did you mean 'run'?"),
    "run": (2, "FILE"),
    "run a.yaml --fast": (2, "--fast"),
    "validate nowhere.yaml": (2, "nowhere.yaml: there is no such file"),
    "inspect nowhere": (3, "nowhere does not exist"),
    "inspect DATA --schema obs": (2, "--schema 'obs' does not have the form NAME=COLUMN"),
    "logs trainin/clone": (2, "did you mean 'training'?"),
    "export RUN out -n rl": (2, "--namespace and --context apply only to training/NAME on a cluster"),
    "export a b --format onxx": (2, "invalid value for '--format': 'onxx' is not one of 'onnx', 'torch', "),
    # -- evaluate
    "evaluate a --clip 0.5": (
        2,
        "invalid value for '--clip': '0.5', expected at least 1. See hindcast evalu",
    ),
    "evaluate a --gamma x": (2, "invalid value for '--gamma': 'x', expected a number. See hindcast evaluate"),
    "evaluate a --seed 1.5": (2, "invalid value for '--seed': '1.5', expected a whole number."),
    "evaluate a --episodes many": (2, "--episodes"),
    "evaluate a --episodes 0": (2, "'0', expected at least 1"),
    "evaluate nowhere": (3, "nowhere"),
    "evaluate DATA": (3, "a random policy and contains no policy: use a checkpoint, or a run folder"),
    "evaluate RUN --env NoSuchEnvironment-v3": (2, "NoSuchEnvironment-v3"),
    "evaluate RUN --reference-returns 5 5": (2, "random return 5 must be below the expert return 5"),
    "evaluate RUN --data DATA --explore": (2, "12 of 12 episodes trained the policy, so estimates on them"),
    "evaluate RUN --data DATA --env CartPole-v1": (2, "--env and --data cannot be combined"),
    "evaluate RUN --gamma 0.9": (
        2,
        "--gamma applies to evaluation on recorded episodes only: add --data DATASET or --set-aside",
    ),
    # -- convert and data
    "convert nothing out": (3, "nothing does not exist"),
    "convert DATA DATA/out": (2, "a separate folder"),
    "convert DATA out --to Column": (2, "did you mean 'Columns'?"),
    "convert DATA out --file-size much": (2, "--file-size is 'much', expected a size"),
    "convert DATA out --file-size 0": (2, "--file-size is '0', expected a size above 0"),
    "convert DATA out --read-option delimiter": (2, "'delimiter' does not have the form NAME=VALUE"),
    "convert DATA out --filter 't <> 3'": (2, "found '<> 3' at character 3"),
    "convert DATA out --columns obs,state": (3, "has no column state, which `columns` names"),
    "convert DATA out --to CSV --compression zstd": (2, "compression"),
    "data filter DATA out --where 'speed > 3'": (2, "'speed' is not a field of an episode"),
    "data filter DATA out --where 'length > 9999'": (3, "the selection has no episodes"),
    "data sample DATA out": (2, "exactly one of episodes, timesteps and fraction"),
    "data split DATA a b --validation 2": (2, "expected a number between 0 and 1"),
    # -- train
    TRAIN("PG"): (2, "algorithm is 'PG', which is not an algorithm"),
    TRAIN("DQN"): (2, "input_ is missing"),
    "train --run DQN": (2, "--stop is missing"),
    "train --run DQN --stop '{time_total_s: 3}'": (
        2,
        "--stop: time_total_s is not a stop criterion; expected",
    ),
    TRAIN("BC --config '[1]'"): (2, "--config is '[1]', expected a mapping"),
    TRAIN("BC --config '{'"): (2, "--config is not valid YAML: "),
    TRAIN("BC --config '{lr: 1, lr: 2}'"): (2, "--config: lr is given twice"),
    TRAIN("BC --config '{imput: x}'"): (2, "did you mean 'input_'"),
    TRAIN("BC --config '{train_batch_size: 4}'"): (2, "use train_batch_size_per_learner"),
    TRAIN("DQN --config '{exploration_fraction: x}'"): (2, "expected a number"),
    TRAIN("PPO --config '{output: o}' --dry-run"): (
        2,
        "--dry-run does not apply with an output: the episodes",
    ),
    TRAIN("PPO --config '{output: o}' --keep-checkpoints-num 1"): (
        2,
        "--keep-checkpoints-num does not apply with an",
    ),
    TRAIN("BC --config '{input: d, output: o, env: CartPole-v1}'"): (
        2,
        "BC plays no episodes while it trains",
    ),
}
"""Command -> exit code, and a part of the message. RUN and DATA are the folders of the finished run and of its data."""


@pytest.mark.parametrize("command", MISTAKES)
def test_mistake_is_refused_in_one_line(
    hindcast: Hindcast, finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    folders = {"RUN": finished_run / "runs/clone/r1", "DATA": finished_run / "data"}
    words = command
    for name, folder in folders.items():
        words = words.replace(name, str(folder))
    hindcast(f"-q {words}").assert_refused(*MISTAKES[command])
    assert not list(tmp_path.rglob("*.parquet"))


@pytest.mark.parametrize("group", ["audit", "data"])
def test_group_without_a_command_prints_its_help(hindcast: Hindcast, group: str) -> None:
    result = hindcast(group)
    assert (result.code, result.err) == (2, "")
    assert f"Usage: hindcast {group} " in result.out


@pytest.mark.parametrize("path", ["demo/cartpole-dat", "demo/*.parquet"])
def test_wrong_path_of_an_input_names_file_line_and_field(
    hindcast: Hindcast, resources: Path, path: str
) -> None:
    resources.write_text(
        resources.read_text()
        .partition("---\n")[2]
        .replace("{recordingRef: {name: random-data}}", f"{{path: {path}}}")
    )
    result = hindcast("run", resources)
    line = resources.read_text().split("\n").index(f"  input: [{{path: {path}}}]") + 1
    place = f"{resources}:{line}: OfflineTraining/clone: spec.input[0].path: "
    assert (result.code, result.err.startswith(f"error: {place}")) == (3, True), result.err
