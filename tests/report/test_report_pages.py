"""Reports of trainings and recordings: content, plots, self-contained HTML."""

import base64
import io
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
from matplotlib.image import imread

from hindcast.api import load_resources
from hindcast.datasets.inspection.summarising import summarise
from hindcast.datasets.opening import open_dataset
from hindcast.datasets.prepare.reading import Reading
from hindcast.datasets.writer import BlockWriter
from hindcast.episodes.block import Block
from hindcast.formats.dataset_folder.manifest import Manifest, write_manifest
from hindcast.formats.spec import DataSpec
from hindcast.report.canvas import DARK, LIGHT, render
from hindcast.report.curves import Curves
from hindcast.report.data_plots import data_pictures
from hindcast.report.events import Outcome
from hindcast.report.plots import RecordedReturns, loss_picture, return_picture, time_picture
from hindcast.report.text import training_commands
from hindcast.report.writing import write_recording_report, write_training_report
from hindcast.storage.location import resolve
from layers import slow_except

RESOURCES = """
apiVersion: hindcast.dev/v1alpha1
kind: OfflineRecording
metadata: {name: expert}
spec:
  environment: {id: CartPole-v1}
  policy: {train: {stop: {episodeReturnMean: 450}}}
  duration: {episodes: 40}
  output: {path: data}
---
apiVersion: hindcast.dev/v1alpha1
kind: OfflineTraining
metadata: {name: clone}
spec:
  algorithm: BC
  config: {lr: 8e-4, trainBatchSizePerLearner: 256}
  environment: {id: CartPole-v1}
  input: [{recordingRef: {name: expert}}]
  evaluation: {interval: 1, duration: 5}
  stop: {episodeReturnMean: 450}
"""
CHECKPOINT = "runs/clone/r1/checkpoints/checkpoint-000000120"


@pytest.fixture
def resources(tmp_path, monkeypatch):
    """Return the recording and the training of RESOURCES; the current folder is otherwise empty."""
    monkeypatch.chdir(tmp_path)
    Path("resources.yaml").write_text(RESOURCES)
    return [entry.resource for entry in load_resources("resources.yaml")]


@pytest.fixture
def recording(resources):
    return resources[0]


@pytest.fixture
def training(resources):
    return resources[1]


def write_dataset(folder="data", action_space=None, num_episodes=40):
    """Write a dataset of random timesteps."""
    action_space = action_space or gym.spaces.Discrete(2, seed=0)
    action_space.seed(0)
    rng = np.random.default_rng(0)
    length = rng.integers(20, 200, num_episodes)
    num_steps = int(length.sum())
    block = Block(
        columns={
            "obs": rng.normal(size=(num_steps + num_episodes, 4)).astype(np.float32),
            "actions": np.stack([action_space.sample() for _ in range(num_steps)]),
            "rewards": np.ones(num_steps, np.float32),
        },
        length=length,
        eps_id=np.array([f"e{i}" for i in range(num_episodes)], object),
        t_started=np.zeros(num_episodes, np.int64),
        terminated=np.ones(num_episodes, bool),
        truncated=np.zeros(num_episodes, bool),
    )
    space = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)
    spec = DataSpec.from_block(block, space, action_space, "CartPole-v1")
    writer = BlockWriter(resolve(folder), spec, "part")
    writer.write(block)
    write_manifest(resolve(folder), Manifest(spec=spec.to_json(), files=writer.close()))


def write_results(path, returns=(100.0, 300.0, 460.0)):
    """Write `results.jsonl` with an iteration for each mean return; return its lines."""
    lines = [
        {
            "training_iteration": i,
            "num_updates_lifetime": 40 * i,
            "num_env_steps_trained_lifetime": 10_240 * i,
            "num_env_steps_sampled_lifetime": 10_240 * i,
            "epoch": float(i),
            "time_total_s": 1.5 * i,
            "timesteps_per_s": 9_000.0 + i,
            "learners": {"default_policy": {"total_loss": math.exp(-i), "gradient_norm": 1.0 / i}},
            "timers": {"data_wait_s": 0.1, "update_s": 1.2, "evaluation_wait_s": 0.1},
            "env_runners": {"episode_return_mean": 0.9 * mean, "num_episodes": 20},
            "evaluation": {
                "training_iteration": i,
                "env_runners": {
                    "episode_return_mean": mean,
                    "episode_return_min": mean - 40,
                    "episode_return_max": mean + 40,
                    "num_episodes": 5,
                },
            },
        }
        for i, mean in enumerate(returns, 1)
    ]
    Path(path).mkdir(parents=True, exist_ok=True)
    (Path(path) / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return lines


def training_outcome(state="Succeeded", message="return 460.0 after 120 updates"):
    metrics = {"checkpoint": CHECKPOINT, "best": {"path": CHECKPOINT, "score": 460.0}}
    metrics["networks"] = {"policy": "4-64-64-2, relu"}
    return Outcome("OfflineTraining/clone", state, message, "runs/clone/r1", metrics=metrics)


def recording_outcome(state="Succeeded"):
    return Outcome("OfflineRecording/expert", state, "40 episodes are in data", "data")


class PageParser(HTMLParser):
    """Checks that tags are closed in order; collects images, links, code and other text."""

    VOID = frozenset({"meta", "img", "source", "br", "link", "input"})

    def __init__(self, html):
        super().__init__()
        self.open_tags, self.images, self.links, self.code, self.text = [], [], [], [], []
        self.feed(html)
        self.close()
        assert self.open_tags == []

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.images += [values] if tag in {"img", "source"} else []
        self.links += [values[name] for name in ("src", "srcset", "href") if name in values]
        if tag not in self.VOID:
            self.open_tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open_tags.pop() == tag

    def handle_data(self, data):
        (self.code if self.open_tags[-1:] == ["code"] else self.text).append(data)


def read_page(path):
    return PageParser(Path(path).read_text(encoding="utf-8"))


def checked_pixels(png):
    """Return the pixels `[height, width, channel]` of a plot, which must not be blank or nearly blank."""
    pixels = imread(io.BytesIO(png))
    assert pixels.shape[1] == 1200
    assert 300 < pixels.shape[0] < 2500
    assert pixels[..., :3].std() > 0.03
    assert len(np.unique((pixels[..., :3] * 255).astype(np.int64) @ [1 << 16, 1 << 8, 1])) > 50
    return pixels


def decode_image(uri):
    media_type, data = uri.split(",")
    assert media_type == "data:image/png;base64"
    return base64.b64decode(data)


@pytest.fixture(scope="module")
def training_page(tmp_path_factory):
    """Write a training's report into a new folder; return `resource`, `folder`, `path` and `page` (parsed)."""
    folder = tmp_path_factory.mktemp("report")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Path("resources.yaml").write_text(RESOURCES)
        training = load_resources("resources.yaml")[1].resource
        write_dataset()
        write_results("data/_hindcast/policy")
        write_results("runs/clone/r1")
        path = write_training_report(training, training_outcome(), {"data": None}, [Reading(("data",))])
        return SimpleNamespace(resource=training, folder=folder, path=path, page=read_page(path))


def test_training_report_shows_curves_and_data(training_page):
    assert training_page.path == "runs/clone/r1/report.html"
    assert "4-64-64-2, relu" in training_page.page.text
    plots = {
        path.stem: path.read_bytes() for path in (training_page.folder / "runs/clone/r1/plots").iterdir()
    }
    assert set(plots) == {
        "return", "loss", "time", "data-returns", "data-lengths", "data-actions", "data-expert-return",
    }  # fmt: skip
    light = [decode_image(image["src"]) for image in training_page.page.images if "src" in image]
    dark = [decode_image(image["srcset"]) for image in training_page.page.images if "srcset" in image]
    assert sorted(light) == sorted(plots.values())
    assert len(dark) == len(light)
    for light_png, dark_png in zip(light, dark, strict=True):
        assert checked_pixels(light_png)[..., :3].mean() > 0.5 > checked_pixels(dark_png)[..., :3].mean()


def test_report_is_self_contained(training_page):
    assert training_page.page.links
    assert all(link.startswith("data:image/png;base64,") for link in training_page.page.links)


def test_training_report_names_outcome_checkpoint_and_commands(training_page):
    text, code = " ".join(training_page.page.text), training_page.page.code
    assert "return 460.0 after 120 updates" in text
    assert CHECKPOINT in text
    assert f"hindcast evaluate {CHECKPOINT} --episodes 100" in code
    assert "hindcast inspect data" in code
    assert "Box(4)" in text
    assert "Discrete(2)" in text


def test_commands_for_a_repeated_path_read_it_once_for_each_way_of_reading(training):
    """Regression: the second input was called `data (input 2)`, which is no path."""
    readings = [Reading(("data",)), Reading(("data",), "Csv"), Reading(("data",))]
    commands = training_commands(resolve("runs/clone/r1"), training, CHECKPOINT, readings)
    data_commands = [command.text for command in commands if command.text.startswith("hindcast inspect")]
    assert data_commands == ["hindcast inspect data", "hindcast inspect data --format Csv"]


def test_report_contains_the_resource(training_page):
    yaml_file = training_page.folder / "resource.yaml"
    yaml_file.write_text(next(code for code in training_page.page.code if "apiVersion" in code))
    assert load_resources(yaml_file)[0].resource == training_page.resource


@pytest.mark.usefixtures("cached_pictures")
def test_recording_report_shows_data_and_expert(recording):
    write_dataset()
    write_results("data/_hindcast/policy")
    report = write_recording_report(recording, recording_outcome())
    assert report == "data/_hindcast/report.html"
    plots = {path.stem for path in Path("data/_hindcast/plots").iterdir()}
    assert plots == {"returns", "lengths", "actions", "expert-return", "expert-loss", "expert-time"}
    alts = [image["alt"] for image in read_page(report).images if "alt" in image]
    assert any(alt.startswith("The PPO expert passes a return of 450 at 30.7k timesteps") for alt in alts)


@pytest.mark.usefixtures("cached_pictures")
def test_report_escapes_texts(training):
    write_results("runs/clone/r1")
    report = write_training_report(
        training, training_outcome(message="<script>alert(1)</script> & more"), {}, []
    )
    html = Path(report).read_text()
    assert "<script" not in html
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; more" in html


@pytest.mark.usefixtures("cached_pictures")
def test_unreadable_data_is_a_problem_in_the_report(training):
    write_results("runs/clone/r1")
    report_page = read_page(write_training_report(training, training_outcome(), {"nowhere": None}, []))
    assert any("nowhere" in text for text in report_page.text)
    assert {path.stem for path in Path("runs/clone/r1/plots").iterdir()} == {"return", "loss", "time"}


@pytest.mark.usefixtures("cached_pictures")
def test_report_of_training_without_evaluation_has_no_returns(training):
    write_dataset()
    lines = write_results("runs/clone/r1")
    for line in lines:
        del line["evaluation"]
    Path("runs/clone/r1/results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_training_report(training, training_outcome(), {"data": None}, [])
    assert "return" not in {path.stem for path in Path("runs/clone/r1/plots").iterdir()}


@pytest.mark.slow
@pytest.mark.usefixtures("cached_pictures")
def test_plots_of_several_datasets_are_numbered(training):
    write_dataset("one")
    write_dataset("two", num_episodes=10)
    write_results("runs/clone/r1")
    write_training_report(training, training_outcome(), {"one": None, "two": None}, [])
    plots = {path.stem for path in Path("runs/clone/r1/plots").iterdir()}
    assert {"data-returns-0", "data-returns-1"} <= plots


@pytest.mark.slow
@pytest.mark.usefixtures("cached_pictures")
def test_finished_run_keeps_its_report(training, recording):
    write_dataset()
    write_results("runs/clone/r1")
    training_report, recording_report = Path("runs/clone/r1/report.html"), Path("data/_hindcast/report.html")
    assert write_training_report(training, training_outcome("AlreadyFinished"), {"data": None}, []) == str(
        training_report
    )
    assert write_recording_report(recording, recording_outcome("AlreadyFinished")) == str(recording_report)
    for report in (training_report, recording_report):
        report.write_text("kept")
    write_training_report(training, training_outcome("AlreadyFinished"), {"data": None}, [])
    write_recording_report(recording, recording_outcome("AlreadyFinished"))
    assert training_report.read_text() == recording_report.read_text() == "kept"
    write_recording_report(recording, recording_outcome())
    assert recording_report.read_text() != "kept"


def test_rendering_is_deterministic(tmp_path):
    curves = Curves(write_results(tmp_path))
    for plot in (
        return_picture(curves, stop=450, recorded=RecordedReturns(480, 30, 100, 500)),
        time_picture(curves),
    ):
        assert render(plot, LIGHT) == render(plot, LIGHT)


@pytest.mark.parametrize("iterations", slow_except([1, 60], [1, 2, 60, 300]))
def test_plots_draw_runs_of_any_length(tmp_path, iterations):
    curves = Curves(write_results(tmp_path, returns=np.linspace(-500, 9000, iterations).tolist()))
    for plot in (return_picture(curves, stop=8000), loss_picture(curves), time_picture(curves)):
        checked_pixels(render(plot, DARK))


@pytest.mark.parametrize(
    ("space", "title"),
    [
        (gym.spaces.Discrete(2), "Every action is taken about equally often"),
        (gym.spaces.Discrete(60), "The most frequent action"),
        (gym.spaces.Box(-1, 1, (1,), np.float32), "Recorded actions are between -1 and 0.999"),
        (gym.spaces.Box(-1, 1, (17,), np.float32), "Recorded actions are between -1 and 1"),
        (gym.spaces.MultiDiscrete([3, 4]), "Recorded actions are between 0 and 3"),
    ],
)
def test_action_plot_draws_any_space(tmp_path, monkeypatch, space, title):
    monkeypatch.chdir(tmp_path)
    write_dataset(action_space=space)
    plot = data_pictures(summarise(open_dataset("data")))["actions"]
    assert plot.title.startswith(title)
    checked_pixels(render(plot, LIGHT))


def test_title_names_an_action_that_is_never_taken(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_dataset()
    summary = summarise(open_dataset("data"))
    wider_summary = summary.model_copy(update={"action_space": {"type": "Discrete", "n": 3, "start": 0}})
    assert data_pictures(wider_summary)["actions"].title == "1 of 3 actions is never taken"


def test_title_says_that_all_returns_are_equal(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_dataset(num_episodes=1)
    plots = data_pictures(summarise(open_dataset("data")))
    assert re.fullmatch(r"Every recorded episode returns \d+", plots["returns"].title)
    checked_pixels(render(plots["returns"], LIGHT))
