"""`RunningAlgorithm`: iterations, evaluations, checkpoints, and their components."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from hindcast import (
    COMPONENT_LEARNER,
    COMPONENT_LEARNER_GROUP,
    COMPONENT_RL_MODULE,
    DEFAULT_MODULE_ID,
    BCConfig,
    DefaultModelConfig,
    DQNConfig,
    IQLConfig,
    Policy,
    PPOConfig,
    RunningAlgorithm,
    register_env,
)
from hindcast.api import ModelOptions, ModelSpec
from hindcast.cluster import program
from hindcast.errors import DataError, SpecError
from toy_environments import Walk

MODEL = {"fcnet_hiddens": [8]}


def bc_config(data: Path) -> BCConfig:
    return (
        BCConfig()
        .environment(Walk)
        .offline_data(input_=data, dataset_num_iters_per_learner=10)
        .training(lr=1e-2, train_batch_size_per_learner=16)
        .rl_module(model_config=MODEL)
        .evaluation(evaluation_interval=2, evaluation_duration=3)
    )


def expert_config() -> PPOConfig:
    return (
        PPOConfig()
        .environment("CartPole-v1", max_episode_steps=30)
        .env_runners(num_envs_per_env_runner=4)
        .training(lr=1e-2, train_batch_size_per_learner=64, minibatch_size=32, num_epochs=2)
        .rl_module(model_config=MODEL)
    )


def recorder_config(folder: Path) -> BCConfig:
    config = BCConfig().environment("CartPole-v1", max_episode_steps=30).rl_module(model_config=MODEL)
    return config.offline_data(output=str(folder / "out"))


def test_python_has_the_networks_of_yaml_and_a_note_where_rllib_differs(walks: Path) -> None:
    def build_iql(**config: Any) -> tuple[ModelSpec, list[str]]:
        algorithm = IQLConfig().environment(Walk).offline_data(input_=walks).rl_module(**config)
        with algorithm.build_algo() as algo:
            return algo.get_module().model_config, algo.notes

    model, notes = build_iql()
    assert (model.fcnet_activation, model.free_log_std) == ("relu", True)
    assert any("preset RLlib restores RLlib's" in note for note in notes)
    assert IQLConfig().environment(Walk).offline_data(input_=walks).to_resource().spec.model == ModelOptions()
    for rllib_config in (DefaultModelConfig(), {"preset": "rllib"}):
        model, notes = build_iql(model_config=rllib_config)
        assert model.model_copy(update={"vf_share_layers": False}) == ModelSpec()
        assert not any("preset RLlib" in note for note in notes)


@pytest.mark.parametrize(
    ("model_config", "has_note"), [(DefaultModelConfig(), False), ({"preset": "rllib"}, True)]
)
def test_only_a_preset_of_the_user_is_said_to_have_no_effect(
    walks: Path, model_config: Any, has_note: bool
) -> None:
    config = BCConfig().environment(Walk).offline_data(input_=walks).rl_module(model_config=model_config)
    with config.build_algo() as algo:
        assert any("preset has no effect" in note for note in algo.notes) == has_note


def get_weights(algo: RunningAlgorithm) -> dict[str, torch.Tensor]:
    return algo.get_module().get_state()


def are_equal(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def drop_times(result: dict[str, Any]) -> dict[str, Any]:
    time_keys = ("timers", "time_total_s", "timesteps_per_s")
    return {name: value for name, value in result.items() if name not in time_keys}


class TestTraining:
    def test_result_has_rllib_names(self, walks: Path) -> None:
        with bc_config(walks).build_algo() as algo:
            first_result, second_result, third_result = algo.train(), algo.train(), algo.train()
        assert algo.iteration == 3
        assert first_result["training_iteration"] == 1
        assert first_result["num_env_steps_trained_lifetime"] == 160
        assert "policy_loss" in first_result["learners"]["default_policy"]
        assert "evaluation" not in first_result
        assert second_result["evaluation"]["training_iteration"] == 2
        assert second_result["evaluation"]["env_runners"]["num_episodes"] == 3
        assert third_result["evaluation"] == second_result["evaluation"]

    @pytest.mark.slow
    def test_held_out_episodes_are_evaluated_at_their_interval_and_after_restore(
        self, walks: Path, tmp_path: Path
    ) -> None:
        config = bc_config(walks).evaluation(evaluation_interval=None, offline_evaluation_interval=2)
        config.evaluation(offline_evaluation_held_out=0.4, offline_evaluation_explore=True)
        config.evaluation(off_policy_estimation_methods=["wis"])
        with config.build_algo() as algo:
            results = [algo.train() for _ in range(3)]
            assert "offline" not in results[0].get("evaluation", {})
            evaluation = results[1]["evaluation"]["offline"]
            assert evaluation["training_iteration"] == 2
            assert evaluation["estimated_return"] == evaluation["estimates"]["wis"]["value"]
            assert results[2]["evaluation"]["offline"] == evaluation
            folder = algo.save_to_path(tmp_path / "saved")
            expected = algo.evaluate_offline()
        with config.build_algo() as restored_algo:
            restored_algo.restore_from_path(folder)
            assert restored_algo.evaluate_offline() == expected
            assert restored_algo.train()["evaluation"]["offline"]["training_iteration"] == 4

    def test_evaluate_offline_without_held_out_episodes_raises(self, walks: Path) -> None:
        with (
            bc_config(walks).build_algo() as algo,
            pytest.raises(SpecError, match="offline_evaluation_held_out is m"),
        ):
            algo.evaluate_offline()

    def test_online_algorithm_with_held_out_episodes_raises(self) -> None:
        config = expert_config().evaluation(offline_evaluation_interval=1, offline_evaluation_held_out=0.1)
        with pytest.raises(
            SpecError, match=r"^offline_evaluation_interval does not apply to PPO, which learns from"
        ):
            config.build_algo()

    @pytest.mark.slow
    def test_parallel_evaluation_belongs_to_previous_iteration(self, walks: Path) -> None:
        config = bc_config(walks).evaluation(evaluation_parallel_to_training=True)
        with bc_config(walks).build_algo() as algo:
            expected = [algo.train() for _ in range(3)][-1]["evaluation"]
        with config.build_algo() as algo:
            results = [algo.train() for _ in range(3)]
        assert "evaluation" not in results[1]
        assert results[2]["evaluation"] == expected

    def test_online_training_samples_one_batch_and_evaluates_on_request(self) -> None:
        with expert_config().build_algo() as algo:
            result = algo.train()
            assert "evaluation" not in result
            assert result["num_env_steps_sampled_lifetime"] == 64
            assert algo.evaluate()["env_runners"]["num_episodes"] == 10

    def test_online_training_evaluates_at_its_interval(self) -> None:
        with expert_config().evaluation(evaluation_interval=2, evaluation_duration=3).build_algo() as algo:
            first_result, second_result = algo.train(), algo.train()
        assert "evaluation" not in first_result
        assert second_result["evaluation"]["env_runners"]["num_episodes"] == 3

    def test_training_without_environment_uses_spaces(self, walks: Path) -> None:
        config = (
            BCConfig()
            .environment(observation_space=Walk.observation_space, action_space=Walk.action_space)
            .offline_data(input_=walks, dataset_num_iters_per_learner=1)
        )
        with config.build_algo() as algo:
            algo.train()
            with pytest.raises(SpecError, match="env is missing"):
                algo.evaluate()

    def test_later_changes_of_config_have_no_effect(self, walks: Path) -> None:
        config = bc_config(walks)
        with config.build_algo() as algo:
            config.training(lr=9.0)
            assert algo.config["lr"] == 1e-2

    def test_config_after_build_is_frozen(self, walks: Path) -> None:
        with bc_config(walks).build_algo() as algo, pytest.raises(SpecError, match="the config is frozen"):
            algo.config.lr = 9.0

    def test_build_algo_accepts_an_environment(self) -> None:
        frozen_config = expert_config()
        frozen_config.freeze()
        with frozen_config.build(env=Walk) as algo:
            assert algo.config.env is Walk

    def test_error_for_data_without_next_observations_names_the_options(self, tmp_path: Path) -> None:
        rows = [
            {"eps_id": "a", "t": t, "obs": [0.1 * t] * 4, "actions": t % 2, "rewards": 1.0}
            | {"terminated": False, "truncated": t == 4}
            for t in range(5)
        ]
        (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
        config = BCConfig().environment("CartPole-v1").offline_data(input_=tmp_path / "rows.jsonl")
        with pytest.raises(DataError) as error:
            config.build_algo()
        assert 'set input_prepare={"cut_off_steps": "Drop"}' in str(error.value)
        assert "column under `input_read_schema`; or" in str(error.value)
        assert "set ignore_final_observation=True to repeat" in str(error.value)
        config.offline_data(input_prepare={"cut_off_steps": "Drop"})
        with config.build_algo() as algo:
            assert algo.offline_data.epoch_timesteps == 4
        with pytest.raises(SpecError, match=r"""input_prepare\["gaps"\] is 'Cut'"""):
            config.offline_data(input_prepare={"gaps": "Cut"}).validate()

    def test_options_without_effect_are_noted(self, walks: Path, caplog: pytest.LogCaptureFixture) -> None:
        config = bc_config(walks).env_runners(batch_mode="complete_episodes")
        config.offline_data(map_batches_kwargs={"concurrency": 2, "zero_copy_batch": True})
        with config.build_algo() as algo:
            notes = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
            assert notes == algo.notes == config.replaced_options
        assert [line.split(":")[0] for line in notes] == ["batch_mode", *["map_batches_kwargs"] * 2]

    def test_options_that_networks_lack_are_noted(self, walks: Path, tmp_path: Path) -> None:
        model = DefaultModelConfig(fcnet_hiddens=[8], log_std_min=-3.0, frame_stack=2)
        noted_options = ["model_config.log_std_min has no effect: the policy has no standard deviations"]
        training = bc_config(walks).rl_module(model_config=model)
        recorder = BCConfig().environment(Walk).offline_data(output=str(tmp_path / "out"))
        for config in (training, recorder.rl_module(model_config=model)):
            with config.build_algo() as algo:
                assert algo.notes[: len(noted_options)] == noted_options
                assert not [note for note in algo.notes if "vf_share_layers" in note]

    def test_padding_is_noted_only_if_it_was_set(self, walks: Path) -> None:
        """Neither option has an effect, since the data have no images. `conv_padding` follows from `conv_filters`."""
        with bc_config(walks).rl_module(model_config={"conv_filters": [[4, 3, 1]]}).build_algo() as algo:
            notes = [note for note in algo.notes if "conv_" in note]
        assert notes == ["model_config.conv_filters has no effect: no observation is an image"]
        with bc_config(walks).rl_module(model_config={"conv_padding": "same"}).build_algo() as algo:
            assert "model_config.conv_padding has no effect: no observation is an image" in algo.notes

    def test_training_on_data_with_output_is_noted_once(self, walks: Path, tmp_path: Path) -> None:
        with bc_config(walks).offline_data(output=str(tmp_path / "out")).build_algo() as algo:
            notes_before = list(algo.notes)
            algo.train()
            algo.train()
        note = "output: only evaluate() adds episodes to the dataset; train() records none"
        assert algo.notes[len(notes_before) :] == [note]

    @pytest.mark.ray
    @pytest.mark.usefixtures("ray_here")
    @pytest.mark.parametrize("num_nodes", [1, 2])
    def test_two_learners_follow_weights_that_the_user_sets(
        self, walks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_nodes: int
    ) -> None:
        """The other learner is a process here, or an actor; the second algorithm has one, and the same batches."""
        monkeypatch.setattr(program, "is_driver_of_cluster", lambda: num_nodes > 1)
        results, policies = [], []
        for num_learners, batch_size in ((2, 16), (1, 32)):
            config = bc_config(walks).learners(num_learners=num_learners, num_gpus_per_learner=0)
            config.training(train_batch_size_per_learner=batch_size, lr=1e-3)
            with config.build_algo() as algo:
                algo.train()
                weights = algo.learner_group.get_weights()
                halved = {name: tensor / 2 for name, tensor in weights["default_policy"].items()}
                algo.learner_group.set_weights({"default_policy": halved})
                results.append(algo.train()["learners"]["default_policy"]["total_loss"])
                algo.restore_from_path(algo.save_to_path(tmp_path / str(num_learners)))
                algo.train()
                policies.append(get_weights(algo))
        assert results[0] == pytest.approx(results[1], rel=1e-4)
        for name, tensor in policies[1].items():
            np.testing.assert_allclose(policies[0][name], tensor, rtol=1e-3, atol=1e-5)


class TestCheckpoints:
    def test_resume_after_half_the_updates_repeats_the_other_half(self, walks: Path, tmp_path: Path) -> None:
        with bc_config(walks).build_algo() as uninterrupted_algo:
            results = [uninterrupted_algo.train() for _ in range(10)]
            final_weights = get_weights(uninterrupted_algo)
        with bc_config(walks).build_algo() as first_algo:
            for _ in range(5):
                first_algo.train()
            path = first_algo.save_to_path(tmp_path / "half")
        assert path == str(tmp_path / "half")
        with bc_config(walks).build_algo() as second_algo:
            second_algo.restore_from_path(path)
            assert second_algo.iteration == 5
            resumed_results = [second_algo.train() for _ in range(5)]
            assert are_equal(get_weights(second_algo), final_weights)
        assert resumed_results[-1]["num_updates_lifetime"] == 100
        assert [*map(drop_times, resumed_results)] == [*map(drop_times, results[5:])]

    @pytest.mark.slow
    def test_resume_repeats_a_running_evaluation(self, walks: Path, tmp_path: Path) -> None:
        config = bc_config(walks).evaluation(evaluation_parallel_to_training=True)
        with config.build_algo() as algo:
            for _ in range(2):
                algo.train()
            path = algo.save_to_path(tmp_path / "ck")
            expected = algo.train()["evaluation"]
        with config.build_algo() as algo:
            algo.restore_from_path(path)
            assert algo.train()["evaluation"] == expected

    def test_resume_of_online_training_is_exact(self, tmp_path: Path) -> None:
        with expert_config().build_algo() as algo:
            algo.train()
            path = algo.save_to_path(tmp_path / "ck")
            expected, final_weights = algo.train(), get_weights(algo)
        with expert_config().build_algo() as algo:
            algo.restore_from_path(path)
            assert drop_times(algo.train()) == drop_times(expected)
            assert are_equal(get_weights(algo), final_weights)

    def test_save_without_path_creates_a_folder(self) -> None:
        with expert_config().build_algo() as algo:
            path = algo.save_to_path()
            assert Policy.load(path).digest == algo.get_policy().digest

    def test_save_overwrites_only_a_checkpoint(self, tmp_path: Path) -> None:
        with expert_config().build_algo() as algo:
            algo.save_to_path(tmp_path / "ck")
            algo.train()
            algo.save_to_path(tmp_path / "ck")
            (tmp_path / "mine").mkdir()
            (tmp_path / "mine" / "notes.txt").write_text("mine")
            with pytest.raises(DataError, match=r"contains notes\.txt and is not a checkpoint"):
                algo.save_to_path(tmp_path / "mine")
        assert (tmp_path / "mine" / "notes.txt").read_text() == "mine"
        with expert_config().build_algo() as algo:
            algo.restore_from_path(tmp_path / "ck")
            assert algo.iteration == 1


class TestComponents:
    @pytest.fixture(scope="class")
    @staticmethod
    def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
        path = tmp_path_factory.mktemp("component") / "ck"
        with expert_config().build_algo() as algo:
            algo.train()
            algo.save_to_path(path)
        return path

    @pytest.mark.parametrize(
        "component",
        [
            COMPONENT_RL_MODULE,
            f"{COMPONENT_LEARNER_GROUP}/{COMPONENT_LEARNER}/{COMPONENT_RL_MODULE}/default_policy",
        ],
    )
    def test_restore_of_policy_keeps_optimisers(self, checkpoint: Path, component: str) -> None:
        with expert_config().build_algo() as algo:
            algo.restore_from_path(checkpoint, component=component)
            assert algo.iteration == 0
            assert algo.get_policy().digest == Policy.load(checkpoint).digest
            assert algo.get_module(DEFAULT_MODULE_ID) is algo.get_policy().module

    def test_restore_of_policy_resets_target_network(self, walks: Path, tmp_path: Path) -> None:
        def config(seed: int) -> DQNConfig:
            return DQNConfig().environment("toy_environments:Walk").debugging(seed=seed)

        with config(5).offline_data(input_=str(walks)).build_algo() as algo:
            algo.save_to_path(tmp_path / "saved")
        with config(6).offline_data(input_=str(walks)).build_algo() as algo:
            algo.restore_from_path(tmp_path / "saved", component=COMPONENT_RL_MODULE)
            policy, target = (algo._trainer.learner.nets[name] for name in ("policy", "target"))
            for name, tensor in policy.values.state_dict().items():
                assert torch.equal(target.state_dict()[name], tensor), name

    def test_restore_of_learner_includes_optimisers(self, checkpoint: Path) -> None:
        with expert_config().build_algo() as algo:
            algo.restore_from_path(checkpoint, component=COMPONENT_LEARNER)
            assert algo.iteration == 0
            assert algo._trainer.learner.updates == 4

    def test_restore_accepts_a_module_folder(self, checkpoint: Path) -> None:
        with expert_config().build_algo() as algo:
            algo.restore_from_path(checkpoint / "module", component=COMPONENT_RL_MODULE)
            assert algo.get_policy().digest == Policy.load(checkpoint).digest

    def test_bc_acts_with_restored_policy_of_ppo_and_cannot_train_without_data(
        self, checkpoint: Path, tmp_path: Path
    ) -> None:
        with recorder_config(tmp_path).build_algo() as algo:
            algo.restore_from_path(checkpoint, component=COMPONENT_RL_MODULE)
            observation = np.array([0.1, 0.2, 0.3, 0.4], dtype=np.float32)
            assert algo.get_policy()(observation) == Policy.load(checkpoint)(observation)
            with pytest.raises(SpecError, match="BC has nothing to train on"):
                algo.train()

    def test_ppo_with_restored_policy_of_bc_keeps_its_value_head(
        self, checkpoint: Path, tmp_path: Path
    ) -> None:
        with recorder_config(tmp_path).build_algo() as algo:
            algo.save_to_path(tmp_path / "clone")
        with expert_config().build_algo() as algo:
            algo.restore_from_path(tmp_path / "clone", component=COMPONENT_RL_MODULE)
            assert "has no value head" in algo.notes[0]

    @pytest.mark.parametrize(
        ("method", "options", "message"),
        [
            ("rl_module", {"model_config": MODEL | {"fcnet_activation": "relu"}}, "fcnet_activation='tanh'"),
            ("rl_module", {"model_config": {"fcnet_hiddens": [9]}}, "fcnet_hiddens=[8]"),
            ("rl_module", {"model_config": MODEL | {"vf_share_layers": True}}, "vf_share_layers=False"),
            ("environment", {"env": "Acrobot-v1"}, "it belongs to another environment"),
            ("environment", {"env": "CartPole-v1", "clip_actions": True}, "clipActions False between"),
        ],
    )
    def test_restore_of_policy_that_does_not_match_raises_and_changes_nothing(
        self, checkpoint: Path, method: str, options: dict[str, Any], message: str
    ) -> None:
        with getattr(expert_config(), method)(**options).build_algo() as algo:
            weights_before = get_weights(algo)
            for component in (COMPONENT_RL_MODULE, None):
                with pytest.raises(DataError) as error:
                    algo.restore_from_path(checkpoint, component=component)
                assert message in str(error.value)
            assert are_equal(get_weights(algo), weights_before)

    def test_restore_of_missing_checkpoint_or_component_raises(
        self, checkpoint: Path, tmp_path: Path, walks: Path
    ) -> None:
        with expert_config().build_algo() as algo:
            with pytest.raises(DataError, match="there is no checkpoint at"):
                algo.restore_from_path(tmp_path / "none", component=COMPONENT_RL_MODULE)
            with pytest.raises(DataError, match="there is no complete checkpoint at"):
                algo.restore_from_path(checkpoint.parent / "ck" / "module")
            (tmp_path / "clone" / "r10").mkdir(parents=True)
            (tmp_path / "clone" / "r9").mkdir()
            with pytest.raises(DataError, match=r"clone is not a run, but contains .*: name .*clone/r10"):
                algo.restore_from_path(tmp_path / "clone")
            with pytest.raises(SpecError, match="component is 'env_runner', which is not in checkpoints"):
                algo.restore_from_path(checkpoint, component="env_runner")
            with pytest.raises(SpecError, match="the only module is"):
                algo.get_module("other")
            for restore in (algo.restore, algo.restore_from_path):
                with pytest.raises(SpecError, match=r"^the path is 3, expected text or a pathlib\.Path"):
                    restore(3)
            with pytest.raises(SpecError, match="the path is None, expected"):
                algo.restore_from_path(None, component=COMPONENT_RL_MODULE)
        with (
            bc_config(walks).build_algo() as algo,
            pytest.raises(DataError, match="a checkpoint of PPO, but this is BC"),
        ):
            algo.restore_from_path(checkpoint)


class TestReferenceNames:
    def test_restore_accepts_result_and_path_of_save(self, walks: Path, tmp_path: Path) -> None:
        with bc_config(walks).build_algo() as first_algo:
            first_algo.train()
            save_result = first_algo.save(tmp_path / "saved")
            expected = get_weights(first_algo)
        assert save_result.checkpoint.path == str(tmp_path / "saved")
        for restored_from in (save_result, save_result.checkpoint.path):
            with bc_config(walks).build_algo() as second_algo:
                second_algo.restore(restored_from)
                assert second_algo.iteration == 1
                assert are_equal(get_weights(second_algo), expected)

    def test_from_checkpoint_restores_the_config_and_continues(self, walks: Path, tmp_path: Path) -> None:
        env_config = {"longest": 8}
        with bc_config(walks).environment(env_config=env_config).build_algo() as first_algo:
            env_config["longest"] = 3
            first_algo.train()
            first_algo.save_to_path(tmp_path / "saved")
            expected = drop_times(first_algo.train())
        with RunningAlgorithm.from_checkpoint(tmp_path / "saved") as second_algo:
            assert second_algo.config.to_resource() == first_algo.config.to_resource()
            assert second_algo.config.env_config == {"longest": 8}
            assert drop_times(second_algo.train()) == expected

    def test_from_checkpoint_with_incomplete_config_requires_the_config(self, tmp_path: Path) -> None:
        config = expert_config().environment(env_config={"render_mode": object()})
        folder = tmp_path / "saved"
        with expert_config().build_algo() as algo:
            algo.config = config
            algo.save_to_path(folder)
        with pytest.raises(
            DataError, match=r"has no env_config: pass the config, from_checkpoint\(path, con"
        ):
            RunningAlgorithm.from_checkpoint(folder)
        with RunningAlgorithm.from_checkpoint(folder, expert_config()) as algo:
            assert algo.iteration == 0

    def test_offline_data_exists_only_with_data(self, walks: Path) -> None:
        with bc_config(walks).build_algo() as algo:
            assert algo.offline_data is not None
            assert algo.offline_data.batch_size == 16
        with expert_config().build_algo() as algo:
            assert algo.offline_data is None

    def test_removed_attributes_name_their_replacement(self) -> None:
        with expert_config().build_algo() as algo:
            with pytest.raises(SpecError, match=r"workers does not exist: env_runner_group"):
                algo.workers.foreach_worker(print)
            with pytest.raises(SpecError, match=r"compute_single_action does not exist: get_policy"):
                algo.compute_single_action([0.0])
            assert not hasattr(algo, "workers")
            assert not hasattr(algo, "no_such_thing")


class TestGroups:
    def test_learner_group_gets_and_sets_weights(self, walks: Path) -> None:
        with bc_config(walks).build_algo() as algo:
            weights_before = algo.learner_group.get_weights()
            algo.train()
            (updates,) = algo.learner_group.foreach_learner(lambda learner: learner.updates)
            assert updates == algo._trainer.learner.updates
            (module,) = algo.learner_group.foreach_learner(lambda learner: learner.module["default_policy"])
            assert module is algo.get_module()
            assert not are_equal(get_weights(algo), weights_before["default_policy"])
            algo.learner_group.set_weights(weights_before)
            assert are_equal(get_weights(algo), weights_before["default_policy"])

    def test_set_weights_of_other_module_raises(self, walks: Path) -> None:
        with bc_config(walks).build_algo() as algo:
            with pytest.raises(SpecError, match="weights are for other: the only module is 'default_policy'"):
                algo.learner_group.set_weights({"other": {}})
            with pytest.raises(SpecError, match="the weights do not match this model: "):
                algo.learner_group.set_weights({"default_policy": {}})

    def test_local_env_runner_plays_the_same_complete_episodes_in_one_call_or_several(self) -> None:
        with expert_config().build_algo() as algo, expert_config().build_algo() as other_algo:
            runner = algo.env_runner_group.local_env_runner
            first_episodes, last_episodes = runner.sample(num_episodes=2), runner.sample(num_episodes=1)
            assert len({episode.id_ for episode in first_episodes + last_episodes}) == 3
            assert all(episode.is_done for episode in first_episodes + last_episodes)
            runners = other_algo.env_runner_group
            (other_episodes,) = runners.foreach_env_runner(lambda runner: runner.sample(num_episodes=3))
            for episode, other_episode in zip(first_episodes + last_episodes, other_episodes, strict=True):
                np.testing.assert_array_equal(episode.get_observations(), other_episode.get_observations())
            assert sum(map(len, runner.sample(num_timesteps=50))) >= 50
            with pytest.raises(SpecError, match="pass num_episodes or num_timesteps"):
                runner.sample()


class TestInitialCheckpoint:
    def test_initial_checkpoint_sets_weights_of_expert(self, tmp_path: Path) -> None:
        with expert_config().debugging(seed=5).build_algo() as algo:
            algo.save_to_path(tmp_path / "saved")
            expected = get_weights(algo)
        with expert_config().training(initial_checkpoint=str(tmp_path / "saved")).build_algo() as algo:
            assert are_equal(get_weights(algo), expected)

    def test_initial_checkpoint_sets_weights_of_recorded_policy(self, tmp_path: Path) -> None:
        with recorder_config(tmp_path).debugging(seed=5).build_algo() as algo:
            algo.save_to_path(tmp_path / "saved")
            expected = get_weights(algo)
        config = recorder_config(tmp_path).training(initial_checkpoint=str(tmp_path / "saved"))
        with config.build_algo() as algo:
            assert are_equal(get_weights(algo), expected)

    def test_missing_initial_checkpoint_raises(self, walks: Path, tmp_path: Path) -> None:
        for config in (expert_config(), recorder_config(tmp_path), bc_config(walks)):
            config.training(initial_checkpoint="DOES_NOT_EXIST")
            with pytest.raises(DataError, match=r"(initialCheckpoint|initial_checkpoint): .*DOES_NOT_EXIST"):
                config.build_algo()


class TestEnvironments:
    def test_importable_class_has_its_import_path(self, walks: Path) -> None:
        assert bc_config(walks).to_resource().spec.environment.id == "toy_environments:Walk"

    def test_local_class_works_in_this_process(self) -> None:
        class LocalWalk(Walk):
            """An environment that other processes cannot import."""

        config = expert_config().environment(LocalWalk, env_config={"longest": 4})
        for _ in range(2):
            with config.build_algo() as algo:
                assert algo.evaluate()["env_runners"]["episode_len_mean"] <= 4

    @pytest.mark.slow
    def test_local_class_is_registered_in_evaluation_processes(self, walks: Path) -> None:
        class LocalWalk(Walk):
            """An environment that other processes cannot import."""

        config = bc_config(walks).environment(LocalWalk, env_config={"longest": 4})
        config.evaluation(evaluation_interval=1, evaluation_duration=2, evaluation_parallel_to_training=True)
        with config.build_algo() as algo:
            algo.train()
            evaluation = algo.train()["evaluation"]
        assert evaluation["training_iteration"] == 1
        assert evaluation["env_runners"]["episode_len_mean"] <= 4
        with pytest.raises(SpecError, match="LocalWalk cannot be imported by name"):
            config.to_resource()

    def test_local_classes_of_one_name_are_distinct(self) -> None:
        classes = [type("Twin", (Walk,), {"action_space": gym.spaces.Discrete(n)}) for n in (2, 5)]
        plans = [expert_config().environment(local_class).plan().training for local_class in classes]
        assert plans[0].spec.environment.id != plans[1].spec.environment.id

    def test_registered_creator_gets_env_config_as_one_dictionary_and_may_be_replaced(self) -> None:
        register_env("walk-by-name", lambda config: Walk(**config))
        with expert_config().environment("walk-by-name", env_config={"longest": 4}).build_algo() as algo:
            assert algo.evaluate()["env_runners"]["episode_len_mean"] <= 4
        register_env("walk-by-name", lambda config: Walk(shortest=20, longest=20))
        with expert_config().environment("walk-by-name").build_algo() as algo:
            assert algo.evaluate()["env_runners"]["episode_len_mean"] == 20

    def test_registered_name_is_portable_with_the_config(self) -> None:
        register_env("walk-that-travels", Walk)
        options = expert_config().environment("walk-that-travels").to_dict()
        assert options["env"].creator is Walk
        resource = PPOConfig().update_from_dict(options).offline_data(output="o").to_resource()
        assert resource.spec.environment.id == "walk-that-travels"

    def test_register_env_with_gymnasium_name_raises(self) -> None:
        with pytest.raises(SpecError, match="Gymnasium already has an environment 'CartPole-v1'"):
            register_env("CartPole-v1", Walk)
