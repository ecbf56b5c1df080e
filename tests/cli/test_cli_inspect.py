"""`hindcast inspect` on data with problems: its output, exit codes and HTML page."""

import base64
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from hindcast.datasets.writer import BlockWriter
from hindcast.episodes.block import Block
from hindcast.formats.spec import DataSpec
from hindcast.storage.location import resolve


@pytest.fixture(autouse=True)
def folder(tmp_path, cache, monkeypatch):
    """Return an empty folder, which is the current one and contains the cache."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def make_block(first_episode=0, **columns):
    """Make two episodes of 10 and 30 steps with random columns."""
    rng = np.random.default_rng(first_episode)
    defaults = {
        "obs": rng.normal(size=(42, 3)).astype(np.float32),
        "actions": rng.integers(0, 2, 40),
        "rewards": rng.uniform(size=40),
        "action_logp": rng.normal(size=40),
    }
    return Block(
        columns={**defaults, **columns},
        length=np.array([10, 30]),
        eps_id=np.array([f"e{first_episode}", f"e{first_episode + 1}"], object),
        t_started=np.zeros(2, np.int64),
        terminated=np.array([True, False]),
        truncated=np.array([False, True]),
    )


def write_data(stem="s", block=None):
    """Write a block as a file of the dataset `data`."""
    block = block or make_block()
    with BlockWriter(resolve("data"), DataSpec.from_block(block), stem) as writer:
        writer.write(block)


# Rewards of the 40 steps of `make_block`.
NAN = np.full(40, np.nan)
ZERO = np.zeros(40)


@pytest.mark.parametrize(
    ("rewards", "flags", "code", "message"),
    [
        (None, ["--strict-warnings"], 0, ""),
        (ZERO, [], 0, ""),
        (ZERO, ["--strict"], 0, ""),
        (ZERO, ["--strict-warnings"], 3, "data has 1 warning. First: all 40 inspected rewards are 0"),
        (NAN, [], 0, ""),
        (NAN, ["--strict"], 3, "data has 1 error. First: data/s-000.parquet, row 0 (episode e0, t 0)"),
        (NAN, ["--strict", "--full"], 3, "data has 1 error. First: data/s-000.parquet, row 0"),
    ],
)
def test_strict_sets_exit_code(hindcast, rewards, flags, code, message):
    write_data(block=make_block() if rewards is None else make_block(rewards=rewards))
    result = hindcast("inspect", "data", *flags)
    assert result.code == code
    assert message in result.err
    assert ("error: " in result.err) == bool(code)


@pytest.mark.parametrize("block", [make_block(rewards=NAN), None], ids=["not finite", "truncated files"])
def test_json_with_failure_is_one_document(hindcast, folder, block):
    if block is not None:
        write_data(block=block)
    else:
        write_data("a")
        write_data("b", make_block(2))
        for path in (folder / "data").iterdir():
            path.write_bytes(path.read_bytes()[:-5])
    result = hindcast("inspect", "data", "--json", "--strict")
    (document,) = map(json.loads, result.out.splitlines())
    assert result.code == document["error"]["exitCode"] == 3
    assert document["error"]["type"] == "DataError"
    assert result.err.endswith(f"error: {document['error']['message']}\n")
    assert document["problems"][0]["severity"] == "error"


def test_damaged_files_are_listed_and_others_are_inspected(hindcast, folder):
    for i in range(14):
        write_data(f"f{i:02}", make_block(2 * i))
    for path in sorted((folder / "data").iterdir())[:12]:
        path.write_bytes(path.read_bytes()[:-5])
    result = hindcast("inspect", "data")
    assert result.code == 0, result.err
    assert (
        len(re.findall(r"^error: data/f\d\d-000.parquet is truncated .*\[unreadable\]$", result.out, re.M))
        == 10
    )
    assert "error: and 2 more; --json lists all [unreadable]" in result.out
    summary = json.loads(hindcast("inspect", "data", "--json").out)
    assert [problem["path"] for problem in summary["problems"][:12]] == [
        f"data/f{i:02}-000.parquet" for i in range(12)
    ]
    assert (summary["episodes"], summary["files"]) == (4, 2)
    assert hindcast("inspect", "data", "--strict").code == 3


def test_inspect_of_only_damaged_files_lists_all_and_fails(hindcast, folder):
    write_data("a")
    write_data("b")
    for path in (folder / "data").iterdir():
        path.write_bytes(b"")
    result = hindcast("inspect", "data")
    assert result.code == 3
    assert result.out.count("is empty (0 bytes)") == 2
    assert "data has 2 errors. First: data/a-000.parquet is empty" in result.err


class ImageParser(HTMLParser):
    """Collects all links of a page, and the alternative texts of its images."""

    def __init__(self, html):
        super().__init__()
        self.links, self.alts = [], []
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.links += [values[name] for name in ("src", "srcset", "href") if name in values]
        self.alts += [values["alt"]] if "alt" in values else []


def test_html_page_is_self_contained(hindcast, folder):
    block = make_block(rewards=ZERO)
    write_data(block=block)
    result = hindcast("inspect", "data", "--html", "deep/page.html", "--json")
    assert result.code == 0, result.err
    summary = json.loads(result.out)
    html = (folder / "deep" / "page.html").read_text()
    assert [path.name for path in (folder / "deep").iterdir()] == ["page.html"]
    images = ImageParser(html)
    assert images.links
    for link in images.links:
        media_type, data = link.split(",")
        assert media_type == "data:image/png;base64"
        assert base64.b64decode(data).startswith(b"\x89PNG")
    share = f"{100 * summary['coverage']['occupiedShare']:.0f} %"
    assert any(alt.startswith(f"Observations visit {share} of the grid's cells") for alt in images.alts)
    assert any("return" in alt for alt in images.alts)
    assert len(images.links) == 2 * len(images.alts) >= 8
    assert "1 warning found" in html
    assert "all 40 inspected rewards are 0" in html
    assert "hindcast inspect data --full --strict" in html


def test_html_page_draws_ranges_of_bounded_spaces(hindcast, folder):
    from gymnasium import spaces

    block = make_block()
    spec = DataSpec.from_block(block, spaces.Box(-5, 5, (3,)), spaces.Discrete(2))
    with BlockWriter(resolve("data"), spec, "s") as writer:
        writer.write(block)
    hindcast("inspect", "data", "--html", "page.html")
    assert any("of their bounds" in alt for alt in ImageParser((folder / "page.html").read_text()).alts)


def test_table_is_prepared_with_notes(hindcast, folder):
    rows = ["episode,step,x,y,act,rewards,done"]
    for episode in range(3):
        rows += [f"{episode},{t},{t / 7},{-t},{t % 2},1.0,{str(t == 4).lower()}" for t in range(5)]
    rows[1:] = rows[:0:-1]  # in reverse order, below the header
    (folder / "table.csv").write_text("\n".join(rows) + "\n")
    schema_options = ["--schema", "eps_id=episode", "--schema", "t=step", "--schema", "actions=act"]
    schema_options += ["--schema", "obs=x", "--schema", "obs=y"]
    result = hindcast("inspect", "table.csv", *schema_options, "--ignore-final-observation", "--json")
    assert result.code == 0, result.err
    summary = json.loads(result.out)
    assert (summary["episodes"], summary["timesteps"]) == (3, 15)
    assert "prepared" in summary["preparedPath"]
    assert summary["layouts"] == ["CSV"]
    assert summary["columns"]["obs"] == "float64 [2]"
    notes = [problem["message"] for problem in summary["problems"] if problem["kind"] == "note"]
    assert any("CSV" in note for note in notes)


def test_columns_not_requested_are_not_checked(hindcast):
    from gymnasium import spaces

    block = make_block(rewards=NAN)
    spec = DataSpec.from_block(block, spaces.Box(-9, 9, (3,)), spaces.Discrete(2))
    with BlockWriter(resolve("data"), spec, "s") as writer:
        writer.write(block)
    result = hindcast("inspect", "data", "--columns", "actions", "--json")
    summary = json.loads(result.out)
    assert set(summary["columns"]) == {"actions"}
    assert summary["returns"] is None
    assert not [problem for problem in summary["problems"] if problem["severity"] == "error"]


def test_file_that_is_not_parquet_does_not_hide_recording(hindcast, folder):
    write_data()
    (folder / "data" / "download.parquet").write_bytes(b"PK\x03\x04" + b"x" * 500)
    summary = json.loads(hindcast("inspect", "data", "--json").out)
    assert summary["episodes"] == 2
    errors = [problem for problem in summary["problems"] if problem["severity"] == "error"]
    assert [(problem["kind"], problem["path"]) for problem in errors] == [
        ("unreadable", "data/download.parquet")
    ]
    assert "it begins with b'PK" in errors[0]["message"]


def test_many_dimensions_shows_evenly_spread_sample(hindcast):
    write_data(block=make_block(obs=np.random.default_rng(0).normal(size=(42, 1000))))
    output = hindcast("inspect", "data").out
    assert "obs: 1,000 dimensions, 12 of them" in output
    assert re.search(r"^ +999 ", output, re.MULTILINE)
    assert "rewards float64," in " ".join(output.split())


def test_damaged_json_files_are_listed_and_others_are_inspected(hindcast, folder):
    (folder / "logs").mkdir()
    row = {
        "eps_id": "a",
        "t": 0,
        "obs": [1.0],
        "new_obs": [2.0],
        "actions": 0,
        "rewards": 1.0,
        "terminateds": True,
    }
    for name in "abc":
        (folder / "logs" / f"{name}.json").write_text(json.dumps({**row, "eps_id": name}) + "\n")
    for name in "ac":
        with (folder / "logs" / f"{name}.json").open("a") as file:
            file.write('{"eps_id": "cut\n')
    result = hindcast("inspect", "logs")
    assert result.code == 0
    assert re.search(r"episodes +1\b", result.out)
    assert [
        re.search(r"logs/(.)\.json", line)[1] for line in result.out.splitlines() if "error: " in line
    ] == ["a", "c"]
    result = hindcast("inspect", "logs", "--strict")
    assert result.code == 3
    assert "logs has 2 errors. First: logs/a.json" in " ".join(result.err.split())
    (folder / "logs" / "b.json").unlink()
    assert hindcast("inspect", "logs").code == 3
