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
def source(tmp_path):
    """A folder with six episodes."""
    return write_block(tmp_path / "source", make_block([3, 4, 5, 3, 4, 5]))


@pytest.fixture
def make_recording(source, tmp_path):
    """Return a function that makes a recording in any format, with commits but without its manifest."""

    def make(file_format="Episodes", resource="OfflineRecording/random", duration=None):
        folder = tmp_path / file_format
        convert_data(Reading((str(source),)), Target(resolve(folder), file_format))
        (folder / "_hindcast/manifest.json").unlink()
        owner = {"resource": resource, "spec": {"spec": {"duration": duration or {"episodes": 60_000}}}}
        (folder / "_hindcast/spec.json").write_text(json.dumps(owner))
        return folder

    return make


@pytest.mark.parametrize("file_format", ["Episodes", "JSON"])
def test_incomplete_recording_is_noted_when_opened_and_inspected(make_recording, file_format):
    folder = make_recording(file_format)
    (note,) = [text for text in open_data(Reading((str(folder),))).notes if "complete" in text]
    assert note == (
        f"{folder} is not complete: 6 of 60,000 episodes are recorded; run OfflineRecording/random again for the "
        "rest, or wait while it runs"
    )
    problems = inspect_data(Reading((str(folder),))).problems
    (problem,) = [candidate for candidate in problems if candidate.kind == "incomplete"]
    assert (problem.severity, problem.message) == ("warning", note)
    assert [candidate for candidate in problems if candidate.message == note] == [problem]


def test_reading_of_incomplete_text_recording_has_unfinished_note(make_recording):
    assert "6 of 60,000 episodes" in open_reading(Reading((str(make_recording("CSV")),))).unfinished_notes[0]


@pytest.mark.parametrize(
    ("duration", "expected"),
    [
        ({"timesteps": 1_000_000}, " of 1,000,000 timesteps are recorded"),
        ({"episodes": 6}, "it has no manifest yet, 6 episodes are recorded"),
        ({"episodes": None}, "it has no manifest yet, 6 episodes are recorded"),
    ],
)
def test_note_says_how_much_of_the_duration_is_recorded(make_recording, duration, expected):
    (note,) = open_dataset(make_recording(duration=duration)).notes
    assert expected in note


def test_incomplete_conversion_is_noted_with_remedy(make_recording):
    """A conversion has no duration, so the note does not say how much is missing."""
    (note,) = open_dataset(make_recording(resource="hindcast data", duration={"?": 0})).notes
    assert "; run it again for the rest" in note


def test_incomplete_recording_without_owner_file_is_noted(make_recording):
    folder = make_recording()
    (folder / "_hindcast/spec.json").write_text("{")
    assert "it has no manifest yet" in open_dataset(folder).notes[0]
    (folder / "_hindcast/spec.json").unlink()
    assert "it has no manifest yet" in open_dataset(folder).notes[0]


def test_complete_recording_and_single_file_have_no_note(source, make_recording, tmp_path):
    convert_data(Reading((str(source),)), Target(resolve(tmp_path / "whole")))
    assert not open_dataset(tmp_path / "whole").notes
    folder = make_recording()
    assert not open_dataset(next(folder.glob("*.parquet"))).notes
    assert "incomplete" not in {problem.kind for problem in inspect_paths([tmp_path / "whole"]).problems}
