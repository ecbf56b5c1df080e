"""`RunningAlgorithm`: iterations, evaluations, checkpoints, and parts of them."""

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
    Policy,
    PPOConfig,
    RunningAlgorithm,
    register_env,
)
from hindcast.errors import DataError, SpecError
from toy_environments import Walk

MODEL = {"fcnet_hiddens": [8]}


def clone(data: Path) -> BCConfig:
    return (
        BCConfig()
        .environment(Walk)
        .offline_data(input_=data, dataset_num_iters_per_learner=10)
        .training(lr=1e-2, train_batch_size_per_learner=16)
        .rl_module(model_config=MODEL)
        .evaluation(evaluation_interval=2, evaluation_duration=3)
    )


def expert() -> PPOConfig:
    return (
        PPOConfig()
        .environment("CartPole-v1", max_episode_steps=30)
        .env_runners(num_envs_per_env_runner=4)
        .training(lr=1e-2, train_batch_size_per_learner=64, minibatch_size=32, num_epochs=2)
        .rl_module(model_config=MODEL)
    )


def weights(algo: RunningAlgorithm) -> dict[str, torch.Tensor]:
    return algo.get_module().get_state()


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def without_times(result: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in result.items() if name not in TIMES}


TIMES = ("timers", "time_total_s", "timesteps_per_s")


class TestTraining:
    def test_result_has_rllib_names(self, walks: Path) -> None:
        with clone(walks).build_algo() as algo:
            first, second, third = algo.train(), algo.train(), algo.train()
        assert algo.iteration == 3
        assert first["training_iteration"] == 1
        assert first["num_env_steps_trained_lifetime"] == 160
        assert "policy_loss" in first["learners"]["default_policy"]
        assert "evaluation" not in first
        assert second["evaluation"]["training_iteration"] == 2
        assert second["evaluation"]["env_runners"]["num_episodes"] == 3
        assert third["evaluation"] == second["evaluation"]

    @pytest.mark.slow
    def test_held_out_episodes_evaluate_without_an_environment(self, walks: Path, tmp_path: Path) -> None:
        config = (
            clone(walks)
            .evaluation(
                evaluation_interval=None, offline_evaluation_interval=2, offline_evaluation_held_out=0.4
            )
            .evaluation(off_policy_estimation_methods=["wis"], offline_evaluation_explore=True)
        )
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
            clone(walks).build_algo() as algo,
            pytest.raises(SpecError, match="offline_evaluation_held_out is m"),
        ):
            algo.evaluate_offline()

    def test_online_algorithm_with_held_out_episodes_raises(self) -> None:
        config = expert().evaluation(offline_evaluation_interval=1, offline_evaluation_held_out=0.1)
        with pytest.raises(
            SpecError, match=r"^offline_evaluation_interval does not apply to PPO, which learns from"
        ):
            config.build_algo()

    @pytest.mark.slow
    def test_parallel_evaluation_belongs_to_previous_iteration(self, walks: Path) -> None:
        config = clone(walks).evaluation(evaluation_parallel_to_training=True)
        with clone(walks).build_algo() as algo:
            expected = [algo.train() for _ in range(3)][-1]["evaluation"]
        with config.build_algo() as algo:
            results = [algo.train() for _ in range(3)]
        assert "evaluation" not in results[1]
        assert results[2]["evaluation"] == expected

    def test_online_training_improves(self) -> None:
        with expert().build_algo() as algo:
            result = algo.train()
            assert "evaluation" not in result
            assert result["num_env_steps_sampled_lifetime"] == 64
            assert algo.evaluate()["env_runners"]["num_episodes"] == 10

    def test_online_training_evaluates_at_its_interval(self) -> None:
        with expert().evaluation(evaluation_interval=2, evaluation_duration=3).build_algo() as algo:
            first, second = algo.train(), algo.train()
        assert "evaluation" not in first
        assert second["evaluation"]["env_runners"]["num_episodes"] == 3

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
        config = clone(walks)
        with config.build_algo() as algo:
            config.training(lr=9.0)
            assert algo.config["lr"] == 1e-2

    def test_config_after_build_is_frozen(self, walks: Path) -> None:
        with clone(walks).build_algo() as algo, pytest.raises(SpecError, match="the config is frozen"):
            algo.config.lr = 9.0

    def test_build_algo_accepts_an_environment(self) -> None:
        frozen = expert()
        frozen.freeze()
        with frozen.build(env=Walk) as algo:
            assert algo.config.env is Walk

    def test_data_without_next_observations_name_the_options_that_accept_them(self, tmp_path: Path) -> None:
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
        assert "set ignore_final_observation=True to use zeros" in str(error.value)
        config.offline_data(input_prepare={"cut_off_steps": "Drop"})
        with config.build_algo() as algo:
            assert algo.offline_data.epoch_timesteps == 4
        with pytest.raises(SpecError, match=r"""input_prepare\["gaps"\] is 'Cut'"""):
            config.offline_data(input_prepare={"gaps": "Cut"}).validate()

    def test_options_without_effect_are_noted(self, walks: Path, caplog: pytest.LogCaptureFixture) -> None:
        config = clone(walks).env_runners(batch_mode="complete_episodes")
        config.offline_data(map_batches_kwargs={"concurrency": 2, "zero_copy_batch": True})
        with config.build_algo() as algo:
            notes = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
            assert notes == algo.notes == config.replaced_options
        assert [line.split(":")[0] for line in notes] == ["batch_mode", *["map_batches_kwargs"] * 2]

    def test_options_that_networks_lack_are_noted(self, walks: Path, tmp_path: Path) -> None:
        model = DefaultModelConfig(fcnet_hiddens=[8], log_std_min=-3.0, frame_stack=2)
        noted_options = ["model_config.log_std_min has no effect: the policy has no standard deviations"]
        training = clone(walks).rl_module(model_config=model)
        recorder = BCConfig().environment(Walk).offline_data(output=str(tmp_path / "out"))
        for config in (training, recorder.rl_module(model_config=model)):
            with config.build_algo() as algo:
                assert algo.notes[: len(noted_options)] == noted_options
                assert not [note for note in algo.notes if "vf_share_layers" in note]

    def test_padding_of_filters_is_not_noted(self, walks: Path) -> None:
        """Without images: nobody gave conv_padding, which follows from conv_filters."""
        with clone(walks).rl_module(model_config={"conv_filters": [[4, 3, 1]]}).build_algo() as algo:
            notes = [note for note in algo.notes if "conv_" in note]
        assert notes == ["model_config.conv_filters has no effect: no observation is an image"]
        with clone(walks).rl_module(model_config={"conv_padding": "same"}).build_algo() as algo:
            assert "model_config.conv_padding has no effect: no observation is an image" in algo.notes

    def test_training_on_data_with_output_is_noted_once(self, walks: Path, tmp_path: Path) -> None:
        with clone(walks).offline_data(output=str(tmp_path / "out")).build_algo() as algo:
            before = list(algo.notes)
            algo.train()
            algo.train()
        assert algo.notes[len(before) :] == [
            "output: only evaluate() adds episodes to the dataset; train() records none"
        ]

    def test_notes_name_missing_devices(self, walks: Path) -> None:
        with clone(walks).learners(num_learners=2, num_gpus_per_learner=0).build_algo() as algo:
            assert "num_learners: only sets the size of a batch on one machine" in algo.notes[0]


class TestCheckpoints:
    def test_resume_after_half_the_updates_repeats_the_other_half(self, walks: Path, tmp_path: Path) -> None:
        with clone(walks).build_algo() as expected_result:
            results = [expected_result.train() for _ in range(10)]
            final = weights(expected_result)
        with clone(walks).build_algo() as first:
            for _ in range(5):
                first.train()
            path = first.save_to_path(tmp_path / "half")
        assert path == str(tmp_path / "half")
        with clone(walks).build_algo() as second:
            second.restore_from_path(path)
            assert second.iteration == 5
            resumed_results = [second.train() for _ in range(5)]
            assert same(weights(second), final)
        assert resumed_results[-1]["num_updates_lifetime"] == 100
        assert [without_times(result) for result in resumed_results] == [
            without_times(r) for r in results[5:]
        ]

    @pytest.mark.slow
    def test_resume_repeats_a_running_evaluation(self, walks: Path, tmp_path: Path) -> None:
        config = clone(walks).evaluation(evaluation_parallel_to_training=True)
        with config.build_algo() as algo:
            for _ in range(2):
                algo.train()
            path = algo.save_to_path(tmp_path / "ck")
            expected = algo.train()["evaluation"]
        with config.build_algo() as algo:
            algo.restore_from_path(path)
            assert algo.train()["evaluation"] == expected

    def test_resume_of_online_training_is_exact(self, tmp_path: Path) -> None:
        with expert().build_algo() as algo:
            algo.train()
            path = algo.save_to_path(tmp_path / "ck")
            expected, final = algo.train(), weights(algo)
        with expert().build_algo() as algo:
            algo.restore_from_path(path)
            assert without_times(algo.train()) == without_times(expected)
            assert same(weights(algo), final)

    def test_save_without_path_creates_a_folder(self) -> None:
        with expert().build_algo() as algo:
            path = algo.save_to_path()
            assert Policy.load(path).digest == algo.get_policy().digest

    def test_save_overwrites_only_a_checkpoint(self, tmp_path: Path) -> None:
        with expert().build_algo() as algo:
            algo.save_to_path(tmp_path / "ck")
            algo.train()
            algo.save_to_path(tmp_path / "ck")
            (tmp_path / "mine").mkdir()
            (tmp_path / "mine" / "notes.txt").write_text("mine")
            with pytest.raises(DataError, match=r"contains notes\.txt and is not a checkpoint"):
                algo.save_to_path(tmp_path / "mine")
        assert (tmp_path / "mine" / "notes.txt").read_text() == "mine"
        with expert().build_algo() as algo:
            algo.restore_from_path(tmp_path / "ck")
            assert algo.iteration == 1


class TestComponents:
    @pytest.fixture(scope="class")
    @staticmethod
    def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
        path = tmp_path_factory.mktemp("component") / "ck"
        with expert().build_algo() as algo:
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
    def test_restore_of_policy_keeps_optimisers(self, saved: Path, component: str) -> None:
        with expert().build_algo() as algo:
            algo.restore_from_path(saved, component=component)
            assert algo.iteration == 0
            assert algo.get_policy().digest == Policy.load(saved).digest
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

    def test_restore_of_learner_includes_optimisers(self, saved: Path) -> None:
        with expert().build_algo() as algo:
            algo.restore_from_path(saved, component=COMPONENT_LEARNER)
            assert algo.iteration == 0
            assert algo._trainer.learner.updates == 4

    def test_restore_accepts_a_module_folder(self, saved: Path) -> None:
        with expert().build_algo() as algo:
            algo.restore_from_path(saved / "module", component=COMPONENT_RL_MODULE)
            assert algo.get_policy().digest == Policy.load(saved).digest

    def test_clone_restores_policy_of_expert(self, saved: Path, tmp_path: Path) -> None:
        config = BCConfig().environment("CartPole-v1", max_episode_steps=30).rl_module(model_config=MODEL)
        with config.offline_data(output=str(tmp_path / "out")).build_algo() as algo:
            algo.restore_from_path(saved, component=COMPONENT_RL_MODULE)
            observation = np.array([0.1, 0.2, 0.3, 0.4], dtype=np.float32)
            assert algo.get_policy()(observation) == Policy.load(saved)(observation)
            with pytest.raises(SpecError, match="BC has nothing to train on"):
                algo.train()

    def test_expert_from_clone_keeps_its_value_head(self, saved: Path, tmp_path: Path) -> None:
        config = BCConfig().environment("CartPole-v1", max_episode_steps=30).rl_module(model_config=MODEL)
        with config.offline_data(output=str(tmp_path / "out")).build_algo() as algo:
            algo.save_to_path(tmp_path / "clone")
        with expert().build_algo() as algo:
            algo.restore_from_path(tmp_path / "clone", component=COMPONENT_RL_MODULE)
            assert "has no value head" in algo.notes[0]

    @pytest.mark.parametrize(
        ("change", "sentence"),
        [
            (
                lambda c: c.rl_module(model_config={**MODEL, "fcnet_activation": "relu"}),
                "fcnet_activation='tanh'",
            ),
            (lambda c: c.rl_module(model_config={"fcnet_hiddens": [9]}), "fcnet_hiddens=[8]"),
            (lambda c: c.rl_module(model_config={**MODEL, "vf_share_layers": True}), "vf_share_layers=False"),
            (lambda c: c.environment("Acrobot-v1"), "it belongs to another environment"),
            (lambda c: c.environment("CartPole-v1", clip_actions=True), "clipActions False between"),
        ],
    )
    def test_restore_of_other_policy_raises(self, saved: Path, change: Any, sentence: str) -> None:
        with change(expert()).build_algo() as algo:
            before = weights(algo)
            for component in (COMPONENT_RL_MODULE, None):
                with pytest.raises(DataError) as error:
                    algo.restore_from_path(saved, component=component)
                assert sentence in str(error.value)
            assert same(weights(algo), before)

    def test_restore_of_unknown_parts_raises(self, saved: Path, tmp_path: Path, walks: Path) -> None:
        with expert().build_algo() as algo:
            with pytest.raises(DataError, match="there is no checkpoint at"):
                algo.restore_from_path(tmp_path / "none", component=COMPONENT_RL_MODULE)
            with pytest.raises(DataError, match="there is no complete checkpoint at"):
                algo.restore_from_path(saved.parent / "ck" / "module")
            with pytest.raises(SpecError, match="component is 'env_runner', which is not in checkpoints"):
                algo.restore_from_path(saved, component="env_runner")
            with pytest.raises(SpecError, match="the only module is"):
                algo.get_module("other")
            for restore in (algo.restore, algo.restore_from_path):
                with pytest.raises(SpecError, match=r"^the path is 3, expected text or a pathlib\.Path"):
                    restore(3)
            with pytest.raises(SpecError, match="the path is None, expected"):
                algo.restore_from_path(None, component=COMPONENT_RL_MODULE)
        with (
            clone(walks).build_algo() as algo,
            pytest.raises(DataError, match="a checkpoint of PPO, but this is BC"),
        ):
            algo.restore_from_path(saved)


class TestReferenceNames:
    def test_save_and_restore(self, walks: Path, tmp_path: Path) -> None:
        with clone(walks).build_algo() as first:
            first.train()
            save_result = first.save(tmp_path / "saved")
            expected = weights(first)
        assert save_result.checkpoint.path == str(tmp_path / "saved")
        for target in (save_result, save_result.checkpoint.path):
            with clone(walks).build_algo() as second:
                second.restore(target)
                assert second.iteration == 1
                assert same(weights(second), expected)

    def test_checkpoint_contains_its_config(self, walks: Path, tmp_path: Path) -> None:
        env_config = {"longest": 8}
        with clone(walks).environment(env_config=env_config).build_algo() as first:
            env_config["longest"] = 3
            first.train()
            first.save_to_path(tmp_path / "saved")
            expected = without_times(first.train())
        with RunningAlgorithm.from_checkpoint(tmp_path / "saved") as second:
            assert second.config.to_resource() == first.config.to_resource()
            assert second.config.env_config == {"longest": 8}
            assert without_times(second.train()) == expected

    def test_from_checkpoint_without_config_raises(self, tmp_path: Path) -> None:
        config = expert().environment(env_config={"render_mode": object()})
        folder = tmp_path / "saved"
        with expert().build_algo() as algo:
            algo.config = config
            algo.save_to_path(folder)
        with pytest.raises(
            DataError, match=r"has no env_config: pass the config, from_checkpoint\(path, config\)"
        ):
            RunningAlgorithm.from_checkpoint(folder)
        with RunningAlgorithm.from_checkpoint(folder, expert()) as algo:
            assert algo.iteration == 0

    def test_offline_data_exists_only_with_data(self, walks: Path) -> None:
        with clone(walks).build_algo() as algo:
            assert algo.offline_data is not None
            assert algo.offline_data.batch_size == 16
        with expert().build_algo() as algo:
            assert algo.offline_data is None

    def test_removed_attributes_name_their_replacement(self) -> None:
        with expert().build_algo() as algo:
            with pytest.raises(SpecError, match=r"workers does not exist: env_runner_group"):
                algo.workers.foreach_worker(print)
            with pytest.raises(SpecError, match=r"compute_single_action does not exist: get_policy"):
                algo.compute_single_action([0.0])
            assert not hasattr(algo, "workers")
            assert not hasattr(algo, "no_such_thing")


class TestGroups:
    def test_learner_group_gets_and_sets_weights(self, walks: Path) -> None:
        with clone(walks).build_algo() as algo:
            before = algo.learner_group.get_weights()
            algo.train()
            assert algo.learner_group.foreach_learner(lambda learner: learner.updates) == [
                algo._trainer.learner.updates
            ]
            (module,) = algo.learner_group.foreach_learner(lambda learner: learner.module["default_policy"])
            assert module is algo.get_module()
            assert not same(weights(algo), before["default_policy"])
            algo.learner_group.set_weights(before)
            assert same(weights(algo), before["default_policy"])

    def test_set_weights_of_other_module_raises(self, walks: Path) -> None:
        with clone(walks).build_algo() as algo:
            with pytest.raises(SpecError, match="weights are for other: the only module is 'default_policy'"):
                algo.learner_group.set_weights({"other": {}})
            with pytest.raises(SpecError, match="the weights do not match this model: "):
                algo.learner_group.set_weights({"default_policy": {}})

    def test_local_env_runner_plays_whole_episodes(self) -> None:
        with expert().build_algo() as algo, expert().build_algo() as other_algo:
            runner = algo.env_runner_group.local_env_runner
            first, second = runner.sample(num_episodes=2), runner.sample(num_episodes=1)
            assert len({episode.id_ for episode in first + second}) == 3
            assert all(episode.is_done for episode in first + second)
            (three,) = other_algo.env_runner_group.foreach_env_runner(
                lambda env_runner: env_runner.sample(num_episodes=3)
            )
            for one, other_episode in zip(first + second, three, strict=True):
                np.testing.assert_array_equal(one.get_observations(), other_episode.get_observations())
            assert sum(map(len, runner.sample(num_timesteps=50))) >= 50
            with pytest.raises(SpecError, match="pass num_episodes or num_timesteps"):
                runner.sample()


class TestInitialCheckpoint:
    def recorder(self, folder: Path) -> BCConfig:
        config = BCConfig().environment("CartPole-v1", max_episode_steps=30).rl_module(model_config=MODEL)
        return config.offline_data(output=str(folder / "out"))

    def test_initial_checkpoint_sets_weights_of_expert(self, tmp_path: Path) -> None:
        with expert().debugging(seed=5).build_algo() as algo:
            algo.save_to_path(tmp_path / "saved")
            expected = weights(algo)
        with expert().training(initial_checkpoint=str(tmp_path / "saved")).build_algo() as algo:
            assert same(weights(algo), expected)

    def test_initial_checkpoint_sets_weights_of_recorded_policy(self, tmp_path: Path) -> None:
        with self.recorder(tmp_path).debugging(seed=5).build_algo() as algo:
            algo.save_to_path(tmp_path / "saved")
            expected = weights(algo)
        config = self.recorder(tmp_path).training(initial_checkpoint=str(tmp_path / "saved"))
        with config.build_algo() as algo:
            assert same(weights(algo), expected)

    def test_missing_initial_checkpoint_raises(self, walks: Path, tmp_path: Path) -> None:
        for config in (expert(), self.recorder(tmp_path), clone(walks)):
            config.training(initial_checkpoint="DOES_NOT_EXIST")
            with pytest.raises(DataError, match=r"(initialCheckpoint|initial_checkpoint): .*DOES_NOT_EXIST"):
                config.build_algo()


class TestEnvironments:
    def test_importable_class_has_its_import_path(self, walks: Path) -> None:
        assert clone(walks).to_resource().spec.environment.id == "toy_environments:Walk"

    def test_local_class_works_in_this_process(self) -> None:
        class Local(Walk):
            """Not to be imported."""

        config = expert().environment(Local, env_config={"longest": 4})
        for _ in range(2):
            with config.build_algo() as algo:
                assert algo.evaluate()["env_runners"]["episode_len_mean"] <= 4

    @pytest.mark.slow
    def test_local_class_is_registered_in_evaluation_processes(self, walks: Path) -> None:
        class LocalWalk(Walk):
            """Not to be imported."""

        config = clone(walks).environment(LocalWalk, env_config={"longest": 4})
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
        plans = [expert().environment(local_class).plan().training for local_class in classes]
        assert plans[0].spec.environment.id != plans[1].spec.environment.id

    def test_registered_creator_gets_env_config_as_one_dictionary(self) -> None:
        register_env("walk-by-name", lambda config: Walk(**config))
        with expert().environment("walk-by-name", env_config={"longest": 4}).build_algo() as algo:
            assert algo.evaluate()["env_runners"]["episode_len_mean"] <= 4
        register_env("walk-by-name", lambda config: Walk(shortest=20, longest=20))
        with expert().environment("walk-by-name").build_algo() as algo:
            assert algo.evaluate()["env_runners"]["episode_len_mean"] == 20

    def test_registered_name_is_portable_with_the_config(self) -> None:
        register_env("walk-that-travels", Walk)
        options = expert().environment("walk-that-travels").to_dict()
        assert options["env"].creator is Walk
        resource = PPOConfig().update_from_dict(options).offline_data(output="o").to_resource()
        assert resource.spec.environment.id == "walk-that-travels"

    def test_register_env_with_gymnasium_name_raises(self) -> None:
        with pytest.raises(SpecError, match="Gymnasium already has an environment 'CartPole-v1'"):
            register_env("CartPole-v1", Walk)
