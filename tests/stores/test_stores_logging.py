"""The log of an application in a store: flushed episodes are logged once, and losing the lease stops the logger."""

from __future__ import annotations

import subprocess

import orjson
import pytest

from hindcast import EpisodeWriter
from hindcast.datasets.opening import open_dataset
from hindcast.errors import OutputConflict
from hindcast.formats.dataset_folder.commits import read_commits
from hindcast.formats.dataset_folder.manifest import FOLDER
from hindcast.storage import lease
from hindcast.storage.location import resolve

PROGRAM_KILLED_AFTER_FLUSH = """
import os, signal, sys
from hindcast import EpisodeWriter

writer = EpisodeWriter(sys.argv[1])
for name in ("committed", "ended", "running"):
    writer.start_episode(name)
    for t in range(3):
        writer.log_action(name, [float(t)], t)
        writer.log_returns(name, 1.0)
    if name != "running":
        writer.end_episode(name, [3.0])
    if name == "committed":
        writer.commit()
writer.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""


def read_lengths(uri: str) -> dict[str, int]:
    data = open_dataset(uri)
    blocks = [data.read(unit) for unit in data.units]
    return {id_: int(n) for block in blocks for id_, n in zip(block.eps_id, block.length, strict=True)}


def test_flushed_log_of_a_killed_application_survives_failing_requests(s3, warm) -> None:
    s3.fail(every=3, status=503)
    command = [str(warm.folder / "python"), "-c", PROGRAM_KILLED_AFTER_FLUSH, s3.uri]
    assert subprocess.run(command, check=False).returncode < 0
    assert read_lengths(s3.uri) == {"committed": 3}
    EpisodeWriter(s3.uri).close()
    assert read_lengths(s3.uri) == {"committed": 3, "ended": 3, "running": 3}
    assert not list(s3.at(FOLDER, "journal").files())


def test_logger_that_lost_the_folder_stops_writing(s3) -> None:
    writer = EpisodeWriter(s3.uri)
    writer.start_episode("a")
    writer.log_action("a", [0.0], 1)
    writer.end_episode("a", [1.0])
    holder = {"token": "theirs", "machine": "node-7 x", "process": 12, "renewed": lease.time.time()}
    s3.at(FOLDER, lease.LOCK, "000009.json").write_bytes(orjson.dumps(holder))
    for write in (writer.commit, writer.close):
        with pytest.raises(OutputConflict, match="another process has begun to write to"):
            write()
    assert read_commits(resolve(s3.uri)) == {}
