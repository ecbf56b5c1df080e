"""Commands on one machine: their output and their JSON; test_cli_mistakes.py has their refusals."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from hindcast.api import load_resources
from hindcast.cli.commands.run import DEMO_FILE
from hindcast.cli.dataset_view import BAR_WIDTH, draw_bar
from hindcast.cli.main import app
from hindcast.datasets.opening import open_dataset
from hindcast.report.events import Outcome
from hindcast.run import execute as execute_module
from hindcast.version import __version__

RUN_FOLDER = "runs/clone/r1"
CARTPOLE_CLASS = "gymnasium.envs.classic_control:CartPoleEnv"


@pytest.mark.parametrize(
    ("command", "keys"),
    [
        ("--json version", {"hindcast", "python", "torch"}),
        ("version --json", {"hindcast", "python", "torch"}),
        ("validate resources.yaml --json", {"resources"}),
        ("plan resources.yaml --json", {"plans"}),
        ("inspect data --json", {"dataset", "episodes", "returns", "problems"}),
        (f"evaluate {RUN_FOLDER} --episodes 2 --json", {"checkpoint", "environment", "episode_return_mean"}),
    ],
)
def test_json_flag_prints_one_document(hindcast, finished_folder, command, keys):
    result = hindcast(command)
    assert result.code == 0, result.err
    assert result.out.count("\n") == 1
    assert keys <= json.loads(result.out).keys()


def test_run_when_finished_prints_json_line_per_resource(hindcast, finished_folder):
    result = hindcast("run", "resources.yaml", "--json")
    assert result.code == 0, result.err
    lines = [json.loads(line) for line in result.out.splitlines()]
    assert [line["state"] for line in lines] == ["AlreadyFinished", "AlreadyFinished"]
    assert [Path(line["report"]) for line in lines] == [
        Path("data/_hindcast/report.html"),
        Path(RUN_FOLDER, "report.html"),
    ]
    assert all(Path(line["report"]).is_file() for line in lines)


def test_run_prints_result_and_report_path(hindcast, finished_folder):
    result = hindcast("run", "resources.yaml")
    assert result.code == 0
    assert "OfflineTraining/clone has already finished" in result.out
    assert f"report: {RUN_FOLDER}/report.html" in result.out


def test_validate_prints_each_resource_with_its_line(hindcast, resources):
    result = hindcast("validate", resources)
    assert result.code == 0
    assert result.out.splitlines() == [
        f"{resources}:2: OfflineRecording/random-data is valid",
        f"{resources}:11: OfflineTraining/clone is valid",
    ]


@pytest.mark.parametrize("command", ["validate", "run", "plan", "render"])
def test_each_problem_is_printed_with_its_line_and_field(hindcast, resources, command):
    text = resources.read_text().replace("algorithm: BC", "algoritm: BC")
    resources.write_text(text.replace("episodes: 12", "episodes: 0"))
    result = hindcast(command, resources)
    assert (result.code, result.out) == (2, "")
    first, second = result.err.splitlines()
    assert first.startswith(f"error: {resources}:8: spec.duration.episodes is 0")
    assert second.startswith(
        f"error: {resources}:15: spec.algoritm is not a field; did you mean 'algorithm'?"
    )


def test_plan_shows_feed_and_sizes(hindcast, finished_folder):
    result = hindcast("plan", "resources.yaml")
    assert result.code == 0, result.err
    for text in ("OfflineTraining/clone", "feed: Resident", "batch size: 64", "episodes: 12"):
        assert text in result.out


def test_plan_without_recorded_data_is_refused(hindcast, resources):
    result = hindcast("plan", resources)
    result.assert_refused(2, "OfflineRecording/random-data has recorded nothing in")
    assert "hindcast run" in result.err


def test_plan_without_training_is_refused(hindcast, resources):
    resources.write_text(resources.read_text().split("---")[0])
    hindcast("plan", resources).assert_refused(2, "contains no OfflineTraining")


def test_inspect_shows_counts_spaces_and_distributions(hindcast, finished_folder):
    result = hindcast("inspect data")
    assert result.code == 0, result.err
    steps = open_dataset("data").num_steps
    for text in ("12", f"{steps:,}", "CartPole-v1", "Box(4)", "Discrete(2)", "Returns: mean", "█"):
        assert text in result.out

    summary = json.loads(hindcast("inspect data --json").out)
    assert (summary["episodes"], summary["timesteps"]) == (12, steps)
    assert sum(summary["returns"]["counts"]) == 12


def test_evaluate_is_reproducible_and_seeded(hindcast, finished_folder):
    command = f"evaluate {RUN_FOLDER} --episodes 4 --explore --json --seed"
    returns, repeated_returns, other_returns = (
        json.loads(hindcast(command, seed).out)["returns"] for seed in (1, 1, 2)
    )
    assert len(returns) == 4
    assert returns == repeated_returns != other_returns


@pytest.mark.parametrize("subfolder", ["", "checkpoints"])
def test_evaluate_of_run_folder_uses_best_checkpoint(hindcast, finished_folder, subfolder):
    result = hindcast("evaluate", Path(RUN_FOLDER, subfolder), "--episodes", "1")
    assert result.code == 0, result.err
    assert result.out.startswith("CartPole-v1, 1 episode, greedy actions: return ")
    assert f"checkpoint: {RUN_FOLDER}/checkpoints/checkpoint-" in result.out


def test_evaluate_accepts_module_folder_and_environment(hindcast, finished_folder):
    module = next(Path(RUN_FOLDER, "checkpoints").glob("checkpoint-*/module"))
    result = hindcast("evaluate", module, "--env", CARTPOLE_CLASS, "--episodes", "1", "--json")
    assert result.code == 0, result.err
    assert json.loads(result.out)["environment"] == CARTPOLE_CLASS


def test_evaluate_with_reference_returns_adds_score(hindcast, finished_folder):
    result = hindcast(f"evaluate {RUN_FOLDER} --episodes 3 --reference-returns 0 50 --json")
    summary = json.loads(result.out)
    assert summary["normalised_score"] == pytest.approx(2 * summary["episode_return_mean"])
    low, high = summary["episode_return_interval"]
    assert low <= summary["episode_return_mean"] <= high


def test_evaluate_with_data_estimates_from_recorded_episodes(hindcast, finished_folder, tmp_path):
    checkpoint = shutil.copytree(Path(RUN_FOLDER, "module"), tmp_path / "module")
    command = f"evaluate {checkpoint} --data data --explore --model-updates 20"
    report = json.loads(hindcast(command, "--json").out)
    assert report["gamma"] == 0.99
    assert report["estimates"].keys() == {"is", "wis", "pdis", "pdwis", "dm", "dr", "wdr"}
    result = hindcast(command)
    assert result.code == 0, result.err
    assert report["verdict"]["sentence"] in " ".join(result.out.split())
    assert "it is not known which episodes trained this policy" in result.out
    command = f"evaluate {checkpoint} --data data --explore --model-updates 0 --episodes 5 --json"
    assert json.loads(hindcast(command).out)["episodes"] == 5


def test_evaluate_without_known_environment_requires_env(hindcast, finished_folder, tmp_path):
    checkpoint = next(Path(RUN_FOLDER, "checkpoints").glob("checkpoint-*"))
    hindcast("evaluate", shutil.copytree(checkpoint / "module", tmp_path / "module")).assert_refused(
        2, "--env"
    )


@pytest.fixture
def entries_to_run(monkeypatch):
    """Collect the resources that `demo` and `run` would execute."""
    entries = []

    def collect_entries(new_entries, reporter):
        entries.extend(new_entries)
        outcomes = [Outcome("OfflineTraining/x", "Succeeded", "return 475", "runs", "runs/report.html")]
        reporter.finished(outcomes[0])
        return outcomes

    monkeypatch.setattr(execute_module, "execute", collect_entries)
    return entries


def test_demo_writes_and_runs_its_file(hindcast, entries_to_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = hindcast("demo", "--folder", "deep/demo")
    assert result.code == 0, result.err
    assert result.out == "OfflineTraining/x: return 475\nreport: runs/report.html\n"
    recording, training = (entry.resource for entry in entries_to_run)
    assert recording.spec.output.path == "deep/demo/cartpole-data"
    assert training.spec.checkpoint.path == "deep/demo/runs"
    assert recording.spec.policy.train.stop.episode_return_mean == 450
    assert training.spec.stop.episode_return_mean == 450
    assert [item.resource for item in load_resources("deep/demo/cartpole.yaml")] == [recording, training]


def test_demo_keeps_existing_file(hindcast, entries_to_run, resources):
    (resources.parent / "demo").mkdir()
    (resources.parent / "demo" / "cartpole.yaml").write_text(resources.read_text())
    assert hindcast("demo").code == 0
    assert [entry.resource.metadata.name for entry in entries_to_run] == ["random-data", "clone"]


def test_demo_in_unwritable_folder_is_storage_error(hindcast, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("demo").write_text("a file")
    result = hindcast("demo")
    assert result.code == 5
    assert result.err.splitlines()[-1].startswith("error: demo/cartpole.yaml cannot be written: ")


def test_demo_training_has_fewer_than_25_lines():
    training = DEMO_FILE.read_text().split("---")[1]
    assert len(training.strip().splitlines()) < 25


def test_bar_length_grows_with_share():
    assert draw_bar(0) == ""
    assert draw_bar(1) == "█" * BAR_WIDTH
    assert len(draw_bar(0.5)) == BAR_WIDTH // 2
    assert draw_bar(1e-6) == "▏"


@pytest.mark.slow
def test_help_on_80_columns_shows_whole_option_names(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    commands = [((), typer.main.get_command(app))]
    for path, command in commands:
        commands += [((*path, name), child) for name, child in getattr(command, "commands", {}).items()]
        text = CliRunner().invoke(app, [*path, "--help"]).output
        names = [
            name
            for option in command.params
            for name in (*option.opts, *option.secondary_opts)
            if "--" in name
        ]
        assert [name for name in names if name not in text] == [], path
        assert max(map(len, text.splitlines())) <= 80


def test_version_option_prints_version(hindcast):
    assert hindcast("--version").out == f"hindcast {__version__}\n"


def test_shell_completion_offers_commands(hindcast, monkeypatch):
    monkeypatch.setenv("_HINDCAST_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "hindcast va")
    monkeypatch.setenv("COMP_CWORD", "1")
    assert hindcast().out.split() == ["validate"]


@pytest.mark.slow
def test_module_beside_yaml_file_is_imported_in_all_processes(hindcast, resources, tmp_path, monkeypatch):
    (tmp_path / "own").mkdir()
    (tmp_path / "own/beside_yaml.py").write_text(
        "import gymnasium as gym\n\ndef Cart():\n    return gym.make('CartPole-v1')\n"
    )
    text = (
        resources.read_text()
        .replace("CartPole-v1", "beside_yaml:Cart")
        .replace("duration: 2", "duration: 2, runners: 2")
    )
    (tmp_path / "own/run.yaml").write_text(text)
    result = hindcast("run", "own/run.yaml")
    assert result.code == 0, result.err
    assert sys.path[-1] == str(tmp_path / "own"), "installed modules take precedence"
