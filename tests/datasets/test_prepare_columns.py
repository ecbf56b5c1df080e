"""Only the `columns` of an input are read, from data of any kind, opened directly or prepared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import prepare_kit as kit
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hindcast.api.input import FilterTerm
from hindcast.datasets.prepare.opening import open_data
from hindcast.datasets.prepare.reading import Reading
from hindcast.datasets.writer import BlockWriter
from hindcast.episodes.columns import Columns
from hindcast.errors import DataError
from hindcast.formats.format import ReadOptions
from hindcast.formats.spec import DataSpec
from hindcast.run.execute import FileReferences
from hindcast.run.inputs import open_inputs, resolve_inputs
from hindcast.run.planning import plan
from hindcast.storage.location import resolve
from support import record, recording, train, training

OUTPUTS = {"action_dist_inputs": (2,), "vf_preds": ()}
LAYOUTS = ("episodes/arrow", "episodes/messagepack", "columns")


def write_dataset(folder: Path, layout: str, **outputs: tuple[int, ...]) -> str:
    """Write episodes with model outputs, without a manifest."""
    block = kit.make_block([4, 7])
    columns = {name: np.ones((11, *shape), dtype=np.float32) for name, shape in outputs.items()}
    block = block.with_columns({**block.columns, **columns})
    with BlockWriter(resolve(folder), DataSpec.from_block(block), "all", layout=layout) as writer:
        writer.write(block)
    return str(folder)


def make_reading(path: str, *columns: str, **options: Any) -> Reading:
    return Reading((path,), options=ReadOptions(columns=columns, **options))


@pytest.fixture(params=[*LAYOUTS, "scrambled"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Path of the same data in each layout, or as rows in random order."""
    if request.param != "scrambled":
        return write_dataset(tmp_path / "data", request.param, **OUTPUTS)
    (file,) = Path(write_dataset(tmp_path / "table", "columns", **OUTPUTS)).glob("*.parquet")
    return kit.write_files(tmp_path / "rows", kit.scramble_rows(pq.read_table(file)), num_files=2)


def test_columns_of_rllibs_guide_are_accepted(path: str) -> None:
    ids = (Columns.EPS_ID, Columns.AGENT_ID)
    named_columns = (Columns.OBS, Columns.NEXT_OBS, Columns.REWARDS, Columns.ACTIONS)
    dataset = open_data(make_reading(path, *ids, *named_columns, Columns.TERMINATED, Columns.TRUNCATED))
    assert sorted(dataset.spec.leaves) == ["actions", "obs", "rewards"]
    block = kit.read_block(dataset)
    assert (block.terminated | block.truncated).all()


def test_only_requested_columns_are_read(path: str) -> None:
    dataset = open_data(make_reading(path, "obs", "actions", "vf_preds"))
    assert list(dataset.spec.leaves) == ["obs", "actions", "vf_preds"]
    assert kit.read_block(dataset).columns.keys() == {"obs", "actions", "vf_preds"}
    assert dataset.num_steps == 11


def test_implicit_columns_may_be_named(path: str) -> None:
    columns = ("eps_id", "t", "obs", "new_obs", "actions", "rewards", "terminateds", "truncateds")
    dataset = open_data(make_reading(path, *columns))
    assert kit.read_block(dataset).columns.keys() == {"obs", "actions", "rewards"}


def test_unknown_column_is_refused(path: str) -> None:
    with pytest.raises(DataError, match=r"has no column '?rewardz'?, which `columns` names"):
        open_data(make_reading(path, "obs", "actions", "rewardz"))


def test_columns_apply_together_with_a_filter(path: str) -> None:
    term = FilterTerm(column="rewards", op=">=", value=0.5)
    dataset = open_data(make_reading(path, "obs", "actions", filter=(term,)))
    assert list(dataset.spec.leaves) == ["obs", "actions"]
    assert 0 < dataset.num_steps < 11


def test_files_that_differ_in_other_columns_are_compatible(tmp_path: Path) -> None:
    paths = [
        write_dataset(tmp_path / "one", LAYOUTS[0], **OUTPUTS),
        write_dataset(tmp_path / "other", LAYOUTS[1], vf_preds=()),
    ]
    with pytest.raises(DataError, match="cannot be one dataset"):
        open_data([Reading((path,)) for path in paths])
    dataset = open_data([make_reading(path, "obs", "actions", "rewards") for path in paths])
    assert list(dataset.spec.leaves) == ["obs", "actions", "rewards"]


def test_other_columns_are_never_decoded(tmp_path: Path) -> None:
    """Add a column that cannot be read, and read the other columns."""
    (file,) = Path(write_dataset(tmp_path / "data", LAYOUTS[0], **OUTPUTS)).glob("*.parquet")
    table = pq.read_table(file)
    column_index = table.schema.get_field_index("vf_preds")
    field = table.schema.field(column_index)
    nulls = pa.array([None] * len(table), field.type)
    pq.write_table(table.set_column(column_index, pa.field(field.name, field.type), nulls), file)
    with pytest.raises(DataError, match="vf_preds"):
        kit.read_block(open_data(str(tmp_path / "data")))
    assert kit.read_block(open_data(make_reading(str(tmp_path / "data"), "obs", "actions"))).num_steps == 11


class TestTraining:
    @pytest.fixture
    def data(self, tmp_path: Path) -> Path:
        record(recording(tmp_path / "data"))
        return tmp_path / "data"

    def make_resource(self, tmp_path: Path, data: Path, *columns: str) -> Any:
        return training(tmp_path / "runs", data, input=[{"path": str(data), "columns": list(columns)}])

    def test_training_reads_only_requested_columns(self, tmp_path: Path, data: Path) -> None:
        resource = self.make_resource(tmp_path, data, "obs", "actions")
        (open_input,) = open_inputs(resource, resolve_inputs(resource, FileReferences({})))
        assert open_input.path == str(data)
        assert open_input.opened_data is not None
        assert list(open_input.opened_data.dataset.spec.leaves) == ["obs", "actions"]
        assert "rewards" in open_input.opened_data.with_all_columns().spec.leaves
        assert train(resource).state == "Succeeded"

    def test_columns_without_a_required_column_are_refused(self, tmp_path: Path, data: Path) -> None:
        with pytest.raises(DataError, match="'actions' has the columns none, but the space"):
            train(self.make_resource(tmp_path, data, "obs", "rewards"))

    def test_unknown_column_is_refused(self, tmp_path: Path, data: Path) -> None:
        with pytest.raises(DataError, match="has no column logp, which `columns` names: it has obs"):
            plan(self.make_resource(tmp_path, data, "obs", "actions", "logp"), [])
