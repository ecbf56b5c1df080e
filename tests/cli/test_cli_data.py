"""`hindcast convert` and `hindcast data`: results, refusals, interruption."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from hindcast.datasets.opening import open_dataset
from hindcast.datasets.prepare.opening import open_data


@pytest.fixture
def recording_path(finished_folder, tmp_path, monkeypatch):
    """Return the path of the finished recording; the current folder is empty."""
    monkeypatch.chdir(tmp_path)
    return finished_folder / "data"


def test_convert_prints_summary(hindcast, recording_path):
    result = hindcast("convert", recording_path, "out", "--to", "Columns", "--compression", "zstd", "-q")
    assert result.code == 0, result.err
    assert result.out.startswith("out: 12 episodes, ")
    assert " as Columns, " in result.out
    assert result.err == ""


def test_convert_json_has_counts_bytes_and_checksum(hindcast, recording_path):
    results = []
    for layout in ("MessagePack", "SampleBatch", "SampleBatch"):
        result = hindcast("convert", recording_path, layout, "--to", layout, "--json")
        assert result.code == 0, result.err
        results += json.loads(result.out)["written"]
    assert [result["state"] for result in results] == ["Succeeded", "Succeeded", "AlreadyFinished"]
    assert len({result["checksum"] for result in results}) == 1
    assert {result["episodes"] for result in results} == {12}
    files = [path for path in Path("MessagePack").iterdir() if path.is_file()]
    assert results[0]["bytes"] == sum(path.stat().st_size for path in files)


def test_data_commands_write_expected_episodes(hindcast, recording_path):
    for command in (
        f"split {recording_path} a b --validation 0.25",
        "merge a b both --to Columns",
        "filter both top --where 'length > 5' --top 0.5",
        "sample both few --fraction 0.5",
        "filter both rows --rows 't < 5'",
    ):
        result = hindcast(f"data {command} -q")
        assert result.code == 0, result.err
    counts = [open_data(name).num_episodes for name in ("a", "b", "both", "few")]
    assert counts == [9, 3, 12, 6]
    assert open_dataset("rows").num_steps == 12 * 5


@pytest.mark.parametrize(("delimiter", "option_value"), [(";", ";"), ("\t", '"\\t"'), ("|", "|")])
def test_csv_with_other_delimiter_names_option_that_reads_it(
    hindcast, recording_path, delimiter, option_value
):
    rows = [
        ("eps_id", "t", "obs", "actions", "rewards"),
        *((episode_id, t, t / 7, t % 2, 1) for episode_id in "ab" for t in range(5)),
    ]
    Path("steps.csv").write_text("\n".join(delimiter.join(map(str, line)) for line in rows))
    refusal = hindcast("inspect steps.csv --ignore-final-observation")
    assert refusal.code == 3
    assert refusal.err.endswith(f"(--read-option 'delimiter={option_value}')\n"), (
        "after a list of the columns"
    )
    options = ("--ignore-final-observation", "--read-option", f"delimiter={option_value}")
    for command in ("inspect steps.csv", "convert steps.csv out", "data sample steps.csv few --fraction 0.5"):
        result = hindcast(command, *options, "--read-option", 'column_types={"obs": "float32"}')
        assert result.code == 0, result.err
    assert str(open_dataset("out").spec.leaves["obs"]) == "float32 []"


def test_split_that_fails_leaves_no_folders(hindcast, recording_path):
    assert hindcast("convert", recording_path, "other", "-q").code == 0
    for folders, code, sentence in (
        ("a b --validation 0.001", 3, "the selection has no episodes to write to b"),
        ("a other", 4, "other holds data made from a different source"),
        ("a b/c --to CSV", 4, "b/c holds files that Hindcast did not write"),
    ):
        Path("b/c").mkdir(parents=True, exist_ok=True)
        Path("b/c/strange.txt").touch()
        hindcast(f"data split {recording_path} {folders} -q").assert_refused(code, sentence)
        assert not Path("a").exists()
    assert hindcast(f"data split {recording_path} a d -q").code == 0


SLOW_PROGRAM = """
import sys, time
from hindcast.cli.main import main
from hindcast.datasets.writer import BlockWriter

write = BlockWriter.write
def slow(self, block):
    print("writing", flush=True)
    time.sleep(3)
    write(self, block)
BlockWriter.write = slow
main()
"""


@pytest.mark.slow
def test_convert_after_ctrl_c_resumes(hindcast, recording_path, warm):
    command = [str(warm.folder / "python"), "-c", SLOW_PROGRAM, "convert", str(recording_path), "out", "-q"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        time.sleep(0.2)  # the program now sleeps before its first write
        os.kill(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "run the same command again to resume" in err
    assert hindcast("convert", recording_path, "out", "-q").code == 0
    assert open_dataset("out").num_episodes == 12


PRE_LEARNER = """
import numpy as np

from hindcast import OfflinePreLearner, SingleAgentEpisode


class LineLengths(OfflinePreLearner):
    @classmethod
    def map_rows(cls, rows):
        lengths = np.array([len(line) for line in rows["text"]], dtype=np.float32)
        steps = len(lengths) - 1
        return [
            SingleAgentEpisode(
                observations=lengths[:, None], actions=np.zeros(steps, int), rewards=lengths[1:], len_lookback_buffer=0
            )
        ]
"""


def test_text_is_converted_by_pre_learner(hindcast, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("line_lengths.py").write_text(PRE_LEARNER)
    Path("words.txt").write_text("the cat sat\na dog ran far\nthe end\n")
    command = "convert words.txt out --format Text"
    hindcast(command).assert_refused(2, "name a subclass of OfflinePreLearner")
    result = hindcast(command, "--pre-learner", "line_lengths:LineLengths")
    assert result.code == 0, result.err
    assert open_dataset("out").num_steps == 2
