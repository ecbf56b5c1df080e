"""Helpers that make tables of timesteps and read the prepared episodes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from episode_kit import build_block, read_block  # noqa: F401  for the tests
from hindcast.datasets.writer import BlockWriter
from hindcast.episodes.block import Block
from hindcast.formats.spec import DataSpec
from hindcast.storage.location import resolve


def make_block(lengths: Sequence[int], seed: int = 0) -> Block:
    """Make episodes e0, e1, … with distinct observations; e0, e2, … are terminated, e1, e3, … are truncated."""
    rng = np.random.default_rng(seed)
    num_episodes, num_steps = len(lengths), sum(lengths)
    columns = {
        "obs": rng.uniform(-1, 1, (num_steps + num_episodes, 3)).astype(np.float32),
        "actions": rng.integers(0, 3, num_steps),
        "rewards": rng.uniform(size=num_steps),
    }
    return build_block(columns, lengths)


def make_table(block: Block, folder: Path, spec: DataSpec | None = None) -> pa.Table:
    """Convert a block to a table of timesteps, in order, by way of files in `folder`.

    The table's metadata contain the spec if it is not None; otherwise the table has no metadata.
    """
    table_spec = spec or DataSpec.from_block(block)
    with BlockWriter(resolve(folder), table_spec, "all", layout="columns") as writer:
        writer.write(block)
    files = sorted(folder.glob("*.parquet"))
    table = pa.concat_tables([pq.read_table(file) for file in files])
    return table if spec is not None else table.replace_schema_metadata(None)


def scramble_rows(table: pa.Table, seed: int = 0) -> pa.Table:
    """Return the rows in a random order."""
    return table.take(np.random.default_rng(seed).permutation(len(table)))


def write_files(folder: Path, table: pa.Table, num_files: int = 1) -> str:
    """Write the rows, in order, to `part-0.parquet`, `part-1.parquet`, …, and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    bounds = np.linspace(0, len(table), num_files + 1).astype(int)
    for i in range(num_files):
        pq.write_table(table.slice(bounds[i], bounds[i + 1] - bounds[i]), folder / f"part-{i}.parquet")
    return str(folder)


def replace_column(table: pa.Table, name: str, values: object) -> pa.Table:
    index, column = table.schema.get_field_index(name), pa.array(values)
    field = table.schema.field(index)
    return table.set_column(index, field if field.type == column.type else name, column)


def without_empty_infos(block: Block) -> Block:
    """Remove a column of infos that are all empty."""
    infos = block.columns.get("infos")
    if infos is None or infos.astype(bool).any():
        return block
    return block.with_columns({name: column for name, column in block.columns.items() if name != "infos"})
