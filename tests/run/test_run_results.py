"""Results as lines and for TensorBoard."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from hindcast.errors import StorageError
from hindcast.run.results import ResultsLog, flatten, read_results
from hindcast.run.tensorboard import TensorBoard
from hindcast.store.filesystem import resolve


def result(iteration: int, loss: float = 0.5) -> dict[str, Any]:
    return {
        "training_iteration": iteration,
        "learners": {"default_policy": {"total_loss": loss}},
        "timers": {"update_s": 0.1},
    }


def scalars(folder: Path, name: str) -> list[tuple[int, float]]:
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


def test_lines_are_there_at_once(tmp_path: Path) -> None:
    log = ResultsLog(resolve(tmp_path), resume_at=0)
    assert read_results(resolve(tmp_path)) == []
    for iteration in (1, 2):
        log.append(result(iteration))
        assert read_results(resolve(tmp_path))[-1] == result(iteration)


def test_on_an_object_store_they_are_there_when_a_checkpoint_counts_on_them(memory_path: str) -> None:
    log = ResultsLog(resolve(memory_path), resume_at=0)
    log.append(result(1))
    log.sync()
    assert read_results(resolve(memory_path)) == [result(1)]
    log.append(result(2))
    log.close()
    assert read_results(resolve(memory_path)) == [result(1), result(2)]


def test_going_on_drops_what_comes_again(tmp_path: Path) -> None:
    log = ResultsLog(resolve(tmp_path), resume_at=0)
    for iteration in (1, 2, 3):
        log.append(result(iteration))
    log.append({"training_iteration": 3, "evaluation": {"training_iteration": 3}})
    log.close()
    log = ResultsLog(resolve(tmp_path), resume_at=2)
    assert log.results == read_results(resolve(tmp_path)) == [result(1), result(2)]
    log.append(result(3, loss=0.25))
    assert scalars(tmp_path, "learners/default_policy/total_loss") == [(1, 0.5), (2, 0.5), (3, 0.25)]


def test_a_line_cut_off_by_a_kill_does_not_count(tmp_path: Path) -> None:
    log = ResultsLog(resolve(tmp_path), resume_at=0)
    log.append(result(1))
    with (tmp_path / "results.jsonl").open("ab") as file:
        file.write(b'{"training_iteration":2,"lear')
    assert read_results(resolve(tmp_path)) == [result(1)]
    assert ResultsLog(resolve(tmp_path), resume_at=2).results == [result(1)]
    assert (tmp_path / "results.jsonl").read_bytes().endswith(b"}\n")


def test_a_full_disk_is_one_sentence(small_disk: Callable[[str], Path]) -> None:
    folder = small_disk("size=64k") / "run"
    log = ResultsLog(resolve(folder), resume_at=0)
    with pytest.raises(StorageError, match=rf"{folder}/.*the disk is full"):
        for iteration in range(1, 5000):
            log.append(result(iteration))
    small_disk("remount,size=4m")
    assert read_results(resolve(folder))[0] == result(1)
    ResultsLog(resolve(folder), resume_at=1).append(result(2))
    assert read_results(resolve(folder)) == [result(1), result(2)]


def test_a_full_disk_under_tensorboard_is_one_sentence(small_disk: Callable[[str], Path]) -> None:
    folder = small_disk("size=64k")
    board = TensorBoard(resolve(folder), purge_from=1)
    with pytest.raises(StorageError, match=rf"{folder}/tensorboard/.*the disk is full"):
        for iteration in range(1, 5000):
            board.write(iteration, {"loss": 0.5})


def test_flatten_gives_numbers_by_path() -> None:
    nested = {"a": {"b": 1, "c": True, "d": None}, "e": 0.5, "f": "text", "g": [1]}
    assert dict(flatten(nested)) == {"a/b": 1.0, "e": 0.5}
