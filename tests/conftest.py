"""Fixtures for all tests; expensive ones are created once per session."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

# Test processes share the machine. Set before torch is imported, which reads the variable.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import fsspec
import pytest

from episode_kit import kit  # noqa: F401  fixture
from hindcast import user_code
from hindcast.report import page
from hindcast.report.canvas import Picture, Theme
from layers import LAYER
from picture_cache import render_once
from ray_here import pytest_runtest_setup, pytest_unconfigure, ray_here  # noqa: F401  hooks and a fixture
from support import MemoryReporter, record, recording
from warm_python import WarmPython, fork_workers, warm_python

_LAYERS = {"docs": "docs", "examples": "docs", "faults": "faults", "stores": "stores"}
"""Folder -> mark of all its tests."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by their folder, and run tests of the docs first: they take longest, and workers then end together."""
    tests_folder = Path(__file__).parent
    for item in items:
        layer = _LAYERS.get(item.path.relative_to(tests_folder).parts[0])
        if layer is not None:
            item.add_marker(layer)
    items.sort(key=lambda item: next(item.iter_markers("docs"), None) is None)


@pytest.fixture(scope="session", autouse=True)
def _test_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Store indices of foreign files in a temporary folder, not in the home folder."""
    os.environ["HINDCAST_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache of prepared data, in a folder of the test's own."""
    monkeypatch.setenv("HINDCAST_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def _restore_registered_objects() -> Iterator[None]:
    """Forget objects that a test registers, so that later tests do not send them to their processes."""
    objects_before = user_code.registered_objects()
    yield
    user_code._registered_objects.clear()
    user_code.restore_objects(objects_before)


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmPython]:
    """Start Python programs, and workers of this process's pools, with their modules already imported."""
    with warm_python(tmp_path_factory.mktemp("warm")) as warm:
        fork_workers(str(warm.folder / "python"))
        yield warm


@pytest.fixture(autouse=True)
def _forked_workers(request: pytest.FixtureRequest) -> None:
    """Fork the workers of pools, except in the quick layer, where no test starts any."""
    if LAYER != "quick":
        request.getfixturevalue("warm")


@pytest.fixture(scope="session")
def render_once_per_kind(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Picture, Theme], bytes]:
    """Return a stand-in for `render` that draws each kind of picture once."""
    return render_once(tmp_path_factory.mktemp("pictures"))


@pytest.fixture
def cached_pictures(
    monkeypatch: pytest.MonkeyPatch, render_once_per_kind: Callable[[Picture, Theme], bytes]
) -> None:
    """Draw each kind of picture once."""
    monkeypatch.setattr(page, "render", render_once_per_kind)


@pytest.fixture(autouse=True)
def _cache_pictures(request: pytest.FixtureRequest) -> None:
    if request.path.parent.name != "report":
        request.getfixturevalue("cached_pictures")


@pytest.fixture(scope="session")
def walks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 recorded episodes of `toy_environments:Walk` in several files; tests must not change them."""
    folder = tmp_path_factory.mktemp("recorded") / "walks"
    record(recording(folder, output={"maxRowsPerFile": 8}))
    return folder


@pytest.fixture
def reporter() -> MemoryReporter:
    """A reporter that stores everything in memory."""
    return MemoryReporter()


@pytest.fixture
def memory_path() -> Iterator[str]:
    """A folder on fsspec's in-memory file system."""
    yield "memory://run-tests/data"
    filesystem = fsspec.filesystem("memory")
    if filesystem.exists("/run-tests"):
        filesystem.rm("/run-tests", recursive=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """`small_disk("size=1m")` mounts a fresh tmpfs; `small_disk("remount,size=9m")` changes it.

    `small_disk("ro", folder)` mounts another tmpfs over a folder.
    """
    disk = tmp_path / "disk"
    disk.mkdir()
    mount_points: list[Path] = []

    def mount(options: str, folder: Path = disk) -> Path:
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        if os.getuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("mounting a file system requires root")
        mount_points.append(folder)
        return folder

    yield mount
    for folder in reversed(mount_points):
        if folder.is_mount():
            subprocess.run(["umount", "--lazy", str(folder)], check=True)
