"""Commands on data in a store, and their errors if it denies access or fails."""

from __future__ import annotations

import json
import subprocess

import pytest

from hindcast.datasets.opening import open_dataset
from hindcast.storage.location import resolve
from support import episode_hashes, read_all, record, recording


@pytest.fixture
def hindcast(warm):
    """Return a function that runs `hindcast ARGUMENTS…` in another process."""

    def run(*arguments):
        command = [str(warm.folder / "hindcast"), *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    return run


@pytest.fixture
def data(s3):
    """A recording in S3."""
    record(recording(f"{s3.uri}/data"))
    return f"{s3.uri}/data"


def test_inspect_convert_and_data_commands_use_the_store(hindcast, s3, data, tmp_path):
    result = hindcast("inspect", data, "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["episodes"] == 40
    for arguments in (
        ("convert", data, s3.uri + "/columns", "--to", "Columns"),
        ("convert", s3.uri + "/columns", tmp_path / "local"),
        ("data", "split", data, s3.uri + "/a", s3.uri + "/b", "--validation", "0.25"),
        ("data", "merge", s3.uri + "/a", s3.uri + "/b", s3.uri + "/both"),
        ("data", "filter", data, s3.uri + "/top", "--top", "0.5"),
        ("data", "sample", data, s3.uri + "/few", "--episodes", "4"),
    ):
        result = hindcast(*arguments, "-q")
        assert result.returncode == 0, result.stderr
        assert result.stderr == ""
    counts = [open_dataset(f"{s3.uri}/{name}").num_episodes for name in ("a", "b", "top", "few")]
    assert counts == [30, 10, 20, 4]
    original = episode_hashes(read_all(data))
    for copy in (s3.uri + "/columns", tmp_path / "local", s3.uri + "/both"):
        assert episode_hashes(read_all(copy)) == original


WRITING_COMMANDS = [
    ("convert", "{data}", "{uri}/out"),
    ("data", "merge", "{data}", "{uri}/out"),
    ("data", "split", "{data}", "{uri}/out", "{uri}/other"),
    ("data", "filter", "{data}", "{uri}/out", "--top", "0.5"),
    ("data", "sample", "{data}", "{uri}/out", "--episodes", "4"),
]


@pytest.mark.parametrize(
    ("arguments", "denied_requests"),
    [(arguments, "^(PUT|POST) ") for arguments in WRITING_COMMANDS]
    + [(arguments, "") for arguments in [("inspect", "{data}"), *WRITING_COMMANDS]],
)
def test_denied_access_is_reported_in_one_sentence(hindcast, s3, data, arguments, denied_requests):
    s3.fail(matching=denied_requests, status=403, code="AccessDenied")
    result = hindcast(*(argument.format(data=data, uri=s3.uri) for argument in arguments), "-q")
    s3.faults.set()
    assert result.returncode == 5, result.stderr
    assert result.stderr.startswith("error: cannot ")
    assert result.stderr.count("\n") == 1
    assert "access is denied: check the credentials" in result.stderr
    assert list(resolve(f"{s3.uri}/out").files(recursive=True)) == []


@pytest.mark.timeout(120)
def test_command_with_hanging_store_ends_with_its_exit_code(hindcast, azure, walks, monkeypatch):
    monkeypatch.setenv("HINDCAST_STORAGE_TIMEOUT", "2")
    azure.fail(matching="^PUT", cut=-1)
    result = hindcast("convert", walks, f"{azure.uri}/out", "-q")
    assert result.returncode == 5, result.stderr
    assert result.stderr.startswith("error: cannot write abfss://")
    assert result.stderr.count("\n") == 1
