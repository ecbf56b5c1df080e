"""A problem in a row names file, row and kind."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hindcast.episodes.block import Block
from hindcast.storage.location import resolve
from hindcast.store.inspection.inspecting import inspect_paths
from hindcast.store.layout import RowError
from hindcast.store.spec import DataSpec
from hindcast.store.writer import EpisodeWriter


def write(folder, layout="columns"):
    block = Block(
        columns={
            "obs": np.arange(36, dtype=np.float32).reshape(12, 3),
            "actions": np.arange(10) % 2,
            "rewards": np.ones(10),
        },
        length=np.array([4, 6]),
        eps_id=np.array(["one", "two"], object),
        t_started=np.zeros(2, np.int64),
        terminated=np.ones(2, np.bool_),
        truncated=np.zeros(2, np.bool_),
    )
    with EpisodeWriter(resolve(folder), DataSpec.of_block(block), "s", layout=layout) as writer:
        writer.write(block)
    return folder / writer.close()[0].path


def rewrite(path, column, change):
    """Change a column, and keep what the footer says of the rows."""
    file = pq.ParquetFile(path)
    table, metadata = file.read(), file.metadata.metadata
    values = table[column].to_pylist()
    change(values)
    place = table.schema.get_field_index(column)
    field = table.schema.field(column)
    table = table.set_column(place, field, pa.array(values, field.type))
    with pq.ParquetWriter(path, table.schema) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({b"hindcast-index": metadata[b"hindcast-index"]})


def test_a_cell_that_cannot_be_read_names_its_row(tmp_path):
    path = write(tmp_path)
    rewrite(path, "t", lambda t: t.__setitem__(5, 9))
    (problem,) = [one for one in inspect_paths([path]).problems if one.severity == "error"]
    assert (problem.kind, problem.row) == ("unreadable", 5)


def test_the_error_travels_to_other_processes():
    error = pickle.loads(pickle.dumps(RowError("a file, row 3: wrong", 3, "goes-on")))
    assert (str(error), error.row, error.kind) == ("a file, row 3: wrong", 3, "goes-on")
