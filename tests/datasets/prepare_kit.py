"""Helpers that make tables of timesteps and read the prepared episodes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hindcast.datasets.dataset import Dataset
from hindcast.datasets.writer import BlockWriter
from hindcast.episodes.block import Block
from hindcast.formats.spec import DataSpec
from hindcast.storage.location import resolve


def make_block(lengths: Sequence[int], seed: int = 0) -> Block:
    """Make episodes e0, e1, … with distinct observations; even ones terminate, odd ones are truncated."""
    rng = np.random.default_rng(seed)
    n, steps = len(lengths), sum(lengths)
    return Block(
        columns={
            "obs": rng.uniform(-1, 1, (steps + n, 3)).astype(np.float32),
            "actions": rng.integers(0, 3, steps),
            "rewards": rng.uniform(size=steps),
        },
        length=np.array(lengths, dtype=np.int64),
        eps_id=np.array([f"e{i}" for i in range(n)], dtype=object),
        t_started=np.zeros(n, dtype=np.int64),
        terminated=np.arange(n) % 2 == 0,
        truncated=np.arange(n) % 2 == 1,
    )


def table_of(block: Block, folder: Path, spec: DataSpec | None = None) -> pa.Table:
    """Convert a block to rows of timesteps, in order; a given spec is in the metadata."""
    table_spec = spec or DataSpec.from_block(block)
    with BlockWriter(resolve(folder), table_spec, "all", layout="columns") as writer:
        writer.write(block)
    files = sorted(folder.glob("*.parquet"))
    table = pa.concat_tables([pq.read_table(file) for file in files])
    return table if spec is not None else table.replace_schema_metadata(None)


def scramble_rows(table: pa.Table, seed: int = 0) -> pa.Table:
    """Return the rows in a random order."""
    return table.take(np.random.default_rng(seed).permutation(len(table)))


def write_files(folder: Path, table: pa.Table, files: int = 1) -> str:
    """Write the rows, in order, to Parquet files, and return their folder."""
    folder.mkdir(parents=True, exist_ok=True)
    bounds = np.linspace(0, len(table), files + 1).astype(int)
    for i in range(files):
        pq.write_table(table.slice(bounds[i], bounds[i + 1] - bounds[i]), folder / f"part-{i}.parquet")
    return str(folder)


def read_block(dataset: Dataset) -> Block:
    """Read all episodes."""
    return Block.concat([dataset.read(unit) for unit in dataset.units])


def without_empty_infos(block: Block) -> Block:
    """Remove a column of infos that are all empty."""
    infos = block.columns.get("infos")
    if infos is None or infos.astype(bool).any():
        return block
    return block.with_columns({name: column for name, column in block.columns.items() if name != "infos"})
