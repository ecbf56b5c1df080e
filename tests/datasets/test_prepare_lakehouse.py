"""Tables of Delta Lake, Iceberg and Hudi are read without their deleted rows, or refused by name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import prepare_kit as kit
import pyarrow as pa
import pytest
from tool_tables import EPISODE, LENGTHS, assert_steps, make_steps, open_tool, write

from hindcast.errors import DataError

deltalake = pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")
OLD_STEPS = make_steps(episode=EPISODE + 10)


@pytest.fixture(scope="module")
def create_iceberg_table() -> Callable[..., Any]:
    """`create_iceberg_table(folder, schema, **properties)` returns an empty table of pyiceberg, without a database."""
    from pyiceberg.catalog.noop import NoopCatalog
    from pyiceberg.io import load_file_io
    from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
    from pyiceberg.serializers import ToOutputFile
    from pyiceberg.table import CommitTableResponse, Table
    from pyiceberg.table.metadata import TableMetadata, new_table_metadata
    from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
    from pyiceberg.table.update import update_table_metadata

    class FolderCatalog(NoopCatalog):
        version = 0

        def write_metadata(self, metadata: TableMetadata) -> str:
            path = f"{metadata.location}/metadata/{self.version:05}-{metadata.table_uuid}.metadata.json"
            ToOutputFile.table_metadata(metadata, load_file_io(location=path).new_output(path))
            self.version += 1
            return path

        def commit_table(self, table: Any, requirements: Any, updates: Any) -> CommitTableResponse:
            metadata = update_table_metadata(table.metadata, updates)
            return CommitTableResponse(metadata=metadata, metadata_location=self.write_metadata(metadata))

    def create(folder: Path, schema: pa.Schema, **properties: str) -> Table:
        catalog = FolderCatalog("folder")
        iceberg_schema = catalog._convert_schema_if_needed(schema)
        (folder / "metadata").mkdir(parents=True)
        metadata = new_table_metadata(
            iceberg_schema,
            UNPARTITIONED_PARTITION_SPEC,
            UNSORTED_SORT_ORDER,
            f"file://{folder}",
            {key.replace("_", "."): value for key, value in properties.items()},
        )
        path = catalog.write_metadata(metadata)
        return Table(("steps",), metadata, path, load_file_io(location=path), catalog)

    return create


@pytest.mark.parametrize("change", ["overwrite", "delete"])
def test_delta_lake_table_is_read_without_deleted_rows(tmp_path, change):
    table, path = make_steps(), str(tmp_path / "steps")
    deltalake.write_deltalake(path, OLD_STEPS)
    if change == "overwrite":
        deltalake.write_deltalake(path, table, mode="overwrite")
    else:
        deltalake.write_deltalake(path, table, mode="append")
        deltalake.DeltaTable(path).delete("episode >= 10")
    assert_steps(open_tool(path))


@pytest.mark.parametrize("change", ["overwrite", "delete", "move"])
def test_iceberg_table_is_read_without_deleted_rows(tmp_path, create_iceberg_table, change):
    folder = tmp_path / "steps"
    table = create_iceberg_table(folder, OLD_STEPS.schema)
    table.append(OLD_STEPS)
    if change == "delete":
        table.append(make_steps())
        table.delete("episode >= 10")
    else:
        table.overwrite(make_steps())
    if change == "move":
        folder = folder.rename(tmp_path / "copy")
    assert_steps(open_tool(folder))


def test_partitions_of_iceberg_are_read(tmp_path, create_iceberg_table):
    table = create_iceberg_table(tmp_path / "steps", OLD_STEPS.schema)
    with table.update_spec() as update:
        update.add_identity("episode")
    table.append(OLD_STEPS)
    table.overwrite(make_steps())
    assert_steps(open_tool(tmp_path / "steps"))


def test_column_added_to_an_iceberg_table_is_left_out_with_a_note(tmp_path, create_iceberg_table):
    from pyiceberg.types import DoubleType

    table = create_iceberg_table(tmp_path / "steps", OLD_STEPS.schema)
    table.append(make_steps().slice(0, 9))
    with table.update_schema() as update:
        update.add_column("price", DoubleType())
    table.append(make_steps(price=np.ones(15)).slice(9))
    dataset = open_tool(tmp_path / "steps")
    # The names of its files, and thus the order of its episodes, are random.
    assert sorted(kit.read_block(dataset).length.tolist()) == sorted(LENGTHS)
    assert "price" not in dataset.spec.leaves
    assert any("'price' was left out: not all files have it" in note for note in dataset.notes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("rename", r"a column was renamed: action, dose"),
        ("replace", r"a column was replaced by another of its name: reward"),
        ("same version", r"only its catalog knows which of .*00001-.*00001-other\.metadata\.json is current"),
        ("delete files", "deleted rows are still in its files"),
        ("damage", "Expecting value|Invalid JSON|EOF"),
    ],
)
def test_iceberg_table_of_more_than_files_is_refused(
    tmp_path, monkeypatch, create_iceberg_table, change, message
):
    from pyiceberg.manifest import ManifestContent, ManifestFile
    from pyiceberg.types import DoubleType

    table = create_iceberg_table(tmp_path / "steps", OLD_STEPS.schema)
    table.append(OLD_STEPS)
    if change == "rename":
        with table.update_schema() as update:
            update.rename_column("action", "dose")
    elif change == "replace":
        with table.update_schema() as update:
            update.delete_column("reward")
        with table.update_schema() as update:
            update.add_column("reward", DoubleType())
    elif change == "delete files":
        monkeypatch.setattr(ManifestFile, "content", property(lambda manifest: ManifestContent.DELETES))
    metadata = sorted((tmp_path / "steps" / "metadata").glob("*.metadata.json"))
    if change == "same version":
        shutil.copy(metadata[-1], metadata[-1].with_name(f"{len(metadata) - 1:05}-other.metadata.json"))
    elif change == "damage":
        metadata[-1].write_text("")
    with pytest.raises(DataError, match=rf"steps is an Iceberg table that cannot .*({message}).*: write its"):
        open_tool(tmp_path)


def test_hudi_table_is_refused_by_name(tmp_path):
    write(tmp_path / "lake" / "steps", make_steps())
    (tmp_path / "lake" / "steps" / ".hoodie").mkdir()
    (tmp_path / "lake" / "steps" / ".hoodie" / "hoodie.properties").write_text("hoodie.table.name=steps")
    with pytest.raises(DataError, match=r"lake/steps is a Hudi table.*Parquet files \(Spark"):
        open_tool(tmp_path / "lake")


@pytest.mark.parametrize("package", ["deltalake", "pyiceberg"])
def test_table_without_its_package_is_refused_with_the_extra(tmp_path, monkeypatch, package):
    marker = {"deltalake": "_delta_log/0.json", "pyiceberg": "metadata/v1.metadata.json"}[package]
    (tmp_path / marker).parent.mkdir()
    (tmp_path / marker).write_text("{}")
    monkeypatch.setitem(__import__("sys").modules, package, None)
    extra = {"deltalake": "delta", "pyiceberg": "iceberg"}[package]
    with pytest.raises(DataError, match=rf"requires {package}, .*pip install 'hindcast-rl\[{extra}\]'"):
        open_tool(tmp_path)


def test_table_without_rows_is_refused(tmp_path, create_iceberg_table):
    create_iceberg_table(tmp_path / "steps", OLD_STEPS.schema)
    with pytest.raises(DataError, match="steps is a table without rows"):
        open_tool(tmp_path / "steps")


@pytest.mark.parametrize("part", ["data", "data/episode=3", "episode=3"])
def test_part_of_a_table_is_refused_with_the_table(tmp_path, part):
    write(tmp_path / "steps" / part, make_steps())
    marker = "metadata/v1.metadata.json" if part.startswith("data") else "_delta_log/0.json"
    (tmp_path / "steps" / marker).parent.mkdir()
    (tmp_path / "steps" / marker).write_text("{}")
    with pytest.raises(
        DataError, match=rf"steps/{part} is a part of the table .*/steps and may .*: name .*/steps$"
    ):
        open_tool(tmp_path / "steps" / part)


@pytest.mark.parametrize(
    ("feature", "versions", "features", "configuration"),
    [
        ("deletionVectors", (3, 7), ["deletionVectors"], {}),
        ("columnMapping", (2, 5), None, {"delta.columnMapping.mode": "name"}),
    ],
)
def test_delta_lake_table_of_more_than_files_is_refused(tmp_path, feature, versions, features, configuration):
    deltalake.write_deltalake(str(tmp_path / "steps"), make_steps())
    log = tmp_path / "steps" / "_delta_log" / "00000000000000000000.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        if "protocol" in action:
            action["protocol"] = dict(zip(("minReaderVersion", "minWriterVersion"), versions, strict=True))
            if features:
                action["protocol"] |= {"readerFeatures": features, "writerFeatures": features}
        if "metaData" in action:
            action["metaData"]["configuration"] = configuration
            schema = json.loads(action["metaData"]["schemaString"])
            for index, column in enumerate(schema["fields"], start=1):
                mapping = {"id": index, "physicalName": column["name"]} if configuration else {}
                column["metadata"] = {f"delta.columnMapping.{key}": value for key, value in mapping.items()}
            action["metaData"]["schemaString"] = json.dumps(schema)
    log.write_text("\n".join(map(json.dumps, actions)))
    with pytest.raises(DataError, match=rf"with {feature}, without which .*: write its current rows to Parq"):
        open_tool(tmp_path / "steps")
