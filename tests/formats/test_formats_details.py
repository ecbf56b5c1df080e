"""Details of episodes survive all layouts, conversions and fragments."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import msgpack
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from episode_kit import build_block, read_block, replace_columns
from hindcast.datasets.content import Content
from hindcast.datasets.curate.operations import convert_data
from hindcast.datasets.hooks import Hooks
from hindcast.datasets.opening import open_dataset
from hindcast.datasets.prepare.opening import open_data
from hindcast.datasets.prepare.reading import Reading
from hindcast.datasets.target import Target
from hindcast.episodes.block import Block
from hindcast.episodes.details import to_text
from hindcast.errors import DataError
from hindcast.formats.columns.layout import ColumnsEncoder
from hindcast.formats.layouts import LAYOUTS, make_encoder
from hindcast.formats.messagepack.values import pack
from hindcast.formats.parquet.file import ParquetEncoder
from hindcast.storage.location import resolve
from user_errors import raises_user_error

LAYOUT_NAMES = tuple(LAYOUTS)
DETAILS_TEXTS = (
    "",
    to_text(
        agent_id="left", module_id="m", multi_agent_episode_id="many", start_time=1.5, last_step_time=2.25
    ),
    to_text(
        agent_id=0, custom_data={"x": np.arange(3, dtype="f4"), "b": b"\xff", "n": np.nan, "k": {1: [2]}}
    ),
)


def add_details(block: Block, texts=DETAILS_TEXTS) -> Block:
    return replace(block, details=np.array(texts, dtype=object))


def add_infos(block: Block) -> Block:
    """Add infos to a block with 13 observations, such as `kit.block()`; every second one is empty."""
    texts = np.array([f'{{"i":{i}}}' if i % 2 else "" for i in range(13)], dtype=object)
    return replace_columns(block, infos=texts)


@pytest.mark.parametrize("has_infos", [False, True])
@pytest.mark.parametrize("layout", LAYOUT_NAMES)
def test_details_round_trip_in_every_layout(kit, tmp_path, layout, has_infos):
    block = add_details(add_infos(kit.block()) if has_infos else kit.block())
    second_block = kit.block(first=3)
    second_block = add_infos(second_block) if has_infos else second_block
    kit.write(tmp_path, block, second_block, layout=layout)
    block_read = read_block(open_dataset(tmp_path))
    kit.assert_same(block_read, Block.concat([block, second_block]))
    assert block_read.details.tolist() == [*DETAILS_TEXTS, "", "", ""]
    for path in tmp_path.glob("*.parquet"):  # without the metadata, as after rewriting by another tool
        pq.write_table(pq.read_table(path), path)
    assert read_block(open_dataset(tmp_path)).details.tolist() == [*DETAILS_TEXTS, "", "", ""]


@pytest.mark.parametrize("layout", LAYOUT_NAMES)
def test_files_without_details_have_no_details_column(kit, tmp_path, layout):
    kit.write(tmp_path / "none", kit.block(), layout=layout)
    kit.write(tmp_path / "empty", add_details(kit.block(), ("", "", "")), layout=layout)
    files = [tmp_path / name / "000000-a1-000.parquet" for name in ("none", "empty")]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert read_block(open_dataset(tmp_path / "none")).details is None


@pytest.mark.parametrize("layout", LAYOUT_NAMES)
def test_details_of_long_episodes_survive_fragments(kit, tmp_path, layout):
    block = add_details(kit.block())
    with mock.patch.object(type(make_encoder(layout, kit.spec(block))), "max_episode_bytes", 100):
        kit.write(tmp_path, block, layout=layout)
    kit.assert_same(read_block(open_dataset(tmp_path)), block)


def test_late_infos_of_long_episodes_survive_fragments_in_rows(kit, tmp_path):
    block = kit.block([6])
    infos = np.array([*[""] * 6, '{"late":1}'], dtype=object)
    block = add_details(replace_columns(block, infos=infos), [DETAILS_TEXTS[1]])
    with mock.patch.object(ColumnsEncoder, "max_episode_bytes", 100):
        kit.write(tmp_path / "data", block, layout="columns")
    kit.assert_same(read_block(open_data(tmp_path / "data", cache=tmp_path / "cache")), block)


def test_fragments_in_rows_of_earlier_versions_are_joined(kit, tmp_path):
    """A fragment's first row repeated the info of its first observation, and the footer stored the lengths."""
    # 12 steps have 13 observations, the number of infos that `add_infos` adds
    block = add_details(add_infos(kit.block([12])), [DETAILS_TEXTS[1]])
    with (
        mock.patch.object(ColumnsEncoder, "max_episode_bytes", 100),
        mock.patch.object(ColumnsEncoder, "has_index", True),
        mock.patch.object(ColumnsEncoder, "split", ParquetEncoder.split),
    ):
        kit.write(tmp_path / "data", block, layout="columns")
    kit.assert_same(read_block(open_data(tmp_path / "data", cache=tmp_path / "cache")), block)


def test_agents_and_modules_in_foreign_rows_become_details(kit, tmp_path):
    block = kit.block()
    kit.write(tmp_path / "data", block, layout="columns")
    (path,) = (tmp_path / "data").glob("*.parquet")
    table = pq.read_table(path)
    for name, values in (("agent_id", ["a"] * 8 + ["b"] * 2), ("module_id", ["m"] * 10)):
        column_index = table.schema.get_field_index(name)
        table = table.set_column(column_index, name, pa.array(values, pa.string()))
    pq.write_table(table.replace_schema_metadata(None), path)
    block_read = read_block(open_data(tmp_path / "data", cache=tmp_path / "cache"))
    assert block_read.eps_id.tolist() == ["e0/a", "e1/a", "e2/b"]
    assert block_read.details.tolist() == [to_text(agent_id=agent, module_id="m") for agent in "aab"]


def test_join_foreign_fragments_keeps_newest_details(kit, tmp_path):
    block, fragments = kit.block([5]), []
    for start, stop, details_text in ((0, 3, DETAILS_TEXTS[1]), (3, 5, DETAILS_TEXTS[2])):
        columns = {name: column[start : stop + (name == "obs")] for name, column in block.columns.items()}
        flags = {"terminated": np.array([stop == 5]), "truncated": np.array([False])}
        fragment = build_block(columns, [stop - start], t_started=np.array([start]), **flags)
        fragments.append(add_details(fragment, [details_text]))
    for number, fragment in enumerate(fragments):
        kit.write(tmp_path, fragment, stem=f"{number}", layout="episodes/messagepack")
    for path in tmp_path.glob("*.parquet"):
        pq.write_table(pq.read_table(path).replace_schema_metadata(None), path)
    block_read = read_block(open_dataset(tmp_path))
    kit.assert_same(block_read, add_details(block, [DETAILS_TEXTS[2]]))
    assert block_read.details.tolist() == [DETAILS_TEXTS[2]]


def test_episodes_that_differ_only_in_details_are_not_duplicates(kit, tmp_path):
    for number, text in enumerate((DETAILS_TEXTS[1], DETAILS_TEXTS[2], DETAILS_TEXTS[2])):
        block = add_details(kit.block([3]), [text])
        kit.write(tmp_path, block, stem=f"{number}", layout="episodes/messagepack")
        (path,) = tmp_path.glob(f"{number}-*.parquet")
        pq.write_table(pq.read_table(path).replace_schema_metadata(None), path)
    assert read_block(open_dataset(tmp_path)).details.tolist() == [DETAILS_TEXTS[1], DETAILS_TEXTS[2]]


def test_episode_content_is_independent_of_other_episodes(kit):
    block = add_details(add_infos(kit.block()))
    block.columns["infos"][block.rows_of("infos", 0)] = ""
    episode_contents = [Content.from_block(block.take([i])) for i in range(3)]
    assert Content.per_episode(block) == episode_contents
    assert Content.from_block(block.take([0])) == Content.from_block(block.take([0]).without_details())
    assert sum(episode_contents, Content()) == Content.from_block(block)


def convert(source, folder, layout_name, notes):
    hooks = Hooks(note=notes.append)
    return convert_data(Reading((str(source),)), Target(resolve(folder), layout_name), hooks)


def test_convert_keeps_details_and_checksum_covers_them(kit, tmp_path):
    block = add_details(add_infos(kit.block()))
    kit.write(tmp_path / "source", block)
    source, checksums, notes = tmp_path / "source", set(), []
    for form in ("MessagePack", "Columns", "JSON", "Episodes"):
        checksums.add(convert(source, tmp_path / form, form, notes).checksum)
        source = tmp_path / form
    kit.assert_same(read_block(open_data(str(source))), block)
    assert checksums == {Content.from_block(block).checksum}
    assert Content.from_block(block.without_details()).checksum not in checksums
    assert not any("carry" in note for note in notes)


@pytest.mark.parametrize("form", ["CSV", "SampleBatch"])
def test_convert_notes_details_that_format_cannot_store(kit, tmp_path, form):
    kit.write(tmp_path / "source", add_details(add_infos(kit.block())))
    notes = []
    converted = convert(tmp_path / "source", tmp_path / "out", form, notes)
    assert any(note.startswith(f"{form} cannot store episode details") for note in notes)
    assert converted.checksum == convert(tmp_path / "out", tmp_path / "back", "Episodes", notes).checksum
    assert read_block(open_dataset(tmp_path / "back")).details is None


def test_details_survive_rows_out_of_order(kit, tmp_path):
    block = add_details(kit.block())
    kit.write(tmp_path / "source", block, layout="columns")
    table = pq.read_table(tmp_path / "source").replace_schema_metadata(None)
    (tmp_path / "scrambled").mkdir()
    order = np.random.default_rng(0).permutation(len(table))
    pq.write_table(table.take(pa.array(order)), tmp_path / "scrambled" / "rows.parquet")
    block_read = read_block(open_data(str(tmp_path / "scrambled"), cache=tmp_path / "cache"))
    ids = [name.split("/")[0] for name in block_read.eps_id]
    expected_details = dict(zip(block.eps_id, DETAILS_TEXTS, strict=True))
    assert dict(zip(ids, block_read.details, strict=True)) == expected_details


def test_encode_details_that_messagepack_cannot_represent_raises(kit, tmp_path):
    block = add_details(kit.block([3]), [to_text(custom_data={"x": (1, 2)})])
    with pytest.raises(DataError, match=r"episode e0 has .* cannot represent \(a tuple"):
        kit.write(tmp_path, block, layout="episodes/messagepack")
    assert not list(tmp_path.glob("*"))


@pytest.mark.parametrize(
    ("custom_data", "message"),
    [
        ({"x": {b"nd": True, b"type": "O", b"kind": b"O", b"shape": [1], b"data": b"."}}, "an object array"),
        (["no dict"], "custom data that are a list"),
        (msgpack.ExtType(5, b""), "extension of type 5"),
    ],
)
def test_read_invalid_custom_data_raises(kit, tmp_path, custom_data, message):
    kit.write(tmp_path, kit.block([3]), layout="episodes/messagepack")
    (path,) = tmp_path.glob("*.parquet")
    table = pq.read_table(path)
    cell = table["item"][0].as_py()
    empty_custom_data = pack("custom_data") + pack({})
    assert cell.endswith(empty_custom_data)
    damaged_cell = cell[: -len(empty_custom_data)] + pack("custom_data") + msgpack.packb(custom_data)
    pq.write_table(pa.table({"item": pa.array([damaged_cell], pa.binary())}), path)
    with raises_user_error(DataError, f"it holds .*{message}", path="000000-a1-000.parquet", row=0):
        open_dataset(tmp_path)


@pytest.mark.parametrize("name", ["episode_details", "length"])
def test_model_output_named_like_a_column_of_the_layout_raises(kit, name):
    spec = kit.spec(kit.block())
    with pytest.raises(DataError, match=f"a model output is named '{name}'"):
        make_encoder("episodes/arrow", replace(spec, leaves={**spec.leaves, name: spec.leaves["rewards"]}))
