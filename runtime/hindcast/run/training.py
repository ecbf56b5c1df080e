"""Carries out an `OfflineTraining`: iterations until a stop criterion holds, resumable at any update."""

from __future__ import annotations

import time
from typing import Any, cast

import orjson

from hindcast.api import OfflineTraining, spec_hash
from hindcast.api.recording import TrainStop
from hindcast.api.training import StopSpec
from hindcast.errors import Interrupted, OutputConflict
from hindcast.formats.dataset_folder.commits import remove_temporary_files
from hindcast.learn.checkpoint import MODULE, Checkpoint, CheckpointStore
from hindcast.learn.group import Group
from hindcast.models.policy import Policy
from hindcast.report.events import Outcome, Progress, Reporter, State
from hindcast.report.results import ITERATION, Result, ResultsLog
from hindcast.run.callbacks import Called
from hindcast.run.claim import claim, claimed_hashes, first_learners, refuse_another, title
from hindcast.run.evaluations import Evaluations
from hindcast.run.folders import CHECKPOINTS_FOLDER, run_folder
from hindcast.run.interruption import Interruption
from hindcast.run.offline import Inputs, offline_trainer
from hindcast.run.placement import HERE, Placement
from hindcast.run.trainer import Trainer
from hindcast.run.without_effect import notes_on
from hindcast.storage.location import Location

SUCCESS_FILE = "success.json"
_SCORE = "episode_return_mean"


class TrainingRun:
    """One training, started or continued.

    Args:
        resource: what to train.
        inputs: its data, references resolved.
        reporter: hears how it goes.
        interruption: asks to stop.
        placement: where it is carried out.
        group: the learners; this is the first one, which decides, evaluates and writes.
    """

    def __init__(
        self,
        resource: OfflineTraining,
        inputs: Inputs,
        reporter: Reporter,
        interruption: Interruption,
        placement: Placement = HERE,
        *,
        group: Group | None = None,
    ) -> None:
        self._resource = resource
        self._inputs = inputs
        self._name = title(resource)
        self._reporter = reporter
        self._interruption = interruption
        self._placement = placement
        self._group = group or Group()
        self._called = Called(resource.spec.callbacks)
        self._write_to(run_folder(resource))

    def carry_out(self) -> Outcome:
        """Train until a stop criterion holds.

        Raises:
            Interrupted: asked to stop; a checkpoint was written.
            OutputConflict: the run folder holds another run.
            UserError: what went wrong, in one sentence.
        """
        begun = time.monotonic()
        refuse_another(self._folder, self._resource, self._is_started())
        with self._placement.sole_writer(self._folder) as guard:
            self._write_to(self._folder.guarded(guard))
            remove_temporary_files(self._folder)
            claim(self._folder, self._resource, self._is_started())
            marker = self._folder.child(SUCCESS_FILE)
            if marker.exists():
                finished = orjson.loads(marker.read_bytes())
                if finished["specHash"] == spec_hash(self._resource):
                    return self._outcome(finished, "AlreadyFinished", begun)
                marker.delete()  # it goes on: `stop` or `evaluation` is another now
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
        for note in notes_on(self._resource, self._placement.is_one_machine):
            self._reporter.note(self._name, note)
        trainer = offline_trainer(
            self._resource,
            self._inputs,
            self._placement,
            self._group,
            first_learners=first_learners(self._folder, self._resource),
        )
        for note in trainer.notes:
            self._reporter.note(self._name, note)
        evaluations = Evaluations(self._resource, self._store, self._reporter, self._placement, self._called)
        self._called.algorithm = trainer
        trainer.busy = evaluations.processes
        try:
            self._begin(trainer, evaluations)
            log = ResultsLog(self._folder, resume_at=trainer.iteration)
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
            self._called.tell("on_algorithm_init")
            return
        if latest.training.spec_hash not in claimed_hashes(self._folder):
            raise OutputConflict(
                f"{latest.location} was written with spec hash {latest.training.spec_hash}, and {self._name} has "
                f"{spec_hash(self._resource)}: raise spec.revision, or give another checkpoint.path."
            )
        trainer.load(latest)
        self._called.tell("on_algorithm_init")
        self._called.tell("on_checkpoint_loaded")
        score = latest.training.metrics.get(_SCORE)
        if score is not None:  # it may have been killed before it said so
            self._store.mark_best(latest, score)
        self._reporter.note(
            self._name, f"goes on at update {latest.updates:,} (iteration {trainer.iteration})"
        )
        evaluating = latest.training.counters.get("evaluating")
        if evaluating is not None and evaluations.runs_in_parallel:
            weights = next((found for found in self._store.all() if found.updates == evaluating), latest)
            evaluations.launch(Policy.load(weights.location), weights.training.iteration, weights.updates)

    def _iterate(self, trainer: Trainer, evaluations: Evaluations, log: ResultsLog) -> None:
        stop, every = self._resource.spec.stop, self._resource.spec.checkpoint.every
        result = log.results[-1] if log.results else None
        while result is None or not reached(stop, result):
            try:
                result = trainer.iterate(self._interruption.check)
            except Interrupted:
                checkpoint = trainer.save(self._store, evaluating=evaluations.pending_updates)
                raise Interrupted(
                    f"{self._name} was interrupted at update {checkpoint.updates:,}; "
                    "run the same command again to go on from there."
                ) from None
            begun = time.monotonic()
            evaluation = evaluations.collect()
            if evaluations.due(trainer.iteration) and not evaluations.runs_in_parallel:
                evaluation = evaluations.now(trainer.policy, trainer.iteration)
            if evaluation is not None:
                result["evaluation"] = evaluation
            result["timers"]["evaluation_wait_s"] = time.monotonic() - begun
            self._called.tell("on_train_result", result=result)
            log.append(result)
            self._keep(trainer, evaluations, result, every)
            self._reporter.progress(self._progress(result, log))

    def _keep(self, trainer: Trainer, evaluations: Evaluations, result: Result, every: int) -> None:
        """Checkpoint, where one is due or an evaluation needs it; begin the evaluation beside training."""
        if evaluations.runs_in_parallel and evaluations.due(trainer.iteration):
            evaluations.launch(trainer.policy, trainer.iteration, trainer.learner.updates)
            self._save(trainer, evaluations, result)
            return
        score = _own_score(result)
        best = self._store.best_score()
        if score is not None and (best is None or score > best):
            self._store.mark_best(self._save(trainer, evaluations, result), score)
        elif trainer.iteration % every == 0:
            self._save(trainer, evaluations, result)

    def _save(self, trainer: Trainer, evaluations: Evaluations, result: Result) -> Checkpoint:
        metrics = dict(result["learners"]["default_policy"])
        score = _own_score(result)
        if score is not None:
            metrics[_SCORE] = score
        return trainer.save(self._store, metrics, evaluating=evaluations.pending_updates)

    def _finish(self, trainer: Trainer, evaluations: Evaluations, log: ResultsLog) -> dict[str, Any]:
        """Collect what is under evaluation, keep the last weights, and say how it ended.

        The best policy (the last one, where none was evaluated) is then in the run folder's own `module`.
        """
        last = log.results[-1]
        evaluating = evaluations.pending_updates  # which a run repeats that goes on after a kill, or further
        evaluation = evaluations.collect()
        if evaluations.wanted_at_end(trainer.iteration):
            evaluation = evaluations.now(trainer.policy, trainer.iteration)
        checkpoint = trainer.save(self._store, last["learners"]["default_policy"], evaluating=evaluating)
        if evaluation is not None:
            line = {ITERATION: trainer.iteration, "evaluation": evaluation}
            log.append(line)
            score = _own_score(line)
            if score is not None:
                self._store.mark_best(checkpoint, score)
        best = self._store.best()
        Policy.load((best or checkpoint).location).save(self._folder.child(MODULE))
        scores = [score for result in log.results if (score := _score(result)) is not None]
        return {
            "specHash": spec_hash(self._resource),
            "iterations": trainer.iteration,
            "updates": trainer.learner.updates,
            "timesteps": trainer.learner.timesteps,
            "seconds": last.get("time_total_s"),
            "checkpoint": str(checkpoint.location),
            "best": {"path": str(best.location), "score": self._store.best_score()} if best else None,
            "episode_return_mean": scores[-1] if scores else None,
            "loss": _loss(last),
        }

    def _progress(self, result: Result, log: ResultsLog) -> Progress:
        stop = self._resource.spec.stop
        done, total, unit = _nearest_stop(stop, result)
        metrics = {
            "timesteps": result["num_env_steps_trained_lifetime"],
            "timesteps_per_s": result["timesteps_per_s"],
        }
        loss = _loss(result)
        if loss is not None:
            metrics["loss"] = loss
        scores = [score for line in log.results if (score := _score(line)) is not None]
        if scores:
            metrics["return"] = scores[-1]
        return Progress(self._name, "Training", done, total, unit, metrics)

    def _outcome(self, success: dict[str, Any], state: State, begun: float) -> Outcome:
        best = success["best"] or {"path": success["checkpoint"], "score": None}
        found = best["score"]
        verb = "is finished already" if state == "AlreadyFinished" else "is trained"
        quality = ""
        if found is not None:
            quality = f": return {found:.1f}"
        elif success["loss"] is not None:
            quality = f": loss {success['loss']:.4g}"
        return Outcome(
            resource=self._name,
            state=state,
            message=f"{self._name} {verb}{quality} after {success['updates']:,} updates; "
            f"checkpoint {best['path']}",
            folder=str(self._folder),
            metrics={**success, "seconds": time.monotonic() - begun},
        )


def reached(stop: StopSpec | TrainStop, result: Result) -> bool:
    """Whether a stop criterion holds."""
    score = _score(result)
    if stop.episode_return_mean is not None and score is not None and score >= stop.episode_return_mean:
        return True
    return any(total is not None and done >= total for done, total, _ in _counts(stop, result))


def _counts(stop: StopSpec | TrainStop, result: Result) -> list[tuple[float, float | None, str]]:
    """Done, total and unit of each criterion; an expert's timesteps are those it sampled, and it has no epochs."""
    timesteps = "sampled" if isinstance(stop, TrainStop) else "trained"
    done = {
        "iterations": result[ITERATION],
        "timesteps": result.get(f"num_env_steps_{timesteps}_lifetime", 0),
        "updates": result.get("num_updates_lifetime", 0),
        "epochs": result.get("epoch", 0.0),
    }
    return [(count, getattr(stop, unit, None), unit) for unit, count in done.items()]


def _nearest_stop(stop: StopSpec, result: Result) -> tuple[float, float | None, str]:
    """The count that will end the training first; iterations without an end where only a return ends it."""
    limited = [(done, total, unit) for done, total, unit in _counts(stop, result) if total is not None]
    if not limited:
        return result[ITERATION], None, "iterations"
    return max(limited, key=lambda count: count[0] / count[1])


def _loss(result: Result) -> float | None:
    """None where no update of the iteration had a loss."""
    return cast("float | None", result["learners"]["default_policy"].get("total_loss"))


def _score(result: Result) -> float | None:
    return result.get("evaluation", {}).get("env_runners", {}).get(_SCORE)


def _own_score(result: Result) -> float | None:
    """The score, where it is of the weights after this iteration and not of earlier ones."""
    own = result.get("evaluation", {}).get(ITERATION) == result[ITERATION]
    return _score(result) if own else None
