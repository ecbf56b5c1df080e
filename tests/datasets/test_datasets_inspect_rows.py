"""A problem in a row names file, row and kind."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pyarrow.parquet as pq

from hindcast.datasets.inspection.inspecting import inspect_paths
from hindcast.formats.layout import RowError


def test_unreadable_cell_names_its_row(kit, tmp_path):
    kit.write(tmp_path, kit.block([4, 6, 2]), layout="episodes/messagepack")
    (path,) = tmp_path.glob("*.parquet")
    table = pq.read_table(path)
    cells = [cell.as_py() for cell in table["item"]]
    cells[1] = b"no episode"
    pq.write_table(pa.table({"item": cells}), path)
    (error,) = [problem for problem in inspect_paths([path]).problems if problem.severity == "error"]
    assert (error.kind, error.row) == ("unreadable", 1)


def test_row_error_can_be_pickled():
    error = pickle.loads(pickle.dumps(RowError("wrong", "goes-on", path="a file", row=3)))
    assert (str(error), error.kind) == ("a file, row 3: wrong", "goes-on")
