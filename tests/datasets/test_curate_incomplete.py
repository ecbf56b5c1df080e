"""Incomplete recordings are noted wherever they are opened."""

import json

import pytest
from curate_kit import make_block, write_block

from hindcast.datasets.curate.operations import convert_data
from hindcast.datasets.inspection.inspecting import inspect_data, inspect_paths
from hindcast.datasets.opening import open_dataset
from hindcast.datasets.prepare.opening import open_data, open_reading
from hindcast.datasets.prepare.reading import Reading
from hindcast.datasets.target import Target
from hindcast.storage.location import resolve


@pytest.fixture
def source(tmp_path, monkeypatch):
    """Six episodes."""
    monkeypatch.setenv("HINDCAST_CACHE", str(tmp_path / "cache"))
    return write_block(tmp_path / "source", make_block([3, 4, 5, 3, 4, 5]))


@pytest.fixture
def recording(source, tmp_path):
    """Return a function that makes a recording in any format, interrupted before its last range."""

    def make(form="Episodes", resource="OfflineRecording/random", duration=None):
        folder = tmp_path / form
        convert_data(Reading((str(source),)), Target(resolve(folder), form))
        (folder / "_hindcast/manifest.json").unlink()
        mark = {"resource": resource, "spec": {"spec": {"duration": duration or {"episodes": 60_000}}}}
        (folder / "_hindcast/spec.json").write_text(json.dumps(mark))
        return folder

    return make


@pytest.mark.parametrize("form", ["Episodes", "JSON"])
def test_conversion_of_incomplete_recording_is_noted(recording, form):
    folder = recording(form)
    (note,) = [one for one in open_data(Reading((str(folder),))).notes if "complete" in one]
    assert note == (
        f"{folder} is not complete: 6 of 60,000 episodes are recorded; run OfflineRecording/random again for the "
        "rest, or wait while it runs"
    )
    problems = inspect_data(Reading((str(folder),))).problems
    (problem,) = [one for one in problems if one.kind == "incomplete"]
    assert (problem.severity, problem.message) == ("warning", note)
    assert [one for one in problems if one.message == note] == [problem]


def test_training_on_incomplete_text_recording_is_noted(recording):
    assert "6 of 60,000 episodes" in open_reading(Reading((str(recording("CSV")),))).unfinished_notes[0]


@pytest.mark.parametrize(
    ("duration", "sentence"),
    [
        ({"timesteps": 1_000_000}, " of 1,000,000 timesteps are recorded"),
        ({"episodes": 6}, "it has no manifest yet, 6 episodes are recorded"),
        ({"episodes": None}, "it has no manifest yet, 6 episodes are recorded"),
    ],
)
def test_note_says_how_much_of_the_duration_is_recorded(recording, duration, sentence):
    (note,) = open_dataset(recording(duration=duration)).notes
    assert sentence in note


def test_incomplete_result_of_other_commands_is_noted(recording):
    (note,) = open_dataset(recording(resource="hindcast data", duration={"?": 0})).notes
    assert "; run it again for the rest" in note


def test_incomplete_recording_without_owner_file_is_noted(recording):
    folder = recording()
    (folder / "_hindcast/spec.json").write_text("{")
    assert "it has no manifest yet" in open_dataset(folder).notes[0]
    (folder / "_hindcast/spec.json").unlink()
    assert "it has no manifest yet" in open_dataset(folder).notes[0]


def test_complete_recording_and_single_file_have_no_note(source, recording, tmp_path):
    convert_data(Reading((str(source),)), Target(resolve(tmp_path / "whole")))
    assert not open_dataset(tmp_path / "whole").notes
    folder = recording()
    assert not open_dataset(next(folder.glob("*.parquet"))).notes
    assert "incomplete" not in {problem.kind for problem in inspect_paths([tmp_path / "whole"]).problems}
