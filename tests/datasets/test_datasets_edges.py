"""Values and names at the edges of what can be stored are read, drawn or refused in one sentence."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import gymnasium as gym
import numpy as np
import prepare_kit as kit
import pyarrow.parquet as pq
import pytest

from hindcast.api.input import PrepareSpec
from hindcast.api.model import ModelSpec
from hindcast.datasets.inspection.inspecting import inspect_paths
from hindcast.datasets.inspection.statistics import ValueDistribution
from hindcast.datasets.opening import open_dataset
from hindcast.datasets.prepare.opening import open_data
from hindcast.datasets.prepare.reading import Reading
from hindcast.datasets.writer import BlockWriter
from hindcast.errors import DataError, SpecError, StorageError
from hindcast.formats.format import ReadOptions
from hindcast.formats.registry import FORMATS
from hindcast.formats.spec import DataSpec
from hindcast.formats.text.lines import encode_number_cells
from hindcast.models.encoders import Encoder
from hindcast.report import writing
from hindcast.report.canvas import LIGHT, render
from hindcast.report.curves import Curves
from hindcast.report.data_plots import _histogram_picture
from hindcast.storage.failures import reason_of
from hindcast.storage.location import resolve

HUGE_VALUES = (0.0, 1.0, -7.5, 2.0**53, 1e16, 1e30, -1e30, 1e300)


@pytest.mark.parametrize("value", HUGE_VALUES)
@pytest.mark.parametrize("offset", [0.0, 1.0, "next", "negative"])
def test_distribution_of_any_values_has_bins_with_all_of_them(value, offset):
    other = {"next": np.nextafter(value, np.inf), "negative": -value}.get(offset, value)
    other = value + offset if isinstance(offset, float) else other
    values = np.array([value, value, other])
    with np.errstate(over="ignore", invalid="ignore"):
        distribution = ValueDistribution.from_values(values)
    assert distribution is not None
    assert sum(distribution.counts) == 3
    assert len(distribution.edges) == len(distribution.counts) + 1
    assert len(set(distribution.edges)) > 1
    picture = _histogram_picture(distribution, "return", "", "more", "return")
    assert picture is not None
    if value in (1.0, 1e30):
        assert render(picture, LIGHT)


def test_curve_without_finite_estimates_is_none():
    estimates = {"dr": {"value": float("nan"), "interval": None}}
    verdict = {"sentence": "", "estimate": None}
    evaluation = {"training_iteration": 1, "estimates": estimates, "verdict": verdict}
    assert Curves([{"evaluation": {"offline": evaluation}}]).estimate is None


def test_report_that_fails_is_a_warning(monkeypatch, caplog):
    def fail(folder: object) -> None:
        raise ValueError("max() arg is an empty sequence")

    monkeypatch.setattr(writing, "resolve", fail)
    with caplog.at_level(logging.WARNING, "hindcast"):
        assert writing.write_recording_report(None, type("Outcome", (), {"folder": ""})()) is None
    assert "The report could not be written (ValueError: max() arg" in caplog.text


@pytest.mark.parametrize("name", ["~tilde", "~", "a~b"])
def test_path_with_a_tilde_is_read(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "~"))
    (tmp_path / name).mkdir()
    pq.write_table(kit.make_table(kit.make_block([3]), tmp_path / "table"), tmp_path / name / "a.parquet")
    assert open_data(name).num_steps == 3
    assert Path(os.path.realpath(resolve(name).path)) == tmp_path / name


@pytest.mark.parametrize(
    ("path", "message"), [("d//x", "an empty part"), ("d/./x", "the part '.'"), ("d/../x", "the part '..'")]
)
@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_uri_that_no_object_has_is_refused(scheme, path, message):
    with pytest.raises(StorageError, match=rf"{scheme}://bucket/{path} has {message}"):
        resolve(f"{scheme}://bucket/{path}")


def test_listing_with_an_invalid_name_says_what_to_rename():
    error = ValueError("Encountered object with invalid path: d/double//slash")
    assert "an object with an empty part ('//')" in reason_of(error)


@pytest.mark.parametrize(
    "space", [gym.spaces.Discrete(9007199254741100), gym.spaces.MultiDiscrete([2**40, 2**41])]
)
def test_space_with_too_many_values_is_refused(space):
    with pytest.raises(SpecError, match=r"observation space: 'obs' has [\d,]+ values"):
        Encoder(space, ModelSpec())


# Readers


@pytest.mark.parametrize("shape", [(0,), (0, 3), (0, 2, 2)])
def test_cells_of_no_steps_are_empty(shape):
    assert len(encode_number_cells(np.zeros(shape), {})) == 0


def test_csv_without_column_names_is_refused(tmp_path):
    (tmp_path / "a.csv").write_text("1,2,3\n")
    with pytest.raises(DataError, match="no column 'obs'"):
        open_data(Reading((str(tmp_path / "a.csv"),), options=ReadOptions(options={"column_names": []})))


def test_sample_batch_of_one_line_without_line_end_has_notes(tmp_path):
    batch = {"type": "SampleBatch", "obs": [0.0], "new_obs": [1.0], "actions": [0], "rewards": [1.0]}
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"other": [1, 2, 3], **batch}))
    notes = FORMATS["SampleBatch"].list_notes(resolve(path), ReadOptions())
    assert any("no column marks the ends" in note for note in notes)
    columns = ["obs", "actions", "rewards"]
    assert open_data(Reading((str(path),), options=ReadOptions(columns=columns))).num_steps == 1


def test_view_without_a_leaf_does_not_read_it_by_its_column(tmp_path):
    block = kit.make_block([3, 4])
    spec = DataSpec.from_block(block)
    with BlockWriter(resolve(tmp_path), spec, "all") as writer:
        writer.write(block.with_columns({**block.columns}))
    view = open_dataset(tmp_path).without({"obs"})
    assert "obs" not in kit.read_block(view).columns
    with pytest.raises(DataError):
        view.read(view.units[0], ["unknown"])


def test_joined_rows_whose_observations_differ_are_noted(tmp_path):
    table = kit.make_table(kit.make_block([6]), tmp_path / "table").drop_columns(["t"]).take([0, 1, 3, 4, 5])
    path = kit.write_files(tmp_path / "rows", table)
    dataset = open_data(Reading((path,), prepare=PrepareSpec(gaps="Join", order="Stored")))
    assert dataset.num_steps == 5
    assert any("the obs of 1 row differs" in note for note in dataset.notes)


OTHER_SPACES = (
    gym.spaces.Box(-1, 1, (4,)),
    gym.spaces.Box(-1, 1, ()),
    gym.spaces.Box(0, 255, (2, 2), np.uint8),
    gym.spaces.MultiDiscrete([2, 3]),
)


@pytest.mark.parametrize("space", OTHER_SPACES, ids=str)
@pytest.mark.parametrize("column", ["obs", "actions"])
def test_recorded_space_of_another_shape_is_reported(tmp_path, space, column):
    """Regression: a space with fewer elements than the observations ended an inspection in a traceback."""
    for shape in ((), (17,)):
        block = kit.make_block([3, 4])
        rows = np.zeros((len(block.columns[column]), *shape))
        spaces = (space, None) if column == "obs" else (None, space)
        folder = tmp_path / str(len(shape)) / str(shape[:1])
        block = block.with_columns(block.columns | {column: rows})
        with BlockWriter(resolve(folder), DataSpec.from_block(block, *spaces), "s") as writer:
            writer.write(block)
        fits = isinstance(space, gym.spaces.Box) and space.shape == shape
        kinds = [problem.kind for problem in inspect_paths([folder]).problems]
        assert ("other-space" in kinds) != fits
