"""A table of three episodes, as files of other tools hold it, and what is read from it."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import prepare_kit as kit
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray
from pyarrow import feather

from hindcast.api.input import PrepareSpec
from hindcast.datasets.dataset import Dataset
from hindcast.datasets.prepare.opening import open_data
from hindcast.datasets.prepare.reading import Reading
from hindcast.episodes.block import Block
from hindcast.formats.format import ReadOptions

LENGTHS = [5, 4, 6]
BLOCK = kit.make_block(LENGTHS)
OBS = BLOCK.columns["obs"][BLOCK.obs_row].astype(np.float64)
NEXT_OBS = BLOCK.columns["obs"][BLOCK.obs_row + 1].astype(np.float64)
ACTIONS = BLOCK.columns["actions"] % 2
REWARDS = BLOCK.columns["rewards"]
EPISODE = np.repeat(np.arange(3), LENGTHS)
STEP = np.concatenate([np.arange(length) for length in LENGTHS])
DONE = np.array(LENGTHS)[EPISODE] == STEP + 1


def make_steps(**columns: Any) -> pa.Table:
    """Make a table of all steps; `columns` replace columns, and None removes one."""
    table = {
        "episode": EPISODE,
        "step": STEP,
        "obs": list(OBS),
        "next_obs": list(NEXT_OBS),
        "action": ACTIONS,
        "reward": REWARDS,
        "done": DONE,
        **columns,
    }
    return pa.table({name: column for name, column in table.items() if column is not None})


def encode_table(table: pa.Table, suffix: str) -> bytes:
    """Return a file that holds a table."""
    buffer = io.BytesIO()
    suffix = suffix.lower()
    kind = suffix.removesuffix(".gz")
    if kind in ("csv", "tsv"):
        pacsv.write_csv(table, buffer, pacsv.WriteOptions(delimiter="\t" if kind == "tsv" else ","))
    elif kind == "jsonl":
        buffer.write("\n".join(map(json.dumps, table.to_pylist())).encode())
    elif kind == "json":
        buffer.write(json.dumps(table.to_pylist()).encode())
    elif kind in ("arrow", "feather"):
        feather.write_feather(table, buffer, compression="uncompressed")
    else:
        pq.write_table(table, buffer)
    return gzip.compress(buffer.getvalue()) if suffix.endswith(".gz") else buffer.getvalue()


def write(folder: Path, table: pa.Table, name: str = "steps.parquet") -> str:
    folder.mkdir(exist_ok=True, parents=True)
    pq.write_table(table, folder / name)
    return str(folder)


def open_tool(path: Path | str, **options: Any) -> Dataset:
    prepare = options.pop("prepare", {})
    return open_data(Reading((str(path),), options=ReadOptions(**options), prepare=PrepareSpec(**prepare)))


def assert_steps(dataset: Dataset, final_obs: NDArray[Any] | None = NEXT_OBS[DONE]) -> Block:
    """Check lengths, observations, actions and rewards; return the block."""
    block = kit.read_block(dataset)
    assert block.length.tolist() == LENGTHS
    assert block.columns["obs"][block.obs_row].squeeze() == pytest.approx(OBS)
    assert block.columns["rewards"].ravel() == pytest.approx(REWARDS)
    if final_obs is not None:
        assert block.columns["obs"][block.obs_start + block.length].squeeze() == pytest.approx(final_obs)
    return block
