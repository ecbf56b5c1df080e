"""Results in results.jsonl and in TensorBoard's event files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from hindcast.errors import StorageError
from hindcast.report.results import ResultsLog, TensorBoardWriter, flatten_numbers, read_results
from hindcast.storage.location import Location, resolve


def make_result(iteration: int, loss: float = 0.5) -> dict[str, Any]:
    return {
        "training_iteration": iteration,
        "learners": {"default_policy": {"total_loss": loss}},
        "timers": {"update_s": 0.1},
    }


def read_scalars(folder: Path, name: str) -> list[tuple[int, float]]:
    """Return (step, value) of a scalar in TensorBoard's event files."""
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


def test_appended_result_is_stored_immediately(tmp_path: Path) -> None:
    log = ResultsLog(resolve(tmp_path), resume_at=0)
    assert read_results(resolve(tmp_path)) == []
    for iteration in (1, 2):
        log.append(make_result(iteration))
        assert read_results(resolve(tmp_path))[-1] == make_result(iteration)


class TestOnAnObjectStore:
    def test_lines_are_readable_immediately_and_in_one_file_after_close(self, memory_path: str) -> None:
        folder, results = resolve(memory_path), [make_result(iteration) for iteration in range(1, 1000)]
        log = ResultsLog(folder, resume_at=0)
        for iteration, line in enumerate(results, start=1):
            log.append(line)
            if iteration in (1, 256, 257, 999):
                assert read_results(folder) == results[:iteration]
        log.close()
        lines = folder.child("results.jsonl").read_bytes().splitlines()
        assert [json.loads(line) for line in lines] == results == read_results(folder)
        assert not folder.child("results").exists()

    def test_log_resumes_from_objects_of_killed_process(self, memory_path: str) -> None:
        folder, results = resolve(memory_path), [make_result(iteration) for iteration in range(1, 601)]
        log = ResultsLog(folder, resume_at=0)
        for line in results:
            log.append(line)
        log = ResultsLog(folder, resume_at=300)
        assert log.results == read_results(folder) == results[:300]
        for line in results[300:]:
            log.append(line)
        assert read_results(folder) == results

    def test_written_bytes_grow_linearly_with_the_lines(
        self, memory_path: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        written_bytes = [0]
        write = Location.write_bytes

        def counting_write(self: Location, data: bytes) -> None:
            written_bytes[0] += len(data)
            write(self, data)

        monkeypatch.setattr(Location, "write_bytes", counting_write)
        log, totals = ResultsLog(resolve(memory_path), resume_at=0), []
        for iteration in range(1, 1025):
            log.append(make_result(iteration))
            totals.append(written_bytes[0])
        # The second half of the lines costs about as much as the first.
        assert totals[1023] - totals[511] <= 1.1 * totals[511]

    def test_tensorboard_reads_all_scalars(self, memory_path: str, tmp_path: Path) -> None:
        log = ResultsLog(resolve(memory_path), resume_at=0)
        for iteration in range(1, 301):
            log.append(make_result(iteration))
        log = ResultsLog(resolve(memory_path), resume_at=299)
        log.append(make_result(300, loss=0.25))
        (tmp_path / "tensorboard").mkdir()
        for entry in resolve(memory_path).child("tensorboard").list():
            (tmp_path / "tensorboard" / entry.relative_path).write_bytes(entry.location.read_bytes())
        expected = [(iteration, 0.5) for iteration in range(1, 300)] + [(300, 0.25)]
        assert read_scalars(tmp_path, "learners/default_policy/total_loss") == expected


def test_resumed_log_drops_repeated_results(tmp_path: Path) -> None:
    log = ResultsLog(resolve(tmp_path), resume_at=0)
    for iteration in (1, 2, 3):
        log.append(make_result(iteration))
    log.append({"training_iteration": 3, "evaluation": {"training_iteration": 3}})
    log.close()
    log = ResultsLog(resolve(tmp_path), resume_at=2)
    assert log.results == read_results(resolve(tmp_path)) == [make_result(1), make_result(2)]
    log.append(make_result(3, loss=0.25))
    assert read_scalars(tmp_path, "learners/default_policy/total_loss") == [(1, 0.5), (2, 0.5), (3, 0.25)]


def test_incomplete_last_line_is_ignored(tmp_path: Path) -> None:
    log = ResultsLog(resolve(tmp_path), resume_at=0)
    log.append(make_result(1))
    with (tmp_path / "results.jsonl").open("ab") as file:
        file.write(b'{"training_iteration":2,"lear')
    assert read_results(resolve(tmp_path)) == [make_result(1)]
    assert ResultsLog(resolve(tmp_path), resume_at=2).results == [make_result(1)]
    assert (tmp_path / "results.jsonl").read_bytes().endswith(b"}\n")


def test_full_disk_is_reported_in_one_sentence(small_disk: Callable[[str], Path]) -> None:
    folder = small_disk("size=64k") / "run"
    log = ResultsLog(resolve(folder), resume_at=0)
    with pytest.raises(StorageError, match=rf"{folder}/.*the disk is full"):
        for iteration in range(1, 5000):
            log.append(make_result(iteration))
    small_disk("remount,size=4m")
    assert read_results(resolve(folder))[0] == make_result(1)
    ResultsLog(resolve(folder), resume_at=1).append(make_result(2))
    assert read_results(resolve(folder)) == [make_result(1), make_result(2)]


def test_full_disk_in_tensorboard_is_reported_in_one_sentence(small_disk: Callable[[str], Path]) -> None:
    folder = small_disk("size=64k")
    writer = TensorBoardWriter(resolve(folder), purge_from=1)
    with pytest.raises(StorageError, match=rf"{folder}/tensorboard/.*the disk is full"):
        for iteration in range(1, 5000):
            writer.write(iteration, {"loss": 0.5})


def test_flatten_yields_numbers_by_path() -> None:
    metrics = {"a": {"b": 1, "c": True, "d": None}, "e": 0.5, "f": "text", "g": [1]}
    assert dict(flatten_numbers(metrics)) == {"a/b": 1.0, "e": 0.5}
