import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hindcast.api import load_resources
from hindcast.cli.commands.run import DEMO_FILE
from hindcast.cli.dataset_view import BAR_WIDTH, bar
from hindcast.datasets.opening import open_dataset
from hindcast.datasets.writer import BlockWriter
from hindcast.formats.dataset_folder.manifest import Manifest, write_manifest
from hindcast.report.events import Outcome
from hindcast.run import execute as carry_out_module
from hindcast.storage.location import resolve

RUN_FOLDER = "runs/clone/r1"
CARTPOLE_CLASS = "gymnasium.envs.classic_control:CartPoleEnv"


@pytest.mark.parametrize(
    ("arguments", "keys"),
    [
        (["version"], {"hindcast", "python", "torch"}),
        (["validate", "resources.yaml"], {"resources"}),
        (["plan", "resources.yaml"], {"plans"}),
        (["inspect", "data"], {"dataset", "episodes", "returns", "problems"}),
        (["evaluate", RUN_FOLDER, "--episodes", "2"], {"checkpoint", "environment", "episode_return_mean"}),
    ],
)
@pytest.mark.parametrize("place", ["before", "after"])
def test_json_is_one_document_wherever_the_flag_stands(hindcast, done, arguments, keys, place):
    called = hindcast("--json", *arguments) if place == "before" else hindcast(*arguments, "--json")
    assert called.code == 0, called.err
    assert called.out.count("\n") == 1
    assert keys <= json.loads(called.out).keys()


def test_run_of_finished_work_says_so_as_json_lines(hindcast, done):
    called = hindcast("run", "resources.yaml", "--json")
    assert called.code == 0, called.err
    lines = [json.loads(line) for line in called.out.splitlines()]
    assert [line["state"] for line in lines] == ["AlreadyFinished", "AlreadyFinished"]
    assert [Path(line["report"]) for line in lines] == [
        Path("data/_hindcast/report.html"),
        Path(RUN_FOLDER, "report.html"),
    ]
    assert all(Path(line["report"]).is_file() for line in lines)


def test_run_says_for_people_what_came_out_and_where_the_report_is(hindcast, done):
    called = hindcast("run", "resources.yaml")
    assert called.code == 0
    assert "OfflineTraining/clone has already finished" in called.out
    assert f"report: {RUN_FOLDER}/report.html" in called.out


def test_validate_names_each_resource_with_its_line(hindcast, resources):
    called = hindcast("validate", resources)
    assert called.code == 0
    assert called.out.splitlines() == [
        f"{resources}:2: OfflineRecording/random-data is valid",
        f"{resources}:11: OfflineTraining/clone is valid",
    ]


@pytest.mark.parametrize(
    "mistake",
    [
        ("algorithm: BC", "algoritm: BC", "spec.algoritm is not a field; did you mean 'algorithm'?"),
        ("lr: 1.0e-3", "lr: fast", "lr"),
        ("{random: {}}", "{random: {}, checkpoint: {path: x}}", "exactly one of"),
        ("recordingRef: {name: random-data}", "sampler: {}", "spec.input[0].sampler does not apply to BC"),
        ("kind: OfflineTraining", "kind: OfflineTrainin", "did you mean 'OfflineTraining'"),
        ("metadata: {name: clone}", "metadata: {name: clone", "resources.yaml:"),
    ],
)
@pytest.mark.parametrize("command", ["validate", "run", "plan", "render"])
def test_a_wrong_resource_is_refused_by_file_line_and_field(hindcast, resources, command, mistake):
    right, wrong, found = mistake
    resources.write_text(resources.read_text().replace(right, wrong))
    called = hindcast(command, resources)
    assert called.code == 2
    assert called.out == ""
    assert found in called.err
    assert all(re.match(rf"error: {resources}:\d+: ", line) for line in called.err.splitlines())
    assert "Traceback" not in called.err


def test_every_problem_has_a_line(hindcast, resources):
    text = resources.read_text().replace("algorithm: BC", "algoritm: BC")
    text = text.replace("episodes: 12", "episodes: 0")
    resources.write_text(text)
    called = hindcast("validate", resources)
    first, second = called.err.splitlines()
    assert "spec.duration.episodes is 0" in first
    assert "spec.algoritm is not a field" in second


def test_a_file_that_is_not_there_is_named(hindcast, resources):
    called = hindcast("validate", "nowhere.yaml")
    assert called.code == 2
    assert "nowhere.yaml" in called.err


def test_plan_shows_the_feed_and_sizes(hindcast, done):
    called = hindcast("plan", "resources.yaml")
    assert called.code == 0, called.err
    for text in ("OfflineTraining/clone", "feed: Resident", "batch size: 64", "episodes: 12"):
        assert text in called.out


def test_plan_of_a_recording_that_is_not_made_yet_says_so(hindcast, resources):
    called = hindcast("plan", resources)
    assert called.code == 2
    assert "OfflineRecording/random-data has recorded nothing in" in called.err
    assert "hindcast run" in called.err


def test_plan_without_a_training_is_refused(hindcast, resources):
    resources.write_text(resources.read_text().split("---")[0])
    called = hindcast("plan", resources)
    assert called.code == 2
    assert "contains no OfflineTraining" in called.err


def test_inspect_shows_counts_spaces_and_distributions(hindcast, done):
    called = hindcast("inspect", "data")
    assert called.code == 0, called.err
    steps = open_dataset("data").num_steps
    for text in ("12", f"{steps:,}", "CartPole-v1", "Box(4)", "Discrete(2)", "Returns: mean", "█"):
        assert text in called.out


def test_inspect_agrees_with_the_dataset(hindcast, done):
    found = json.loads(hindcast("inspect", "data", "--json").out)
    dataset = open_dataset("data")
    assert (found["episodes"], found["timesteps"]) == (12, dataset.num_steps)
    assert sum(found["returns"]["counts"]) == 12


@pytest.mark.parametrize(("flags", "code"), [([], 0), (["--strict"], 3)])
def test_strict_inspection_fails_on_errors_in_the_data(hindcast, done, tmp_path, flags, code):
    dataset = open_dataset("data")
    block = dataset.read(dataset.units[0])
    obs = block.columns["obs"].copy()
    obs[5, 1] = np.nan
    writer = BlockWriter(resolve(tmp_path / "nan"), dataset.spec, "part")
    writer.write(replace(block, columns={**block.columns, "obs": obs}))
    write_manifest(resolve(tmp_path / "nan"), Manifest(spec=dataset.spec.to_json(), files=writer.close()))
    called = hindcast("inspect", tmp_path / "nan", *flags)
    assert called.code == code
    assert "error: " in called.out
    assert ("error: " in called.err) == bool(code)


def test_inspecting_nothing_is_a_data_error(hindcast, tmp_path):
    called = hindcast("inspect", tmp_path / "nowhere")
    assert called.code == 3
    assert "nowhere" in called.err


def test_evaluate_is_reproducible_and_seeded(hindcast, done):
    arguments = ["evaluate", RUN_FOLDER, "--episodes", "4", "--explore", "--json"]
    first, again, other = (
        json.loads(hindcast(*arguments, "--seed", seed).out)["returns"] for seed in (1, 1, 2)
    )
    assert len(first) == 4
    assert first == again != other


@pytest.mark.parametrize("below", ["", "checkpoints"])
def test_evaluate_finds_the_checkpoint_of_a_run(hindcast, done, below):
    called = hindcast("evaluate", Path(RUN_FOLDER, below), "--episodes", "1")
    assert called.code == 0, called.err
    assert called.out.startswith("CartPole-v1, 1 episode: return ")
    assert f"checkpoint: {RUN_FOLDER}/checkpoints/checkpoint-" in called.out


def test_evaluate_takes_a_module_and_another_environment(hindcast, done):
    module = next(Path(RUN_FOLDER, "checkpoints").glob("checkpoint-*/module"))
    called = hindcast("evaluate", module, "--env", CARTPOLE_CLASS, "--episodes", "1", "--json")
    assert called.code == 0, called.err
    assert json.loads(called.out)["environment"] == CARTPOLE_CLASS


def test_a_return_is_normalised_by_those_of_a_random_policy_and_an_expert(hindcast, done) -> None:
    called = hindcast("evaluate", RUN_FOLDER, "--episodes", "3", "--reference-returns", "0", "50", "--json")
    found = json.loads(called.out)
    assert found["normalised_score"] == pytest.approx(2 * found["episode_return_mean"])
    low, high = found["episode_return_interval"]
    assert low <= found["episode_return_mean"] <= high
    called = hindcast("evaluate", RUN_FOLDER, "--reference-returns", "5", "5")
    assert called.err == "error: --reference-returns: random is 5, which must be below expert, 5.\n"


def test_evaluate_judges_by_recorded_episodes(hindcast, done):
    arguments = ["evaluate", RUN_FOLDER, "--data", "data", "--explore", "--model-updates", "20"]
    judged = json.loads(hindcast(*arguments, "--json").out)
    assert judged["gamma"] == 0.99
    assert judged["estimates"].keys() == {"is", "wis", "pdis", "pdwis", "dm", "dr", "wdr"}
    shown = hindcast(*arguments)
    assert shown.code == 0, shown.err
    assert judged["verdict"]["sentence"] in shown.out
    assert json.loads(hindcast(*arguments, "--episodes", "5", "--json").out)["episodes"] == 5


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["--gamma", "0.9"], "--gamma applies to evaluation on recorded episodes only: add --data DATASET"),
        (["--data", "data", "--env", "CartPole-v1"], "--env and --data exclude each other"),
    ],
)
def test_evaluate_plays_or_judges(hindcast, done, arguments, found):
    called = hindcast("evaluate", RUN_FOLDER, *arguments)
    assert called.code == 2
    assert found in called.err


@pytest.mark.parametrize(
    ("arguments", "code", "found"),
    [
        (["nowhere"], 3, "nowhere"),
        (
            ["data"],
            3,
            "data was recorded by a random policy and contains no policy: give a checkpoint, or a run folder",
        ),
        ([RUN_FOLDER, "--env", "NoSuchEnvironment-v3"], 2, "NoSuchEnvironment-v3"),
    ],
)
def test_evaluate_refuses_what_it_cannot_play(hindcast, done, arguments, code, found):
    called = hindcast("evaluate", *arguments)
    assert called.code == code
    assert called.err.startswith("error: ")
    assert called.err.count("\n") == 1
    assert found in called.err


def test_evaluate_asks_for_an_environment_where_none_is_known(hindcast, done, tmp_path):
    checkpoint = next(Path(RUN_FOLDER, "checkpoints").glob("checkpoint-*"))
    alone = tmp_path / "alone"
    (alone / "module").mkdir(parents=True)
    for file in (checkpoint / "module").iterdir():
        (alone / "module" / file.name).write_bytes(file.read_bytes())
    called = hindcast("evaluate", alone / "module")
    assert called.code == 2
    assert "--env" in called.err


@pytest.fixture
def carried(monkeypatch):
    """Catches what `demo` and `run` would carry out."""
    caught = []

    def carry_out(loaded, reporter):
        caught.extend(loaded)
        outcomes = [Outcome("OfflineTraining/x", "Succeeded", "return 475", "runs", "runs/report.html")]
        reporter.finished(outcomes[0])
        return outcomes

    monkeypatch.setattr(carry_out_module, "execute", carry_out)
    return caught


def test_demo_writes_its_file_and_carries_it_out(hindcast, carried, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    called = hindcast("demo", "--folder", "deep/demo")
    assert called.code == 0, called.err
    assert called.out == "OfflineTraining/x: return 475\nreport: runs/report.html\n"
    recording, training = (loaded.resource for loaded in carried)
    assert recording.spec.output.path == "deep/demo/cartpole-data"
    assert training.spec.checkpoint.path == "deep/demo/runs"
    assert recording.spec.policy.train.stop.episode_return_mean == 450
    assert training.spec.stop.episode_return_mean == 450
    assert [item.resource for item in load_resources("deep/demo/cartpole.yaml")] == [recording, training]


def test_demo_uses_the_file_that_is_there(hindcast, carried, resources):
    (resources.parent / "demo").mkdir()
    (resources.parent / "demo" / "cartpole.yaml").write_text(resources.read_text())
    assert hindcast("demo").code == 0
    assert [item.resource.metadata.name for item in carried] == ["random-data", "clone"]


def test_demo_says_when_it_cannot_write(hindcast, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("demo").write_text("a file")
    called = hindcast("demo")
    assert called.code == 5
    assert called.err.splitlines()[-1].startswith("error: cannot write demo/cartpole.yaml: ")


def test_the_demos_training_is_under_25_lines():
    training = DEMO_FILE.read_text().split("---")[1]
    assert len(training.strip().splitlines()) < 25


def test_bars_grow_with_their_share():
    assert bar(0) == ""
    assert bar(1) == "█" * BAR_WIDTH
    assert len(bar(0.5)) == BAR_WIDTH // 2
    assert bar(1e-6) == "▏"
