"""`hindcast init`: a resource for data of any kind, which is valid, planned and run without an edit."""

import io
import json
import re
import warnings
from collections.abc import Callable
from pathlib import Path

import h5py
import minari
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from command_result import Hindcast
from gymnasium.spaces import Box, Discrete
from minari.data_collector import EpisodeBuffer
from PIL import Image

from clinic import VITALS, Clinic
from hindcast.api import load_resources
from hindcast.onnx_policy import OnnxPolicy

LENGTHS = (9, 7, 8, 6, 9, 8, 7, 9, 6, 8, 7, 9)
NUM_STEPS = sum(LENGTHS)


@pytest.fixture(autouse=True)
def _change_directory(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def make_table(has_float_actions: bool = False) -> pa.Table:
    """Return the steps of twelve episodes, with another tool's column names."""
    rng = np.random.default_rng(0)
    position = rng.normal(size=NUM_STEPS + 1)
    ends = np.cumsum(LENGTHS) - 1
    return pa.table(
        {
            "trajectory_id": np.repeat([f"run-{i}" for i in range(len(LENGTHS))], LENGTHS),
            "step": np.concatenate([np.arange(length) for length in LENGTHS]),
            "position": position[:-1],
            "speed": rng.normal(size=NUM_STEPS).astype(np.float32),
            "gear": rng.integers(0, 5, NUM_STEPS),
            "site": ["Oslo"] * NUM_STEPS,
            "control": rng.uniform(-2, 2, NUM_STEPS) if has_float_actions else rng.integers(0, 3, NUM_STEPS),
            "payoff": rng.normal(size=NUM_STEPS),
            "finished": np.isin(np.arange(NUM_STEPS), ends),
        }
    )


def write_parquet(folder: Path) -> Path:
    pq.write_table(make_table(), folder / "steps.parquet")
    return folder / "steps.parquet"


def write_parquet_folder(folder: Path) -> Path:
    (folder / "steps").mkdir()
    table = make_table(has_float_actions=True)
    for part, start in enumerate(range(0, NUM_STEPS, 40)):
        pq.write_table(table.slice(start, 40), folder / "steps" / f"part_{part}.parquet")
    return folder / "steps"


def write_csv(folder: Path) -> Path:
    pacsv.write_csv(make_table(has_float_actions=True), folder / "steps.csv")
    return folder / "steps.csv"


def write_json(folder: Path) -> Path:
    lines = [json.dumps(row) for row in make_table().to_pylist()]
    (folder / "steps.jsonl").write_text("\n".join(lines))
    return folder / "steps.jsonl"


def write_arrow(folder: Path) -> Path:
    table = make_table()
    with pa.ipc.new_stream(str(folder / "steps.arrow"), table.schema) as writer:
        writer.write_table(table)
    return folder / "steps.arrow"


def write_hdf5(folder: Path) -> Path:
    table = make_table(has_float_actions=True)
    with h5py.File(folder / "steps.hdf5", "w") as file:
        columns = [np.asarray(table["position"]), np.asarray(table["speed"])]
        file["observations"] = np.stack(columns, axis=1).astype(np.float32)
        file["next_observations"] = np.roll(file["observations"][:], -1, axis=0)
        file["actions"] = np.asarray(table["control"])[:, None].astype(np.float32)
        file["rewards"] = np.asarray(table["payoff"])
        file["terminals"] = np.asarray(table["finished"])
        file["timeouts"] = np.zeros(NUM_STEPS, np.bool_)
    return folder / "steps.hdf5"


def write_with_commas(folder: Path) -> Path:
    (folder / "may, june").mkdir()
    pq.write_table(make_table(), folder / "may, june" / "a,b.parquet")
    return folder / "may, june"


def write_images(folder: Path) -> Path:
    images = []
    for number in range(NUM_STEPS):
        image = io.BytesIO()
        Image.fromarray(np.full((42, 42, 3), number, np.uint8)).save(image, "PNG")
        images.append(image.getvalue())
    table = make_table().select(["trajectory_id", "step", "control", "payoff", "finished"])
    pq.write_table(table.append_column("obs", pa.array(images, pa.binary())), folder / "frames.parquet")
    return folder / "frames.parquet"


def write_minari(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    buffers = [
        EpisodeBuffer(
            id=index,
            observations=list(rng.normal(size=(length + 1, 3)).astype(np.float32)),
            actions=list(rng.integers(0, 2, length)),
            rewards=list(rng.normal(size=length)),
            terminations=[False] * (length - 1) + [True],
            truncations=[False] * length,
            infos={},
        )
        for index, length in enumerate(LENGTHS)
    ]
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Minari asks for authors and code
        patch.setenv("MINARI_DATASETS_PATH", str(folder))
        minari.create_dataset_from_buffers(
            "toy/steps-v0", buffers, observation_space=Box(-9, 9, (3,)), action_space=Discrete(2)
        )
    return folder / "toy" / "steps-v0"


def write_as(layout: str) -> Callable[[Path], Path]:
    """Return a function that writes the Minari dataset in a layout of Hindcast."""

    def write(folder: Path) -> Path:
        from hindcast.datasets.curate.operations import convert_data
        from hindcast.datasets.prepare.reading import Reading
        from hindcast.datasets.target import Target
        from hindcast.storage.location import resolve

        target = Target(resolve(folder / "converted"), layout)
        convert_data(Reading((write_minari(folder),)), target)
        return folder / "converted"

    write.__name__ = f"write_{layout}"
    return write


WRITERS = [
    write_parquet,
    write_parquet_folder,
    write_csv,
    write_json,
    write_arrow,
    write_hdf5,
    write_with_commas,
    write_images,
    write_minari,
    *map(write_as, ("Episodes", "MessagePack", "Columns", "JSON", "CSV", "SampleBatch")),
]


@pytest.mark.slow
@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__)
def test_resource_of_any_data_is_valid_and_planned_without_an_edit(
    tmp_path: Path, hindcast: Hindcast, write: Callable[[Path], Path]
) -> None:
    path = write(tmp_path)
    for command in (("init", path, "-o", "new.yaml"), ("validate", "new.yaml"), ("plan", "new.yaml")):
        result = hindcast(*command)
        assert result.code == 0, result.err
    (entry,) = load_resources([tmp_path / "new.yaml"])
    source = entry.resource.spec.input[0]
    assert source.path == str(path)
    assert entry.resource.spec.algorithm == "BC", "random rewards leave nothing to improve"


def test_columns_are_found_by_name_and_value(tmp_path: Path, hindcast: Hindcast) -> None:
    assert hindcast("init", write_parquet(tmp_path)).code == 0
    (entry,) = load_resources([tmp_path / "steps.yaml"])
    assert entry.resource.spec.input[0].schema_map == {
        "eps_id": "trajectory_id",
        "obs": ["position", "speed", "gear"],
        "actions": "control",
        "rewards": "payoff",
        "terminateds": "finished",
    }
    text = (tmp_path / "steps.yaml").read_text()
    assert "The column site is left out: it holds text, not numbers." in text
    result = hindcast("init", "steps.parquet")
    assert result.code == 4
    assert "steps.yaml already exists: pass --output with another file, or --overwrite." in result.err


def test_unrecognised_column_is_requested(tmp_path: Path, hindcast: Hindcast) -> None:
    table = make_table()
    names = ["knob" if name == "control" else name for name in table.column_names]
    pq.write_table(table.rename_columns(names), "steps.parquet")
    result = hindcast("init", "steps.parquet")
    assert result.code == 3
    assert "no column looks like 'actions': name it with --schema actions=COLUMN" in result.err
    assert hindcast("init", "steps.parquet", "--schema", "actions=knob").code == 0
    result = hindcast("inspect", "steps.parquet")
    assert result.code == 3
    assert "trajectory_id" in result.err


def test_missing_action_is_named_in_the_error(tmp_path: Path, hindcast: Hindcast) -> None:
    """Regression: a NaN among the actions ended in Gymnasium's traceback."""
    table = make_table(has_float_actions=True)
    actions = np.asarray(table["control"]).astype(np.float64) + 0.5
    actions[3] = np.nan
    column = table.column_names.index("control")
    pq.write_table(table.set_column(column, "control", pa.array(actions)), "steps.parquet")
    result = hindcast("init", "steps.parquet")
    assert result.code == 3
    assert "actions" in result.err and "missing or not finite" in result.err


def test_text_actions_are_refused_with_a_remedy_that_works(tmp_path: Path, hindcast: Hindcast) -> None:
    table = make_table().to_pandas().rename(columns={"control": "action"})
    table["action"] = np.array(["left", "none", "right"])[table["action"]]
    table.to_parquet("steps.parquet")
    result = hindcast("init", "steps.parquet")
    assert result.code == 3
    assert "'actions' cannot be guessed, because it holds text: replace each text by an integer" in result.err
    table["action"] = eval("column.astype('category').cat.codes", {"column": table["action"]})
    assert "column.astype('category').cat.codes" in result.err
    table.to_parquet("steps.parquet")
    assert hindcast("init", "steps.parquet").code == 0


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_rows_of_lists_of_steps_are_refused_with_a_remedy_that_works(
    tmp_path: Path, hindcast: Hindcast, suffix: str
) -> None:
    step = {"obs": [0.1, 0.2], "action": 0, "reward": 1.0}
    rows = [{"eps_id": name, "steps": [step, {**step, "action": 1}] * 20} for name in ("a", "b")]
    if suffix == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), "episodes.parquet")
    else:
        Path("episodes.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for command in ("init", "inspect"):
        result = hindcast(command, f"episodes.{suffix}")
        assert result.code == 3
        assert "each row of 'steps' is a list of steps: write a row for each step" in result.err
    remedy = re.search(r"`(pandas\..*?)`", result.err.replace("\n", " "))
    assert remedy is not None
    eval(remedy[1], {"pandas": pd, "rows": rows}).to_parquet("steps.parquet")
    assert hindcast("init", "steps.parquet").code == 0


@pytest.mark.slow
def test_clinic_table_is_trained_evaluated_and_exported(tmp_path: Path, hindcast: Hindcast) -> None:
    pq.write_table(Clinic().table(60), "visits.parquet")
    commands = (
        ("init", "visits.parquet", "--updates", 3),
        ("inspect", "visits.parquet", *schema_options(), "--cut-off-steps", "Drop"),
        ("run", "visits.yaml"),
        ("evaluate", "runs/visits/r1", "--data", "visits.parquet", "--model-updates", 5, "--explore"),
        ("export", "runs/visits/r1", "app"),
    )
    results = []
    for command in commands:
        results.append(hindcast(*command))
        assert results[-1].code == 0, f"{command[0]}: {results[-1].err[-2000:]}"
        if command[0] == "init":
            shorten_evaluation(Path("visits.yaml"))
    assert "check the roles of the columns: eps_id is patient_id" in results[0].err
    assert "lactate" in results[1].out
    assert "dimension 0" not in (tmp_path / "runs/visits/r1/report.html").read_text()
    policy = OnnxPolicy("app")
    assert policy({"heart_rate": 104, "pain": 6}) in range(5)
    description = json.loads((tmp_path / "app/policy.json").read_text())
    assert description["inputs"][0]["names"] == list(VITALS)
    report = (tmp_path / "runs/visits/r1/report.html").read_text()
    assert "The data: visits.parquet" in report
    assert "cache/prepared" not in report


def shorten_evaluation(resource: Path) -> None:
    """Fit the models of an offline evaluation for a few updates only."""
    text = resource.read_text()
    assert "modelUpdates: 1000" in text
    resource.write_text(text.replace("modelUpdates: 1000", "modelUpdates: 20"))


def schema_options() -> list[str]:
    columns = {"eps_id": "patient_id", "t": "visit_time", "actions": "dose", "rewards": "outcome"}
    pairs = [*columns.items(), ("terminateds", "discharged"), ("truncateds", "left")]
    pairs += [("obs", name) for name in VITALS]
    return [option for role, name in pairs for option in ("--schema", f"{role}={name}")]
