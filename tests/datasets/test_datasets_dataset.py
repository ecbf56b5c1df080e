"""Open recordings, folders and files as datasets, and read them."""

from __future__ import annotations

import pickle
import shutil
import threading

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.local import LocalFileSystem
from gymnasium import spaces

from episode_kit import build_block, read_block
from hindcast.datasets import episode_dataset, sources
from hindcast.datasets.episode_dataset import EpisodeDataset
from hindcast.datasets.file_index import index_file
from hindcast.datasets.opening import open_dataset
from hindcast.datasets.writer import BlockWriter
from hindcast.episodes.block import Block
from hindcast.errors import DataError
from hindcast.formats.arrow.layout import ArrowEncoder
from hindcast.formats.dataset_folder.commits import read_commits
from hindcast.formats.dataset_folder.manifest import Manifest, read_manifest, write_manifest
from hindcast.formats.spec import DataSpec, Leaf
from hindcast.storage.location import resolve
from user_errors import raises_user_error


@pytest.fixture
def blocks(kit):
    return [kit.block([3, 5, 2]), kit.block([4, 1], first=3), kit.block([6], first=5)]


# --- the three kinds of folder


@pytest.mark.parametrize("manifest", [True, False], ids=["manifest", "commits"])
def test_recording_consists_of_its_listed_files(kit, tmp_path, blocks, manifest):
    folder = kit.record(tmp_path / "d", *blocks, manifest=manifest)
    kit.write(folder, kit.block([9], first=90), stem="000007-zz")  # not committed
    folder.child(".000003-a1-000.parquet.0123abcd.tmp").write_bytes(b"half a fi")
    dataset = open_dataset(str(folder))
    assert (dataset.num_episodes, dataset.num_steps) == (6, 21)
    assert dataset.spec == kit.spec(blocks[0])
    kit.assert_same(read_block(dataset), Block.concat(blocks))
    assert np.concatenate([unit.lengths for unit in dataset.units]).tolist() == [3, 5, 2, 4, 1, 6]


def test_file_committed_between_listing_and_reading_commits_counts(kit, tmp_path, blocks, monkeypatch):
    kit.record(tmp_path / "d", *blocks, manifest=False)
    missing_file = min((tmp_path / "d").glob("*.parquet"))
    missing_file.rename(tmp_path / "late")

    def read_commits_later(folder):
        (tmp_path / "late").rename(missing_file)
        return read_commits(folder)

    monkeypatch.setattr(sources, "read_commits", read_commits_later)
    assert open_dataset(tmp_path / "d").num_episodes == 6


def test_folder_without_manifest_is_indexed_by_footers(kit, tmp_path, blocks):
    for name, block in zip(("b/x", "a", "b"), blocks, strict=True):
        kit.write(tmp_path / "d" / name, block)
    kit.write(tmp_path / "d" / "_other", kit.block([9]))
    (tmp_path / "d" / ".hidden.parquet").write_bytes(b"")
    (tmp_path / "d" / "readme.txt").write_text("mine")
    dataset = open_dataset(tmp_path / "d")
    kit.assert_same(read_block(dataset), Block.concat([blocks[1], blocks[2], blocks[0]]))
    assert dataset.spec == kit.spec(blocks[0])


def test_folder_with_recordings_and_files_is_opened(kit, tmp_path, blocks):
    kit.record(tmp_path / "d" / "two", blocks[0])
    kit.write(tmp_path / "d" / "two", kit.block([9], first=90), stem="000007-zz")  # not committed
    kit.record(tmp_path / "d" / "one" / "deep", blocks[1], manifest=False)
    kit.write(tmp_path / "d", blocks[2], stem="z")
    dataset = open_dataset(tmp_path / "d")
    kit.assert_same(read_block(dataset), Block.concat([blocks[1], blocks[0], blocks[2]]))


def test_memory_file_system_is_opened(kit, memory_path, blocks):
    kit.record(memory_path, *blocks)
    kit.assert_same(read_block(open_dataset(memory_path)), Block.concat(blocks))
    kit.assert_same(read_block(open_dataset(f"{memory_path}/*.parquet")), Block.concat(blocks))


# --- paths


def test_lists_globs_and_single_files_are_opened(kit, tmp_path, blocks, monkeypatch):
    for i, block in enumerate(blocks):
        kit.write(tmp_path / f"run-{i}" / "data", block)
    expected_block = Block.concat(blocks)
    first_file = f"{tmp_path}/run-0/data/000000-a1-000.parquet"
    for paths in (
        [f"{tmp_path}/run-{i}" for i in range(3)],
        f"{tmp_path}/run-*",
        f"{tmp_path}/run-?/data/*.parquet",
        f"{tmp_path}/**/*.parquet",
        [first_file, f"{tmp_path}/run-[12]"],
        [first_file, f"{tmp_path}/run-[!0]"],
        [first_file, f"{tmp_path}/**/run-[!0/[]"],
        tmp_path,
    ):
        kit.assert_same(read_block(open_dataset(paths)), expected_block)
    kit.assert_same(read_block(open_dataset(first_file)), blocks[0])
    monkeypatch.chdir(tmp_path)
    kit.assert_same(read_block(open_dataset("run-1")), blocks[1])
    kit.assert_same(read_block(open_dataset(f"file://{tmp_path}/run-1")), blocks[1])


def test_existing_name_with_glob_characters_is_taken_literally(kit, tmp_path, blocks):
    kit.write(tmp_path / "run[1]", blocks[0])
    kit.write(tmp_path / "run1", blocks[1])
    kit.assert_same(read_block(open_dataset(tmp_path / "run[1]")), blocks[0])


@pytest.mark.parametrize("folder", ["runs", "./runs", "{}/runs", "file://{}/runs"])
@pytest.mark.parametrize("pattern", ["r*", "r*/", "*//"])
def test_glob_matches_are_named_relative_to_the_glob(tmp_path, monkeypatch, folder, pattern):
    (tmp_path / "runs" / "r1").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    folder = folder.format(tmp_path)
    (match,) = sources.expand_glob(resolve(f"{folder}/{pattern}"))
    assert (match.uri, match.path) == (f"{folder}/r1", str(tmp_path / "runs" / "r1"))


@pytest.mark.parametrize("name", ["run[]", "run[!]", "run["])
def test_empty_brackets_are_part_of_a_name(kit, tmp_path, blocks, name):
    kit.write(tmp_path / f"{name}1", blocks[0])
    kit.write(tmp_path / "run1", blocks[1])
    kit.assert_same(read_block(open_dataset(tmp_path / f"{name}?")), blocks[0])


def test_invalid_glob_is_named(tmp_path):
    with pytest.raises(DataError, match=r"the pattern run\[9-1\] cannot be read \(bad character range 9-1"):
        open_dataset(tmp_path / "run[9-1]")


def test_path_in_file_system_object_is_opened(kit, tmp_path, blocks):
    kit.record(tmp_path / "d", *blocks)
    file_system = pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem())
    kit.assert_same(read_block(open_dataset("d", file_system)), Block.concat(blocks))


def test_file_named_twice_is_refused(kit, tmp_path, blocks):
    kit.write(tmp_path / "d", blocks[0])
    with pytest.raises(DataError, match=r"000000-a1-000.parquet occurs twice"):
        open_dataset([tmp_path, tmp_path / "d"])


# --- units


def test_units_cover_the_dataset_in_order_across_files(kit, tmp_path):
    blocks = [kit.block([10] * 5, first=5 * i) for i in range(8)]
    for i, block in enumerate(blocks):
        kit.write(tmp_path, block, stem=f"f{i}", row_group_bytes=800)
    files = [index_file(entry.location, entry.relative_path) for entry in resolve(tmp_path).files()]
    group_bytes = files[0].entry.row_groups[0].bytes
    dataset = EpisodeDataset(files[0].spec, files, unit_bytes=4 * group_bytes)
    assert [unit.id for unit in dataset.units] == list(range(len(dataset.units)))
    assert all(unit.nbytes <= 4 * group_bytes for unit in dataset.units)
    assert any(len(unit.parts) > 1 for unit in dataset.units)
    assert dataset.nbytes == sum(unit.nbytes for unit in dataset.units)
    kit.assert_same(read_block(dataset), Block.concat(blocks))
    for unit in dataset.units:
        assert dataset.read(unit).length.tolist() == unit.lengths.tolist()


def test_locate_returns_file_and_row(kit, tmp_path):
    blocks = [kit.block([1, 2, 3, 4], first=4 * i) for i in range(3)]
    for i, block in enumerate(blocks):
        kit.write(tmp_path, block, stem=f"f{i}", row_group_bytes=10)
    dataset = open_dataset(tmp_path)
    (unit,) = dataset.units
    ids = dataset.read(unit).eps_id
    for episode in range(12):
        path, row = dataset.locate(unit, episode)
        assert path == f"{tmp_path}/f{episode // 4}-000.parquet"
        assert row == episode % 4
        assert ids[episode] == f"e{episode}"
    with pytest.raises(IndexError):
        dataset.locate(unit, 12)


def test_read_returns_only_requested_columns(kit, tmp_path, blocks):
    dataset = open_dataset(kit.record(tmp_path, *blocks))
    block = dataset.read(dataset.units[0], ["rewards", "obs"])
    assert list(block.columns) == ["obs", "rewards"]
    with pytest.raises(DataError, match=r"no column vf_preds: it has obs, actions, rewards"):
        dataset.read(dataset.units[0], ["vf_preds"])


def test_column_name_selects_all_its_leaves(tmp_path):
    columns = {"obs/a": np.zeros((4, 2)), "obs/b": np.ones(4), "rewards": np.ones(3)}
    block = build_block(columns, [3])
    with BlockWriter(resolve(tmp_path), DataSpec.from_block(block), "s") as writer:
        writer.write(block)
    dataset = open_dataset(tmp_path)
    assert list(dataset.read(dataset.units[0], ["obs"]).columns) == ["obs/a", "obs/b"]
    assert list(dataset.read(dataset.units[0], ["obs/b"]).columns) == ["obs/b"]


def test_row_group_is_read_without_a_copy_per_column(kit, tmp_path):
    kit.write(tmp_path, kit.block([50, 60]))
    dataset = open_dataset(tmp_path)
    block = dataset.read(dataset.units[0])
    for column in block.columns.values():
        assert not column.flags.owndata
        assert column.flags.writeable  # torch.from_numpy warns about arrays that are not


def test_footer_is_read_once_for_all_units_of_a_file(kit, tmp_path, monkeypatch):
    block = kit.block([10] * 20)
    kit.write(tmp_path, block, row_group_bytes=800)
    files = [index_file(entry.location, entry.relative_path) for entry in resolve(tmp_path).files()]
    dataset = EpisodeDataset(files[0].spec, files, unit_bytes=800)
    open_file, has_read_footer = pq.ParquetFile, []

    def open_and_count(stream, **options):
        has_read_footer.append(options.get("metadata") is None)
        return open_file(stream, **options)

    monkeypatch.setattr(pq, "ParquetFile", open_and_count)
    kit.assert_same(read_block(dataset), block)
    assert len(has_read_footer) == len(dataset.units) > 2
    assert sum(has_read_footer) == 1
    unpickled = pickle.loads(pickle.dumps(dataset))
    kit.assert_same(read_block(unpickled), block)
    assert sum(has_read_footer) == 2, "footers are not pickled"


def test_cached_footer_is_not_used_for_a_replaced_file(kit, tmp_path):
    kit.write(tmp_path, kit.block([10] * 20), row_group_bytes=800)
    dataset = open_dataset(tmp_path)
    kit.assert_same(read_block(dataset), kit.block([10] * 20))
    kit.write(tmp_path, kit.block([10] * 3))
    with pytest.raises(DataError):
        read_block(dataset)


def test_small_files_of_a_store_are_read_in_parallel(kit, memory_path, blocks, monkeypatch):
    for i, block in enumerate(blocks):
        kit.write(memory_path, block, stem=f"f{i}")
    dataset = open_dataset(memory_path)
    (unit,) = dataset.units
    barrier, open_parquet = threading.Barrier(len(blocks), timeout=30), episode_dataset.open_parquet

    def open_when_all_have_started(*args):
        barrier.wait()
        return open_parquet(*args)

    monkeypatch.setattr(episode_dataset, "open_parquet", open_when_all_have_started)
    kit.assert_same(dataset.read(unit), Block.concat(blocks))


def test_dataset_can_be_pickled(kit, tmp_path, blocks):
    dataset = pickle.loads(pickle.dumps(open_dataset(kit.record(tmp_path, *blocks))))
    kit.assert_same(read_block(dataset), Block.concat(blocks))


def test_infos_missing_from_some_files_are_empty(kit, tmp_path):
    block = kit.block([1], first=1)
    infos = np.array(['{"a": 1}', ""], dtype=object)
    kit.write(tmp_path, kit.block([2]), stem="a")
    kit.write(tmp_path, block.with_columns(block.columns | {"infos": infos}), stem="b")
    dataset = open_dataset(tmp_path)
    assert read_block(dataset).columns["infos"].tolist() == ["", "", "", '{"a": 1}', ""]


# --- digest


def test_digest_depends_on_the_data(kit, tmp_path, blocks):
    digests = [open_dataset(kit.record(tmp_path / name, *blocks)).digest for name in "ab"]
    assert digests[0] == digests[1]
    assert digests[0] == read_manifest(resolve(tmp_path / "a")).digest
    assert open_dataset(kit.record(tmp_path / "c", *blocks, manifest=False)).digest == digests[0]
    other_blocks = [*blocks[:2], kit.block([6], first=5, seed=1)]
    assert open_dataset(kit.record(tmp_path / "d", *other_blocks)).digest != digests[0]
    assert open_dataset(kit.record(tmp_path / "e", *blocks[::-1])).digest != digests[0]


def test_digest_of_plain_folder_depends_on_the_data(kit, tmp_path, blocks):
    for name in "ab":
        for i, block in enumerate(blocks):
            kit.write(tmp_path / name, block, stem=f"f{i}")
    digest = open_dataset(tmp_path / "a").digest
    assert open_dataset(tmp_path / "b").digest == digest
    kit.write(tmp_path / "b", kit.block([6], first=5, seed=1), stem="f2")
    assert open_dataset(tmp_path / "b").digest != digest


class ReversedListing(LocalFileSystem):
    """The local file system, except that it lists files in reverse order."""

    def find(self, path, **options):
        listing = super().find(path, **options)
        return dict(reversed(listing.items())) if isinstance(listing, dict) else listing[::-1]


def test_order_of_listing_does_not_matter(kit, tmp_path, blocks):
    for i, block in enumerate(blocks):
        kit.write(tmp_path / "d", block, stem=f"f{i}")
    dataset = open_dataset(tmp_path / "d")
    handler = pafs.FSSpecHandler(ReversedListing())
    reversed_dataset = open_dataset(str(tmp_path / "d"), pafs.PyFileSystem(handler))
    assert reversed_dataset.digest == dataset.digest
    kit.assert_same(read_block(reversed_dataset), read_block(dataset))


# --- errors


def test_missing_path_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"nowhere does not exist: check the path"):
        open_dataset(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"nothing matches .*no-\*"):
        open_dataset(tmp_path / "no-*")
    with pytest.raises(DataError, match="paths is empty"):
        open_dataset([])


def test_folder_without_parquet_files_is_refused(tmp_path):
    with pytest.raises(DataError, match="holds no Parquet files: it holds nothing"):
        open_dataset(tmp_path)
    (tmp_path / "data.csv").write_text("obs,actions")
    with pytest.raises(DataError, match=r"holds no Parquet files: it holds data\.csv"):
        open_dataset(tmp_path)


def test_recording_without_episodes_is_refused(kit, tmp_path):
    resolve(tmp_path / "new").child("_hindcast/claim.json").write_bytes(b"{}")
    with pytest.raises(DataError, match="has committed no episodes yet"):
        open_dataset(tmp_path / "new")
    kit.record(tmp_path / "empty", kit.block([]))
    with pytest.raises(DataError, match="empty holds no episodes"):
        open_dataset(tmp_path / "empty")
    kit.record(tmp_path / "zero", kit.block([0, 0]))
    with pytest.raises(DataError, match="zero holds no episodes"):
        open_dataset(tmp_path / "zero")


def test_parquet_of_unknown_layout_names_its_columns(tmp_path):
    pq.write_table(pa.table({"state": [1.0, 2.0], "reward": [0.0, 1.0]}), tmp_path / "t.parquet")
    with pytest.raises(DataError, match=r"t\.parquet: it is not a file of episodes .*\['state', 'reward'\]"):
        open_dataset(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"obs": np.zeros((4, 5), np.float32)},
            r"'obs' is float32 \[4\] in one and float32 \[5\] in the oth",
        ),
        ({"vf_preds": np.zeros(3)}, r"the columns .* differ from .*'vf_preds'"),
    ],
)
def test_incompatible_files_are_both_named(kit, tmp_path, change, message):
    block = kit.block([3])
    kit.write(tmp_path, block, stem="a")
    kit.write(tmp_path, block.with_columns({**block.columns, **change}), stem="b")
    with pytest.raises(DataError, match=rf"a-000\.parquet and .*b-000\.parquet cannot be .*: {message}"):
        open_dataset(tmp_path)


def test_files_with_different_spaces_are_named(kit, tmp_path):
    block = kit.block([3])
    for name, n in (("a", 3), ("b", 4)):
        spec = DataSpec.from_block(block, kit.observation_space, spaces.Discrete(n))
        with BlockWriter(resolve(tmp_path), spec, name) as writer:
            writer.write(block)
    with pytest.raises(DataError, match=r"the action space is Discrete\(3\) in one and Discrete\(4\)"):
        open_dataset(tmp_path)


def test_missing_or_changed_file_of_manifest_is_refused(kit, tmp_path, blocks):
    folder = kit.record(tmp_path / "d", *blocks)
    path = tmp_path / "d" / "000001-a1-000.parquet"
    content = path.read_bytes()
    path.unlink()
    with pytest.raises(DataError, match=r"000001-a1-000.parquet is missing, but the recording lists it"):
        open_dataset(folder)
    path.write_bytes(content[:-1])
    with pytest.raises(DataError, match=f"{len(content) - 1} bytes, but was recorded with {len(content)}"):
        open_dataset(folder)
    damaged_content = bytearray(content)
    damaged_content[len(content) // 2] ^= 1
    path.write_bytes(damaged_content)
    open_dataset(folder)
    with pytest.raises(DataError, match=r"000001-a1-000.parquet was changed since it was recorded"):
        open_dataset(folder, verify=True)
    path.write_bytes(content)
    open_dataset(folder, verify=True)


def test_file_replaced_after_opening_is_refused(kit, tmp_path):
    kit.write(tmp_path / "d", kit.block([3, 5]))
    dataset = open_dataset(tmp_path / "d")
    kit.write(tmp_path / "d", kit.block([5, 3]))
    with pytest.raises(DataError, match="was changed after it was indexed"):
        dataset.read(dataset.units[0])
    shutil.rmtree(tmp_path / "d")
    with pytest.raises(DataError, match=r"cannot read .*: it does not exist"):
        dataset.read(dataset.units[0])


def test_damaged_or_newer_manifest_is_refused(kit, tmp_path, blocks):
    folder = kit.record(tmp_path, *blocks)
    manifest = tmp_path / "_hindcast" / "manifest.json"
    text = manifest.read_text()
    for changed_text, message in (
        (text[: len(text) // 2], "manifest.json cannot be read"),
        ("[]", "manifest.json cannot be read"),
        (
            text.replace('"formatVersion": 2', '"formatVersion": 3'),
            "has the format version 3.*update Hindcast",
        ),
        (
            text.replace("episodes/arrow", "episodes/orc"),
            "recorded in the layout 'episodes/orc': allowed are episodes/arrow, episodes/messagepack",
        ),
        (text.replace('"index"', '"fails"'), "manifest.json cannot be read: files: is missing"),
    ):
        manifest.write_text(changed_text)
        with pytest.raises(DataError, match=message):
            open_dataset(folder)
    (first_entry, *_) = kit.write(tmp_path, *blocks)
    foreign_entry = first_entry.model_copy(update={"path": "../../etc"})
    write_manifest(folder, Manifest(spec=kit.spec(blocks[0]).to_json(), files=(foreign_entry,)))
    with pytest.raises(DataError, match=r"points outside the dataset's folder"):
        open_dataset(folder)


def test_cell_of_wrong_size_is_located(kit, tmp_path):
    """Write the file as another tool would, with Hindcast's metadata."""
    block = kit.block([3, 5, 2])
    table = ArrowEncoder(kit.spec(block)).encode(block).table
    cells = [cell.as_py() for cell in table.column("actions")]
    cells[1] = cells[1][:-8]
    i = table.schema.get_field_index("actions")
    field = table.schema.field(i)
    table = table.set_column(i, field, pa.array(cells, pa.large_binary()))
    pq.write_table(table, tmp_path / "x.parquet")
    dataset = open_dataset(tmp_path)
    with raises_user_error(DataError, "'actions' has 32 bytes: expected 40", path="x.parquet", row=1):
        dataset.read(dataset.units[0])


def test_text_columns_are_read(tmp_path):
    texts = np.array(["", "ä", "b" * 100], dtype=object)
    block = build_block({"prompt": texts}, [3])
    spec = DataSpec.from_block(block)
    assert spec.leaves["prompt"] == Leaf(None, (), "text")
    with BlockWriter(resolve(tmp_path), spec, "s") as writer:
        writer.write(block)
    dataset = open_dataset(tmp_path)
    assert dataset.read(dataset.units[0]).columns["prompt"].tolist() == texts.tolist()
