"""`hindcast convert` and `hindcast data`: results, refusals, interruption."""

import json
import os
import signal
import subprocess
import sys
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
    assert [written_dataset["state"] for written_dataset in results] == [
        "Succeeded",
        "Succeeded",
        "AlreadyFinished",
    ]
    assert len({written_dataset["checksum"] for written_dataset in results}) == 1
    assert {written_dataset["episodes"] for written_dataset in results} == {12}
    files = [path for path in Path("MessagePack").iterdir() if path.is_file()]
    assert results[0]["bytes"] == sum(path.stat().st_size for path in files)


def test_data_commands_write_expected_episodes(hindcast, recording_path):
    for arguments in (
        ("split", recording_path, "a", "b", "--validation", "0.25"),
        ("merge", "a", "b", "both", "--to", "Columns"),
        ("filter", "both", "top", "--where", "length > 5", "--top", "0.5"),
        ("sample", "both", "few", "--fraction", "0.5"),
        ("filter", "both", "rows", "--rows", "t < 5"),
    ):
        result = hindcast("data", *arguments, "-q")
        assert result.code == 0, result.err
    counts = [open_data(name).num_episodes for name in ("a", "b", "both", "few")]
    assert counts == [9, 3, 12, 6]
    assert open_dataset("rows").num_steps == 12 * 5


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (("convert", "nothing", "out"), 3, "nothing does not exist"),
        (("convert", "DATA", "DATA/out"), 2, "a separate folder"),
        (("convert", "DATA", "out", "--to", "Column"), 2, "did you mean 'Columns'?"),
        (("convert", "DATA", "out", "--file-size", "much"), 2, "--file-size is 'much', expected a size"),
        (("convert", "DATA", "out", "--file-size", "0"), 2, "--file-size is '0', expected a size above 0"),
        (
            ("convert", "DATA", "out", "--schema", "obs"),
            2,
            "--schema 'obs' does not have the form NAME=COLUMN",
        ),
        (
            ("convert", "DATA", "out", "--read-option", "delimiter"),
            2,
            "--read-option 'delimiter' does not have the form NAME=VALUE",
        ),
        (("convert", "DATA", "out", "--filter", "t <> 3"), 2, "found '<> 3' at character 3"),
        (
            ("convert", "DATA", "out", "--columns", "obs,state"),
            3,
            "has no column state, which `columns` names",
        ),
        (("convert", "DATA", "out", "--to", "CSV", "--compression", "zstd"), 2, "compression"),
        (
            ("data", "filter", "DATA", "out", "--where", "speed > 3"),
            2,
            "'speed' is not a field of an episode",
        ),
        (("data", "filter", "DATA", "out", "--where", "length > 9999"), 3, "the selection has no episodes"),
        (("data", "sample", "DATA", "out"), 2, "exactly one of episodes, timesteps and fraction"),
        (("data", "split", "DATA", "a", "b", "--validation", "2"), 2, "expected a number between 0 and 1"),
    ],
)
def test_invalid_options_are_refused_in_one_sentence(hindcast, recording_path, arguments, code, sentence):
    result = hindcast(*(argument.replace("DATA", str(recording_path)) for argument in arguments), "-q")
    assert (result.code, result.err.count("\n")) == (code, 1), result.err
    assert sentence in result.err
    assert not Path("out").exists() or not list(Path("out").glob("*.parquet"))


@pytest.mark.parametrize(("delimiter", "option_value"), [(";", ";"), ("\t", '"\\t"'), ("|", "|")])
def test_csv_with_other_delimiter_names_option_that_reads_it(
    hindcast, recording_path, delimiter, option_value
):
    rows = [
        ("eps_id", "t", "obs", "actions", "rewards"),
        *((episode_id, t, t / 7, t % 2, 1) for episode_id in "ab" for t in range(5)),
    ]
    Path("steps.csv").write_text("\n".join(delimiter.join(map(str, line)) for line in rows))
    refusal = hindcast("inspect", "steps.csv", "--ignore-final-observation")
    assert refusal.code == 3
    assert f"(--read-option 'delimiter={option_value}')" in refusal.err
    options = ("--ignore-final-observation", "--read-option", f"delimiter={option_value}")
    for command in (
        ("inspect", "steps.csv"),
        ("convert", "steps.csv", "out"),
        ("data", "sample", "steps.csv", "few", "--fraction", "0.5"),
    ):
        result = hindcast(*command, *options, "--read-option", 'column_types={"obs": "float32"}')
        assert result.code == 0, result.err
    assert str(open_dataset("out").spec.leaves["obs"]) == "float32 []"


def test_split_that_fails_leaves_no_folders(hindcast, recording_path):
    assert hindcast("convert", recording_path, "other", "-q").code == 0
    for arguments, code, sentence in (
        (("a", "b", "--validation", "0.001"), 3, "the selection has no episodes to write to b"),
        (("a", "other"), 4, "other holds data made from a different source"),
        (("a", "b/c", "--to", "CSV"), 4, "b/c holds files that Hindcast did not write"),
    ):
        Path("b/c").mkdir(parents=True, exist_ok=True)
        Path("b/c/strange.txt").touch()
        result = hindcast("data", "split", recording_path, *arguments, "-q")
        assert (result.code, sentence in result.err) == (code, True), result.err
        assert not Path("a").exists()
    assert hindcast("data", "split", recording_path, "a", "d", "-q").code == 0


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
def test_convert_after_ctrl_c_resumes(hindcast, recording_path):
    command = [sys.executable, "-c", SLOW_PROGRAM, "convert", str(recording_path), "out", "-q"]
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
    command = ("convert", "words.txt", "out", "--format", "Text")
    refusal = hindcast(*command)
    assert (refusal.code, refusal.err.count("\n")) == (2, 1), refusal.err
    assert "name a subclass of OfflinePreLearner" in refusal.err
    result = hindcast(*command, "--pre-learner", "line_lengths:LineLengths")
    assert result.code == 0, result.err
    assert open_dataset("out").num_steps == 2
