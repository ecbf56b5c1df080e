"""Execution of an `OfflineTraining`: iterations until a stop criterion holds, resumable at any update."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final, cast

import orjson

from hindcast.api import OfflineTraining, spec_hash
from hindcast.errors import Interrupted, OutputConflict, SpecError
from hindcast.formatting import plural
from hindcast.learn.checkpoint import MODULE, Checkpoint, CheckpointStore
from hindcast.learn.group import Group
from hindcast.models.network_text import describe_networks
from hindcast.models.policy import Policy
from hindcast.models.policy_files import copy_policy
from hindcast.names import EPISODE_RETURN_MEAN
from hindcast.pipeline.offline_data import Source
from hindcast.report.events import Outcome, Progress, Reporter, State
from hindcast.report.page import REPORT_FILE
from hindcast.report.results import ITERATION, Result, ResultsLog
from hindcast.run.callbacks import TrainingCallbacks
from hindcast.run.claim import (
    CHECKPOINTS_FOLDER,
    claim,
    claimed_hashes,
    initial_num_learners,
    is_claimed,
    refuse_other_run,
    run_folder,
    title,
)
from hindcast.run.evaluation.environment_evaluation import Evaluations
from hindcast.run.evaluation.held_out_evaluation import HeldOutEvaluator, notes_on_evaluation
from hindcast.run.evaluation.trained_episodes import record_trained_episodes
from hindcast.run.ineffective_fields import notes_on_ineffective_fields
from hindcast.run.interruption import Interruption
from hindcast.run.placement import LOCAL, Placement
from hindcast.run.stop_criteria import (
    ESTIMATED_RETURN,
    VALIDATION_LOSS,
    EndlessGuard,
    add_evaluation,
    current_metric,
    evaluation_metric,
    find_nearest_limit,
    measurement_hash,
    selection_metric,
    should_stop,
)
from hindcast.run.training.learner_group import start_learners
from hindcast.run.training.offline_trainer import make_offline_trainer
from hindcast.run.training.trainer import Networks, Trainer
from hindcast.storage.location import Location

SUCCESS_FILE = "success.json"
_SILENT_FIT_SECONDS: Final = 5.0
"""Time after which an offline evaluation reports the progress of its fits."""
_PROGRESS_NAMES: Final = {
    EPISODE_RETURN_MEAN: "return",
    ESTIMATED_RETURN: ESTIMATED_RETURN,
    VALIDATION_LOSS: VALIDATION_LOSS,
}
"""Metric of evaluations -> its name in progress reports."""


class TrainingRun:
    """One training, started or resumed.

    Args:
        resource: the training.
        sources: the recorded data; not read if the training has already finished.
        reporter: receives progress and notes.
        interruption: checked before each update.
        placement: starts the processes that read data and evaluate, and the other learners: this process is the first
            one, which decides, evaluates and writes.
        networks: the resource's networks; None builds them.
    """

    def __init__(
        self,
        resource: OfflineTraining,
        sources: Sequence[Source],
        reporter: Reporter,
        interruption: Interruption,
        placement: Placement = LOCAL,
        *,
        networks: Networks | None = None,
    ) -> None:
        self._resource = resource
        self._sources = sources
        self._name = title(resource)
        self._reporter = reporter
        self._interruption = interruption
        self._placement = placement
        self._networks = networks
        self._callbacks = TrainingCallbacks(resource.spec.callbacks)
        self._selection_metric = selection_metric(resource.spec)
        self._measurement_hash = measurement_hash(resource.spec)
        # The last result may contain a parallel evaluation of earlier weights: the number of their updates, else None.
        self._collected_updates: int | None = None
        self._verdict: str | None = None
        self._latest_metrics: dict[str, float] = {}
        self._noted_topics: set[str] = set()
        self._set_folder(run_folder(resource))

    def execute(self) -> Outcome:
        """Train until a stop criterion holds.

        Raises:
            Interrupted: a stop was requested; a checkpoint was written.
            OutputConflict: the run folder belongs to another run.
            UserError: the training failed; the message is one sentence.
        """
        start_time = time.monotonic()
        refuse_other_run(self._folder, self._resource, self._is_started())
        with self._placement.sole_writer(self._folder) as guard:
            self._set_folder(self._folder.with_guard(guard))
            # A folder that lost its owner record is claimed by `_begin`, once its checkpoint has been checked.
            if is_claimed(self._folder) or self._store.latest() is None:
                claim(self._folder, self._resource, self._is_started())
            if (earlier_success := read_success(self._resource, self._folder)) is not None:
                return self._make_outcome(earlier_success, "AlreadyFinished", start_time)
            marker = self._folder.child(SUCCESS_FILE)
            if marker.exists():
                # `stop` or `evaluation` has changed, so training continues. The report is deleted first, because a
                # report next to a marker counts as current.
                self._folder.child(REPORT_FILE).delete()
                marker.delete()
            with start_learners(
                self._resource, self._sources, self._placement, self._interruption.check
            ) as group:
                success = self._train(group)
            outcome = self._make_outcome(success, "Succeeded", start_time)
            # Written last: a training that fails before this must not count as finished.
            marker.write_bytes(orjson.dumps(success, option=orjson.OPT_INDENT_2))
        return outcome

    def _set_folder(self, folder: Location) -> None:
        self._folder = folder
        self._store = CheckpointStore(
            folder.child(CHECKPOINTS_FOLDER), keep=self._resource.spec.checkpoint.keep
        )

    def _is_started(self) -> bool:
        """Return True if an earlier run left `success.json` or a checkpoint."""
        return self._folder.child(SUCCESS_FILE).exists() or self._store.latest() is not None

    def _train(self, group: Group) -> dict[str, Any]:
        for note in notes_on_ineffective_fields(self._resource, self._placement.is_one_machine):
            self._reporter.note(self._name, note)
        trainer = make_offline_trainer(
            self._resource,
            self._sources,
            self._placement,
            group,
            initial_num_learners=initial_num_learners(self._folder, self._resource),
            networks=self._networks,
        )
        for message in map(str, trainer.notes):
            self._reporter.note(self._name, message)
        evaluations = Evaluations(
            self._resource, self._store, self._reporter, self._placement, self._callbacks
        )
        self._callbacks.algorithm = trainer
        trainer.num_busy_processors = evaluations.num_processes
        try:
            self._begin(trainer, evaluations)
            log = ResultsLog(self._folder, resume_at=trainer.iteration)
            for earlier_result in log.results:
                self._remember(earlier_result)
            try:
                self._iterate(trainer, evaluations, log)
                return self._finish(trainer, evaluations, log)
            finally:
                log.close()
        finally:
            evaluations.close()
            trainer.close()

    def _begin(self, trainer: Trainer, evaluations: Evaluations) -> None:
        """Start the training, or resume it from the latest checkpoint."""
        self._store.remove_incomplete()
        latest_checkpoint = self._store.latest()
        if latest_checkpoint is None:
            record_trained_episodes(self._folder, trainer.training_data)
            trainer.begin()
            self._callbacks.start(self._resource, str(self._folder))
            return
        saved_hash = latest_checkpoint.training.spec_hash
        if saved_hash not in {spec_hash(self._resource), *claimed_hashes(self._folder)}:
            raise OutputConflict(
                f"{latest_checkpoint.location} was written with spec hash {saved_hash}, and {self._name} has "
                f"{spec_hash(self._resource)}: raise spec.revision, or set another checkpoint.path.",
                mentions=("spec.revision",),
            )
        trainer.load(latest_checkpoint)
        # A lost owner record is replaced only after the checkpoint was checked: a record with another number of
        # learners would keep out the resource that fits the checkpoint.
        claim(self._folder, self._resource, has_progress=True)
        self._callbacks.start(self._resource, str(self._folder))
        self._callbacks.call("on_checkpoint_loaded")
        self._mark_latest_checkpoint(trainer, latest_checkpoint)
        self._reporter.note(
            self._name, f"resuming at update {latest_checkpoint.updates:,} (iteration {trainer.iteration})"
        )
        evaluated_updates = latest_checkpoint.training.counters.get("evaluating")
        if trainer.is_cut_short:
            # Still true after `load`, so the stop criterion was not raised: the run only repeats `_finish`, which needs
            # the evaluation that the result of the cut iteration contains.
            self._collected_updates = evaluated_updates
        elif evaluated_updates is not None and evaluations.runs_in_parallel:
            evaluated_checkpoint = next(
                (checkpoint for checkpoint in self._store.all() if checkpoint.updates == evaluated_updates),
                latest_checkpoint,
            )
            # The interrupted evaluation starts again with the same weights.
            evaluations.launch(
                Policy.load(evaluated_checkpoint.location),
                evaluated_checkpoint.training.iteration,
                evaluated_checkpoint.updates,
            )

    def _mark_latest_checkpoint(self, trainer: Trainer, latest_checkpoint: Checkpoint) -> None:
        """Mark the latest checkpoint with its score, in case the run was killed between saving and marking it."""
        score = latest_checkpoint.training.metrics.get(self._selection_metric)
        # The measurement hash with which the score was measured; a changed `evaluation` makes the score incomparable.
        saved_hash = latest_checkpoint.training.counters.get("measured")
        if score is None or saved_hash not in (None, self._measurement_hash):
            return
        # The checkpoint's iteration was cut short and is continued now, so its score at the end does not count.
        if trainer.iteration < latest_checkpoint.training.iteration:
            return
        self._store.mark_best(
            latest_checkpoint,
            score,
            self._selection_metric,
            self._measurement_hash,
            at_end=trainer.is_cut_short,
        )

    def _iterate(self, trainer: Trainer, evaluations: Evaluations, log: ResultsLog) -> None:
        """Iterate until a stop criterion holds; write results and checkpoints."""
        stop, checkpoint_interval = self._resource.spec.stop, self._resource.spec.checkpoint.every
        result = log.results[-1] if log.results else None
        endless_guard = EndlessGuard(self._resource.spec)
        is_finished = result is not None and should_stop(stop, result)
        if not is_finished:
            # An evaluation that took place only because an earlier run ended here does not select the best checkpoint.
            self._store.revert_end_mark()
        while not is_finished:
            try:
                result = trainer.iterate(self._interruption.check)
            except Interrupted:
                checkpoint = trainer.save(self._store, evaluating=evaluations.pending_updates)
                raise Interrupted(
                    f"{self._name} was interrupted at update {checkpoint.updates:,}; "
                    "run the same command again to resume."
                ) from None
            start_time = time.monotonic()
            self._collected_updates = evaluations.pending_updates
            env_result, offline_result = self._evaluate(trainer, evaluations)
            result = add_evaluation(result, env_result, offline_result)
            result["timers"]["evaluation_wait_s"] = time.monotonic() - start_time
            self._callbacks.call("on_train_result", result=result)
            log.append(result)
            self._remember(result)
            self._launch_and_save_if_due(trainer, evaluations, result, checkpoint_interval)
            self._reporter.progress(self._make_progress(result))
            if offline_result is not None and (reason := endless_guard.count_evaluation(offline_result)):
                trainer.save(self._store, evaluating=evaluations.pending_updates)
                raise SpecError(f"{self._name} was stopped at iteration {trainer.iteration}: {reason}")
            is_finished = should_stop(stop, result)

    def _evaluate(
        self, trainer: Trainer, evaluations: Evaluations, at_end: bool = False
    ) -> tuple[Result | None, Result | None]:
        """Wait for the evaluation that runs in parallel, if any, and run the evaluations that are due.

        Returns:
            The results of the evaluations in the environment and on held-out episodes; None without a new result.
        """
        iteration, held_out = trainer.iteration, trainer.held_out_evaluator
        env_result = evaluations.collect()
        is_due = evaluations.is_due(iteration, at_end)
        if evaluations.runs_in_parallel:
            # After an iteration that was cut short, there is no next iteration during which its evaluation could run.
            is_due = at_end and (is_due or (trainer.is_cut_short and evaluations.is_due(iteration)))
        if is_due:
            env_result = evaluations.evaluate(trainer.policy, iteration)
        if held_out is None or not held_out.is_due(iteration, at_end):
            return env_result, None
        return env_result, self._evaluate_held_out(held_out, iteration)

    def _launch_and_save_if_due(
        self, trainer: Trainer, evaluations: Evaluations, result: Result, interval: int
    ) -> None:
        """Launch the parallel evaluation and write a checkpoint, if they are due.

        A checkpoint is due every `interval` iterations, and after others if these weights are the best so far or their
        evaluation was launched.
        """
        should_launch = (
            evaluations.runs_in_parallel
            and evaluations.is_due(trainer.iteration)
            and not trainer.is_cut_short
        )
        # Launched first, because the checkpoint names the running evaluation, which a resumed run must repeat.
        if should_launch:
            evaluations.launch(trainer.policy, trainer.iteration, trainer.learner.updates)
        if should_launch or self._is_better(result) or trainer.iteration % interval == 0:
            self._mark_best(self._save(trainer, evaluations, result), result, at_end=trainer.is_cut_short)

    def _is_better(self, result: Result) -> bool:
        """Return True if the weights after this iteration were evaluated and score higher than all checkpoints."""
        score = current_metric(result, self._selection_metric)
        if score is None:
            return False
        best_score = self._store.best_score(self._selection_metric, self._measurement_hash)
        return best_score is None or score > best_score

    def _mark_best(self, checkpoint: Checkpoint, result: Result, *, at_end: bool) -> None:
        """Mark the checkpoint with its score, if the result contains an evaluation of its weights."""
        score = current_metric(result, self._selection_metric)
        if score is not None:
            self._store.mark_best(
                checkpoint, score, self._selection_metric, self._measurement_hash, at_end=at_end
            )

    def _evaluate_held_out(self, held_out: HeldOutEvaluator, iteration: int) -> Result:
        """Evaluate the current weights on held-out episodes and report new notes."""
        start_time = time.monotonic()

        def progress(model_name: str, done: int, total: int) -> None:
            if time.monotonic() - start_time > _SILENT_FIT_SECONDS:
                stage = f"Fitting the {model_name} of the offline evaluation"
                verdict = self._verdict
                self._reporter.progress(Progress(self._name, stage, done, total, "updates", verdict=verdict))

        self._callbacks.call("on_evaluate_offline_start")
        evaluation = held_out.evaluate(iteration, progress)
        for topic, note in notes_on_evaluation(evaluation).items():
            if topic not in self._noted_topics:
                self._noted_topics.add(topic)
                self._reporter.note(self._name, f"iteration {iteration}: {note}")
        self._callbacks.call("on_evaluate_offline_end", evaluation_metrics=evaluation)
        return evaluation

    def _save(self, trainer: Trainer, evaluations: Evaluations, result: Result) -> Checkpoint:
        """Write a checkpoint with the result's metrics."""
        metrics = dict(result["learners"]["default_policy"])
        score = current_metric(result, self._selection_metric)
        if score is not None:
            metrics[self._selection_metric] = score
        evaluated_updates = self._updates_under_evaluation(trainer, evaluations)
        return trainer.save(
            self._store, metrics, evaluating=evaluated_updates, measured=self._measurement_hash
        )

    def _updates_under_evaluation(self, trainer: Trainer, evaluations: Evaluations) -> int | None:
        """Return the number of updates of the weights that a resumed run must evaluate again; None if there are none.

        After an iteration that the stop criterion cut short, these are the weights whose evaluation the iteration's
        result contains: the result of the completed iteration must contain the same evaluation.
        """
        return self._collected_updates if trainer.is_cut_short else evaluations.pending_updates

    def _finish(self, trainer: Trainer, evaluations: Evaluations, log: ResultsLog) -> dict[str, Any]:
        """Collect the running evaluation, save the last weights and return the content of `success.json`.

        The best policy (the last one if none was evaluated) is copied to the run folder's own `module`.
        """
        last_result = log.results[-1]
        # A run that is resumed after a kill, or extended, repeats the evaluation that is running now.
        evaluated_updates = self._updates_under_evaluation(trainer, evaluations)
        env_result, offline_result = self._evaluate(trainer, evaluations, at_end=True)
        checkpoint = trainer.save(
            self._store, last_result["learners"]["default_policy"], evaluating=evaluated_updates
        )
        end_result = add_evaluation({ITERATION: trainer.iteration}, env_result, offline_result)
        if "evaluation" in end_result:
            log.append(end_result)
            self._remember(end_result)
            self._reporter.progress(self._make_progress(last_result))
            self._mark_best(checkpoint, end_result, at_end=True)
        best_checkpoint = self._store.best()
        copy_policy((best_checkpoint or checkpoint).module, self._folder.child(MODULE))
        return {
            "specHash": spec_hash(self._resource),
            "iterations": trainer.iteration,
            "updates": trainer.learner.updates,
            "timesteps": trainer.learner.timesteps,
            "seconds": last_result.get("time_total_s"),
            "checkpoint": str(checkpoint.location),
            "best": self._describe_best(best_checkpoint),
            **{name: self._latest_metrics.get(name) for name in _PROGRESS_NAMES},
            "verdict": self._verdict
            if best_checkpoint is None
            else _verdict_on(best_checkpoint, log.results),
            "loss": _total_loss(last_result),
            "networks": describe_networks(trainer.learner.nets),
        }

    def _describe_best(self, best_checkpoint: Checkpoint | None) -> dict[str, Any] | None:
        """Return path, score and metric of the best checkpoint as JSON, or None if no checkpoint is marked as best."""
        if best_checkpoint is None:
            return None
        score = self._store.best_score(self._selection_metric, self._measurement_hash)
        return {
            "path": str(best_checkpoint.location),
            "score": score,
            "metric": self._selection_metric or None,
        }

    def _remember(self, result: Result) -> None:
        """Store a result's evaluation metrics and verdict as the latest ones, if it has any."""
        for name in _PROGRESS_NAMES:
            value = evaluation_metric(result, name)
            if value is not None:
                self._latest_metrics[name] = value
        verdict = result.get("evaluation", {}).get("offline", {}).get("verdict")
        if verdict is not None:
            self._verdict = verdict["sentence"]

    def _make_progress(self, result: Result) -> Progress:
        stop = self._resource.spec.stop
        amount_done, total, unit = find_nearest_limit(stop, result)
        metrics = {
            "timesteps": result["num_env_steps_trained_lifetime"],
            "timesteps_per_s": result["timesteps_per_s"],
        }
        timers = result["timers"]
        if "data_wait_s" in timers:
            metrics["data_wait_share"] = timers["data_wait_s"] / (timers["data_wait_s"] + timers["update_s"])
        if "peak_memory_bytes" in timers:
            metrics["learner_peak_bytes"] = max(timers["peak_memory_bytes"])
        loss = _total_loss(result)
        if loss is not None:
            metrics["loss"] = loss
        metrics |= {
            label: self._latest_metrics[name]
            for name, label in _PROGRESS_NAMES.items()
            if name in self._latest_metrics
        }
        return Progress(self._name, "Training", amount_done, total, unit, metrics, self._verdict)

    def _make_outcome(self, success: dict[str, Any], state: State, start_time: float) -> Outcome:
        best = success["best"] or {"path": success["checkpoint"], "score": None}
        score = best["score"]
        verb = "has already finished" if state == "AlreadyFinished" else "finished training"
        quality = ""
        if score is not None:
            metric_name = best["metric"]
            is_played = metric_name == EPISODE_RETURN_MEAN
            quality = (
                f": return {score:.1f}" if is_played else f": estimated return {score:.1f} ({metric_name})"
            )
        elif success["loss"] is not None:
            quality = f": loss {success['loss']:.4g}"
        verdict = f"; {success['verdict']}" if success.get("verdict") else ""
        return Outcome(
            resource=self._name,
            state=state,
            message=f"{self._name} {verb}{quality} after {plural(success['updates'], 'update')}{verdict}; "
            f"checkpoint {best['path']}",
            folder=str(self._folder),
            metrics={**success, "seconds": time.monotonic() - start_time},
        )


def _verdict_on(checkpoint: Checkpoint, results: Sequence[Result]) -> str | None:
    """Return the verdict of the last evaluation of a checkpoint's weights; None if there was none."""
    for result in reversed(results):
        evaluation = result.get("evaluation", {}).get("offline", {})
        if evaluation.get(ITERATION) == checkpoint.training.iteration and "verdict" in evaluation:
            return str(evaluation["verdict"]["sentence"])
    return None


def read_success(resource: OfflineTraining, folder: Location) -> dict[str, Any] | None:
    """Return `success.json`, or None if the training has not finished with the resource's current spec."""
    marker = folder.child(SUCCESS_FILE)
    if not marker.exists():
        return None
    success: dict[str, Any] = orjson.loads(marker.read_bytes())
    if success["specHash"] != spec_hash(resource):
        return None
    return success


def _total_loss(result: Result) -> float | None:
    """Return the total loss of an iteration, or None if no update of the iteration had a loss."""
    return cast("float | None", result["learners"]["default_policy"].get("total_loss"))
