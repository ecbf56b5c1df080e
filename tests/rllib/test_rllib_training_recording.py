"""`train()` with an output records every episode that the policy learns from, each of them once, also after a kill."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from hindcast import AlgorithmConfig
from hindcast.datasets.opening import open_dataset
from hindcast.errors import OutputConflict
from hindcast.formats.dataset_folder.manifest import read_manifest
from hindcast.storage.location import resolve
from support import episode_hashes, leftovers, read_all
from toy_environments import Walk
from warm_python import WarmPython

ROOT = Path(__file__).parents[2]
OPTIONS = {
    "PPO": {"train_batch_size_per_learner": 64, "minibatch_size": 32, "num_epochs": 1},
    "DQN": {"train_batch_size_per_learner": 8, "num_steps_sampled_before_learning_starts": 20},
    "SAC": {"train_batch_size_per_learner": 8, "num_steps_sampled_before_learning_starts": 20},
}


def learner_config(algorithm: str, output: Path | str, **options: object) -> AlgorithmConfig:
    config = (
        AlgorithmConfig(algorithm)
        .environment("Pendulum-v1" if algorithm == "SAC" else Walk, max_episode_steps=10)
        .env_runners(num_envs_per_env_runner=4)
        .training(**OPTIONS[algorithm])
        .rl_module(model_config={"fcnet_hiddens": [8]})
        .evaluation(evaluation_duration=2)
        .offline_data(output=str(output), **{"output_max_rows_per_file": 4, **options})
    )
    return config if algorithm == "PPO" else config.offline_data(dataset_num_iters_per_learner=20)


def train(config: AlgorithmConfig, iterations: int) -> int:
    """Train, and return the number of timesteps played."""
    with config.build_algo() as algo:
        return [algo.train()["num_env_steps_sampled_lifetime"] for _ in range(iterations)][-1]


def modification_times(folder: Path) -> dict[str, int]:
    return {file.name: file.stat().st_mtime_ns for file in folder.glob("*.parquet")}


@pytest.mark.parametrize("algorithm", OPTIONS)
def test_every_episode_of_training_is_recorded_once(tmp_path: Path, algorithm: str) -> None:
    num_played = train(learner_config(algorithm, tmp_path), iterations=3)
    block = read_all(tmp_path)
    assert block.num_steps == num_played
    assert len(set(block.eps_id)) == block.num_episodes
    assert (block.terminated | block.truncated).all()
    assert "action_logp" in block.columns
    assert all(pq.ParquetFile(file).metadata.num_rows <= 4 for file in tmp_path.glob("*.parquet"))
    assert leftovers(tmp_path) == []


def test_episode_cut_by_rollout_is_truncated(tmp_path: Path) -> None:
    """64 timesteps in 4 environments are 16 in each: an episode of 10 timesteps, and 6 of the next one."""
    config = learner_config("PPO", tmp_path).environment(env_config={"shortest": 10, "longest": 10})
    train(config, iterations=1)
    block = read_all(tmp_path)
    assert sorted(block.length) == [6] * 4 + [10] * 4
    assert block.truncated[block.length == 6].all()


@pytest.mark.parametrize("algorithm", ["PPO", "DQN"])
def test_second_run_records_only_new_episodes(tmp_path: Path, algorithm: str) -> None:
    train(learner_config(algorithm, tmp_path / "again"), iterations=2)
    times_before = modification_times(tmp_path / "again")
    num_played = train(learner_config(algorithm, tmp_path / "again"), iterations=4)
    train(learner_config(algorithm, tmp_path / "uninterrupted"), iterations=4)
    second_block, expected_block = (read_all(tmp_path / name) for name in ("again", "uninterrupted"))
    assert second_block.num_steps == num_played
    assert episode_hashes(second_block) == episode_hashes(expected_block)
    assert times_before.items() <= modification_times(tmp_path / "again").items()


SCRIPT = """
import os, signal, sys
from pathlib import Path
from hindcast import RunningAlgorithm
from test_rllib_training_recording import learner_config
folder, killed_after = Path(sys.argv[1]), int(sys.argv[2])
saved = folder / "checkpoint"
config = learner_config("{algorithm}", folder / "data", output_max_rows_per_file=1000)
with (RunningAlgorithm.from_checkpoint(saved, config) if saved.exists() else config.build_algo()) as algo:
    while algo.iteration < 4:
        algo.train()
        if algo.iteration == 2:
            algo.save_to_path(saved)
        if algo.iteration == killed_after:
            os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.faults
@pytest.mark.parametrize("algorithm", ["PPO", "DQN"])
def test_killed_training_resumes_from_its_checkpoint(
    tmp_path: Path, warm: WarmPython, algorithm: str
) -> None:
    """Episodes that were not written before the kill are played and recorded again."""

    def run(killed_after: int) -> int:
        program = SCRIPT.format(algorithm=algorithm)
        command = [str(warm.folder / "python"), "-c", program, str(tmp_path), str(killed_after)]
        path = os.pathsep.join(str(ROOT / name) for name in ("runtime", "tests", "tests/rllib"))
        return subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, check=False).returncode

    assert run(killed_after=3) == -signal.SIGKILL
    num_steps_before = open_dataset(str(tmp_path / "data")).num_steps
    assert run(killed_after=-1) == 0
    num_played = train(learner_config(algorithm, tmp_path / "uninterrupted"), iterations=4)
    resumed_block, expected_block = (read_all(tmp_path / name) for name in ("data", "uninterrupted"))
    assert num_steps_before < resumed_block.num_steps == num_played
    assert set(episode_hashes(resumed_block).values()) == set(episode_hashes(expected_block).values())
    assert leftovers(tmp_path / "data") == []


class TestTrainingAndEvaluation:
    def test_evaluation_after_training_is_not_recorded(self, tmp_path: Path) -> None:
        with learner_config("PPO", tmp_path).build_algo() as algo:
            num_played = algo.train()["num_env_steps_sampled_lifetime"]
            for _ in range(2):
                assert algo.evaluate()["env_runners"]["num_episodes"] == 2
            assert [note for note in algo.notes if "evaluate() adds none" in note] == algo.notes
        assert open_dataset(str(tmp_path)).num_steps == num_played

    def test_training_after_evaluation_is_not_recorded(self, tmp_path: Path) -> None:
        with learner_config("PPO", tmp_path).build_algo() as algo:
            algo.evaluate()
            algo.train()
            assert "output: only evaluate() adds episodes to the dataset; train() records none" in algo.notes
        assert open_dataset(str(tmp_path)).num_episodes == 2

    @pytest.mark.parametrize("first_method", ["train", "evaluate"])
    def test_dataset_of_the_other_kind_raises(self, tmp_path: Path, first_method: str) -> None:
        second_method = {"train": "evaluate", "evaluate": "train"}[first_method]
        with learner_config("PPO", tmp_path).build_algo() as algo:
            getattr(algo, first_method)()
        with (
            learner_config("PPO", tmp_path).build_algo() as algo,
            pytest.raises(OutputConflict, match="contains episodes of"),
        ):
            getattr(algo, second_method)()

    def test_dataset_of_the_other_kind_is_replaced_on_request(self, tmp_path: Path) -> None:
        with learner_config("PPO", tmp_path).build_algo() as algo:
            algo.evaluate()
        num_played = train(learner_config("PPO", tmp_path, output_on_existing="Replace"), iterations=1)
        assert open_dataset(str(tmp_path)).num_steps == num_played
        assert leftovers(tmp_path) == []


def test_manifest_contains_the_trained_policy(tmp_path: Path) -> None:
    with learner_config("PPO", tmp_path).build_algo() as algo:
        first_digest = algo.get_policy().digest
        algo.train()
        last_digest = algo.get_policy().digest
    manifest = read_manifest(resolve(tmp_path))
    assert manifest is not None
    assert manifest.policy == {"digest": last_digest, "explore": True, "digests": [first_digest, last_digest]}


def test_sample_batches_have_packed_columns(tmp_path: Path) -> None:
    packed_columns = {"output_format": "SampleBatch", "output_compress_columns": ["obs"]}
    num_played = train(learner_config("PPO", tmp_path, **packed_columns), iterations=2)
    assert read_all(tmp_path).num_steps == num_played
