"""Attempts carried out on a Ray of this machine: the pools are one node, everything else is as on a cluster."""

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
from cluster_toys import Told, attempt, mounted

from hindcast.api import EnvironmentSpec, OfflineRecording, OfflineTraining
from hindcast.api.attempt import CHECKPOINT, AttemptOutcome, Report, ResolvedInput
from hindcast.cluster import driver as driver_module
from hindcast.cluster import reporting, storage_monitor
from hindcast.cluster.driver import drive
from hindcast.cluster.mailbox import Mailbox
from hindcast.cluster.memory import container_memory, inspect_pods
from hindcast.datasets.opening import open_dataset
from hindcast.evaluate.environment import EnvEvaluator
from hindcast.evaluate.parallel import EvaluationWorkers
from hindcast.formats.dataset_folder.manifest import read_manifest
from hindcast.ray_workers import RayWorkers
from hindcast.report.events import Progress
from hindcast.run.interruption import Interruption
from hindcast.storage.location import resolve
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

SLOW = {"id": "test_cluster_drive:Slow"}
SLOW_EPISODES = {"episodes": 256}


class Slow(Walk):
    """Takes its time while the file TOY_SLOW is there."""

    def reset(self, **options):  # type: ignore[no-untyped-def]
        if Path(os.environ["TOY_SLOW"]).exists():
            time.sleep(0.1)
        return super().reset(**options)


@pytest.fixture(autouse=True)
def toys(ray_here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process has them, too."""
    monkeypatch.setenv("TOY_KILL_ONCE", str(ray_here / "kill"))
    monkeypatch.setenv("TOY_SLOW", str(ray_here / "slow"))


@pytest.fixture
def kill_once(ray_here: Path) -> Path:
    """Made, it kills one `Deadly` environment with its process, and is gone then."""
    return ray_here / "kill"


@pytest.fixture
def slow(ray_here: Path) -> Iterator[Path]:
    """While it is there, `Slow` environments are."""
    file = ray_here / "slow"
    file.touch()
    yield file
    file.unlink(missing_ok=True)


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports and looks at storage come quickly."""
    monkeypatch.setattr(reporting, "SHORTEST_SILENCE_SECONDS", 0.2)
    monkeypatch.setattr(storage_monitor, "POLL_INTERVAL_SECONDS", 0.3)


@pytest.fixture
def channel() -> Told:
    return Told()


def carry_out(
    resource: OfflineRecording | OfflineTraining,
    folder: Path,
    channel: Told,
    number: int = 1,
    inputs: dict[str, ResolvedInput] | None = None,
) -> int:
    mount = mounted(folder / f"attempt-{number}", resource, number, inputs)
    return drive(mount, channel, connect=lambda: None, has_pool_labels=False)


def outcome_of(channel: Told) -> AttemptOutcome:
    assert channel.last.outcome is not None
    return channel.last.outcome


def hashes(folder: Path) -> dict[str, str]:
    return episode_hashes(read_all(folder))


class TestMailbox:
    def test_carries_events_to_the_driver_and_the_wish_to_stop_back(self) -> None:
        mailbox = Mailbox.open({"num_cpus": 0})

        @ray.remote(num_cpus=0)
        def work(mailbox: Mailbox) -> float:
            with mailbox.reporter() as reporter:
                reporter.note("a/b", "begins")
                for done in range(1001):
                    reporter.progress(Progress("a/b", "Recording", done, 1000, "episodes"))
                reporter.note("a/b", "waits")
            begun = time.monotonic()
            with mailbox.interruption() as interruption:
                while not interruption.is_requested:
                    time.sleep(0.05)
            return time.monotonic() - begun

        ended = work.remote(mailbox)
        notes, progresses = [], []
        while len(notes) < 2 or progresses[-1].done < 1000:
            mail = mailbox.take(timeout=30)
            notes += mail.notes
            progresses += [mail.progress] if mail.progress else []
            time.sleep(0.05)
        assert notes == [("a/b", "begins"), ("a/b", "waits")]
        assert len(progresses) <= 4
        mailbox.request_stop()
        assert ray.get(ended, timeout=10) < 10

    def test_has_the_last_progress_of_work_that_ended_early(self) -> None:
        mailbox = Mailbox.open({"num_cpus": 0})

        @ray.remote(num_cpus=0)
        def work(mailbox: Mailbox) -> None:
            with mailbox.reporter() as reporter:
                for done in range(7):
                    reporter.progress(Progress("a/b", "Training", done, 1000, "iterations"))

        ray.get(work.remote(mailbox), timeout=60)
        mail = mailbox.take(timeout=30)
        assert mail.progress is not None
        assert mail.progress.done == 6

    def test_loses_nothing_when_its_answer_is_late(self) -> None:
        mailbox = Mailbox.open({"num_cpus": 0})
        with mailbox.reporter() as reporter:
            reporter.note("a/b", "resuming at update 7")
        mailbox._box.__ray_call__.remote(lambda _: time.sleep(2))
        with pytest.raises(ray.exceptions.GetTimeoutError):
            mailbox.take(timeout=0.1)
        assert mailbox.take(timeout=30).notes == [("a/b", "resuming at update 7")]


def test_pods_say_how_much_of_their_memory_was_killed() -> None:
    (pod,) = inspect_pods()
    assert pod.pool == "learner"
    assert pod.identifiers[0] == ray.nodes()[0]["NodeID"]
    assert (pod.memory, pod.num_killed_by_ray) == (container_memory(), 0)


class TestEvaluation:
    def test_actors_give_the_same_report_though_one_dies_and_is_replaced(self, kill_once: Path) -> None:
        deadly = EnvironmentSpec(id="toy_environments:Deadly")
        policy, alone = make_policy(WALK), EnvEvaluator(EnvironmentSpec(**WALK), 13)
        workers = workers_of(EnvEvaluator(deadly, 13), 2)
        assert workers.gather(workers.submit(policy, 5)) == alone(policy, seed=5)
        kill_once.touch()
        assert workers.gather(workers.submit(policy, 6)) == alone(policy, seed=6)
        assert not kill_once.exists()
        workers.close()

    @pytest.mark.usefixtures("slow")
    def test_one_that_takes_too_long_is_given_up(self) -> None:
        workers = workers_of(EnvEvaluator(EnvironmentSpec(**SLOW), 400), 1)
        with pytest.raises(TimeoutError):
            workers.gather(workers.submit(make_policy(WALK), 5), timeout=0.2)
        workers.close()


def workers_of(evaluator: EnvEvaluator, count: int) -> EvaluationWorkers:
    return EvaluationWorkers(evaluator, RayWorkers(count, evaluator, {"num_cpus": 1}))


class TestRecording:
    def test_is_the_local_one_and_tells_how_it_goes(self, tmp_path: Path, channel: Told) -> None:
        resource = recording(tmp_path / "data", runners={"replicas": 2, "envsPerRunner": 4})
        record(recording(tmp_path / "alone"))
        assert carry_out(resource, tmp_path, channel) == 0
        assert hashes(tmp_path / "data") == hashes(tmp_path / "alone")
        outcome, report = outcome_of(channel), channel.last
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
        assert carry_out(resource, tmp_path, channel, number=2) == 0
        assert outcome_of(channel).reason == "AlreadyFinished"

    @pytest.mark.faults
    def test_a_killed_runner_changes_nothing(self, tmp_path: Path, channel: Told, kill_once: Path) -> None:
        deadly = {"id": "toy_environments:Deadly"}
        runners = {"replicas": 2, "envsPerRunner": 4}
        record(recording(tmp_path / "alone", environment=deadly))
        kill_once.touch()
        assert (
            carry_out(recording(tmp_path / "data", environment=deadly, runners=runners), tmp_path, channel)
            == 0
        )
        assert not kill_once.exists()
        assert hashes(tmp_path / "data") == hashes(tmp_path / "alone")

    @pytest.mark.faults
    def test_a_killed_coordinator_goes_on_where_it_was(
        self, tmp_path: Path, channel: Told, slow: Path
    ) -> None:
        resource = recording(tmp_path / "data", environment=SLOW, duration=SLOW_EPISODES)
        killed: list[int] = []

        def kill(report: Report) -> None:
            if not killed and list((tmp_path / "data/_hindcast/commits").glob("*.json")):
                killed.append(process("ray::OfflineRecording/test"))
                os.kill(killed[0], signal.SIGKILL)
                slow.unlink()

        channel.on_report = kill
        assert carry_out(resource, tmp_path, channel) == 0
        assert killed
        assert any("where an earlier run stopped" in (report.note or "") for report in channel.reports)
        assert len(hashes(tmp_path / "data")) == 256

    def test_is_suspended_at_a_safe_point_and_goes_on_in_the_next_attempt(
        self, tmp_path: Path, channel: Told, slow: Path
    ) -> None:
        resource = recording(
            tmp_path / "data", environment=SLOW, duration=SLOW_EPISODES, runners={"replicas": 2}
        )
        commits = tmp_path / "data/_hindcast/commits"

        def suspend(report: Report) -> None:
            channel.intent = CHECKPOINT if list(commits.glob("*.json")) else ""

        channel.on_report = suspend
        assert carry_out(resource, tmp_path, channel) == 0
        outcome = outcome_of(channel)
        assert (outcome.state, outcome.reason) == ("Suspended", "Suspended")
        kept = {file.name: file.read_bytes() for file in commits.glob("*.json")}
        assert 0 < len(kept) < 16
        slow.unlink()
        again = Told()
        assert carry_out(resource, tmp_path, again, number=2) == 0
        assert outcome_of(again).reason == "Succeeded"
        assert kept.items() <= {file.name: file.read_bytes() for file in commits.glob("*.json")}.items()
        record(recording(tmp_path / "alone", duration=SLOW_EPISODES, environment=SLOW, runners={}))
        assert hashes(tmp_path / "data") == hashes(tmp_path / "alone")

    def test_a_mistake_in_the_users_environment_is_one_sentence(self, tmp_path: Path, channel: Told) -> None:
        wrong = {"id": "toy_environments:Wrong", "kwargs": {"what": "step"}}
        resource = recording(tmp_path / "data", environment=wrong, runners={"replicas": 2})
        assert carry_out(resource, tmp_path, channel) == 6
        outcome = outcome_of(channel)
        assert (outcome.state, outcome.reason) == ("Failed", "UserCodeFailed")
        assert "RuntimeError at " in outcome.message
        assert "toy_environments.py:" in outcome.message
        assert "UserCodeFailed" in (tmp_path / "data/_hindcast/logs/test-r1-1.log").read_text()

    @pytest.mark.faults
    def test_pods_that_keep_dying_lose_the_attempt(
        self, tmp_path: Path, channel: Told, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        resource = recording(tmp_path / "data", environment={"id": "test_cluster_drive:Crashing"})
        assert carry_out(resource, tmp_path, channel) == 1
        outcome = outcome_of(channel)
        assert (outcome.state, outcome.reason) == ("Lost", "WorkerLost")
        assert "runners died before they finished a range of episodes" in outcome.message

    @pytest.mark.usefixtures("slow")
    def test_a_superseded_attempt_ends_without_a_word(self, tmp_path: Path, channel: Told) -> None:
        resource = recording(tmp_path / "data", environment=SLOW, duration=SLOW_EPISODES)

        def supersede(report: Report) -> None:
            if report.stage == "Recording":
                channel.superseded_after = len(channel.reports)

        channel.on_report = supersede
        assert carry_out(resource, tmp_path, channel) == driver_module.SUPERSEDED_EXIT_CODE
        assert channel.last.outcome is None
        deadline = time.monotonic() + 20
        while running("ray::OfflineRecording/test", "ray::_WorkerActor") and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not running("ray::OfflineRecording/test", "ray::_WorkerActor")
        assert not (tmp_path / "data/_hindcast/manifest.json").exists()

    @pytest.mark.usefixtures("slow")
    def test_a_later_attempt_in_the_folder_ends_it_too(self, tmp_path: Path, channel: Told) -> None:
        """Where the API server does not answer, storage still says who is the later one."""
        from hindcast.cluster.lease import acquire_lease

        resource = recording(tmp_path / "data", environment=SLOW, duration=SLOW_EPISODES)
        taken: list[object] = []

        def take_over(report: Report) -> None:
            if report.stage == "Recording" and not taken:
                time.sleep(1)  # the driver has seen by then that the folder was its own
                taken.append(acquire_lease(resolve(tmp_path / "data/_hindcast"), attempt(resource, 2)))

        channel.on_report = take_over
        carry_out(resource, tmp_path, channel)
        assert taken
        taken[0].check()
        assert channel.last.outcome is None or channel.last.outcome.reason == "OutputConflict"
        assert not (tmp_path / "data/_hindcast/manifest.json").exists()

    @pytest.mark.usefixtures("slow")
    def test_a_driver_that_is_told_to_end_says_so(self, tmp_path: Path, channel: Told) -> None:
        resource = recording(tmp_path / "data", environment=SLOW, duration=SLOW_EPISODES)

        def terminate(report: Report) -> None:
            if report.stage == "Recording" and report.outcome is None:
                channel.on_report = lambda report: None
                os.kill(os.getpid(), signal.SIGTERM)

        channel.on_report = terminate
        assert carry_out(resource, tmp_path, channel) == 1
        assert (outcome_of(channel).state, outcome_of(channel).reason) == ("Lost", "Terminated")

    def test_a_folder_of_somebody_else_stays_as_it_is(self, tmp_path: Path, channel: Told) -> None:
        (tmp_path / "data").mkdir()
        (tmp_path / "data/letter.txt").write_text("private")
        assert carry_out(recording(tmp_path / "data"), tmp_path, channel) == 4
        assert outcome_of(channel).reason == "OutputConflict"
        assert [file.name for file in (tmp_path / "data").rglob("*")] == ["letter.txt"]

    def test_documents_that_cannot_be_read_are_reported(self, tmp_path: Path, channel: Told) -> None:
        folder = mounted(tmp_path / "attempt", recording(tmp_path / "data"))
        (folder / "attempt.json").write_text('{"revision": "one"}')
        assert drive(folder, channel, connect=lambda: None, has_pool_labels=False) == 2
        assert outcome_of(channel).reason == "InvalidSpec"
        assert "attempt.json cannot be read" in outcome_of(channel).message


class TestTraining:
    def test_takes_its_data_from_the_attempt_and_reports_checkpoints(
        self, tmp_path: Path, walks: Path, channel: Told
    ) -> None:
        evaluation = {"interval": 1, "duration": 4, "runners": 2, "parallelToTraining": True}
        resource = training(
            tmp_path / "runs", walks, environment=WALK, evaluation=evaluation, checkpoint={"every": 1}
        )
        document = resource.model_dump(mode="json", by_alias=True, exclude_unset=True)
        document["spec"]["input"] = [{"recordingRef": {"name": "walks"}}]
        resource = OfflineTraining.model_validate(document)
        inputs = {"OfflineRecording/walks": ResolvedInput(path=str(walks))}
        assert carry_out(resource, tmp_path, channel, inputs=inputs) == 0
        assert outcome_of(channel).reason == "Succeeded"
        report = channel.last
        assert report.checkpoint is not None
        assert report.checkpoint.path.startswith(str(tmp_path / "runs/test/r1/checkpoints/checkpoint-"))
        assert report.checkpoint.best_episode_return_mean is not None
        assert report.progress is not None
        assert (report.progress.iteration, report.stage) == (3, "Training")
        assert (tmp_path / "runs/test/r1/logs/test-r1-1.log").exists()


@pytest.mark.parametrize(
    ("piece", "found"),
    [
        (
            {"pipeline": {"preLearner": "broken_components:RaisingLearner"}},
            ("raised LookupError", "raise Lookup"),
        ),
        ({"algorithm": "broken_components:ChangesTheBatch"}, ("changes the batch's 'obs'", "class Changes")),
    ],
)
def test_a_mistake_in_a_custom_piece_reaches_the_status(
    piece: dict[str, Any], found: tuple[str, str], tmp_path: Path, walks: Path, channel: Told
) -> None:
    """One that reads and one that learns; `tests/run/test_run_wrong_pieces.py` has all."""
    said, line = found
    if "algorithm" in piece:
        piece = {**piece, "config": {}, "customConfig": {"trainBatchSizePerLearner": 32}}
    resource = training(tmp_path / "runs", walks, stop={"iterations": 1}, **piece)
    assert carry_out(resource, tmp_path, channel) == 6
    outcome = outcome_of(channel)
    assert (outcome.state, outcome.reason) == ("Failed", "UserCodeFailed")
    assert said in outcome.message
    place = re.search(r"(/\S+\.py):(\d+)", outcome.message)
    assert place is not None, outcome.message
    assert line in Path(place[1]).read_text().splitlines()[int(place[2]) - 1], outcome.message


class Crashing(Walk):
    """Ends its process at once, but for the one in which it is only looked at."""

    def step(self, action):  # type: ignore[no-untyped-def]
        if "ray::_WorkerActor" in Path("/proc/self/cmdline").read_text():
            os._exit(3)
        return super().step(action)


def running(*names: str) -> list[int]:
    """Processes below this one whose command lines begin so."""
    return [found for found in descendants(os.getpid()) if command_line(found).startswith(names)]


def process(name: str) -> int:
    return running(name)[0]


def test_an_interruption_without_a_wish_does_not_stop() -> None:
    mailbox = Mailbox.open({"num_cpus": 0})
    mailbox.take(timeout=60)  # it answers from here on, so that no question is under way for long
    with mailbox.interruption() as interruption:
        assert isinstance(interruption, Interruption)
        time.sleep(1.5)
        interruption.check()
    assert "hindcast-stop" not in {thread.name for thread in threading.enumerate()}
