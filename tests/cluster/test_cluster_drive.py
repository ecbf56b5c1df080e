"""Attempts on a Ray of this machine: the pools are one node, everything else is as on a cluster."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from cluster_toys import RecordingChannel, make_attempt, mount_attempt

from hindcast import Callbacks
from hindcast.api import EnvironmentSpec, OfflineRecording, OfflineTraining
from hindcast.api.attempt import CHECKPOINT, AttemptOutcome, Report, ResolvedInput
from hindcast.api.status import CheckpointStatus
from hindcast.cluster import driver as driver_module
from hindcast.cluster import reporting, storage_monitor
from hindcast.cluster.draining import DrainMonitor
from hindcast.cluster.driver import drive
from hindcast.cluster.mailbox import Mailbox
from hindcast.cluster.memory import inspect_pods, read_container_memory
from hindcast.datasets.opening import open_dataset
from hindcast.errors import StorageError
from hindcast.evaluate.environment import EnvEvaluator
from hindcast.evaluate.parallel import EvaluationWorkers
from hindcast.formats.dataset_folder.manifest import read_manifest
from hindcast.pipeline.data_workers import DataWorkers
from hindcast.ray_workers import RayWorkers
from hindcast.report.events import Progress
from hindcast.run.interruption import Interruption
from hindcast.storage.location import Location, resolve
from ray_here import second_node
from support import (
    WALK,
    command_line,
    descendants,
    episode_hashes,
    make_policy,
    read_all,
    record,
    recording,
    training,
)
from toy_environments import Walk

pytestmark = pytest.mark.ray

SLOW_ENVIRONMENT = {"id": "test_cluster_drive:SlowWalk"}
SLOW_DURATION = {"episodes": 256}


class SlowWalk(Walk):
    """Sleeps in reset() while the file TOY_SLOW exists."""

    def reset(self, **options):  # type: ignore[no-untyped-def]
        if Path(os.environ["TOY_SLOW"]).exists():
            time.sleep(0.1)
        return super().reset(**options)


class SlowTraining(Callbacks):
    """Sleeps after each iteration while the file TOY_SLOW exists."""

    def on_train_result(self, **_: object) -> None:
        if Path(os.environ["TOY_SLOW"]).exists():
            time.sleep(0.2)


@pytest.fixture(autouse=True)
def toy_variables(ray_here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the variables of toy environments in this process, as in Ray's workers."""
    monkeypatch.setenv("TOY_KILL_ONCE", str(ray_here / "kill"))
    monkeypatch.setenv("TOY_SLOW", str(ray_here / "slow"))


@pytest.fixture
def kill_once(ray_here: Path) -> Path:
    """A file that, once created, kills one `KillsProcess` environment with its process and is deleted."""
    return ray_here / "kill"


@pytest.fixture
def slow_file(ray_here: Path) -> Iterator[Path]:
    """A file that slows down environments while it exists."""
    file = ray_here / "slow"
    file.touch()
    yield file
    file.unlink(missing_ok=True)


@pytest.fixture(autouse=True)
def fast_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the intervals of reports and of storage polls."""
    monkeypatch.setattr(reporting, "MIN_REPORT_INTERVAL_SECONDS", 0.2)
    monkeypatch.setattr(storage_monitor, "POLL_INTERVAL_SECONDS", 0.3)


@pytest.fixture
def channel() -> RecordingChannel:
    return RecordingChannel()


def run_attempt(
    resource: OfflineRecording | OfflineTraining,
    folder: Path,
    channel: RecordingChannel,
    number: int = 1,
    inputs: dict[str, ResolvedInput] | None = None,
) -> int:
    """Execute an attempt in this process; return the driver's exit code."""
    mount = mount_attempt(folder / f"attempt-{number}", resource, number, inputs)
    return drive(mount, channel, connect=lambda: None, has_pool_labels=False)


def reported_outcome(channel: RecordingChannel) -> AttemptOutcome:
    assert channel.last_report.outcome is not None
    return channel.last_report.outcome


def recorded_hashes(folder: Path) -> dict[str, str]:
    return episode_hashes(read_all(folder))


class TestMailbox:
    def test_mailbox_carries_events_and_stop_request(self) -> None:
        mailbox = Mailbox.open()

        @ray.remote(num_cpus=0)
        def post_events(mailbox: Mailbox) -> float:
            with mailbox.reporter() as reporter:
                reporter.note("a/b", "begins")
                for amount in range(1001):
                    reporter.progress(Progress("a/b", "Recording", amount, 1000, "episodes"))
                reporter.note("a/b", "waits")
            start_time = time.monotonic()
            with mailbox.interruption() as interruption:
                while not interruption.is_requested:
                    time.sleep(0.05)
            return time.monotonic() - start_time

        seconds_ref = post_events.remote(mailbox)
        notes, progresses = [], []
        while len(notes) < 2 or progresses[-1].done < 1000:
            mail = mailbox.take(timeout_seconds=30)
            notes += mail.notes
            progresses += [mail.progress] if mail.progress else []
            time.sleep(0.05)
        assert notes == [("a/b", "begins"), ("a/b", "waits")]
        assert len(progresses) <= 4
        mailbox.request_stop()
        assert ray.get(seconds_ref, timeout=10) < 10

    def test_mailbox_has_last_progress_of_short_task(self) -> None:
        mailbox = Mailbox.open()

        @ray.remote(num_cpus=0)
        def post_progress(mailbox: Mailbox) -> None:
            with mailbox.reporter() as reporter:
                for amount in range(7):
                    reporter.progress(Progress("a/b", "Training", amount, 1000, "iterations"))

        ray.get(post_progress.remote(mailbox), timeout=60)
        mail = mailbox.take(timeout_seconds=30)
        assert mail.progress is not None
        assert mail.progress.done == 6

    def test_late_answer_loses_no_mail(self) -> None:
        mailbox = Mailbox.open()
        with mailbox.reporter() as reporter:
            reporter.note("a/b", "resuming at update 7")
        mailbox._actor.__ray_call__.remote(lambda _: time.sleep(2))
        with pytest.raises(ray.exceptions.GetTimeoutError):
            mailbox.take(timeout_seconds=0.1)
        assert mailbox.take(timeout_seconds=30).notes == [("a/b", "resuming at update 7")]

    def test_mailbox_and_pool_are_not_lost_with_another_node(self) -> None:
        """Regression: Ray asks a random node to place an actor without resources, and loses it if that node dies."""
        with second_node(num_cpus=1) as raylet:
            os.kill(raylet, signal.SIGSTOP)
            try:
                mailboxes = [Mailbox.open() for _ in range(6)]
                pools = [DataWorkers((1, 1), num_cpus=1000) for _ in range(3)]
                pool_actors = [ray.get_actor(pool.open_pool()) for pool in pools]
                answers = [actor.report_demand.remote("learner", 0, False) for actor in pool_actors]
                assert [mailbox.take(timeout_seconds=60).notes for mailbox in mailboxes] == [[]] * 6
                assert [workers for workers, _ in ray.get(answers, timeout=60)] == [[]] * 3
            finally:
                os.kill(raylet, signal.SIGCONT)
        for pool in pools:
            pool.close()


def test_inspect_pods_returns_pool_and_memory_of_each_node() -> None:
    (pod,) = inspect_pods()
    assert pod.pool == "learner"
    assert pod.identifiers[0] == ray.nodes()[0]["NodeID"]
    assert (pod.memory, pod.num_killed_by_ray) == (read_container_memory(), 0)


class TestEvaluation:
    def test_evaluation_report_is_same_after_actor_died(self, kill_once: Path) -> None:
        deadly = EnvironmentSpec(id="toy_environments:KillsProcess")
        policy, local_evaluator = make_policy(WALK), EnvEvaluator(EnvironmentSpec(**WALK), 13)
        workers = make_evaluation_workers(EnvEvaluator(deadly, 13), 2)
        assert workers.gather(workers.submit(policy, 5)) == local_evaluator(policy, seed=5)
        kill_once.touch()
        assert workers.gather(workers.submit(policy, 6)) == local_evaluator(policy, seed=6)
        assert not kill_once.exists()
        workers.close()

    @pytest.mark.usefixtures("slow_file")
    def test_evaluation_that_times_out_is_abandoned(self) -> None:
        workers = make_evaluation_workers(EnvEvaluator(EnvironmentSpec(**SLOW_ENVIRONMENT), 400), 1)
        with pytest.raises(TimeoutError):
            workers.gather(workers.submit(make_policy(WALK), 5), timeout=0.2)
        workers.close()


def make_evaluation_workers(evaluator: EnvEvaluator, count: int) -> EvaluationWorkers:
    return EvaluationWorkers(evaluator, RayWorkers(count, evaluator, {"num_cpus": 1}))


class TestRecording:
    def test_recording_equals_local_one_reports_progress_and_is_not_repeated(
        self, tmp_path: Path, channel: RecordingChannel
    ) -> None:
        resource = recording(tmp_path / "data", runners={"replicas": 2, "envsPerRunner": 4})
        record(recording(tmp_path / "local"))
        assert run_attempt(resource, tmp_path, channel) == 0
        assert recorded_hashes(tmp_path / "data") == recorded_hashes(tmp_path / "local")
        outcome, report = reported_outcome(channel), channel.last_report
        assert (outcome.state, outcome.reason) == ("Succeeded", "Succeeded")
        assert report.stage == "Recording"
        assert report.progress is not None
        assert (report.progress.percentage, report.progress.summary) == (100, "40/40 episodes")
        manifest = read_manifest(resolve(tmp_path / "data"))
        assert manifest is not None
        assert report.output is not None
        assert (report.output.digest, report.output.episodes) == (manifest.digest, 40)
        assert report.output.memory_bytes == open_dataset(tmp_path / "data").nbytes
        assert report.output.path == str(tmp_path / "data")
        log = (tmp_path / "data/_hindcast/logs/test-r1-1.log").read_text()
        assert "OfflineRecording/test: Recording: 40/40 episodes" in log
        assert log.endswith(f"Succeeded (Succeeded): {outcome.message}\n")
        assert run_attempt(resource, tmp_path, channel, number=2) == 0
        assert reported_outcome(channel).reason == "AlreadyFinished"

    @pytest.mark.faults
    def test_killed_runner_does_not_change_recording(
        self, tmp_path: Path, channel: RecordingChannel, kill_once: Path
    ) -> None:
        deadly = {"id": "toy_environments:KillsProcess"}
        runners = {"replicas": 2, "envsPerRunner": 4}
        record(recording(tmp_path / "local", environment=deadly))
        kill_once.touch()
        assert (
            run_attempt(recording(tmp_path / "data", environment=deadly, runners=runners), tmp_path, channel)
            == 0
        )
        assert not kill_once.exists()
        assert recorded_hashes(tmp_path / "data") == recorded_hashes(tmp_path / "local")

    @pytest.mark.faults
    def test_killed_task_resumes_recording(
        self, tmp_path: Path, channel: RecordingChannel, slow_file: Path
    ) -> None:
        resource = recording(tmp_path / "data", environment=SLOW_ENVIRONMENT, duration=SLOW_DURATION)
        killed_pids: list[int] = []

        def kill(report: Report) -> None:
            if not killed_pids and list((tmp_path / "data/_hindcast/commits").glob("*.json")):
                killed_pids.append(find_process("ray::OfflineRecording/test"))
                os.kill(killed_pids[0], signal.SIGKILL)
                slow_file.unlink()

        channel.on_report = kill
        assert run_attempt(resource, tmp_path, channel) == 0
        assert killed_pids
        assert any("where an earlier run stopped" in (report.note or "") for report in channel.reports)
        assert len(recorded_hashes(tmp_path / "data")) == 256

    def test_suspended_recording_resumes_in_next_attempt(
        self, tmp_path: Path, channel: RecordingChannel, slow_file: Path
    ) -> None:
        resource = recording(
            tmp_path / "data", environment=SLOW_ENVIRONMENT, duration=SLOW_DURATION, runners={"replicas": 2}
        )
        commits = tmp_path / "data/_hindcast/commits"

        def suspend(report: Report) -> None:
            channel.intent = CHECKPOINT if list(commits.glob("*.json")) else ""

        channel.on_report = suspend
        assert run_attempt(resource, tmp_path, channel) == 0
        outcome = reported_outcome(channel)
        assert (outcome.state, outcome.reason) == ("Suspended", "Suspended")
        first_commits = {file.name: file.read_bytes() for file in commits.glob("*.json")}
        assert 0 < len(first_commits) < 16  # ranges of 16 episodes
        slow_file.unlink()
        second_channel = RecordingChannel()
        assert run_attempt(resource, tmp_path, second_channel, number=2) == 0
        assert reported_outcome(second_channel).reason == "Succeeded"
        assert (
            first_commits.items() <= {file.name: file.read_bytes() for file in commits.glob("*.json")}.items()
        )
        record(
            recording(tmp_path / "local", duration=SLOW_DURATION, environment=SLOW_ENVIRONMENT, runners={})
        )
        assert recorded_hashes(tmp_path / "data") == recorded_hashes(tmp_path / "local")

    def test_environment_error_is_reported(self, tmp_path: Path, channel: RecordingChannel) -> None:
        wrong_environment = {"id": "toy_environments:FaultyEnv", "kwargs": {"what": "step"}}
        resource = recording(tmp_path / "data", environment=wrong_environment, runners={"replicas": 2})
        assert run_attempt(resource, tmp_path, channel) == 6
        outcome = reported_outcome(channel)
        assert (outcome.state, outcome.reason) == ("Failed", "UserCodeFailed")
        assert "RuntimeError at " in outcome.message
        assert "toy_environments.py:" in outcome.message
        assert "UserCodeFailed" in (tmp_path / "data/_hindcast/logs/test-r1-1.log").read_text()

    @pytest.mark.faults
    def test_attempt_is_lost_when_runners_keep_dying(self, tmp_path: Path, channel: RecordingChannel) -> None:
        resource = recording(tmp_path / "data", environment={"id": "test_cluster_drive:CrashingWalk"})
        assert run_attempt(resource, tmp_path, channel) == 1
        outcome = reported_outcome(channel)
        assert (outcome.state, outcome.reason) == ("Lost", "WorkerLost")
        assert "runners died before they finished a range of episodes" in outcome.message

    @pytest.mark.usefixtures("slow_file")
    def test_superseded_attempt_ends_without_outcome(
        self, tmp_path: Path, channel: RecordingChannel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("hindcast.cluster.reporting.REFUSAL_SECONDS", 2.0)
        resource = recording(tmp_path / "data", environment=SLOW_ENVIRONMENT, duration=SLOW_DURATION)

        def supersede(report: Report) -> None:
            if report.stage == "Recording":
                channel.refused_after = len(channel.reports)

        channel.on_report = supersede
        assert run_attempt(resource, tmp_path, channel) == driver_module.SUPERSEDED_EXIT_CODE
        assert channel.last_report.outcome is None
        deadline = time.monotonic() + 20
        while (
            find_processes("ray::OfflineRecording/test", "ray::_WorkerActor") and time.monotonic() < deadline
        ):
            time.sleep(0.1)
        assert not find_processes("ray::OfflineRecording/test", "ray::_WorkerActor")
        assert not (tmp_path / "data/_hindcast/manifest.json").exists()

    @pytest.mark.usefixtures("slow_file")
    def test_later_attempt_in_folder_ends_attempt(self, tmp_path: Path, channel: RecordingChannel) -> None:
        """Storage shows which attempt is later, even if the API server does not answer."""
        from hindcast.cluster.lease import acquire_lease

        resource = recording(tmp_path / "data", environment=SLOW_ENVIRONMENT, duration=SLOW_DURATION)
        leases: list[object] = []

        def take_over(report: Report) -> None:
            if report.stage == "Recording" and not leases:
                time.sleep(1)  # until the driver has seen its own lease
                leases.append(acquire_lease(resolve(tmp_path / "data/_hindcast"), make_attempt(resource, 2)))

        channel.on_report = take_over
        run_attempt(resource, tmp_path, channel)
        assert leases
        leases[0].check()
        assert channel.last_report.outcome is None or channel.last_report.outcome.reason == "OutputConflict"
        assert not (tmp_path / "data/_hindcast/manifest.json").exists()

    @pytest.mark.usefixtures("slow_file")
    def test_terminated_driver_reports_outcome(self, tmp_path: Path, channel: RecordingChannel) -> None:
        resource = recording(tmp_path / "data", environment=SLOW_ENVIRONMENT, duration=SLOW_DURATION)

        def terminate(report: Report) -> None:
            if report.stage == "Recording" and report.outcome is None:
                channel.on_report = lambda report: None
                os.kill(os.getpid(), signal.SIGTERM)

        channel.on_report = terminate
        assert run_attempt(resource, tmp_path, channel) == 1
        assert (reported_outcome(channel).state, reported_outcome(channel).reason) == ("Lost", "Terminated")

    def test_foreign_folder_stays_unchanged(self, tmp_path: Path, channel: RecordingChannel) -> None:
        (tmp_path / "data").mkdir()
        (tmp_path / "data/letter.txt").write_text("private")
        assert run_attempt(recording(tmp_path / "data"), tmp_path, channel) == 4
        assert reported_outcome(channel).reason == "OutputConflict"
        assert [file.name for file in (tmp_path / "data").rglob("*")] == ["letter.txt"]

    def test_unreadable_documents_are_reported(self, tmp_path: Path, channel: RecordingChannel) -> None:
        folder = mount_attempt(tmp_path / "attempt", recording(tmp_path / "data"))
        (folder / "attempt.json").write_text('{"revision": "one"}')
        assert drive(folder, channel, connect=lambda: None, has_pool_labels=False) == 2
        assert reported_outcome(channel).reason == "InvalidSpec"
        assert "attempt.json cannot be read" in reported_outcome(channel).message


class TestTraining:
    def test_training_reads_data_of_attempt_and_reports_checkpoints(
        self, tmp_path: Path, walks: Path, channel: RecordingChannel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(folder: Location) -> CheckpointStatus:
            raise StorageError(f"{folder} could not be listed")

        # Regression: if the monitor's last poll failed, a training succeeded without a checkpoint in its status.
        monkeypatch.setattr(storage_monitor, "read_checkpoint_status", fail)
        evaluation = {"interval": 1, "duration": 4, "runners": 2, "parallelToTraining": True}
        resource = training(
            tmp_path / "runs", walks, environment=WALK, evaluation=evaluation, checkpoint={"every": 1}
        )
        document = resource.model_dump(mode="json", by_alias=True, exclude_unset=True)
        document["spec"]["input"] = [{"recordingRef": {"name": "walks"}}]
        resource = OfflineTraining.model_validate(document)
        inputs = {"OfflineRecording/walks": ResolvedInput(path=str(walks))}
        assert run_attempt(resource, tmp_path, channel, inputs=inputs) == 0
        assert reported_outcome(channel).reason == "Succeeded"
        report = channel.last_report
        assert report.checkpoint is not None
        assert report.checkpoint.path.startswith(str(tmp_path / "runs/test/r1/checkpoints/checkpoint-"))
        assert report.checkpoint.iteration == 3
        assert report.checkpoint.best_episode_return_mean is not None
        assert report.progress is not None
        assert (report.progress.iteration, report.stage) == (3, "Training")
        assert report.progress.metrics["learnerPeakBytes"] > 50 << 20
        assert (tmp_path / "runs/test/r1/logs/test-r1-1.log").exists()

    @pytest.mark.usefixtures("slow_file")
    @pytest.mark.parametrize("pool", ["learner", "head"])
    def test_draining_node_leads_to_checkpoint(
        self,
        tmp_path: Path,
        walks: Path,
        channel: RecordingChannel,
        monkeypatch: pytest.MonkeyPatch,
        pool: str,
    ) -> None:
        """Regression: a pod that had to leave its node lost everything since the last checkpoint that was due.

        Regression: the driver then opened another mailbox, which Ray may place through the node that shuts down.
        """
        draining_pools: list[set[str]] = []
        mailboxes: list[Mailbox] = []
        open_mailbox = Mailbox.open

        def open_first_mailbox() -> Mailbox:
            assert not mailboxes
            mailboxes.append(open_mailbox())
            return mailboxes[0]

        def find_draining_pools(_: DrainMonitor) -> set[str]:
            return draining_pools.pop() if draining_pools else set()

        def drain(report: Report) -> None:
            if report.progress is not None and report.progress.iteration:
                channel.on_report = lambda _: None
                draining_pools.append({pool})

        monkeypatch.setattr(DrainMonitor, "find_draining_pools", find_draining_pools)
        monkeypatch.setattr(Mailbox, "open", open_first_mailbox)
        channel.on_report = drain
        callbacks, stop = ["test_cluster_drive:SlowTraining"], {"iterations": 40}
        resource = training(
            tmp_path / "runs", walks, callbacks=callbacks, stop=stop, checkpoint={"every": 100}
        )
        code = run_attempt(resource, tmp_path, channel)
        log = (tmp_path / "runs/test/r1/logs/test-r1-1.log").read_text()
        if pool == "learner":
            assert (code, reported_outcome(channel).reason) == (0, "Succeeded")
            assert "resuming at update" in log
        else:
            assert (code, reported_outcome(channel).reason) == (1, "Terminated")
            assert list((tmp_path / "runs/test/r1/checkpoints").glob("checkpoint-*/checkpoint.json"))


@pytest.mark.parametrize(
    ("component", "expected"),
    [
        (
            {"pipeline": {"preLearner": "broken_components:RaisingPreLearner"}},
            ("raised LookupError", "raise Lookup"),
        ),
        ({"algorithm": "broken_components:WideLoss"}, ("returned a loss of shape", "def compute_loss")),
    ],
)
def test_error_in_custom_component_reaches_status(
    component: dict[str, Any],
    expected: tuple[str, str],
    tmp_path: Path,
    walks: Path,
    channel: RecordingChannel,
) -> None:
    """Test one component of reading and one of learning; `tests/run/test_run_broken_components.py` tests all."""
    message, line = expected
    if "algorithm" in component:
        component = {**component, "config": {}, "customConfig": {"trainBatchSizePerLearner": 32}}
    resource = training(tmp_path / "runs", walks, stop={"iterations": 1}, **component)
    assert run_attempt(resource, tmp_path, channel) == 6
    outcome = reported_outcome(channel)
    assert (outcome.state, outcome.reason) == ("Failed", "UserCodeFailed")
    assert message in outcome.message
    location = re.search(r"(/\S+\.py):(\d+)", outcome.message)
    assert location is not None, outcome.message
    assert line in Path(location[1]).read_text().splitlines()[int(location[2]) - 1], outcome.message


class CrashingWalk(Walk):
    """Ends its process in the first step, but only in runners."""

    def step(self, action):  # type: ignore[no-untyped-def]
        if "ray::_WorkerActor" in Path("/proc/self/cmdline").read_text():
            os._exit(3)
        return super().step(action)


def find_processes(*names: str) -> list[int]:
    """Return the descendant processes whose names start with one of these."""
    return [pid for pid in descendants(os.getpid()) if command_line(pid).startswith(names)]


def find_process(name: str) -> int:
    return find_processes(name)[0]


def test_interruption_without_request_does_not_raise_and_ends_its_thread() -> None:
    mailbox = Mailbox.open()
    mailbox.take(timeout_seconds=60)  # the actor is running now, so no later call takes long
    with mailbox.interruption() as interruption:
        assert isinstance(interruption, Interruption)
        time.sleep(1.5)
        interruption.check()
    assert "hindcast-stop" not in {thread.name for thread in threading.enumerate()}
