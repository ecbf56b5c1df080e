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
def recorded(done, tmp_path, monkeypatch):
    """The recording of `done`, seen from an empty folder."""
    monkeypatch.chdir(tmp_path)
    return done / "data"


def test_convert_says_what_came_out(hindcast, recorded):
    called = hindcast("convert", recorded, "out", "--to", "Columns", "--compression", "zstd", "-q")
    assert called.code == 0, called.err
    assert called.out.startswith("out: 12 episodes, ")
    assert " as Columns, " in called.out
    assert called.err == ""


def test_convert_gives_counts_bytes_and_checksum_as_json(hindcast, recorded):
    written = []
    for form in ("MessagePack", "SampleBatch", "SampleBatch"):
        called = hindcast("convert", recorded, form, "--to", form, "--json")
        assert called.code == 0, called.err
        written += json.loads(called.out)["written"]
    assert [one["state"] for one in written] == ["Succeeded", "Succeeded", "AlreadyFinished"]
    assert len({one["checksum"] for one in written}) == 1
    assert {one["episodes"] for one in written} == {12}
    files = [path for path in Path("MessagePack").iterdir() if path.is_file()]
    assert written[0]["bytes"] == sum(path.stat().st_size for path in files)


def test_the_family_of_data(hindcast, recorded):
    for arguments in (
        ("split", recorded, "a", "b", "--validation", "0.25"),
        ("merge", "a", "b", "both", "--to", "Columns"),
        ("filter", "both", "top", "--where", "length > 5", "--top", "0.5"),
        ("sample", "both", "few", "--fraction", "0.5"),
        ("filter", "both", "rows", "--rows", "t < 5"),
    ):
        called = hindcast("data", *arguments, "-q")
        assert called.code == 0, called.err
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
        (
            ("convert", "DATA", "out", "--schema", "obs"),
            2,
            "--schema 'obs' is not of the form NAME=SOURCE_NAME",
        ),
        (
            ("convert", "DATA", "out", "--read-option", "delimiter"),
            2,
            "--read-option 'delimiter' is not of the form NAME=VALUE",
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
        (("data", "filter", "DATA", "out", "--where", "length > 9999"), 3, "no episodes are left"),
        (("data", "sample", "DATA", "out"), 2, "exactly one of episodes, timesteps and fraction"),
        (("data", "split", "DATA", "a", "b", "--validation", "2"), 2, "expected a number between 0 and 1"),
    ],
)
def test_a_mistake_is_one_sentence(hindcast, recorded, arguments, code, sentence):
    called = hindcast(*(str(part).replace("DATA", str(recorded)) for part in arguments), "-q")
    assert (called.code, called.err.count("\n")) == (code, 1), called.err
    assert sentence in called.err
    assert not Path("out").exists() or not list(Path("out").glob("*.parquet"))


@pytest.mark.parametrize(("char", "given"), [(";", ";"), ("\t", '"\\t"'), ("|", "|")])
def test_a_csv_with_another_delimiter_names_the_option_and_is_read_with_it(hindcast, recorded, char, given):
    lines = [
        ("eps_id", "t", "obs", "actions", "rewards"),
        *((e, t, t / 7, t % 2, 1) for e in "ab" for t in range(5)),
    ]
    Path("steps.csv").write_text("\n".join(char.join(map(str, line)) for line in lines))
    refused = hindcast("inspect", "steps.csv", "--ignore-final-observation")
    assert refused.code == 3
    assert f"(--read-option 'delimiter={given}')" in refused.err
    options = ("--ignore-final-observation", "--read-option", f"delimiter={given}")
    for command in (
        ("inspect", "steps.csv"),
        ("convert", "steps.csv", "out"),
        ("data", "sample", "steps.csv", "few", "--fraction", "0.5"),
    ):
        called = hindcast(*command, *options, "--read-option", 'column_types={"obs": "float32"}')
        assert called.code == 0, called.err
    assert str(open_dataset("out").spec.leaves["obs"]) == "float32 []"


def test_a_split_that_cannot_be_made_leaves_nothing(hindcast, recorded):
    assert hindcast("convert", recorded, "other", "-q").code == 0
    for arguments, code, sentence in (
        (("a", "b", "--validation", "0.001"), 3, "no episodes are left to write to b"),
        (("a", "other"), 4, "other holds data made from a different source"),
        (("a", "b/c", "--to", "CSV"), 4, "b/c holds files that Hindcast did not write"),
    ):
        Path("b/c").mkdir(parents=True, exist_ok=True)
        Path("b/c/strange.txt").touch()
        called = hindcast("data", "split", recorded, *arguments, "-q")
        assert (called.code, sentence in called.err) == (code, True), called.err
        assert not Path("a").exists()
    assert hindcast("data", "split", recorded, "a", "d", "-q").code == 0


SLOW = """
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
def test_ctrl_c_stops_with_130_and_the_command_goes_on(hindcast, recorded):
    command = [sys.executable, "-c", SLOW, "convert", str(recorded), "out", "-q"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        time.sleep(0.2)
        os.kill(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "run the same command again to resume" in err
    assert hindcast("convert", recorded, "out", "-q").code == 0
    assert open_dataset("out").num_episodes == 12
