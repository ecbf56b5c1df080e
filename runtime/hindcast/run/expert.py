"""`policy.train`: trains the policy that a recording then plays, resumable at any moment."""

from __future__ import annotations

from hindcast.api import OfflineRecording, spec_hash
from hindcast.api.recording import TrainPolicy, TrainStop
from hindcast.learn.checkpoint import CheckpointStore
from hindcast.run.claim import title
from hindcast.run.events import Progress, Reporter
from hindcast.run.interruption import Interruption
from hindcast.run.online import OnlineTraining
from hindcast.run.results import ITERATION, Result, ResultsLog
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
    training = OnlineTraining(
        resource.spec.environment,
        spec,
        resource.spec.seed,
        resource.spec.runners.envs_per_runner,
        explore_in_evaluation=resource.spec.policy.explore,
        spec_hash=spec_hash(resource),
    )
    store = CheckpointStore(folder.child("checkpoints"), keep=_KEPT_CHECKPOINTS)
    store.remove_incomplete()
    if latest := store.latest():
        training.load(latest)
        reporter.note(title(resource), f"the expert's training goes on after iteration {training.iteration}")
    log = ResultsLog(folder, resume_at=training.iteration)
    result = log.results[-1] if log.results else None
    try:
        while result is None or not _reached(spec.stop, result):
            result = training.iterate(evaluate=True)
            log.append(result)
            reporter.progress(_progress(resource, spec.stop, result))
            if interruption.requested or training.iteration % spec.checkpoint_every == 0:
                training.save(store, {"episode_return_mean": _evaluated(result)})
            interruption.check()
    finally:
        log.close()
        training.close()
    training.policy.save(folder.child("module"))


def _reached(stop: TrainStop, result: Result) -> bool:
    if stop.episode_return_mean is not None and _evaluated(result) >= stop.episode_return_mean:
        return True
    if stop.timesteps is not None and result["num_env_steps_sampled_lifetime"] >= stop.timesteps:
        return True
    return stop.iterations is not None and result[ITERATION] >= stop.iterations


def _evaluated(result: Result) -> float:
    return float(result["evaluation"]["env_runners"]["episode_return_mean"])


def _progress(resource: OfflineRecording, stop: TrainStop, result: Result) -> Progress:
    total, done, unit = stop.episode_return_mean, _evaluated(result), "return"
    if stop.iterations is not None:
        total, done, unit = float(stop.iterations), float(result[ITERATION]), "iterations"
    if stop.timesteps is not None:
        total, done, unit = (
            float(stop.timesteps),
            float(result["num_env_steps_sampled_lifetime"]),
            "timesteps",
        )
    return Progress(
        resource=title(resource),
        stage="Training the expert",
        done=done,
        total=total if stop.episode_return_mean is None else None,
        unit=unit,
        metrics={
            "return": _evaluated(result),
            "iteration": result[ITERATION],
            "timesteps": result["num_env_steps_sampled_lifetime"],
            "timesteps_per_s": result["timesteps_per_s"],
        },
    )
