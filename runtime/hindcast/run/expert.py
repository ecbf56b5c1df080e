"""`policy.train`: trains the policy that a recording then plays, resumable at any moment.

The loop is not the one of an `OfflineTraining`: an expert is evaluated after every iteration, as it will be recorded,
its last weights are the ones that are kept, and an iteration is never left half done.
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
from hindcast.run.claim import CHECKPOINTS_FOLDER, title
from hindcast.run.interruption import Interruption
from hindcast.run.online_trainer import make_online_trainer
from hindcast.run.stop_criteria import should_stop
from hindcast.run.trainer import Trainer
from hindcast.run.training_callbacks import TrainingCallbacks
from hindcast.storage.location import Location

_KEPT_CHECKPOINTS = 2


def train_expert(
    resource: OfflineRecording,
    spec: TrainPolicy,
    folder: Location,
    reporter: Reporter,
    interruption: Interruption,
) -> None:
    """Train until a stop criterion holds; the policy is then in `folder/module`.

    Goes on at the latest checkpoint in `folder/checkpoints`, and ends with the same weights as if it had
    never been stopped.

    Raises:
        Interrupted: asked to stop; a checkpoint was written.
        UserError: what went wrong.
    """
    trainer = make_online_trainer(resource, spec, resource.spec.runners.envs_per_runner)
    for note in trainer.notes:
        reporter.note(title(resource), note)
    callbacks = TrainingCallbacks(resource.spec.callbacks)
    callbacks.algorithm = trainer
    evaluator = EnvEvaluator(
        resource.spec.environment,
        spec.evaluation.duration,
        explore=resource.spec.policy.explore,
        callbacks=resource.spec.callbacks,
    )
    store = CheckpointStore(folder.child(CHECKPOINTS_FOLDER), keep=_KEPT_CHECKPOINTS)
    store.remove_incomplete()
    if latest := store.latest():
        trainer.load(latest)
        callbacks.call("on_algorithm_init")
        callbacks.call("on_checkpoint_loaded")
        reporter.note(title(resource), f"the expert's training resumes after iteration {trainer.iteration}")
    else:
        trainer.begin()
        callbacks.call("on_algorithm_init")
    log = ResultsLog(folder, resume_at=trainer.iteration)
    result = log.results[-1] if log.results else None
    try:
        while result is None or not should_stop(spec.stop, result):
            result = iterate_and_evaluate(trainer, evaluator, resource.spec.seed, callbacks)
            log.append(result)
            reporter.progress(_progress(resource, spec.stop, result))
            if interruption.is_requested or trainer.iteration % spec.checkpoint_every == 0:
                trainer.save(store, {"episode_return_mean": _evaluated(result)})
            interruption.check()
    finally:
        log.close()
        trainer.close()
    trainer.policy.save(folder.child("module"))


def iterate_and_evaluate(
    trainer: Trainer, evaluator: EnvEvaluator, seed: int, callbacks: TrainingCallbacks | None = None
) -> Result:
    """One iteration, and the weights after it evaluated; its result. `seed` is the run's."""
    callbacks = callbacks or TrainingCallbacks()
    result = trainer.iterate()
    begun = time.monotonic()
    callbacks.call("on_evaluate_start")
    report = evaluator(trainer.policy, derive_seed(seed, "expert", trainer.iteration))
    result["evaluation"] = {ITERATION: trainer.iteration, "env_runners": report.summary()}
    callbacks.call("on_evaluate_end", evaluation_metrics=result["evaluation"])
    result["timers"]["evaluation_s"] = time.monotonic() - begun
    callbacks.call("on_train_result", result=result)
    return result


def _evaluated(result: Result) -> float:
    return float(result["evaluation"]["env_runners"]["episode_return_mean"])


def _progress(resource: OfflineRecording, stop: TrainStop, result: Result) -> Progress:
    sampled = result["num_env_steps_sampled_lifetime"]
    total, done, unit = stop.episode_return_mean, _evaluated(result), "return"
    if stop.iterations is not None:
        total, done, unit = float(stop.iterations), float(result[ITERATION]), "iterations"
    if stop.timesteps is not None:
        total, done, unit = float(stop.timesteps), float(sampled), "timesteps"
    return Progress(
        resource=title(resource),
        stage="Training the expert",
        done=done,
        total=total if stop.episode_return_mean is None else None,
        unit=unit,
        metrics={
            "return": _evaluated(result),
            "iteration": result[ITERATION],
            "timesteps": sampled,
            "timesteps_per_s": result["timesteps_per_s"],
        },
    )
