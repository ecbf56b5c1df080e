"""Links in folders of data: each real file counts once, and broken links are reported."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.csv as pacsv
import pytest

from hindcast.datasets.inspection.inspecting import inspect_data
from hindcast.datasets.opening import open_dataset
from hindcast.datasets.prepare.opening import open_data
from hindcast.datasets.prepare.reading import Reading
from hindcast.errors import DataError
from hindcast.storage.location import resolve
from support import record, recording


@pytest.fixture
def data(tmp_path):
    """A folder with two files of episodes, without a manifest."""
    record(recording(tmp_path / "data", duration={"episodes": 10}, output={"maxRowsPerFile": 5}))
    (tmp_path / "data/_hindcast").rename(tmp_path / "aside")
    return tmp_path / "data"


def test_each_file_counts_once_however_many_links_lead_to_it(tmp_path, data):
    file = sorted(data.glob("*.parquet"))[0]
    link_folder = tmp_path / "linked"
    link_folder.mkdir()
    (link_folder / "a.parquet").symlink_to(file)
    (link_folder / "b.parquet").symlink_to(file)
    (link_folder / "sub").symlink_to(data)
    assert open_dataset(link_folder).num_episodes == 10
    assert open_dataset(f"{link_folder}/**/*.parquet").num_episodes == 10


def test_circular_links_terminate(data):
    (data / "self").symlink_to(data)
    (data / "below").mkdir()
    (data / "below/up").symlink_to(data)
    assert open_dataset(data).num_episodes == 10
    names = [entry.relative_path for entry in resolve(data).list(recursive=True)]
    assert len(names) == len(set(names)) == 3


def test_broken_link_is_named_in_the_error(data):
    (data / "broken.parquet").symlink_to("nowhere")
    message = r"broken.parquet is a link to nowhere, which does not exist: fix the link, or delete it"
    with pytest.raises(DataError, match=message):
        open_dataset(data)
    with pytest.raises(DataError, match=message):
        open_dataset(data / "broken.parquet")
    summary = inspect_data(Reading((str(data),)))
    assert summary.episodes == 10
    assert any("a link to nowhere" in problem.message for problem in summary.problems)


def test_broken_link_among_tables_is_refused(tmp_path):
    rows = tmp_path / "rows"
    rows.mkdir()
    pacsv.write_csv(pa.table({"obs": [0.0]}), rows / "a.csv")
    (rows / "broken").symlink_to("nowhere")
    with pytest.raises(DataError, match=r"broken is a link to nowhere"):
        open_data(rows, cache=tmp_path / "cache")


def test_file_and_its_link_are_refused_as_duplicates(tmp_path, data):
    file = sorted(data.glob("*.parquet"))[0]
    (tmp_path / "link.parquet").symlink_to(file)
    with pytest.raises(DataError, match="occurs twice"):
        open_dataset([file, tmp_path / "link.parquet"])
