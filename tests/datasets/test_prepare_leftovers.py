"""Leftovers of tools, names of files and their formats do not change the episodes that a folder holds."""

from __future__ import annotations

import gzip
import io
import re
from itertools import pairwise
from pathlib import Path

import h5py
import numpy as np
import prepare_kit as kit
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from tool_tables import BLOCK, LENGTHS, NEXT_OBS, OBS, REWARDS, encode_table, make_steps, open_tool

from hindcast.datasets.inspection.inspecting import inspect_data
from hindcast.datasets.prepare.reading import Reading
from hindcast.datasets.writer import BlockWriter
from hindcast.errors import DataError
from hindcast.formats.layouts import WRITTEN_FORMATS
from hindcast.formats.spec import DataSpec
from hindcast.storage.location import resolve
from layers import examples

NAMES = (
    "log_{}",
    "{}",
    "part-{:05}-0c7d8d1e-c000.snappy",
    "2026-11-{:02}",
    "steps [{}]",
    "größe {}",
    "run.v2.{}",
    "worker{}/steps",
    "a/b {}/c",
    "episodes {} (copy)",
)
FORMATS = ("parquet", "csv", "csv.gz", "TSV", "jsonl", "JSON", "jsonl.GZ", "arrow", "Feather", "no suffix")


def encode_image() -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (4, 4)).save(buffer, "PNG")
    return buffer.getvalue()


TABLE = make_steps(obs=None, next_obs=None, obs_0=OBS[:, 0], next_obs_0=NEXT_OBS[:, 0])
COPY = encode_table(TABLE, "parquet")
ZIP = b"PK\x03\x04" + bytes(60)
LEFTOVERS: dict[str, bytes] = {
    # Spark, Hadoop, Flink
    "_SUCCESS": b"",
    "._SUCCESS.crc": b"crc\x00",
    ".part-00000.crc": b"crc\x00",
    "_metadata": b"PAR1",
    "_common_metadata": COPY,
    "_temporary/0/task_0/part-00000.parquet": COPY,
    "_spark_metadata/0": b"v1\n{}",
    ".hive-staging_0/part-0.parquet": COPY,
    "part-9.parquet.inprogress.0": b"PAR1" + bytes(20),
    # file managers and editors
    ".DS_Store": b"\x00\x00\x00\x01Bud1",
    "Thumbs.db": b"\xd0\xcf\x11\xe0" + bytes(60),
    "desktop.ini": b"[.ShellClassInfo]\r\n",
    "__MACOSX/._log_1.csv": b"\x00\x05\x16\x07" + bytes(60),
    "._log_1.parquet": b"\x00\x05\x16\x07" + bytes(60),
    "~$steps.xlsx": bytes(165),
    "steps.xlsx": ZIP,
    ".ipynb_checkpoints/log_1-checkpoint.parquet": COPY,
    "#steps.txt#": b"a draft",
    "notes.txt~": b"a draft",
    "log.swp": b"b0VIM 9.0" + bytes(60),
    # repositories, datasets, experiments
    ".git/config": b"[core]\n",
    ".gitattributes": b"*.parquet lfs\n",
    "README.md": b"# Data\n",
    "LICENSE": b"MIT\n",
    "dataset_info.json": b'{"features": {}}',
    "features.json": b"{}",
    "metadata.jsonl": b"{}\n{}\n",
    "params.json": b'[{"lr": 0.1}]',
    "stats.json": b'{"mean": [0.5, 1.5], "count": 15}',
    "config.yaml": b"lr: 0.1\n",
    "checksums.txt": b"abc  part\n",
    "notes.csv": b"a,b\n1,2\n",
    "episodes.csv": b"episode,return,done\n0,1.5,1\n1,0.5,1\n",
    "log_1.csv~": encode_table(TABLE, "csv"),
    "log_1.csv.bak": encode_table(TABLE, "csv"),
    "model.pkl": b"\x80\x04.",
    "model.pt": ZIP,
    "arrays.npz": ZIP,
    "returns.npy": b"\x93NUMPY" + bytes(60),
    "events.out.tfevents.1": bytes(40),
    "thumbnail.png": encode_image(),
    "video.mp4": b"\x00\x00\x00\x20ftypisom",
    "analysis.ipynb": b'{"cells": [], "nbformat": 4}',
    # files without rows
    "empty.parquet": encode_table(TABLE.slice(0, 0), "parquet"),
    "empty.csv": encode_table(TABLE.slice(0, 0), "csv"),
    "nothing.csv": b"",
    "nothing.parquet": b"",
    "nothing.jsonl": b"\n",
    "nothing.json": b"[]",
    "nothing.csv.gz": gzip.compress(b""),
    "empty.arrow": encode_table(TABLE.slice(0, 0), "arrow"),
}
DAMAGED = {"part-9.parquet.inprogress.0", "nothing.parquet"}


@given(
    suffixes=st.lists(st.sampled_from(FORMATS), min_size=1, max_size=2),
    name=st.sampled_from(NAMES),
    cuts=st.lists(st.integers(0, 15), max_size=12),
    columns=st.sampled_from([("episode", "step"), ("episode",), ("step",), ()]),
    leftovers=st.sets(st.sampled_from(sorted(LEFTOVERS)), max_size=6),
    is_scrambled=st.booleans(),
)
@examples(40)
def test_folder_with_leftovers_has_the_same_episodes(  # noqa: PLR0917
    tmp_path_factory, suffixes, name, cuts, columns, leftovers, is_scrambled
):
    folder: Path = tmp_path_factory.mktemp("data")
    table = TABLE.drop_columns([column for column in ("episode", "step") if column not in columns])
    if is_scrambled and columns == ("episode", "step"):
        table = kit.scramble_rows(table, len(cuts))
    bounds = [0, *sorted(cuts), 15]
    for number, (start, stop) in enumerate(pairwise(bounds), 1):
        suffix = suffixes[number % len(suffixes)]
        path = folder / f"{name.format(number)}{'' if suffix == 'no suffix' else f'.{suffix}'}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode_table(table.slice(start, stop - start), suffix))
    for leftover in leftovers:
        (folder / leftover).parent.mkdir(parents=True, exist_ok=True)
        (folder / leftover).write_bytes(LEFTOVERS[leftover])
    if damaged := DAMAGED & leftovers:
        with pytest.raises(DataError, match="|".join(map(re.escape, damaged))):
            open_tool(folder)
        return
    block = kit.read_block(open_tool(folder))
    order = np.argsort(block.eps_id) if columns == ("episode", "step") else slice(None)
    assert block.length[order].tolist() == LENGTHS
    if not is_scrambled:
        assert block.columns["obs"][block.obs_row].ravel() == pytest.approx(OBS[:, 0])
    assert np.sort(block.columns["rewards"]) == pytest.approx(np.sort(REWARDS))


def write_d4rl(folder: Path) -> None:
    for number, (start, stop) in enumerate(pairwise([0, 9, 15])):
        rows = make_steps().slice(start, stop - start).to_pydict()
        with h5py.File(folder / f"run {number}.hdf5", "w") as file:
            for name, column in {
                "observations": "obs",
                "next_observations": "next_obs",
                "terminals": "done",
            }.items():
                file[name] = np.array(rows[column])
            file["actions"], file["rewards"] = rows["action"], rows["reward"]
            file["timeouts"] = np.zeros(stop - start, bool)


@given(
    file_format=st.sampled_from([*WRITTEN_FORMATS, "D4RL"]),
    leftovers=st.sets(st.sampled_from(sorted(set(LEFTOVERS) - DAMAGED)), max_size=6),
)
@examples(40)
def test_episodes_of_any_format_with_leftovers_are_the_same(tmp_path_factory, file_format, leftovers):
    """Regression: a table without rows beside complete episodes was refused as a mixture."""
    folder: Path = tmp_path_factory.mktemp("data")
    if file_format == "D4RL":
        write_d4rl(folder)
    else:
        spec, layout = DataSpec.from_block(BLOCK), WRITTEN_FORMATS[file_format]
        with BlockWriter(resolve(folder), spec, "all", layout=layout) as writer:
            writer.write(BLOCK)
    for leftover in leftovers:
        (folder / leftover).parent.mkdir(parents=True, exist_ok=True)
        (folder / leftover).write_bytes(LEFTOVERS[leftover])
    block = kit.read_block(open_tool(folder))
    assert block.length.tolist() == LENGTHS
    assert block.columns["obs"][block.obs_row] == pytest.approx(OBS)
    assert block.columns["rewards"] == pytest.approx(REWARDS)


CSV_TEXT = encode_table(TABLE.slice(9), "csv").decode()
ROWS = CSV_TEXT.split("\n", 1)[1]
MISREAD_FILES = {
    "2.csv": (CSV_TEXT.replace(",", ";"), 'separates its columns by ";"', 'readOptions: {delimiter: ";"}'),
    "3.csv": (ROWS, "has no header", r"readOptions.column_names (episode, step, action, reward, …)"),
    "4.csv": (CSV_TEXT.encode("utf-16"), "is UTF-16 text", "save it as UTF-8"),
    "5.csv": ("Export of 2026\n\n" + CSV_TEXT, "has its header in line 3", "delete the lines before it"),
    "6.csv": (CSV_TEXT.replace("reward", "profit"), "no column 'rewards'", "correct it"),
    "7.jsonl": ('{"episode": 1, "step": 2, "obs_0": 0.5, "action": 1, "done": 1}', "'rewards'", "correct it"),
    "8.csv.gz": (gzip.compress(CSV_TEXT.encode())[:-9], "is damaged", "copy it again"),
    "9.txt": (CSV_TEXT, "no suffix of a known format", "rename it to *.csv"),
    "steps.csv.1": (CSV_TEXT, "no suffix of a known format", "rename it to *.csv"),
    "steps.jsonl.2": (encode_table(TABLE, "jsonl"), "no suffix of a known format", "rename it to *.json"),
    "steps.csv.bz2": (b"BZh", "is compressed", "decompress it, or use gzip"),
    "steps.parquet.zip": (ZIP, "is compressed", "decompress it, or use gzip"),
}


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
@pytest.mark.parametrize("name", MISREAD_FILES)
def test_file_with_columns_of_the_data_is_never_left_out(tmp_path, name, suffix):
    """Regression: a part without a header, or with another delimiter or encoding, counted as a file without data.

    `inspect` gives the same reason as a training.
    """
    folder = tmp_path / "data"  # beside the cache
    folder.mkdir()
    (folder / f"1.{suffix}").write_bytes(encode_table(TABLE.slice(0, 9), suffix))
    content, what, remedy = MISREAD_FILES[name]
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError) as error_info:
        open_tool(folder)
    message = str(error_info.value)
    assert name in message
    assert what in message
    assert remedy in message
    try:
        messages = [problem.message for problem in inspect_data(Reading((str(folder),))).problems]
    except DataError as error:
        messages = [str(error)]
    assert message in messages


def test_inspect_reports_an_invalid_cell_as_a_training_does(tmp_path):
    """Regression: `inspect` also advised to move the file if it was not data."""
    folder = tmp_path / "data"  # beside the cache
    folder.mkdir()
    (folder / "1.csv").write_bytes(encode_table(TABLE.slice(0, 9), "csv"))
    *lines, last_line = CSV_TEXT.splitlines()
    cells = last_line.split(",")
    cells[TABLE.column_names.index("reward")] = "high"
    (folder / "2.csv").write_text("\n".join([*lines, ",".join(cells)]))
    with pytest.raises(DataError, match="'high'") as error_info:
        open_tool(folder)
    summary = inspect_data(Reading((str(folder),)))
    assert str(error_info.value) in [problem.message for problem in summary.problems]


def test_compressed_copy_of_a_file_is_left_out(tmp_path):
    (tmp_path / "1.csv").write_bytes(encode_table(TABLE, "csv"))
    (tmp_path / "1.csv.bz2").write_bytes(b"BZh")
    assert open_tool(tmp_path).num_episodes == 3
