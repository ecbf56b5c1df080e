"""The lease of a run's folder. Attempts here share no locks, like pods on network volumes."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from cluster_toys import make_attempt

from hindcast.api import OfflineRecording
from hindcast.api.attempt import Attempt
from hindcast.cluster.lease import acquire_lease, read_lease_holder
from hindcast.cluster.pools import Pools
from hindcast.datasets.opening import open_dataset
from hindcast.errors import OutputConflict
from hindcast.pipeline.offline_data import Source
from hindcast.record.pool import LocalWorkers, Runner
from hindcast.report.events import Outcome
from hindcast.run.recording.recording_run import RecordingRun
from hindcast.run.training.training_run import TrainingRun
from hindcast.storage.location import Location, resolve
from support import (
    MemoryReporter,
    StopAfter,
    episode_hashes,
    leftovers,
    read_all,
    record,
    recording,
    training,
)


@pytest.fixture(params=["local", "memory"])
def state(request: pytest.FixtureRequest, tmp_path: Path) -> Location:
    """The folder of a run's own files, on file systems with and without renames."""
    return resolve(tmp_path if request.param == "local" else request.getfixturevalue("memory_path"))


def make_numbered_attempt(number: int, **fields: object) -> Attempt:
    return make_attempt(recording("data"), number).model_copy(update=fields)


class TestLease:
    def test_lease_is_held_until_later_attempt_starts(self, state: Location) -> None:
        first_lease = acquire_lease(state, make_numbered_attempt(1))
        first_lease.check()
        second_lease = acquire_lease(state, make_numbered_attempt(2))
        with pytest.raises(OutputConflict, match="taken over by the attempt test-r1-2, which started later"):
            first_lease.check()
        second_lease.check()
        mark = read_lease_holder(state)
        assert mark is not None
        assert mark["child"] == "test-r1-2"

    def test_earlier_attempt_does_not_acquire_lease(self, state: Location) -> None:
        second_lease = acquire_lease(state, make_numbered_attempt(2))
        with pytest.raises(OutputConflict, match="test-r1-2"):
            acquire_lease(state, make_numbered_attempt(1))
        second_lease.check()

    def test_restarted_attempt_acquires_lease(self, state: Location) -> None:
        first_lease = acquire_lease(state, make_numbered_attempt(1))
        second_lease = acquire_lease(state, make_numbered_attempt(1))
        with pytest.raises(OutputConflict):
            first_lease.check()
        second_lease.check()

    def test_recreated_resource_acquires_lease_with_attempt_1(self, state: Location) -> None:
        old_lease = acquire_lease(state, make_numbered_attempt(4))
        new_lease = acquire_lease(state, make_numbered_attempt(1, uid="another"))
        with pytest.raises(OutputConflict):
            old_lease.check()
        new_lease.check()

    def test_overwritten_mark_loses_lease(self, memory_path: str) -> None:
        """Without exclusive creation two attempts may write the same number; the later content stays."""
        state = resolve(memory_path)
        lease = acquire_lease(state, make_numbered_attempt(1))
        other_lease = acquire_lease(
            resolve("memory://run-tests/other"), make_numbered_attempt(1, uid="another")
        )
        mark = resolve("memory://run-tests/other").child("attempts/000001.json").read_bytes()
        state.child("attempts/000001.json").write_bytes(mark)
        with pytest.raises(OutputConflict):
            lease.check()
        other_lease.check()
        other_lease.folder.delete()

    def test_lease_check_can_be_pickled(self, tmp_path: Path) -> None:
        lease = acquire_lease(resolve(tmp_path), make_numbered_attempt(1))
        check = pickle.loads(pickle.dumps(lease.check))
        check()
        acquire_lease(resolve(tmp_path), make_numbered_attempt(2))
        with pytest.raises(OutputConflict):
            check()


def read_files(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


class TakeOverAfter(StopAfter):
    """Acquires the lease for a later attempt after a number of checks, and never stops the run."""

    def __init__(self, num_checks: int, state: Path, later_attempt: Attempt) -> None:
        super().__init__(num_checks)
        self._state = state
        self._later_attempt = later_attempt
        self.files_before: dict[str, bytes] = {}

    def check(self) -> None:
        if self._num_remaining == 0:
            acquire_lease(resolve(self._state), self._later_attempt)
            self.files_before = read_files(self._state.parent)
        self._num_remaining -= 1


def record_in_attempt(resource: OfflineRecording, number: int = 1) -> Outcome:
    pools = LocalPools(make_attempt(resource, number))
    return RecordingRun(resource, MemoryReporter(), StopAfter(10**9), placement=pools).execute()


class TestRuns:
    """Attempts work in this process; a lease does not depend on where its holder works."""

    @pytest.mark.parametrize("num_checks", [1, 17, 39])
    def test_superseded_recording_stops_writing(self, tmp_path: Path, num_checks: int) -> None:
        resource = recording(tmp_path / "data", output={"maxRowsPerFile": 8})
        take_over = TakeOverAfter(num_checks, tmp_path / "data/_hindcast", make_attempt(resource, 2))
        run = RecordingRun(
            resource, MemoryReporter(), take_over, placement=LocalPools(make_attempt(resource, 1))
        )
        with pytest.raises(OutputConflict, match="taken over by the attempt test-r1-2"):
            run.execute()
        files_after = read_files(tmp_path / "data")
        # A data file without a commit does not count, so only the other files must not change.
        other_files = {
            name: content for name, content in files_after.items() if not name.endswith(".parquet")
        }
        assert other_files.items() <= take_over.files_before.items()
        record_in_attempt(resource, 3)
        record(recording(tmp_path / "local", output={"maxRowsPerFile": 8}))
        assert episode_hashes(read_all(tmp_path / "data")) == episode_hashes(read_all(tmp_path / "local"))
        assert leftovers(tmp_path / "data") == []

    def test_superseded_training_stops_writing(self, tmp_path: Path, walks: Path) -> None:
        pipeline = {"dataWorkers": {"replicas": 0}}
        resource = training(
            tmp_path, walks, stop={"iterations": 30}, checkpoint={"every": 1}, pipeline=pipeline
        )
        folder = tmp_path / "test/r1"
        take_over = TakeOverAfter(3, folder, make_attempt(resource, 2))
        sources = [Source(str(walks), open_dataset(walks))]

        def make_run(interruption: StopAfter, number: int) -> TrainingRun:
            pools = LocalPools(make_attempt(resource, number))
            return TrainingRun(resource, sources, MemoryReporter(), interruption, placement=pools)

        with pytest.raises(OutputConflict, match="taken over by the attempt test-r1-2"):
            make_run(take_over, 1).execute()
        assert read_files(folder.parent) == take_over.files_before
        assert make_run(StopAfter(10**9), 2).execute().state == "Succeeded"

    def test_folder_of_other_run_is_not_taken_over(self, tmp_path: Path) -> None:
        record_in_attempt(recording(tmp_path))
        files_before = read_files(tmp_path)
        with pytest.raises(OutputConflict, match=r"another output\.path"):
            record_in_attempt(recording(tmp_path, seed=7))
        assert read_files(tmp_path) == files_before

    def test_replacing_recording_keeps_lease(self, tmp_path: Path) -> None:
        record_in_attempt(recording(tmp_path))
        new_resource = recording(tmp_path, seed=7, output={"onExisting": "Replace"})
        assert record_in_attempt(new_resource).state == "Succeeded"


class LocalPools(Pools):
    """Pools that work in this process."""

    def start_recorders(self, count, task, cpus, on_episode):  # type: ignore[no-untyped-def]
        return LocalWorkers(Runner(task, on_episode))
