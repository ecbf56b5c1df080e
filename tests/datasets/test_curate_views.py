"""Selecting, splitting, filtering, sampling and merging datasets without copying."""

from __future__ import annotations

import pickle
import shutil
from dataclasses import replace

import numpy as np
import pytest
from curate_kit import make_block, make_spec, write_block

from episode_kit import read_block
from hindcast.datasets.content import Content
from hindcast.datasets.curate.operations import convert_data
from hindcast.datasets.curate.writing import write
from hindcast.datasets.merging import merge
from hindcast.datasets.opening import open_dataset
from hindcast.datasets.prepare.opening import open_data
from hindcast.datasets.prepare.reading import Reading
from hindcast.datasets.target import Target
from hindcast.errors import DataError, SpecError
from hindcast.formats.spec import DataSpec
from hindcast.storage.location import resolve
from support import episode_hashes, train, training


def read_ids(dataset):
    return [str(eps_id) for unit in dataset.units for eps_id in dataset.read(unit, ["rewards"]).eps_id]


def assert_is_dataset(view, expected_hashes):
    """Check counts, lengths, single columns and locations of a view against its episodes."""
    block = read_block(view)
    assert episode_hashes(block) == expected_hashes
    assert (view.num_episodes, view.num_steps) == (block.num_episodes, block.num_steps)
    assert np.concatenate([unit.lengths for unit in view.units]).tolist() == block.length.tolist()
    assert [unit.id for unit in view.units] == list(range(len(view.units)))
    for unit in view.units:
        assert view.read(unit, ["rewards"]).columns.keys() == {"rewards"}
        path, row = view.locate(unit, len(unit.lengths) - 1)
        file_dataset = open_dataset(path)
        assert read_block(file_dataset).eps_id[row] == view.read(unit).eps_id[-1]


def test_select_returns_the_selected_episodes(twenty_episodes):
    hashes = episode_hashes(read_block(twenty_episodes))
    selection = twenty_episodes.select([0, 19, 5, 6, 7])
    assert_is_dataset(selection, {f"e{i}": hashes[f"e{i}"] for i in (0, 5, 6, 7, 19)})
    assert len(selection.units) == 3
    subselection = selection.select(np.array([False, True, False, False, True]))
    assert_is_dataset(subselection, {f"e{i}": hashes[f"e{i}"] for i in (5, 19)})
    assert read_ids(pickle.loads(pickle.dumps(subselection))) == ["e5", "e19"]
    assert len({twenty_episodes.digest, selection.digest, subselection.digest}) == 3
    empty_view = twenty_episodes.select([])
    assert (empty_view.num_episodes, len(empty_view.episode_table(with_returns=True).returns)) == (0, 0)


@pytest.mark.parametrize(
    ("episodes", "message"),
    [
        ([0, 0], "selected twice"),
        ([20], "episode 20 .* have 20"),
        ([-1], "episode -1"),
        ([True], "1 booleans"),
    ],
)
def test_select_with_invalid_indices_is_refused(twenty_episodes, episodes, message):
    with pytest.raises(DataError, match=message):
        twenty_episodes.select(episodes)


def test_split_is_exact_disjoint_and_the_same_in_every_format(tmp_path, make_folders, twenty_episodes):
    reading = Reading(tuple(map(str, reversed(make_folders(5)))))
    for file_format in ("MessagePack", "Columns"):
        convert_data(reading, Target(resolve(tmp_path / file_format), file_format))
    remaining, fraction_view = twenty_episodes.split(0.25, seed=3)
    assert (remaining.num_episodes, fraction_view.num_episodes) == (15, 5)
    assert set(read_ids(remaining)) | set(read_ids(fraction_view)) == set(read_ids(twenty_episodes))
    for file_format in ("MessagePack", "Columns"):
        _, view_of_format = open_data(tmp_path / file_format).split(0.25, seed=3)
        assert set(read_ids(view_of_format)) == set(read_ids(fraction_view))
    assert set(read_ids(twenty_episodes.split(0.25, seed=4)[1])) != set(read_ids(fraction_view))
    assert set(read_ids(twenty_episodes.sample(fraction=0.25, seed=3))) != set(read_ids(fraction_view))


def test_split_keeps_episodes_of_one_id_together(tmp_path):
    """Split eight episodes of three fragments each."""
    eps_ids = np.array([f"e{i // 3}" for i in range(24)], dtype=object)
    dataset = open_dataset(write_block(tmp_path / "d", replace(make_block([2] * 24), eps_id=eps_ids)))
    for seed in range(5):
        remaining, fraction_view = dataset.split(0.25, seed)
        assert (remaining.num_episodes, fraction_view.num_episodes) == (18, 6)
        assert not set(read_ids(remaining)) & set(read_ids(fraction_view))


def test_split_with_invalid_fraction_names_the_range(twenty_episodes):
    with pytest.raises(SpecError, match=r"fraction is 1\.5: expected a number between 0 and 1"):
        twenty_episodes.split(1.5)


@pytest.mark.parametrize(
    ("terms", "expected"),
    [
        (["length > 7"], ["e13", "e17"]),
        (["length == 7", "terminated == false"], ["e3", "e7", "e9", "e11", "e15", "e19"]),
        (['eps_id in ["e3", "e19", "x"]'], ["e3", "e19"]),
        (["eps_id == e4"], ["e4"]),
        (["length in [8, 5.5]"], ["e13"]),
        (["terminated in [true]", "length in [1, 1e30]"], ["e2", "e6", "e10", "e14", "e18"]),
        (["truncated != true", "length <= 1"], ["e2", "e6", "e10", "e14", "e18"]),
    ],
)
def test_filter_compares_fields_of_episodes(twenty_episodes, terms, expected):
    assert read_ids(twenty_episodes.filter(*terms)) == expected


def test_filter_top_selects_highest_returns_and_earlier_ties(tmp_path):
    block = make_block([2, 2, 2, 2, 2])
    block.columns["rewards"][:] = [1, 1, 2, 2, 0, 0, 2, 2, 2, 2]
    dataset = open_dataset(write_block(tmp_path / "d", block))
    assert read_ids(dataset.filter("return >= 2")) == ["e0", "e1", "e3", "e4"]
    assert read_ids(dataset.filter(top=0.4)) == ["e1", "e3"]
    assert read_ids(dataset.filter("return < 4", top=0.5)) == ["e0"]


@pytest.mark.parametrize(
    ("term", "message"),
    [
        ("return => 100", r"found '=> 100' at character 8: expected|expected ==.*'=> 100' at character 8"),
        ("reward > 1", "'reward' is not a field of an episode: allowed are return, length"),
        ("length > ten", "'length' of an episode is compared with 'ten': expected a number"),
        ("terminated == 1", "expected true or false"),
        ("terminated > true", "compare it with == or !="),
        ("length >", "expected a number, true, false or text, found nothing more"),
        ("length in 3", "expected a list"),
        ("> 3", "expected a column's name, found '> 3' at character 1"),
    ],
)
def test_filter_with_invalid_term_is_refused(twenty_episodes, term, message):
    with pytest.raises(SpecError, match=message):
        twenty_episodes.filter(term)


def test_filter_by_return_without_rewards_is_refused(tmp_path):
    block = make_block([3])
    del block.columns["rewards"]
    dataset = open_dataset(write_block(tmp_path / "d", block))
    with pytest.raises(DataError, match="no rewards, so no returns"):
        dataset.filter(top=0.5)


def test_sample_depends_on_the_seed(twenty_episodes):
    sample = twenty_episodes.sample(6, seed=1)
    assert (sample.num_episodes, read_ids(sample)) == (6, read_ids(twenty_episodes.sample(6, seed=1)))
    assert read_ids(sample) != read_ids(twenty_episodes.sample(6, seed=2))
    assert set(read_ids(twenty_episodes.sample(3, seed=1))) < set(read_ids(sample))
    sample_by_steps = twenty_episodes.sample(timesteps=30, seed=1)
    assert 30 <= sample_by_steps.num_steps < 30 + 9
    assert twenty_episodes.sample(fraction=0.5).num_episodes == 10
    for options in ({}, {"episodes": 3, "fraction": 0.1}, {"episodes": 21}, {"timesteps": 0}):
        with pytest.raises(SpecError, match="a sample"):
            twenty_episodes.sample(**options)


def test_split_data_can_be_trained_on(tmp_path, twenty_episodes):
    remaining, _ = twenty_episodes.split(0.2)
    write(remaining, Target(resolve(tmp_path / "remaining")))
    resource = training(tmp_path / "run", tmp_path / "remaining", config={"trainBatchSizePerLearner": 8})
    assert train(resource).state == "Succeeded"


def test_merge_counts_repeated_episodes_once(tmp_path, make_folders):
    first, second = (open_dataset(folder) for folder in make_folders(2))
    view = merge([first, second, first.select([1, 2])])
    assert_is_dataset(view, episode_hashes(read_block(merge([first, second]))))
    assert any("2 episodes repeated others" in note for note in view.notes)


def test_merge_refuses_or_renames_conflicting_episodes(tmp_path):
    paths = [write_block(tmp_path / str(i), make_block([2, 3], seed=i)) for i in range(3)]
    datasets = [open_dataset(path) for path in paths]
    with pytest.raises(
        DataError, match=r"e0 is in .*0/0000.*, row 0, and, with different content, in .*1/0000"
    ):
        merge(datasets)
    view = merge(datasets, "Rename")
    assert read_ids(view) == ["e0", "e1", "e0-2", "e1-2", "e0-3", "e1-3"]
    assert Content.from_block(read_block(view)).timesteps == 15
    assert any("4 episodes had the id of another" in note for note in view.notes)
    assert view.digest != merge(datasets[:1]).digest


def test_merge_of_incompatible_data_is_refused(tmp_path):
    block = make_block([2])
    wide_block = block.with_columns({**block.columns, "obs": block.columns["obs"].repeat(2, axis=1)})
    dataset = open_dataset(write_block(tmp_path / "a", block))
    write_block(tmp_path / "b", wide_block, DataSpec.from_block(wide_block))
    incompatible = open_dataset(tmp_path / "b")
    with pytest.raises(DataError, match=r"/a/.* and .*/b/.*'obs' is float32 \[4\] in one and float32 \[8\]"):
        merge([dataset, incompatible])


def test_merge_fills_missing_infos_with_empty_ones(tmp_path):
    block = make_block([2, 1])
    columns = make_block([1], first=5).columns | {"infos": np.array(["", '{"lives":3}'], dtype=object)}
    block_with_infos = make_block([1], first=5).with_columns(columns)
    paths = [
        write_block(tmp_path / "a", block, make_spec(block)),
        write_block(tmp_path / "b", block_with_infos, make_spec(block_with_infos)),
    ]
    view = merge([open_dataset(path) for path in paths])
    assert read_block(view).columns["infos"].tolist() == [*[""] * 6, '{"lives":3}']
    result = convert_data(Reading(tuple(map(str, paths))), Target(resolve(tmp_path / "out"), "Columns"))
    assert result.checksum == Content.from_block(read_block(view)).checksum


def test_copies_in_several_folders_count_once(tmp_path):
    """Copy a folder, and write some of its episodes to another folder."""
    dataset = open_dataset(write_block(tmp_path / "data/one", make_block([2, 3, 4])))
    shutil.copytree(tmp_path / "data/one", tmp_path / "data/copy")
    write(dataset.select([1]), Target(resolve(tmp_path / "data/best")))
    write_block(tmp_path / "data/other", make_block([5], first=7))
    dataset_with_copies = open_dataset(tmp_path / "data")
    assert sorted(read_ids(dataset_with_copies)) == ["e0", "e1", "e2", "e7"]
    assert any("4 stored episodes repeat others" in note for note in dataset_with_copies.notes)
