"""Carries out an `OfflineTraining`: iterations until a stop criterion holds, resumable at any update."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Any, Final, cast

import orjson

from hindcast.api import OfflineTraining, spec_hash
from hindcast.errors import Interrupted, OutputConflict, SpecError
from hindcast.formatting import plural
from hindcast.learn.checkpoint import MODULE, Checkpoint, CheckpointStore, find_checkpoint
from hindcast.learn.group import Group
from hindcast.learn.ranks import Ranks
from hindcast.models.policy import Policy
from hindcast.names import EPISODE_RETURN_MEAN
from hindcast.pipeline.offline_data import Source
from hindcast.report.events import Outcome, Progress, Reporter, State
from hindcast.report.page import REPORT_FILE
from hindcast.report.results import ITERATION, Result, ResultsLog
from hindcast.run.claim import (
    CHECKPOINTS_FOLDER,
    claim,
    claimed_hashes,
    first_learners,
    is_claimed,
    refuse_other_run,
    run_folder,
    title,
)
from hindcast.run.held_out_evaluation import HeldOutEvaluator, notes_on_evaluation
from hindcast.run.ineffective_fields import notes_on_ineffective_fields
from hindcast.run.interruption import Interruption
from hindcast.run.offline_trainer import make_offline_trainer
from hindcast.run.placement import LOCAL, Placement
from hindcast.run.stop_criteria import (
    ESTIMATED_RETURN,
    VALIDATION_LOSS,
    EndlessGuard,
    add_evaluation,
    current_metric,
    evaluation_metric,
    measurement_hash,
    nearest_stop,
    selection_metric,
    should_stop,
)
from hindcast.run.trainer import Trainer
from hindcast.run.training_callbacks import TrainingCallbacks
from hindcast.run.training_evaluation import Evaluations
from hindcast.storage.location import Location

SUCCESS_FILE = "success.json"
_SILENT_S: Final = 5.0
_METRICS: Final = {
    EPISODE_RETURN_MEAN: "return",
    ESTIMATED_RETURN: ESTIMATED_RETURN,
    VALIDATION_LOSS: VALIDATION_LOSS,
}
"""Metrics of evaluations, and what progress calls them."""


class TrainingRun:
    """One training, started or continued.

    Args:
        sources: the recorded data; nothing is read of them where the training is finished.
        group: the learners; this is the first one, which decides, evaluates and writes.
    """

    def __init__(
        self,
        resource: OfflineTraining,
        sources: Sequence[Source],
        reporter: Reporter,
        interruption: Interruption,
        placement: Placement = LOCAL,
        *,
        group: Group | None = None,
    ) -> None:
        self._resource = resource
        self._sources = sources
        self._name = title(resource)
        self._reporter = reporter
        self._interruption = interruption
        self._placement = placement
        self._group = group or Group()
        self._callbacks = TrainingCallbacks(resource.spec.callbacks)
        self._followed = selection_metric(resource.spec)
        self._measured = measurement_hash(resource.spec)
        self._collected: int | None = None
        self._verdict: str | None = None
        self._latest: dict[str, float] = {}
        self._noted: set[str] = set()
        self._write_to(run_folder(resource))

    def execute(self) -> Outcome:
        """Train until a stop criterion holds.

        Raises:
            Interrupted: asked to stop; a checkpoint was written.
            OutputConflict: the run folder holds another run.
            UserError: what went wrong, in one sentence.
        """
        begun = time.monotonic()
        refuse_other_run(self._folder, self._resource, self._is_started())
        with self._placement.sole_writer(self._folder) as guard:
            self._write_to(self._folder.with_guard(guard))
            if is_claimed(self._folder) or self._store.latest() is None:  # else `_begin` claims it
                claim(self._folder, self._resource, self._is_started())
            if (finished := read_success(self._resource, self._folder)) is not None:
                return self._outcome(finished, "AlreadyFinished", begun)
            marker = self._folder.child(SUCCESS_FILE)
            if marker.exists():
                # `stop` or `evaluation` has changed, so training continues. The report goes first: one that is
                # found next to a marker counts as current.
                self._folder.child(REPORT_FILE).delete()
                marker.delete()
            success = self._train()
            outcome = self._outcome(success, "Succeeded", begun)
            marker.write_bytes(orjson.dumps(success, option=orjson.OPT_INDENT_2))
        return outcome

    def _write_to(self, folder: Location) -> None:
        self._folder = folder
        self._store = CheckpointStore(
            folder.child(CHECKPOINTS_FOLDER), keep=self._resource.spec.checkpoint.keep
        )

    def _is_started(self) -> bool:
        """Whether an earlier run left anything that took work."""
        return self._folder.child(SUCCESS_FILE).exists() or self._store.latest() is not None

    def _train(self) -> dict[str, Any]:
        for note in notes_on_ineffective_fields(self._resource, self._placement.is_one_machine):
            self._reporter.note(self._name, note)
        trainer = make_offline_trainer(
            self._resource,
            self._sources,
            self._placement,
            self._group,
            first_learners=first_learners(self._folder, self._resource),
        )
        for note in trainer.notes:
            self._reporter.note(self._name, note)
        evaluations = Evaluations(
            self._resource, self._store, self._reporter, self._placement, self._callbacks
        )
        self._callbacks.algorithm = trainer
        trainer.num_busy_processors = evaluations.num_processes
        try:
            self._begin(trainer, evaluations)
            log = ResultsLog(self._folder, resume_at=trainer.iteration)
            for earlier in log.results:
                self._remember(earlier)
            try:
                self._iterate(trainer, evaluations, log)
                return self._finish(trainer, evaluations, log)
            finally:
                log.close()
        finally:
            evaluations.close()
            trainer.close()

    def _begin(self, trainer: Trainer, evaluations: Evaluations) -> None:
        self._store.remove_incomplete()
        latest = self._store.latest()
        if latest is None:
            trainer.begin()
            self._callbacks.call("on_algorithm_init")
            return
        if latest.training.spec_hash not in {spec_hash(self._resource), *claimed_hashes(self._folder)}:
            raise OutputConflict(
                f"{latest.location} was written with spec hash {latest.training.spec_hash}, and {self._name} has "
                f"{spec_hash(self._resource)}: raise spec.revision, or give another checkpoint.path."
            )
        trainer.load(latest)
        # A lost mark is replaced only now. One with other learners than the checkpoint's batch would also keep out
        # the resource that fits.
        claim(self._folder, self._resource, has_progress=True)
        self._callbacks.call("on_algorithm_init")
        self._callbacks.call("on_checkpoint_loaded")
        self._mark_again(trainer, latest)
        self._reporter.note(
            self._name, f"resuming at update {latest.updates:,} (iteration {trainer.iteration})"
        )
        evaluating = latest.training.counters.get("evaluating")
        if trainer.is_cut_short:  # and still at its end
            self._collected = evaluating
        elif evaluating is not None and evaluations.runs_in_parallel:
            weights = next((found for found in self._store.all() if found.updates == evaluating), latest)
            evaluations.launch(Policy.load(weights.location), weights.training.iteration, weights.updates)

    def _mark_again(self, trainer: Trainer, latest: Checkpoint) -> None:
        """Note what the evaluation of the latest weights gave: the run may have been killed before it did."""
        score = latest.training.metrics.get(self._followed)
        measured = latest.training.counters.get("measured")
        if score is None or measured not in (None, self._measured):
            return
        if trainer.iteration < latest.training.iteration:  # cut short then, it is finished now
            return
        self._store.mark_best(latest, score, self._followed, self._measured, at_end=trainer.is_cut_short)

    def _iterate(self, trainer: Trainer, evaluations: Evaluations, log: ResultsLog) -> None:
        stop, every = self._resource.spec.stop, self._resource.spec.checkpoint.every
        result = log.results[-1] if log.results else None
        guard = EndlessGuard(self._resource.spec)
        ended = result is not None and should_stop(stop, result)
        if not ended:
            self._store.revert_end_mark()
        while not ended:
            try:
                result = trainer.iterate(self._interruption.check)
            except Interrupted:
                checkpoint = trainer.save(self._store, evaluating=evaluations.pending_updates)
                raise Interrupted(
                    f"{self._name} was interrupted at update {checkpoint.updates:,}; "
                    "run the same command again to resume."
                ) from None
            begun = time.monotonic()
            self._collected = evaluations.pending_updates
            played, judged = self._evaluated(trainer, evaluations)
            result = add_evaluation(result, played, judged)
            result["timers"]["evaluation_wait_s"] = time.monotonic() - begun
            self._callbacks.call("on_train_result", result=result)
            log.append(result)
            self._remember(result)
            self._keep(trainer, evaluations, result, every)
            self._reporter.progress(self._progress(result))
            if judged is not None and (why := guard.why_endless(judged)):
                trainer.save(self._store, evaluating=evaluations.pending_updates)
                raise SpecError(f"{self._name} was stopped at iteration {trainer.iteration}: {why}")
            ended = should_stop(stop, result)

    def _evaluated(
        self, trainer: Trainer, evaluations: Evaluations, at_end: bool = False
    ) -> tuple[Result | None, Result | None]:
        """What evaluations give now, in the environment and by held-out episodes; None of those that are not due."""
        iteration, held_out = trainer.iteration, trainer.held_out_evaluator
        played = evaluations.collect()
        is_due = evaluations.due(iteration, at_end)
        if evaluations.runs_in_parallel:
            # That of an iteration cut short has no training to run in parallel to.
            is_due = at_end and (is_due or (trainer.is_cut_short and evaluations.due(iteration)))
        if is_due:
            played = evaluations.evaluate(trainer.policy, iteration)
        if held_out is None or not held_out.due(iteration, at_end):
            return played, None
        return played, self._judge(held_out, iteration)

    def _keep(self, trainer: Trainer, evaluations: Evaluations, result: Result, every: int) -> None:
        """Checkpoint, where one is due or an evaluation needs it; begin the evaluation in parallel to training."""
        launches = (
            evaluations.runs_in_parallel and evaluations.due(trainer.iteration) and not trainer.is_cut_short
        )
        if launches:
            evaluations.launch(trainer.policy, trainer.iteration, trainer.learner.updates)
        if launches or self._is_better(result) or trainer.iteration % every == 0:
            self._mark_best(self._save(trainer, evaluations, result), result, at_end=trainer.is_cut_short)

    def _is_better(self, result: Result) -> bool:
        """Whether the weights after this iteration are better than those of all checkpoints."""
        score = current_metric(result, self._followed)
        if score is None:
            return False
        best = self._store.best_score(self._followed, self._measured)
        return best is None or score > best

    def _mark_best(self, checkpoint: Checkpoint, result: Result, *, at_end: bool) -> None:
        """Note what an evaluation of the checkpoint's weights gave, if it came with the result."""
        score = current_metric(result, self._followed)
        if score is not None:
            self._store.mark_best(checkpoint, score, self._followed, self._measured, at_end=at_end)

    def _judge(self, held_out: HeldOutEvaluator, iteration: int) -> Result:
        """What held-out episodes say of the weights as they are."""
        begun = time.monotonic()

        def progress(what: str, done: int, total: int) -> None:
            if time.monotonic() - begun > _SILENT_S:
                stage = f"Fitting the {what} of the offline evaluation"
                verdict = self._verdict
                self._reporter.progress(Progress(self._name, stage, done, total, "updates", verdict=verdict))

        self._callbacks.call("on_evaluate_offline_start")
        judged = held_out.evaluate(iteration, progress)
        for about, note in notes_on_evaluation(judged).items():
            if about not in self._noted:
                self._noted.add(about)
                self._reporter.note(self._name, f"iteration {iteration}: {note}")
        self._callbacks.call("on_evaluate_offline_end", evaluation_metrics=judged)
        return judged

    def _save(self, trainer: Trainer, evaluations: Evaluations, result: Result) -> Checkpoint:
        metrics = dict(result["learners"]["default_policy"])
        score = current_metric(result, self._followed)
        if score is not None:
            metrics[self._followed] = score
        evaluating = self._evaluating(trainer, evaluations)
        return trainer.save(self._store, metrics, evaluating=evaluating, measured=self._measured)

    def _evaluating(self, trainer: Trainer, evaluations: Evaluations) -> int | None:
        """Updates of the weights whose evaluation a run that goes on from here begins again.

        Where the stop cut the iteration short, it is the one that its result used: the whole iteration's will use it.
        """
        return self._collected if trainer.is_cut_short else evaluations.pending_updates

    def _finish(self, trainer: Trainer, evaluations: Evaluations, log: ResultsLog) -> dict[str, Any]:
        """Collect what is under evaluation, keep the last weights, and say how it ended.

        The best policy (the last one, where none was evaluated) is then in the run folder's own `module`.
        """
        last = log.results[-1]
        # A run that is resumed after a kill, or extended, repeats the evaluation under way.
        evaluating = self._evaluating(trainer, evaluations)
        played, judged = self._evaluated(trainer, evaluations, at_end=True)
        checkpoint = trainer.save(self._store, last["learners"]["default_policy"], evaluating=evaluating)
        line = add_evaluation({ITERATION: trainer.iteration}, played, judged)
        if "evaluation" in line:
            log.append(line)
            self._remember(line)
            self._reporter.progress(self._progress(last))
            self._mark_best(checkpoint, line, at_end=True)
        best = self._store.best()
        Policy.load((best or checkpoint).location).save(self._folder.child(MODULE))
        return {
            "specHash": spec_hash(self._resource),
            "iterations": trainer.iteration,
            "updates": trainer.learner.updates,
            "timesteps": trainer.learner.timesteps,
            "seconds": last.get("time_total_s"),
            "checkpoint": str(checkpoint.location),
            "best": self._best(best),
            **{name: self._latest.get(name) for name in _METRICS},
            "verdict": self._verdict,
            "loss": _loss(last),
        }

    def _best(self, best: Checkpoint | None) -> dict[str, Any] | None:
        """The best checkpoint, with the figure that it is the best by."""
        if best is None:
            return None
        score = self._store.best_score(self._followed, self._measured)
        return {"path": str(best.location), "score": score, "by": self._followed or None}

    def _remember(self, result: Result) -> None:
        """Remember the latest of what evaluations say: looked for in all results, each iteration would take longer."""
        for name in _METRICS:
            value = evaluation_metric(result, name)
            if value is not None:
                self._latest[name] = value
        verdict = result.get("evaluation", {}).get("offline", {}).get("verdict")
        if verdict is not None:
            self._verdict = verdict["sentence"]

    def _progress(self, result: Result) -> Progress:
        stop = self._resource.spec.stop
        done, total, unit = nearest_stop(stop, result)
        metrics = {
            "timesteps": result["num_env_steps_trained_lifetime"],
            "timesteps_per_s": result["timesteps_per_s"],
        }
        loss = _loss(result)
        if loss is not None:
            metrics["loss"] = loss
        metrics |= {shown: self._latest[name] for name, shown in _METRICS.items() if name in self._latest}
        return Progress(self._name, "Training", done, total, unit, metrics, self._verdict)

    def _outcome(self, success: dict[str, Any], state: State, begun: float) -> Outcome:
        best = success["best"] or {"path": success["checkpoint"], "score": None}
        found = best["score"]
        verb = "is finished already" if state == "AlreadyFinished" else "is trained"
        quality = ""
        if found is not None:
            by = best.get("by", EPISODE_RETURN_MEAN)  # earlier versions left it out
            quality = f": return {found:.1f}" + (
                "" if by == EPISODE_RETURN_MEAN else f", as {by} estimates it,"
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
            metrics={**success, "seconds": time.monotonic() - begun},
        )


def read_success(resource: OfflineTraining, folder: Location) -> dict[str, Any] | None:
    """What a run folder says of a training that is finished as the resource is now; None if it is to go on."""
    marker = folder.child(SUCCESS_FILE)
    if not marker.exists():
        return None
    finished: dict[str, Any] = orjson.loads(marker.read_bytes())
    return finished if finished["specHash"] == spec_hash(resource) else None


def follow_first_learner(
    resource: OfflineTraining, sources: Sequence[Source], placement: Placement, group: Ranks
) -> None:
    """Do what the first learner broadcasts, until the end.

    Raises:
        PeerLost: another learner ended before the training did.
        UserError: a mistake in the resource, the data or the user's code.
    """
    received = group.receive()
    if received == ["end"]:
        return
    trainer = make_offline_trainer(resource, sources, placement, group, first_learners=received[1])
    while (received := group.receive()) != ["end"]:
        if received[0] == "begin":
            trainer.begin()
        elif received[0] == "load":
            trainer.load(find_checkpoint(received[1]))
        else:
            with contextlib.suppress(Interrupted):
                trainer.iterate()
    trainer.close()


def _loss(result: Result) -> float | None:
    """None where no update of the iteration had a loss."""
    return cast("float | None", result["learners"]["default_policy"].get("total_loss"))
