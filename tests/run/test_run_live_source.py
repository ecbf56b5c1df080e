"""Trainings on episodes that their policy plays; test_run_algorithms.py adds recorded data and interruptions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from hindcast.api import OfflineRecording, OfflineTraining
from hindcast.errors import Interrupted, SpecError
from hindcast.models.policy import Policy
from hindcast.report import results
from hindcast.run.planning import plan
from hindcast.run.training.offline_trainer import make_offline_trainer
from hindcast.run.training.trainer import Trainer
from hindcast.storage.location import resolve
from run_results import read_results
from support import WALK, StopAfter, episode_hashes, read_all, record, recording, train, training

SAMPLER = {"timestepsPerUpdate": 3, "warmupTimesteps": 30}


def make_playing_training(folder: Path, **spec: Any) -> OfflineTraining:
    """Make a training of DQN only on episodes that it plays, for two iterations of 8 updates."""
    defaults = {
        "algorithm": "DQN",
        "config": {"trainBatchSizePerLearner": 16, "epsilon": [[0, 1.0], [40, 0.25]]},
        "environment": WALK,
        "input": [{"sampler": SAMPLER}],
        "pipeline": {"datasetNumItersPerLearner": 8},
        "stop": {"updates": 16},
    }
    return training(folder, "", **{**defaults, **spec})


def start_trainer(resource: OfflineTraining) -> Trainer:
    trainer = make_offline_trainer(resource, [])
    trainer.begin()
    return trainer


def test_sampler_alone_trains_in_environment(tmp_path: Path) -> None:
    outcome = train(make_playing_training(tmp_path, evaluation={"duration": 2}))
    assert outcome.metrics["updates"] == 16
    first_result, second_result, *_ = read_results(tmp_path)
    # After the warm-up of 30 timesteps, 3 are played between one update and the next.
    assert (
        30 + 7 * 3
        <= first_result["num_env_steps_sampled_lifetime"]
        < second_result["num_env_steps_sampled_lifetime"]
    )
    assert first_result["env_runners"]["num_episodes"] > second_result["env_runners"]["num_episodes"] > 0
    assert isinstance(first_result["env_runners"]["episode_return_mean"], float)
    assert "epoch" not in first_result
    assert second_result["num_env_steps_trained_lifetime"] == 16 * 16


def test_iteration_cut_short_counts_episodes_once(tmp_path: Path) -> None:
    for folder, ends in (("uninterrupted", [16]), ("interrupted", [3, 11, 16])):
        for end in ends:
            train(make_playing_training(tmp_path / folder, stop={"updates": end}))
    reference_results, resumed_results = (
        [
            (result["env_runners"], result["learners"], result["num_env_steps_sampled_lifetime"])
            for result in read_results(tmp_path / folder)
        ]
        for folder in ("uninterrupted", "interrupted")
    )
    assert resumed_results == reference_results


def test_stop_timesteps_count_trained_timesteps(tmp_path: Path) -> None:
    assert train(make_playing_training(tmp_path, stop={"timesteps": 160})).metrics["updates"] == 10


def test_more_timesteps_per_update_play_more_episodes(tmp_path: Path) -> None:
    sampler = {"timestepsPerUpdate": 30, "warmupTimesteps": 0, "envsPerRunner": 4}
    trainer = start_trainer(make_playing_training(tmp_path, input=[{"sampler": sampler}]))
    result = trainer.iterate()
    trainer.close()
    assert result["num_env_steps_sampled_lifetime"] >= 7 * 30
    assert result["env_runners"]["num_episodes"] % 4 == 0


def test_epsilon_decays_while_playing_and_is_saved_with_policy(tmp_path: Path) -> None:
    trainer = start_trainer(make_playing_training(tmp_path))
    module = trainer.policy.module
    assert module.epsilon == 0.25  # the final value, while the policy does not play
    epsilons = []
    for _ in range(6):
        trainer.learner.update(trainer.experience.next(), 16)
        epsilons.append(float(module.epsilon))
    trainer.policy.save(tmp_path / "policy")
    trainer.close()
    assert epsilons == sorted(epsilons, reverse=True)
    assert epsilons[0] > 0.25 == epsilons[-1]
    assert torch.equal(Policy.load(tmp_path / "policy").module.epsilon, module.epsilon)


def test_plan_shows_share_of_sampler(tmp_path: Path, walks: Path) -> None:
    inputs = [{"path": str(walks), "weight": 3}, {"sampler": SAMPLER, "weight": 1}]
    document = plan(make_playing_training(tmp_path, input=inputs), [])
    assert (document["inputs"], document["data"]["samplerShare"]) == ([str(walks)], 0.25)
    assert plan(make_playing_training(tmp_path), [])["inputs"] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "environment"), [("DQN", "toy_environments:Walk"), ("SAC", "toy_environments:SteeredWalk")]
)
def test_interrupted_expert_records_same_episodes(tmp_path: Path, algorithm: str, environment: str) -> None:
    def make_recording(folder: Path) -> OfflineRecording:
        train_policy = {
            "algorithm": algorithm,
            "config": {"trainBatchSizePerLearner": 8},
            "model": {"fcnetHiddens": [4]},
            "sampler": {"timestepsPerUpdate": 0.1, "warmupTimesteps": 20, "capacity": 100},
            "stop": {"timesteps": 220},
            "checkpointEvery": 1,
            "evaluation": {"duration": 2},
        }
        policy = {"train": train_policy}
        return recording(folder, environment={"id": environment}, policy=policy, duration={"episodes": 3})

    record(make_recording(tmp_path / "uninterrupted"))
    with pytest.raises(Interrupted):
        record(make_recording(tmp_path / "interrupted"), StopAfter(1))
    record(make_recording(tmp_path / "interrupted"))
    assert episode_hashes(read_all(tmp_path / "uninterrupted")) == episode_hashes(
        read_all(tmp_path / "interrupted")
    )
    lines = results.read_results(resolve(tmp_path / "uninterrupted/_hindcast/policy"))
    assert [line["num_updates_lifetime"] for line in lines] == [1000, 2000]
    assert 220 <= lines[-1]["num_env_steps_sampled_lifetime"] < 240


def test_custom_algorithm_that_cannot_train_online_is_refused(tmp_path: Path) -> None:
    spec = {"algorithm": "algorithm_toys:NStepQ", "config": {}, "customConfig": {}}
    with pytest.raises(
        SpecError, match=r"NStepQ learns from recorded data only: .* set can_train_online = True"
    ):
        start_trainer(make_playing_training(tmp_path, **spec))


def test_observation_filter_without_recorded_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        SpecError, match=r"observationFilter is MeanStd, .* from recorded data, but there are no"
    ):
        start_trainer(
            make_playing_training(tmp_path, model={"fcnetHiddens": [16], "observationFilter": "MeanStd"})
        )
