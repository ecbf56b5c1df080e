"""Training of the expert that a recording then plays (`policy.train`), resumable at any moment.

The loop differs from that of an `OfflineTraining`: an expert is evaluated after every iteration, with the exploration
of the recording; its last weights are used; and an iteration is always completed.
"""

from __future__ import annotations

import time

from hindcast.api import OfflineRecording
from hindcast.api.recording import TrainPolicy, TrainStop
from hindcast.evaluate.environment import EnvEvaluator
from hindcast.learn.checkpoint import CheckpointStore
from hindcast.pipeline.rng import derive_seed
from hindcast.report.events import Progress, Reporter
from hindcast.report.results import ITERATION, Result, ResultsLog
from hindcast.run.callbacks import TrainingCallbacks
from hindcast.run.claim import CHECKPOINTS_FOLDER, title
from hindcast.run.interruption import Interruption
from hindcast.run.stop_criteria import should_stop
from hindcast.run.training.online_trainer import make_online_trainer
from hindcast.run.training.trainer import Trainer
from hindcast.storage.location import Location

_NUM_CHECKPOINTS = 2
"""Number of checkpoints to keep."""


def train_expert(
    resource: OfflineRecording,
    spec: TrainPolicy,
    folder: Location,
    reporter: Reporter,
    interruption: Interruption,
) -> None:
    """Train until a stop criterion holds, then write the policy to `folder/module`.

    Resumes from the latest checkpoint in `folder/checkpoints`, and ends with the same weights as an uninterrupted
    training.

    Args:
        resource: the recording.
        spec: the recording's `policy.train`.
        folder: folder of the policy in the dataset.
        reporter: receives progress and notes.
        interruption: checked after each iteration.

    Raises:
        Interrupted: a stop was requested; a checkpoint was written.
        UserError: the training failed.
    """
    trainer = make_online_trainer(resource, spec, resource.spec.runners.envs_per_runner)
    for note in trainer.notes:
        reporter.note(title(resource), str(note))
    callbacks = TrainingCallbacks(resource.spec.callbacks)
    callbacks.algorithm = trainer
    evaluator = EnvEvaluator(
        resource.spec.environment,
        spec.evaluation.duration,
        explore=resource.spec.policy.explore,
        callbacks=resource.spec.callbacks,
    )
    store = CheckpointStore(folder.child(CHECKPOINTS_FOLDER), keep=_NUM_CHECKPOINTS)
    store.remove_incomplete()
    if latest_checkpoint := store.latest():
        trainer.load(latest_checkpoint)
        callbacks.start(resource, str(folder))
        callbacks.call("on_checkpoint_loaded")
        reporter.note(title(resource), f"the expert's training resumes after iteration {trainer.iteration}")
    else:
        trainer.begin()
        callbacks.start(resource, str(folder))
    saved_iteration = trainer.iteration
    log = ResultsLog(folder, resume_at=trainer.iteration)
    result = log.results[-1] if log.results else None
    try:
        while result is None or not should_stop(spec.stop, result):
            result = iterate_and_evaluate(trainer, evaluator, resource.spec.seed, callbacks)
            log.append(result)
            reporter.progress(_make_progress(resource, spec.stop, result, saved_iteration))
            # Saved before check() raises, so that no completed iteration is lost.
            if interruption.is_requested or trainer.iteration % spec.checkpoint_every == 0:
                trainer.save(store, {"episode_return_mean": _mean_return(result)})
                saved_iteration = trainer.iteration
            interruption.check()
    finally:
        log.close()
        trainer.close()
    trainer.policy.save(folder.child("module"))


def iterate_and_evaluate(
    trainer: Trainer, evaluator: EnvEvaluator, seed: int, callbacks: TrainingCallbacks | None = None
) -> Result:
    """Train one iteration, evaluate the new weights and return the result; `seed` is the seed of the run."""
    callbacks = callbacks or TrainingCallbacks()
    result = trainer.iterate()
    start_time = time.monotonic()
    callbacks.call("on_evaluate_start")
    report = evaluator(trainer.policy, derive_seed(seed, "expert", trainer.iteration))
    result["evaluation"] = {ITERATION: trainer.iteration, "env_runners": report.summary()}
    callbacks.call("on_evaluate_end", evaluation_metrics=result["evaluation"])
    result["timers"]["evaluation_s"] = time.monotonic() - start_time
    callbacks.call("on_train_result", result=result)
    return result


def _mean_return(result: Result) -> float:
    return float(result["evaluation"]["env_runners"]["episode_return_mean"])


def _make_progress(
    resource: OfflineRecording, stop: TrainStop, result: Result, saved_iteration: int
) -> Progress:
    """Return the progress towards `stop.timesteps`, else towards `stop.iterations`, else towards the return."""
    num_sampled = result["num_env_steps_sampled_lifetime"]
    total, amount_done, unit = stop.episode_return_mean, _mean_return(result), "return"
    if stop.iterations is not None:
        total, amount_done, unit = float(stop.iterations), float(result[ITERATION]), "iterations"
    if stop.timesteps is not None:
        total, amount_done, unit = float(stop.timesteps), float(num_sampled), "timesteps"
    # A training with a stop criterion on the return has no total, because it may end at any iteration.
    return Progress(
        resource=title(resource),
        stage="Training the expert",
        done=amount_done,
        total=total if stop.episode_return_mean is None else None,
        unit=unit,
        metrics={
            "return": _mean_return(result),
            "iteration": result[ITERATION],
            "timesteps": num_sampled,
            "timesteps_per_s": result["timesteps_per_s"],
        },
        saved_amount=saved_iteration,
    )
