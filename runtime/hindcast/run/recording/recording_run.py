"""Execution of an `OfflineRecording`: the expert first, then range after range, then the manifest."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib.metadata import version

from hindcast.api import OfflineRecording, spec_hash
from hindcast.datasets.target import Target
from hindcast.episodes.columns import Columns
from hindcast.errors import DataError, OutputConflict, SpecError
from hindcast.formats.dataset_folder.commits import (
    Commit,
    clear_dataset,
    committed_files,
    read_commits,
    remove_orphans,
)
from hindcast.formats.dataset_folder.manifest import FOLDER, Manifest, read_manifest, write_manifest
from hindcast.formats.entries import count_episodes
from hindcast.formats.layouts import make_encoder
from hindcast.formatting import plural
from hindcast.learn.checkpoint import MODULE
from hindcast.models.policy import Policy
from hindcast.record.extent import Extent, make_extent
from hindcast.record.pool import (
    RANDOM,
    LocalWorkers,
    RecordedRange,
    load_actor,
    record_ranges,
    wait_for_runners,
)
from hindcast.record.random_policy import RandomActor
from hindcast.record.recorder import RangeToRecord, RecordingTask, describe_columns
from hindcast.record.recording_prefix import keep_prefix
from hindcast.record.runner import Episode
from hindcast.report.events import Outcome, Progress, Reporter, State
from hindcast.report.results import RESULTS_FILE
from hindcast.run.claim import (
    BOOKKEEPING_ENTRIES,
    CHECKPOINTS_FOLDER,
    claim,
    has_foreign_files,
    is_claimed_by_another,
    refuse_other_run,
    title,
)
from hindcast.run.ineffective_fields import notes_on_ineffective_fields
from hindcast.run.interruption import Interruption
from hindcast.run.placement import LOCAL, Placement
from hindcast.run.training.expert import train_expert
from hindcast.storage.location import Location, resolve
from hindcast.version import __version__

POLICY_FOLDER = "policy"
_PACKAGES = ("gymnasium", "numpy", "torch")


class RecordingRun:
    """One recording, started or resumed.

    Args:
        resource: the recording.
        reporter: receives progress and notes.
        interruption: checked after each episode.
        checkpoint: path of the policy's checkpoint, if the resource refers to a training.
        placement: starts the runners.
    """

    def __init__(
        self,
        resource: OfflineRecording,
        reporter: Reporter,
        interruption: Interruption,
        checkpoint: str | None = None,
        placement: Placement = LOCAL,
    ) -> None:
        self._resource = resource
        self._spec = resource.spec
        self._name = title(resource)
        self._reporter = reporter
        self._interruption = interruption
        self._checkpoint = checkpoint
        self._placement = placement
        self._noted_columns: set[str] = set()
        self._set_folder(resolve(self._spec.output.path))

    def execute(self) -> Outcome:
        """Record until the duration is reached.

        Raises:
            OutputConflict: the folder contains other data.
            UserError: recording failed; committed ranges stay.
        """
        start_time = time.monotonic()
        if self._spec.output.on_existing != "Replace":
            refuse_other_run(self._state, self._resource, self._is_started())
        with self._sole_writer():
            manifest = read_manifest(self._folder)
            is_resumed = claim(self._state, self._resource, self._is_started())
            if manifest is not None:
                self._refuse_finished()
                return self._make_outcome(manifest, "AlreadyFinished", start_time)
            if is_resumed:
                self._reporter.note(self._name, f"resuming in {self._folder}, where an earlier run stopped")
            manifest = self._record()
        return self._make_outcome(manifest, "Succeeded", start_time)

    @contextmanager
    def _sole_writer(self) -> Iterator[None]:
        """Lock the folder, and delete another resource's recording that this one replaces.

        Raises:
            OutputConflict: the folder contains files of the user's, or another process is writing.
        """
        if has_foreign_files(self._folder, self._state):
            raise OutputConflict(
                f"{self._folder} contains files that Hindcast did not record: set an empty or new "
                "output.path (onExisting: Replace deletes only what a manifest lists)."
            )
        with self._placement.sole_writer(self._state) as guard:
            self._set_folder(self._folder.with_guard(guard))
            if is_claimed_by_another(self._state, self._resource):
                wait_for_runners(self._folder)  # the other recording's runners may still commit
                self._clear_other_recording()
            yield

    def _set_folder(self, folder: Location) -> None:
        self._folder, self._state = folder, folder.child(FOLDER)
        self._policy_folder = self._state.child(POLICY_FOLDER)

    def _is_started(self) -> bool:
        """Return True if an earlier run left results: a trained expert or episodes."""
        policy_files = {entry.relative_path for entry in self._policy_folder.list()}
        is_trained = CHECKPOINTS_FOLDER in policy_files or {MODULE, RESULTS_FILE} <= policy_files
        return is_trained or bool(read_manifest(self._folder) or read_commits(self._folder))

    def _refuse_finished(self) -> None:
        """Refuse a finished recording if `onExisting` is Fail; an unfinished one is resumed."""
        if self._spec.output.on_existing == "Fail":
            raise OutputConflict(
                f"{self._folder} already contains this finished recording, and output.onExisting is Fail: set "
                "another output.path, or set output.onExisting to Resume."
            )

    def _clear_other_recording(self) -> None:
        """Delete the other recording if it should be replaced; if it left no results, delete the policy it copied."""
        if self._spec.output.on_existing == "Replace":
            self._clear()
        elif not self._is_started():
            self._policy_folder.delete()

    def _clear(self) -> None:
        """Delete what the manifest or the commits of another recording list (`onExisting: Replace`)."""
        self._reporter.note(self._name, f"replaces the recording in {self._folder}")
        clear_dataset(self._folder, BOOKKEEPING_ENTRIES)

    def _record(self) -> Manifest:
        for note in notes_on_ineffective_fields(self._resource, self._placement.is_one_machine):
            self._reporter.note(self._name, note)
        self._check_output()
        policy = self._prepare_policy()
        actor = self._load_actor(policy)
        task = self._make_task(actor)
        # Runners of a killed run may still commit; see record/pool.py.
        wait_for_runners(self._folder)
        commits = read_commits(self._folder)
        remove_orphans(self._folder, commits.values())
        progress = _RecordingProgress(self._name, make_extent(self._spec), commits, self._reporter)
        for recorded_range in self._record_remaining_ranges(task, policy, actor, progress):
            commits[recorded_range.commit.range] = recorded_range.commit
            progress.mark_committed()
            self._note_on_non_finite(recorded_range)
        if self._spec.duration.timesteps is not None:
            commits = keep_prefix(task, commits, self._spec.duration.timesteps)
        # Trimming and dead runners leave files that no commit lists.
        remove_orphans(self._folder, commits.values())
        manifest = self._make_manifest(task, actor, commits)
        write_manifest(self._folder, manifest)
        return manifest

    def _check_output(self) -> None:
        """Refuse data that a text format cannot store, such as frames in CSV, before anything is trained or played."""
        output, environment = self._spec.output, self._spec.environment
        if not output.is_text:
            return
        data = describe_columns(environment, load_actor(RANDOM, environment), explore=True)
        try:
            make_encoder(output.format, data, output.compress_columns)
        except DataError as error:
            raise SpecError(
                f"is {output.format}: {error}.", field="spec.output.format", resource=self._name
            ) from error

    def _record_remaining_ranges(
        self, task: RecordingTask, policy: str, actor: Policy | RandomActor, progress: _RecordingProgress
    ) -> Iterator[RecordedRange]:
        """Record the ranges that have no commit, and yield each after its commit."""
        num_left = progress.extent.num_ranges_left(progress.commits)  # None for a duration in timesteps
        if num_left == 0:
            return
        num_runners, note = self._placement.num_replicas(self._spec.runners.replicas, "runners")
        if note:
            self._reporter.note(self._name, note)

        def on_episode(episode: Episode) -> None:
            self._interruption.check()
            progress.add_episode(episode)

        num_runners = min(num_runners, num_left) if num_left is not None else num_runners
        workers = self._placement.start_recorders(num_runners, task, self._spec.runners.cpus, on_episode)
        with closing(workers):
            # Other processes load the policy from its files.
            source = actor if isinstance(workers, LocalWorkers) else policy
            yield from record_ranges(workers, source, progress.next_range, self._interruption.check)

    def _note_on_non_finite(self, recorded_range: RecordedRange) -> None:
        """Report once for each column, as early as possible, that trainings will refuse its numbers."""
        for column, noun in ((Columns.REWARDS, "rewards"), (Columns.OBS, "observations")):
            cases = [(eps_id, t) for name, eps_id, t in recorded_range.non_finite if name == column]
            if not cases or column in self._noted_columns:
                continue
            self._noted_columns.add(column)
            eps_id, t = cases[0]
            self._reporter.note(
                self._name,
                f"environment {self._spec.environment.id!r} returned {noun} that are NaN or infinite in "
                f"{len(cases):,} of the last {plural(len(recorded_range.returns), 'episode')} "
                f"(first: {eps_id}, t = {t}): they are recorded, but a training that uses {noun} refuses them; fix the "
                "environment and record again",
            )

    def _prepare_policy(self) -> str:
        """Train the policy or copy it into the dataset's folder, if it is not there yet; return its location.

        The location of a random policy is `RANDOM`.
        """
        policy, folder = self._spec.policy, self._policy_folder
        if policy.random is not None:
            return RANDOM
        module = folder.child(MODULE)
        if not module.child("module.json").exists():
            if policy.train is not None:
                train_expert(self._resource, policy.train, folder, self._reporter, self._interruption)
            else:
                module_class = policy.module_class
                loaded_policy = Policy.load(
                    self._checkpoint_path(), allow_classes=[module_class] if module_class else ()
                )
                loaded_policy.save(module)
        return str(module)

    def _checkpoint_path(self) -> str:
        """Return the path of the checkpoint that the resource names or refers to."""
        if self._spec.policy.checkpoint is not None:
            return self._spec.policy.checkpoint.path
        assert self._checkpoint is not None  # the caller resolves `trainingRef`
        return self._checkpoint

    def _load_actor(self, policy: str) -> Policy | RandomActor:
        """Load the policy at a location that `_prepare_policy` returned."""
        return load_actor(policy, self._spec.environment, self._spec.policy.policy_module_class)

    def _make_task(self, actor: Policy | RandomActor) -> RecordingTask:
        spec = self._spec
        data_spec = describe_columns(
            spec.environment, actor, spec.policy.explore, spec.output.recurrent_states
        )
        return RecordingTask(
            environment=spec.environment,
            width=spec.runners.envs_per_runner,
            seed=spec.seed,
            explore=spec.policy.explore,
            target=Target.from_output(spec.output, self._folder),
            prefix=spec_hash(self._resource)[:8],
            spec=data_spec,
            records_states=spec.output.recurrent_states,
            module_class=spec.policy.policy_module_class,
            callbacks=tuple(spec.callbacks),
        )

    def _make_manifest(
        self, task: RecordingTask, actor: Policy | RandomActor, commits: dict[int, Commit]
    ) -> Manifest:
        preprocessing = actor.preprocessing
        filters = {name: values.tolist() for name, values in preprocessing.state().items()}
        return Manifest(
            layout=task.target.layout,
            spec_hash=spec_hash(self._resource),
            environment=task.environment.model_dump(mode="json", by_alias=True),
            seed=task.seed,
            policy={"digest": actor.digest if isinstance(actor, Policy) else RANDOM, "explore": task.explore},
            recorder=__version__,
            versions={name: version(name) for name in _PACKAGES},
            connectors={**preprocessing.to_json(), "filters": filters},
            spec=task.spec.to_json(),
            files=committed_files(commits[range_index] for range_index in sorted(commits)),
        )

    def _make_outcome(self, manifest: Manifest, state: State, start_time: float) -> Outcome:
        episodes = count_episodes(manifest.files)
        timesteps = sum(file.timesteps for file in manifest.files)
        verb = "has already finished" if state == "AlreadyFinished" else "finished recording"
        amount = f"{plural(episodes, 'episode')}, {plural(timesteps, 'timestep')}"
        return Outcome(
            resource=self._name,
            state=state,
            message=f"{self._name} {verb}: {amount} in {self._folder}",
            folder=str(self._folder),
            metrics={"episodes": episodes, "timesteps": timesteps, "seconds": time.monotonic() - start_time},
        )


class _RecordingProgress:
    """Assigns ranges to workers and reports progress."""

    def __init__(self, name: str, extent: Extent, commits: dict[int, Commit], reporter: Reporter) -> None:
        self.extent = extent
        self.commits = commits
        self._name = name
        self._reporter = reporter
        self._start_time = time.monotonic()
        self._num_steps_at_start = self._count_committed_steps()
        self._returns: list[float] = []
        self._uncommitted = {"episodes": 0, "timesteps": 0}

    def next_range(self, in_progress: set[int]) -> RangeToRecord | None:
        """Return the next range to record, or None; `in_progress` has the numbers of ranges that are being recorded."""
        return self.extent.next_range(self.commits, in_progress)

    def add_episode(self, episode: Episode) -> None:
        """Count an episode that has ended but is not committed yet."""
        self._returns.append(episode.episode_return)
        self._uncommitted["episodes"] += 1
        self._uncommitted["timesteps"] += episode.length
        self._report()

    def mark_committed(self) -> None:
        """Report progress after a commit; the caller has added the commit to `commits`.

        Episodes of ranges that other workers are still recording are forgotten until these ranges are committed.
        """
        self._uncommitted = {"episodes": 0, "timesteps": 0}
        self._report()

    def _count_committed_steps(self) -> int:
        return sum(commit.timesteps for commit in self.commits.values())

    def _report(self) -> None:
        num_steps = self._count_committed_steps() - self._num_steps_at_start + self._uncommitted["timesteps"]
        metrics = {"timesteps_per_s": num_steps / max(time.monotonic() - self._start_time, 1e-9)}
        if self._returns:
            recent_returns = self._returns[-100:]
            metrics["return"] = sum(recent_returns) / len(recent_returns)
        amount_done = self.extent.num_done(self.commits) + self._uncommitted[self.extent.unit]
        progress = Progress(
            self._name,
            "Recording",
            amount_done,
            self.extent.total,
            self.extent.unit,
            metrics,
            saved_amount=self._count_committed_steps(),
        )
        self._reporter.progress(progress)
