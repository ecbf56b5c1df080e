"""The cache of a store's bytes on this machine's disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from obstore.store import MemoryStore

from hindcast.api.pipeline import PipelineSpec
from hindcast.datasets.opening import open_dataset
from hindcast.pipeline.needs import Needs
from hindcast.pipeline.offline_data import OfflineData, Source
from hindcast.storage import disk_cache, object_files
from hindcast.storage.disk_cache import DiskCache, open_disk_cache
from hindcast.storage.location import resolve
from support import record, recording


@pytest.fixture
def requested_bytes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Bytes of each request for a range of an object; the process has no disk cache afterwards."""
    sizes: list[int] = []
    get_range = object_files.obstore.get_range

    def count(*arguments: Any, **ranges: int) -> Any:
        sizes.append(ranges["length"])
        return get_range(*arguments, **ranges)

    monkeypatch.setattr(object_files.obstore, "get_range", count)
    yield sizes
    open_disk_cache(0)


@pytest.mark.parametrize(("cache", "share"), [("1Gi", 0.0), ("4Ki", 0.6), (None, 1.0)])
def test_later_epochs_request_only_what_does_not_fit(
    tmp_path: Path, requested_bytes: list[int], cache: str | None, share: float
) -> None:
    record(recording(tmp_path, output={"maxRowsPerFile": 8}))  # 5 files
    store = MemoryStore()
    for file in tmp_path.glob("*.*"):
        store.put(f"data/{file.name}", file.read_bytes())
    dataset = open_dataset(resolve("data", store))
    for unit in dataset.units:
        dataset.read(unit)  # reads the footers, too, which are kept in memory
    pipeline = PipelineSpec(disk_cache=cache)
    OfflineData([Source("data", dataset)], Needs(frozenset({"obs"})), batch_size=8, pipeline=pipeline)
    epochs = []
    for _ in range(2):
        requested_bytes.clear()
        for unit in dataset.units:
            dataset.read(unit)
        epochs.append(sum(requested_bytes))
    assert epochs[1] == pytest.approx(share * epochs[0], rel=0.1)


def test_full_disk_keeps_what_was_written(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    cache = DiskCache(1000)
    cache.put("key", 0, b"abc")

    def raise_full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk_cache.os, "pwrite", raise_full)
    cache.put("key", 3, b"def")
    monkeypatch.undo()
    cache.put("key", 6, b"ghi")
    assert [cache.get("key", start, 3) for start in (0, 3, 6)] == [b"abc", None, None]
    assert cache.get("other", 0, 3) is None
    assert "holds no more than 3 bytes" in caplog.text
