"""Who may write to a run's folder. No two attempts of these tests share a lock: pods on network volumes do not."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from cluster_toys import attempt

from hindcast.api.attempt import Attempt
from hindcast.cluster.lease import acquire_lease, lease_holder
from hindcast.cluster.pools import Pools
from hindcast.datasets.opening import open_dataset
from hindcast.errors import OutputConflict
from hindcast.pipeline.offline_data import Source
from hindcast.run.recording import RecordingRun
from hindcast.run.training import TrainingRun
from hindcast.storage.location import Location, resolve
from support import MemoryReporter, StopAfter, episode_hashes, leftovers, read_all, recording, training


@pytest.fixture(params=["local", "memory"])
def state(request: pytest.FixtureRequest, tmp_path: Path) -> Location:
    """The folder of a run's own files, on a file system with renames and on one without."""
    return resolve(tmp_path if request.param == "local" else request.getfixturevalue("memory_path"))


def number(count: int, **fields: object) -> Attempt:
    return attempt(recording("data"), count).model_copy(update=fields)


class TestLease:
    def test_stands_until_a_later_attempt_begins(self, state: Location) -> None:
        first = acquire_lease(state, number(1))
        first.check()
        second = acquire_lease(state, number(2))
        with pytest.raises(OutputConflict, match="taken over by the attempt test-r1-2, which began later"):
            first.check()
        second.check()
        found = lease_holder(state)
        assert found is not None
        assert found["child"] == "test-r1-2"

    def test_an_attempt_that_begins_late_does_not_take_it(self, state: Location) -> None:
        second = acquire_lease(state, number(2))
        with pytest.raises(OutputConflict, match="test-r1-2"):
            acquire_lease(state, number(1))
        second.check()

    def test_the_same_attempt_may_begin_again_elsewhere(self, state: Location) -> None:
        first = acquire_lease(state, number(1))
        again = acquire_lease(state, number(1))
        with pytest.raises(OutputConflict):
            first.check()
        again.check()

    def test_a_resource_applied_anew_begins_with_attempt_1(self, state: Location) -> None:
        old = acquire_lease(state, number(4))
        new = acquire_lease(state, number(1, uid="another"))
        with pytest.raises(OutputConflict):
            old.check()
        new.check()

    def test_a_mark_that_was_overwritten_does_not_count(self, memory_path: str) -> None:
        """Where nothing is created exclusively two may take the same number: the later content stays."""
        state = resolve(memory_path)
        lease = acquire_lease(state, number(1))
        other = acquire_lease(resolve("memory://run-tests/other"), number(1, uid="another"))
        mark = resolve("memory://run-tests/other").child("attempts/000001.json").read_bytes()
        state.child("attempts/000001.json").write_bytes(mark)
        with pytest.raises(OutputConflict):
            lease.check()
        other.check()
        other.folder.delete()

    def test_goes_with_the_work_to_other_processes(self, tmp_path: Path) -> None:
        lease = acquire_lease(resolve(tmp_path), number(1))
        check = pickle.loads(pickle.dumps(lease.check))
        check()
        acquire_lease(resolve(tmp_path), number(2))
        with pytest.raises(OutputConflict):
            check()


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


class Taking(StopAfter):
    """Lets a later attempt begin at the n-th look, and goes on as one does that was not told."""

    def __init__(self, looks: int, state: Path, later: Attempt) -> None:
        super().__init__(looks)
        self._state = state
        self._later = later
        self.before: dict[str, bytes] = {}

    def check(self) -> None:
        if self._left == 0:
            acquire_lease(resolve(self._state), self._later)
            self.before = contents(self._state.parent)
        self._left -= 1


class TestRuns:
    """The older attempt's work is recorded in this process: what it may write does not depend on where."""

    @pytest.mark.parametrize("looks", [1, 17, 39])
    def test_a_superseded_recording_writes_nothing_more(self, tmp_path: Path, looks: int) -> None:
        resource = recording(tmp_path / "data", output={"maxRowsPerFile": 8})
        taking = Taking(looks, tmp_path / "data/_hindcast", attempt(resource, 2))
        run = RecordingRun(resource, MemoryReporter(), taking, placement=Alone(attempt(resource, 1)))
        with pytest.raises(OutputConflict, match="taken over by the attempt test-r1-2"):
            run.execute()
        after = contents(tmp_path / "data")
        taken = {name: content for name, content in after.items() if not name.endswith(".parquet")}
        assert taken.items() <= taking.before.items()
        later = Alone(attempt(resource, 3))
        RecordingRun(resource, MemoryReporter(), StopAfter(10**9), placement=later).execute()
        RecordingRun(
            recording(tmp_path / "alone", output={"maxRowsPerFile": 8}), MemoryReporter(), StopAfter(10**9)
        ).execute()
        assert episode_hashes(read_all(tmp_path / "data")) == episode_hashes(read_all(tmp_path / "alone"))
        assert leftovers(tmp_path / "data") == []

    def test_a_superseded_training_writes_nothing_more(self, tmp_path: Path, walks: Path) -> None:
        here = {"dataWorkers": {"replicas": 0}}
        resource = training(tmp_path, walks, stop={"iterations": 30}, checkpoint={"every": 1}, pipeline=here)
        folder = tmp_path / "test/r1"
        taking = Taking(3, folder, attempt(resource, 2))
        pools = Alone(attempt(resource, 1))
        with pytest.raises(OutputConflict, match="taken over by the attempt test-r1-2"):
            TrainingRun(
                resource, [Source(str(walks), open_dataset(walks))], MemoryReporter(), taking, placement=pools
            ).execute()
        assert contents(folder.parent) == taking.before
        outcome = TrainingRun(
            resource,
            [Source(str(walks), open_dataset(walks))],
            MemoryReporter(),
            StopAfter(10**9),
            placement=Alone(attempt(resource, 2)),
        ).execute()
        assert outcome.state == "Succeeded"

    def test_a_folder_of_another_run_is_not_taken_over(self, tmp_path: Path) -> None:
        mine, other = recording(tmp_path), recording(tmp_path, seed=7)
        RecordingRun(mine, MemoryReporter(), StopAfter(10**9), placement=Alone(attempt(mine))).execute()
        held = contents(tmp_path)
        with pytest.raises(OutputConflict, match=r"another output\.path"):
            RecordingRun(other, MemoryReporter(), StopAfter(10**9), placement=Alone(attempt(other))).execute()
        assert contents(tmp_path) == held

    def test_replacing_a_recording_keeps_the_lease(self, tmp_path: Path) -> None:
        old = recording(tmp_path)
        RecordingRun(old, MemoryReporter(), StopAfter(10**9), placement=Alone(attempt(old))).execute()
        new = recording(tmp_path, seed=7, output={"onExisting": "Replace"})
        outcome = RecordingRun(
            new, MemoryReporter(), StopAfter(10**9), placement=Alone(attempt(new))
        ).execute()
        assert outcome.state == "Succeeded"


class Alone(Pools):
    """Pools in which the work is done by this process."""

    def recorders(self, count, task, cpus, on_episode):  # type: ignore[no-untyped-def]
        from hindcast.record.pool import LocalWorkers, Runner

        return LocalWorkers(Runner(task, on_episode))
