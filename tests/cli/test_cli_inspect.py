"""`hindcast inspect` on data with something wrong: what is shown, the exit codes, the page."""

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
def here(tmp_path, monkeypatch):
    """An empty current folder, and a cache of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HINDCAST_CACHE", str(tmp_path / "cache"))
    return tmp_path


def make_block(first=0, **columns):
    rng = np.random.default_rng(first)
    made = {
        "obs": rng.normal(size=(42, 3)).astype(np.float32),
        "actions": rng.integers(0, 2, 40),
        "rewards": rng.uniform(size=40),
        "action_logp": rng.normal(size=40),
    }
    return Block(
        columns={**made, **columns},
        length=np.array([10, 30]),
        eps_id=np.array([f"e{first}", f"e{first + 1}"], object),
        t_started=np.zeros(2, np.int64),
        terminated=np.array([True, False]),
        truncated=np.array([False, True]),
    )


def write(stem="s", block=None):
    block = block or make_block()
    with BlockWriter(resolve("data"), DataSpec.from_block(block), stem) as writer:
        writer.write(block)


NAN = np.full(40, np.nan)
ZERO = np.zeros(40)


@pytest.mark.parametrize(
    ("rewards", "flags", "code", "said"),
    [
        (None, ["--strict-warnings"], 0, ""),
        (ZERO, [], 0, ""),
        (ZERO, ["--strict"], 0, ""),
        (ZERO, ["--strict-warnings"], 3, "data has 1 warning, the first: all 40 inspected rewards are 0"),
        (NAN, [], 0, ""),
        (NAN, ["--strict"], 3, "data has 1 error, the first: data/s-000.parquet, row 0 (episode e0), t = 0"),
        (NAN, ["--strict", "--full"], 3, "data has 1 error, the first: data/s-000.parquet, row 0"),
    ],
)
def test_strict_is_the_exit_code(hindcast, rewards, flags, code, said):
    write(block=make_block() if rewards is None else make_block(rewards=rewards))
    called = hindcast("inspect", "data", *flags)
    assert called.code == code
    assert said in called.err
    assert ("error: " in called.err) == bool(code)


@pytest.mark.parametrize("block", [make_block(rewards=NAN), None])
def test_json_is_one_document_also_where_it_fails(hindcast, here, block):
    if block is not None:
        write(block=block)
    else:
        write("a")
        write("b", make_block(2))
        for path in (here / "data").iterdir():
            path.write_bytes(path.read_bytes()[:-5])
    called = hindcast("inspect", "data", "--json", "--strict")
    (document,) = map(json.loads, called.out.splitlines())
    assert called.code == document["error"]["exitCode"] == 3
    assert document["error"]["type"] == "DataError"
    assert called.err.endswith(f"error: {document['error']['message']}\n")
    assert document["problems"][0]["severity"] == "error"


def test_all_bad_files_are_shown_in_one_line_each_and_the_rest_is_inspected(hindcast, here):
    for i in range(14):
        write(f"f{i:02}", make_block(2 * i))
    for path in sorted((here / "data").iterdir())[:12]:
        path.write_bytes(path.read_bytes()[:-5])
    called = hindcast("inspect", "data")
    assert called.code == 0, called.err
    assert (
        len(re.findall(r"^error: data/f\d\d-000.parquet is truncated .*\[unreadable\]$", called.out, re.M))
        == 10
    )
    assert "error: and 2 more; --json lists all [unreadable]" in called.out
    found = json.loads(hindcast("inspect", "data", "--json").out)
    assert [problem["path"] for problem in found["problems"][:12]] == [
        f"data/f{i:02}-000.parquet" for i in range(12)
    ]
    assert (found["episodes"], found["files"]) == (4, 2)
    assert hindcast("inspect", "data", "--strict").code == 3


def test_nothing_but_bad_files_fails_after_all_are_shown(hindcast, here):
    write("a")
    write("b")
    for path in (here / "data").iterdir():
        path.write_bytes(b"")
    called = hindcast("inspect", "data")
    assert called.code == 3
    assert called.out.count("is empty (0 bytes)") == 2
    assert "data has 2 errors, the first: data/a-000.parquet is empty" in called.err


class Images(HTMLParser):
    def __init__(self, html):
        super().__init__()
        self.links, self.alts = [], []
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.links += [found[name] for name in ("src", "srcset", "href") if name in found]
        self.alts += [found["alt"]] if "alt" in found else []


def test_the_page_holds_the_figures_and_needs_nothing_else(hindcast, here):
    block = make_block(rewards=ZERO)
    write(block=block)
    called = hindcast("inspect", "data", "--html", "deep/page.html", "--json")
    assert called.code == 0, called.err
    found = json.loads(called.out)
    html = (here / "deep" / "page.html").read_text()
    assert [path.name for path in (here / "deep").iterdir()] == ["page.html"]
    images = Images(html)
    assert images.links
    for link in images.links:
        head, data = link.split(",")
        assert head == "data:image/png;base64"
        assert base64.b64decode(data).startswith(b"\x89PNG")
    share = f"{100 * found['coverage']['occupied']:.0f} %"
    assert any(alt.startswith(f"Observations visit {share} of the grid's cells") for alt in images.alts)
    assert any("return" in alt for alt in images.alts)
    assert len(images.links) == 2 * len(images.alts) >= 8
    assert "1 warning found" in html
    assert "all 40 inspected rewards are 0" in html
    assert "hindcast inspect data --full --strict" in html


def test_ranges_are_drawn_where_the_space_has_bounds(hindcast, here):
    from gymnasium import spaces

    block = make_block()
    spec = DataSpec.from_block(block, spaces.Box(-5, 5, (3,)), spaces.Discrete(2))
    with BlockWriter(resolve("data"), spec, "s") as writer:
        writer.write(block)
    hindcast("inspect", "data", "--html", "page.html")
    assert any("of their bounds" in alt for alt in Images((here / "page.html").read_text()).alts)


def test_tables_of_others_are_prepared_and_the_notes_say_so(hindcast, here):
    rows = ["episode,step,x,y,act,rewards,done"]
    for episode in range(3):
        rows += [f"{episode},{t},{t / 7},{-t},{t % 2},1.0,{str(t == 4).lower()}" for t in range(5)]
    rows[1:] = rows[:0:-1]
    (here / "table.csv").write_text("\n".join(rows) + "\n")
    names = ["--schema", "eps_id=episode", "--schema", "t=step", "--schema", "actions=act"]
    names += ["--schema", "obs=x", "--schema", "obs=y"]
    called = hindcast("inspect", "table.csv", *names, "--ignore-final-observation", "--json")
    assert called.code == 0, called.err
    found = json.loads(called.out)
    assert (found["episodes"], found["timesteps"]) == (3, 15)
    assert "prepared" in found["prepared"]
    assert found["layouts"] == ["CSV"]
    assert found["columns"]["obs"] == "float64 [2]"
    notes = [problem["message"] for problem in found["problems"] if problem["kind"] == "note"]
    assert any("CSV" in note for note in notes)


def test_options_that_are_wrong_are_said(hindcast):
    write()
    called = hindcast("inspect", "data", "--schema", "obs")
    assert called.code == 2
    assert "--schema 'obs' is not of the form NAME=SOURCE_NAME" in called.err


def test_columns_that_are_not_asked_for_are_not_looked_at(hindcast):
    from gymnasium import spaces

    block = make_block(rewards=NAN)
    spec = DataSpec.from_block(block, spaces.Box(-9, 9, (3,)), spaces.Discrete(2))
    with BlockWriter(resolve("data"), spec, "s") as writer:
        writer.write(block)
    called = hindcast("inspect", "data", "--columns", "actions", "--json")
    found = json.loads(called.out)
    assert set(found["columns"]) == {"actions"}
    assert found["returns"] is None
    assert not [problem for problem in found["problems"] if problem["severity"] == "error"]


def test_a_file_that_is_no_parquet_does_not_hide_the_recording_beside_it(hindcast, here):
    write()
    (here / "data" / "download.parquet").write_bytes(b"PK\x03\x04" + b"x" * 500)
    found = json.loads(hindcast("inspect", "data", "--json").out)
    assert found["episodes"] == 2
    errors = [problem for problem in found["problems"] if problem["severity"] == "error"]
    assert [(problem["kind"], problem["path"]) for problem in errors] == [
        ("unreadable", "data/download.parquet")
    ]
    assert "it begins with b'PK" in errors[0]["message"]


def test_of_many_dimensions_a_few_are_shown_from_all_over(hindcast):
    write(block=make_block(obs=np.random.default_rng(0).normal(size=(42, 1000))))
    shown = hindcast("inspect", "data").out
    assert "obs: 1,000 dimensions, 12 of them" in shown
    assert re.search(r"^ +999 ", shown, re.MULTILINE)
    assert "rewards float64," in " ".join(shown.split())


def test_bad_files_of_other_formats_are_listed_and_the_others_shown(hindcast, here):
    (here / "logs").mkdir()
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
        (here / "logs" / f"{name}.json").write_text(json.dumps({**row, "eps_id": name}) + "\n")
    for name in "ac":
        with (here / "logs" / f"{name}.json").open("a") as file:
            file.write('{"eps_id": "cut\n')
    called = hindcast("inspect", "logs")
    assert called.code == 0
    assert re.search(r"episodes +1\b", called.out)
    assert [
        re.search(r"logs/(.)\.json", line)[1] for line in called.out.splitlines() if "error: " in line
    ] == ["a", "c"]
    called = hindcast("inspect", "logs", "--strict")
    assert called.code == 3
    assert "logs has 2 errors, the first: logs/a.json" in " ".join(called.err.split())
    (here / "logs" / "b.json").unlink()
    assert hindcast("inspect", "logs").code == 3
