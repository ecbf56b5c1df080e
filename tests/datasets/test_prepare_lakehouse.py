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

from hindcast.datasets.sources import find_files
from hindcast.datasets.writer import BlockWriter
from hindcast.errors import DataError, StorageError
from hindcast.formats.spec import DataSpec
from hindcast.storage.location import Location, resolve

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


@pytest.mark.parametrize("tool", ["delta", "iceberg"])
def test_table_that_lacks_a_current_file_is_refused(tmp_path, create_iceberg_table, tool):
    table, folder = make_steps(), tmp_path / "steps"
    if tool == "delta":
        deltalake.write_deltalake(str(folder), table.slice(0, 9))
        deltalake.write_deltalake(str(folder), table.slice(9), mode="append")
    else:
        iceberg_table = create_iceberg_table(folder, table.schema)
        iceberg_table.append(table.slice(0, 9))
        iceberg_table.append(table.slice(9))
    file = min(folder.rglob("*.parquet"))
    file.unlink()
    with pytest.raises(
        DataError, match=rf"steps lacks .*{file.name}, which .* version has: copy the table ag"
    ):
        open_tool(tmp_path)


def test_delta_lake_partitions_with_characters_that_paths_encode_are_read(tmp_path):
    names = pa.array(["a b", "c%d", "e/f"]).take(EPISODE)
    deltalake.write_deltalake(str(tmp_path / "my steps"), make_steps(site=names), partition_by=["site"])
    assert_steps(open_tool(tmp_path / "my steps"))


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
        ("rename", r"a column was renamed, replaced or removed: action"),
        ("replace", r"a column was renamed, replaced or removed: reward"),
        ("remove", r"a column was renamed, replaced or removed: reward"),
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
    elif change in ("replace", "remove"):
        with table.update_schema() as update:
            update.delete_column("reward")
        if change == "replace":
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


def test_hudi_table_is_named_in_the_error(tmp_path):
    write(tmp_path / "lake" / "steps", make_steps())
    (tmp_path / "lake" / "steps" / ".hoodie").mkdir()
    (tmp_path / "lake" / "steps" / ".hoodie" / "hoodie.properties").write_text("hoodie.table.name=steps")
    with pytest.raises(
        DataError, match=r"lake/steps is a Hudi table\. Its files also hold deleted rows: .* \(Spark"
    ):
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


MARKERS = {
    "Delta Lake": "_delta_log/0.json",
    "Hudi": ".hoodie/hoodie.properties",
    "Iceberg": "metadata/v1.metadata.json",
}


def write_part(table: Path, part: str, tool: str) -> None:
    write(table / part, make_steps())
    (table / MARKERS[tool]).parent.mkdir()
    (table / MARKERS[tool]).write_text("{}")


@pytest.mark.parametrize(
    ("tool", "part"),
    [
        ("Delta Lake", "episode=3"),
        ("Hudi", "episode=3"),
        ("Iceberg", "data"),
        ("Iceberg", "data/episode=3"),
    ],
)
@pytest.mark.parametrize("name", ["", "/steps.parquet", "/*.parquet"], ids=["folder", "file", "glob"])
def test_part_of_a_table_is_refused_with_the_table(tmp_path, tool, part, name):
    write_part(tmp_path / "steps", part, tool)
    match = name.replace("*", "steps")
    with pytest.raises(
        DataError, match=rf"steps/{part}{match} is a part of the table .*/steps and may .*: name .*/steps$"
    ):
        open_tool(tmp_path / "steps" / f"{part}{name}")


@pytest.mark.parametrize("tool", MARKERS)
@pytest.mark.parametrize("table_name", ["steps", "data"])
def test_file_directly_in_a_table_is_refused_with_the_table(tmp_path, tool, table_name):
    table = tmp_path / table_name
    write_part(table, ".", tool)
    with pytest.raises(DataError, match=rf"steps.parquet is a part of the table .*/{table_name} and may"):
        open_tool(table / "*.parquet")


def test_file_of_episodes_in_a_table_is_refused_with_the_table(tmp_path):
    block = kit.make_block(LENGTHS)
    with BlockWriter(resolve(tmp_path / "episodes"), DataSpec.from_block(block), "all") as writer:
        writer.write(block)
    write_part(tmp_path / "steps", ".", "Delta Lake")
    (file,) = (tmp_path / "episodes").glob("*.parquet")
    file = file.rename(tmp_path / "steps" / file.name)
    with pytest.raises(DataError, match=rf"{file.name} is a part of the table .*/steps and may"):
        find_files([resolve(file)])


@pytest.mark.parametrize("marker", [marker.split("/")[0] for marker in MARKERS.values()])
def test_data_beside_a_file_with_the_name_of_a_folder_of_tables_are_read(tmp_path, marker):
    write(tmp_path / "data", make_steps())
    (tmp_path / marker).touch()
    assert_steps(open_tool(tmp_path / "data"))
    assert_steps(open_tool(tmp_path / "data" / "steps.parquet"))


def test_named_file_is_read_where_its_folder_may_not_be_looked_at(tmp_path, monkeypatch):
    def deny(location: Location) -> bool:
        raise StorageError(f"cannot access {location}: access is denied")

    write(tmp_path, make_steps())
    is_folder = Location.is_folder
    markers = [marker.split("/")[0] for marker in MARKERS.values()]
    monkeypatch.setattr(
        Location, "is_folder", lambda self: deny(self) if self.name in markers else is_folder(self)
    )
    assert_steps(open_tool(tmp_path / "steps.parquet"))


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
