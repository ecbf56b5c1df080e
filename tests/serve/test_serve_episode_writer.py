"""`EpisodeWriter`: every logged step is in the dataset exactly once; errors have one line."""

from __future__ import annotations

import os
import re
import threading
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from hindcast import EpisodeWriter, UnknownEpisode
from hindcast.datasets.opening import open_dataset
from hindcast.episodes.block import Block
from hindcast.errors import DataError, OutputConflict, StorageError
from hindcast.formats.dataset_folder.commits import COMMITS_FOLDER, read_commits
from hindcast.serve.journal import Journal
from hindcast.storage.location import resolve
from support import record, recording

SPACES = {"observation_space": gym.spaces.Box(-1, 1, (2,)), "action_space": gym.spaces.Discrete(3)}


def read_log(path: object) -> Block:
    """Read all episodes of the log, in the order of their ids."""
    data = open_dataset(str(path))
    block = Block.concat([data.read(unit) for unit in data.units])
    return block.take(np.argsort(block.eps_id.astype(str)))


def log_episode(writer: EpisodeWriter, episode: str, num_steps: int, *, should_end: bool = True) -> None:
    """Log an episode whose reward at step t is t."""
    writer.start_episode(episode)
    for t in range(num_steps):
        writer.log_action(episode, [0.0, t / 100], t % 3, action_logp=np.float32(-1.0))
        writer.log_returns(episode, t)
    if should_end:
        writer.end_episode(episode, [0.0, num_steps / 100])


def simulate_kill(writer: EpisodeWriter) -> None:
    """Release the folder as a killed process does, without writing anything."""
    writer._is_closed = True
    writer._stop_event.set()
    writer._thread.join()
    writer._journal.close()
    writer._open_stack.close()


def test_logged_episode_has_its_steps(tmp_path: Path) -> None:
    with EpisodeWriter(tmp_path / "log", **SPACES) as writer:
        episode = writer.start_episode("first")
        writer.log_action(episode, [0.5, 0.25], 2, action_logp=-0.5)
        writer.log_returns(episode, 1, {"clicks": 3})
        writer.log_returns(episode, 0.5, {"paid": True})
        writer.log_action(episode, [0.25, 0.5], 0, action_logp=-1.5)
        writer.end_episode(episode, [0.0, 1.0], truncated=True)
        assert writer.start_episode() != writer.start_episode()  # neither is recorded, as it has no action
    data, block = open_dataset(str(tmp_path / "log")), read_log(tmp_path / "log")
    assert (data.spec.observation_space, data.spec.action_space) == tuple(SPACES.values())
    assert not data.spec.normalized_actions
    assert not data.notes
    assert block.columns["obs"].dtype == np.float32
    assert block.columns["obs"].tolist() == [[0.5, 0.25], [0.25, 0.5], [0.0, 1.0]]
    assert block.columns["actions"].tolist() == [2, 0]
    assert block.columns["action_logp"].tolist() == [-0.5, -1.5]
    assert block.columns["rewards"].tolist() == [1.5, 0.0]
    assert block.columns["infos"].tolist() == ["{}", '{"clicks":3,"paid":true}', "{}"]
    assert (block.terminated.tolist(), block.truncated.tolist()) == ([False], [True])


def test_nested_and_text_values_are_logged(tmp_path: Path) -> None:
    with EpisodeWriter(tmp_path / "log") as writer:
        episode = writer.start_episode()
        for page in ("home", "cart"):
            writer.log_action(episode, {"page": page, "age": np.float32(0.5)}, (1, [0.5, 0.25]))
        writer.end_episode(episode, {"page": "paid", "age": np.float32(0.75)})
    block = read_log(tmp_path / "log")
    assert block.columns["obs/page"].tolist() == ["home", "cart", "paid"]
    assert block.columns["obs/age"].tolist() == [0.5, 0.5, 0.75]
    assert block.columns["actions/0"].tolist() == [1, 1]
    assert block.columns["actions/1"].tolist() == [[0.5, 0.25]] * 2


def test_threads_of_successive_writers_log_into_one_dataset(tmp_path: Path) -> None:
    def log_episodes(writer: EpisodeWriter, name: str) -> None:
        for number in range(10):
            log_episode(writer, f"{name}-{number}", 1 + number % 4)

    for writer_number in range(2):
        with EpisodeWriter(tmp_path / "log", **SPACES, file_bytes=400) as writer:
            threads = [
                threading.Thread(target=log_episodes, args=(writer, f"{writer_number}-{number}"))
                for number in range(4)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    block = read_log(tmp_path / "log")
    assert len(set(block.eps_id)) == block.num_episodes == 80
    assert block.length.tolist() == [1 + int(id_[-1]) % 4 for id_ in block.eps_id]
    assert len(read_commits(resolve(str(tmp_path / "log")))) > 4


def test_ended_episodes_are_committed_by_timer(tmp_path: Path) -> None:
    with EpisodeWriter(tmp_path / "log", commit_every_s=0.05) as writer:
        log_episode(writer, "a", 2)
        commit_file = tmp_path / "log" / COMMITS_FOLDER / "000000.json"
        while not commit_file.exists():
            time.sleep(0.01)
        log_episode(writer, "b", 1)
    assert read_log(tmp_path / "log").eps_id.tolist() == ["a", "b"]


def test_next_writer_recovers_log_of_killed_writer(tmp_path: Path) -> None:
    writer = EpisodeWriter(tmp_path / "log", **SPACES)
    log_episode(writer, "a", 3)
    log_episode(writer, "running", 2, should_end=False)
    writer.commit()
    log_episode(writer, "b", 1)
    writer.log_action("running", [0.5, 0.5], 1, action_logp=0.0)
    simulate_kill(writer)
    with EpisodeWriter(tmp_path / "log") as writer, pytest.raises(UnknownEpisode, match="was truncated"):
        writer.log_returns("running", 1.0)
    block = read_log(tmp_path / "log")
    assert block.eps_id.tolist() == ["a", "b", "running"]
    assert block.length.tolist() == [3, 1, 3]
    assert block.terminated.tolist() == [True, True, False]
    assert block.truncated.tolist() == [False, False, True]
    running_episode = block.take([2])
    assert running_episode.columns["rewards"].tolist() == [0.0, 1.0, 0.0]
    assert (
        running_episode.columns["obs"][-2:].tolist() == [[0.5, 0.5]] * 2
    )  # the unknown last observation is a copy


@pytest.mark.parametrize("moment", ["Journal", "_commit_range", "delete", "done"])
def test_interrupted_commit_counts_each_episode_once(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class KillSignal(BaseException):
        pass

    def kill(*_: Any, **__: Any) -> None:
        raise KillSignal

    writer = EpisodeWriter(tmp_path / "log", **SPACES)
    log_episode(writer, "a", 3)
    log_episode(writer, "running", 2, should_end=False)
    patches = {
        "Journal": ("hindcast.serve.episode_writer.Journal", kill),
        "_commit_range": ("hindcast.serve.episode_writer.EpisodeWriter._commit_range", kill),
        "delete": ("hindcast.serve.journal.Journal.delete", kill),
        "done": ("hindcast.serve.episode_writer._logger.warning", kill),  # never called: the commit succeeds
    }
    with monkeypatch.context() as patch:
        patch.setattr(*patches[moment])
        if moment == "done":
            writer.commit()
        else:
            with pytest.raises(KillSignal):
                writer.commit()
    simulate_kill(writer)
    EpisodeWriter(tmp_path / "log").close()
    block = read_log(tmp_path / "log")
    assert block.eps_id.tolist() == ["a", "running"]
    assert block.length.tolist() == [3, 2]
    assert not list((tmp_path / "log/_hindcast/journal").iterdir())


@pytest.mark.parametrize("function", ["write_commit", "Journal"])
def test_failed_commit_is_retried(
    function: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise StorageError("the disk is full")

    with EpisodeWriter(tmp_path / "log", **SPACES) as writer:
        log_episode(writer, "a", 3)
        with monkeypatch.context() as patch:
            patch.setattr(f"hindcast.serve.episode_writer.{function}", fail)
            with pytest.raises(StorageError, match="the disk is full"):
                writer.commit()
            writer._file_bytes = 1
            log_episode(writer, "b", 1)  # logged although its commit fails
            assert "the disk is full" in caplog.text
        log_episode(writer, "c", 2)
    assert read_log(tmp_path / "log").length.tolist() == [3, 1, 2]
    assert not list((tmp_path / "log/_hindcast/journal").iterdir())


def test_interrupted_recovery_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = EpisodeWriter(tmp_path / "log", **SPACES)
    log_episode(writer, "running", 2, should_end=False)
    simulate_kill(writer)
    with monkeypatch.context() as patch:
        patch.setattr("hindcast.serve.episode_writer.delete_journal", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            EpisodeWriter(tmp_path / "log")
    for _ in range(2):
        EpisodeWriter(tmp_path / "log").close()
    assert read_log(tmp_path / "log").length.tolist() == [2]


def test_incomplete_record_is_skipped(tmp_path: Path) -> None:
    writer = EpisodeWriter(tmp_path / "log", **SPACES)
    log_episode(writer, "a", 3, should_end=False)
    simulate_kill(writer)
    (journal,) = (tmp_path / "log/_hindcast/journal").iterdir()
    os.truncate(journal, journal.stat().st_size - 3)
    EpisodeWriter(tmp_path / "log").close()
    block = read_log(tmp_path / "log")
    assert block.length.tolist() == [3]
    assert block.columns["rewards"].tolist() == [0.0, 1.0, 0.0]


def test_damaged_journal_raises_data_error(tmp_path: Path) -> None:
    writer = EpisodeWriter(tmp_path / "log", **SPACES)
    log_episode(writer, "a", 3, should_end=False)
    simulate_kill(writer)
    (journal,) = (tmp_path / "log/_hindcast/journal").iterdir()
    data = bytearray(journal.read_bytes())
    data[40] ^= 1
    journal.write_bytes(data)
    with pytest.raises(DataError, match=rf"{journal.name} is damaged at byte \d+: restore it"):
        EpisodeWriter(tmp_path / "log")


def test_full_disk_loses_only_the_refused_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write

    def write_half(file: int, data: bytes) -> int:
        write(file, data[: len(data) // 2])
        raise OSError(28, "No space left on device")

    with EpisodeWriter(tmp_path / "log", **SPACES) as writer:
        log_episode(writer, "a", 2, should_end=False)
        with monkeypatch.context() as patch:
            patch.setattr("hindcast.serve.journal.os.write", write_half)
            with pytest.raises(StorageError, match="the disk is full"):
                writer.log_action("a", [0.0, 0.5], 1, action_logp=0.0)
        writer.end_episode("a", [0.0, 0.75])
        simulate_kill(writer)
    EpisodeWriter(tmp_path / "log").close()
    assert read_log(tmp_path / "log").columns["obs"].tolist() == [
        [0.0, 0.0],
        [0.0, np.float32(0.01)],
        [0.0, 0.75],
    ]


def test_object_store_keeps_flushed_records(memory_path: str) -> None:
    folder = resolve(memory_path).child("log")
    writer = EpisodeWriter(folder, **SPACES)
    log_episode(writer, "a", 2)
    log_episode(writer, "running", 2, should_end=False)
    writer.flush()
    writer.log_action("running", [0.5, 0.5], 1, action_logp=0.0)
    writer.flush()
    file_names = [entry.relative_path for entry in folder.child("_hindcast/journal").files()]
    assert len(file_names) == 3  # one of the journal's start, and one for each flush
    simulate_kill(writer)
    EpisodeWriter(folder).close()
    data = open_dataset(folder)
    lengths = [int(length) for unit in data.units for length in unit.lengths]
    assert lengths == [2, 3]


def check_refusal(path: Path, mistake: Any, sentence: str) -> None:
    """Check that a mistake raises a DataError of one line and that the log does not change."""
    with EpisodeWriter(path, **SPACES) as writer:
        log_episode(writer, "a", 2, should_end=False)
        with pytest.raises(DataError, match=re.escape(sentence)) as error_info:
            mistake(writer)
        assert "\n" not in str(error_info.value)
        writer.end_episode("a", [0.0, 1.0])
    assert read_log(path).length.tolist() == [2]


@pytest.mark.parametrize(
    ("mistake", "sentence"),
    [
        (
            lambda log: log.log_action("a", [0, 0], 3, action_logp=0),
            "episode 'a', step 2: actions is 3, which is outside its space: an integer in [0, 2]",
        ),
        (
            lambda log: log.log_action("a", [0, 2], 0, action_logp=0),
            "episode 'a', step 2: obs is [0, 2], which is outside its space",
        ),
        (
            lambda log: log.log_action("a", [0, 0, 0], 1, action_logp=0),
            "episode 'a', step 2: obs has the shape [3], expected [2], as its space says",
        ),
        (
            lambda log: log.log_action("a", {"x": 1}, 1, action_logp=0),
            "episode 'a', step 2: the observation has the parts obs/x, expected obs",
        ),
        (
            lambda log: log.log_action("a", [0, float("nan")], 1, action_logp=0),
            "episode 'a', step 2: obs is [0.0, nan], which is not finite",
        ),
        (
            lambda log: log.log_action("a", [0, 0], "left", action_logp=0),
            "episode 'a', step 2: actions is 'left', expected numbers",
        ),
        (
            lambda log: log.log_action("a", [0, 0], 0.5, action_logp=0),
            "episode 'a', step 2: actions is float64, expected int64",
        ),
        (
            lambda log: log.log_action("a", [0, 0], 1),
            "the action has nothing else, but the log's first action had action_logp",
        ),
        (
            lambda log: log.log_returns("a", "much"),
            "episode 'a', step 2: the reward is 'much', expected a number",
        ),
        (lambda log: log.log_returns("a", float("nan")), "the reward is nan, which is not finite"),
        (lambda log: log.start_episode("a"), "episode 'a' is already running: end it, or use another id"),
        (lambda log: log.start_episode(7), "the episode id is 7, expected text"),
        (lambda log: log.end_episode("b", [0, 0]), "episode 'b' is not running: it was not started"),
        (
            lambda log: log.end_episode("a", [0, 0], terminated=False),
            "episode 'a' ends neither terminated nor truncated",
        ),
        (
            lambda log: log.log_returns(log.start_episode("c"), 1),
            "episode 'c', step 0: a reward was logged before the first action",
        ),
    ],
)
def test_mistake_raises_one_line_and_logs_nothing(mistake: Any, sentence: str, tmp_path: Path) -> None:
    check_refusal(tmp_path / "log", mistake, sentence)


def test_first_step_defines_schema_without_spaces(tmp_path: Path) -> None:
    with EpisodeWriter(tmp_path / "log") as writer:
        log_episode(writer, "a", 1)
    with EpisodeWriter(tmp_path / "log") as writer:  # reads the schema from the log
        writer.start_episode("b")
        with pytest.raises(DataError, match=r"'b', step 0: obs has the shape \[3\], expected \[2\]"):
            writer.log_action("b", [0.0, 0.0, 0.0], 1, action_logp=0.0)
        writer.log_action("b", [0.0, 5.0], 7, action_logp=0.0)
        writer.end_episode("b", [0.0, 5.0])
    spec = open_dataset(str(tmp_path / "log")).spec
    assert spec.observation_space == gym.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    assert spec.action_space is None  # one action does not reveal the number of actions


def test_folder_with_other_content_or_spaces_or_damage_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/a.txt").write_text("mine")
    with pytest.raises(OutputConflict, match="contains other files: use a new folder"):
        EpisodeWriter(tmp_path / "notes")
    record(recording(tmp_path / "walks", duration={"episodes": 4}))
    with pytest.raises(OutputConflict, match="walks holds OfflineRecording/test: use another folder"):
        EpisodeWriter(tmp_path / "walks")
    writer = EpisodeWriter(tmp_path / "log", **SPACES)
    log_episode(writer, "a", 1)
    simulate_kill(writer)  # the episode is in the journal only
    with pytest.raises(OutputConflict, match="belongs to EpisodeWriter"):
        record(recording(tmp_path / "log"))
    with pytest.raises(DataError, match=r"has the action space Discrete\(3\), expected Discrete\(4\)"):
        EpisodeWriter(tmp_path / "log", action_space=gym.spaces.Discrete(4))
    (tmp_path / "log/_hindcast/spec.json").write_text("{")
    with pytest.raises(
        DataError, match=r"spec\.json, which names the owner of the folder, is damaged: restore"
    ):
        EpisodeWriter(tmp_path / "log")


def test_second_writer_or_fork_is_refused(tmp_path: Path) -> None:
    with EpisodeWriter(tmp_path / "log", **SPACES) as writer:
        with pytest.raises(OutputConflict, match="another process is writing to"):
            EpisodeWriter(tmp_path / "log")
        writer._pid += 1  # as in a forked process
        with pytest.raises(
            OutputConflict, match=r"opened by the process .* a fork of it: open it after the fork"
        ):
            writer.start_episode()
        writer.close()  # has no effect in a forked process
        writer._pid -= 1
        log_episode(writer, "a", 1)
    with pytest.raises(OutputConflict, match="is closed: open another EpisodeWriter"):
        writer.start_episode()
    assert read_log(tmp_path / "log").num_episodes == 1


def test_journal_on_object_store_is_written_when_created(memory_path: str) -> None:
    """The first object has the initial records, and exists even without any."""
    folder = resolve(memory_path).child("journal")
    Journal(folder, 3)
    assert [entry.relative_path for entry in folder.files()] == ["000003-000000.log"]
