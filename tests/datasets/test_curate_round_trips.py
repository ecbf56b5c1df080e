"""Conversions between all formats keep the data."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from curate_kit import make_block, write_block
from hypothesis import given

from episode_kit import read_block
from hindcast.api.filter_term import parse_filter
from hindcast.datasets.curate.operations import convert_data
from hindcast.datasets.curate.writing import WriteResult
from hindcast.datasets.prepare.opening import open_data
from hindcast.datasets.prepare.reading import Reading
from hindcast.datasets.target import Target
from hindcast.episodes.columns import root
from hindcast.errors import DataError, SpecError
from hindcast.formats.arrow.layout import ArrowEncoder
from hindcast.formats.format import ReadOptions
from hindcast.formats.layouts import WRITTEN_FORMATS
from hindcast.storage.location import resolve
from layers import examples
from random_data import recordings
from support import episode_hashes, read_all

PARQUET_FORMATS = ("Episodes", "MessagePack", "Columns")
TEXT_FORMATS = ("JSON", "CSV", "SampleBatch")


def convert(source: Path, folder: Path, file_format: str, **options: object) -> WriteResult:
    return convert_data(Reading((str(source),)), Target(resolve(folder), file_format, **options))  # type: ignore[arg-type]


@pytest.mark.slow
@examples(8)
@given(recording=recordings())
def test_conversion_through_all_layouts_keeps_every_bit(tmp_path_factory, recording):
    block, spec = recording
    folder = tmp_path_factory.mktemp("r")
    source, checksums = write_block(folder / "source", block, spec), []
    file_formats = ("MessagePack", "Columns", "MessagePack", "Episodes", "Columns", "Episodes")
    for i, file_format in enumerate(file_formats):
        result = convert(source, folder / f"{i}", file_format)
        source = folder / f"{i}"
        checksums.append(result.checksum)
        assert (result.episodes, result.timesteps) == (block.num_episodes, block.num_steps)
        assert episode_hashes(read_all(source)) == episode_hashes(block)
    assert len(set(checksums)) == 1


@pytest.mark.parametrize("file_format", TEXT_FORMATS)
@examples(4)
@given(recording=recordings())
def test_conversion_through_text_keeps_values(tmp_path_factory, file_format, recording):
    block, spec = recording
    folder = tmp_path_factory.mktemp("t")
    source = write_block(folder / "source", block, spec)
    export = convert(source, folder / "text", file_format)
    reimport = convert(folder / "text", folder / "back", "Episodes")
    assert export.checksum == reimport.checksum
    assert episode_hashes(read_all(folder / "back")).keys() == set(block.eps_id)


@examples(8)
@given(recording=recordings())
def test_packed_columns_of_any_space_round_trip(tmp_path_factory, recording):
    block, spec = recording
    folder = tmp_path_factory.mktemp("p")
    source = write_block(folder / "source", block, spec)
    text_columns = {root(name) for name, leaf in spec.leaves.items() if leaf.dtype is None}
    packed_columns = ["obs", "new_obs"] if "obs" not in text_columns else []
    packed_columns += sorted({root(name) for name in spec.leaves} - {*text_columns, "obs"})
    export = convert(source, folder / "text", "SampleBatch", compress_columns=tuple(packed_columns))
    reimport = convert(folder / "text", folder / "back", "Episodes")
    assert export.checksum == reimport.checksum == convert(source, folder / "plain", "SampleBatch").checksum


def test_compress_columns_of_other_formats_is_refused(tmp_path):
    with pytest.raises(SpecError, match="--compress-columns requires the format SampleBatch"):
        Target(resolve(tmp_path), "Columns", compress_columns=("obs",))


@pytest.mark.parametrize("file_format", PARQUET_FORMATS)
def test_long_episodes_stored_in_fragments_are_read_whole(tmp_path, twenty_episodes, file_format):
    source = tmp_path / "source"
    with mock.patch.object(ArrowEncoder, "max_episode_bytes", 100):
        for i, unit in enumerate(twenty_episodes.units):
            write_block(source / str(i), twenty_episodes.read(unit), twenty_episodes.spec)
    convert(source, tmp_path / "out", file_format)
    assert episode_hashes(read_all(tmp_path / "out")) == episode_hashes(read_block(twenty_episodes))


@pytest.mark.parametrize("file_format", WRITTEN_FORMATS)
def test_rows_per_file_are_respected_in_every_format(tmp_path, make_folders, file_format):
    (source,) = make_folders(1)
    convert(source, tmp_path / "out", file_format, rows_per_file=8)
    has_row_per_step = file_format in ("Columns", "JSON", "CSV")
    files = [path for path in (tmp_path / "out").iterdir() if path.is_file()]
    assert len(files) == (2 if has_row_per_step else 1)
    assert open_data(tmp_path / "out").num_episodes == 4


def test_empty_episode_is_refused_by_formats_without_a_row_for_it(tmp_path):
    source = write_block(tmp_path / "source", make_block([3, 0, 2]))
    assert convert(source, tmp_path / "m", "MessagePack").episodes == 3
    with pytest.raises(DataError, match="episode e1 has no timesteps"):
        convert(source, tmp_path / "c", "Columns")
    assert not list((tmp_path / "c").glob("*.parquet"))


def test_conversion_applies_columns_and_filters_of_the_reading(tmp_path, make_folders):
    (source,) = make_folders(1)
    options = ReadOptions(columns=["obs", "actions"])
    convert_data(Reading((str(source),), options=options), Target(resolve(tmp_path / "narrow")))
    assert read_all(tmp_path / "narrow").columns.keys() == {"obs", "actions"}

    options = ReadOptions(filter=[parse_filter("rewards >= 0.5")])
    convert_data(Reading((str(source),), options=options), Target(resolve(tmp_path / "few")))
    rewards = read_all(source).columns["rewards"]
    filtered_rewards = read_all(tmp_path / "few").columns["rewards"]
    assert np.sort(filtered_rewards).tolist() == np.sort(rewards[rewards >= 0.5]).tolist()
