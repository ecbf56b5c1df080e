"""Data prepared in a store and read by workers."""

from __future__ import annotations

import os

import pytest
import torch

from hindcast.api.pipeline import PipelineSpec
from hindcast.datasets.curate.operations import convert_data
from hindcast.datasets.opening import open_dataset
from hindcast.datasets.prepare import preparer
from hindcast.datasets.prepare.opening import open_data, open_reading
from hindcast.datasets.prepare.reading import Reading
from hindcast.datasets.target import Target
from hindcast.errors import StorageError
from hindcast.formats.dataset_folder.manifest import read_manifest
from hindcast.pipeline.data_workers import DataWorkers
from hindcast.pipeline.executors import Local
from hindcast.pipeline.needs import Needs
from hindcast.pipeline.offline_data import OfflineData, Source
from hindcast.storage.location import resolve
from support import episode_hashes, read_all, record, recording


@pytest.fixture
def json_lines(walks, tmp_path):
    """Recorded episodes as JSON lines, which must be prepared."""
    convert_data(Reading((str(walks),)), Target(resolve(tmp_path / "lines"), "JSON"))
    return str(tmp_path / "lines")


def test_prepared_data_are_reused(store_folder, json_lines, walks, monkeypatch):
    monkeypatch.setenv("HINDCAST_CACHE", store_folder.uri)
    (prepared_path,) = open_reading(Reading((json_lines,))).paths
    assert str(prepared_path).startswith(f"{store_folder.uri}/prepared/")
    monkeypatch.setattr(preparer.Preparer, "prepare", None)
    assert open_data(json_lines).num_episodes == 40
    assert set(episode_hashes(read_all(prepared_path))) == set(episode_hashes(read_all(walks)))


def test_failed_preparation_is_never_used(store_folder, json_lines, monkeypatch):
    store_folder.fail(matching=r"^(PUT|POST) .*manifest\.json", status=403, code="AccessDenied")
    with pytest.raises(StorageError, match=r"cannot write \S+manifest\.json\S*: access is denied"):
        open_data(json_lines, cache=store_folder.uri)
    store_folder.faults.set()
    (folder,) = (entry.location for entry in resolve(f"{store_folder.uri}/prepared").list())
    assert read_manifest(folder) is None
    assert open_data(json_lines, cache=store_folder.uri).num_episodes == 40
    assert read_manifest(folder) is not None


@pytest.mark.ray
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("ray_here")
def test_data_workers_read_same_batches_from_store_as_learner(s3):
    record(recording(f"{s3.uri}/data", output={"maxRowsPerFile": 8}))
    needs = Needs(frozenset({"obs", "actions", "rewards"}))
    s3.fail(every=5, status=503)
    credentials = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    workers = DataWorkers((1, 1), num_cpus=1, remote_args={"runtime_env": {"env_vars": credentials}})
    worker_data, local_data = (
        OfflineData(
            [Source("data", open_dataset(f"{s3.uri}/data"))],
            needs,
            batch_size=32,
            seed=3,
            pipeline=PipelineSpec.model_validate({"residency": "Streaming"}),
            executor=executor,
        )
        for executor in (workers, Local())
    )
    try:
        for _ in range(5):
            batch, expected = worker_data.next(), local_data.next()
            assert all(torch.equal(batch[leaf], expected[leaf]) for leaf in expected)
    finally:
        worker_data.close()
        local_data.close()
