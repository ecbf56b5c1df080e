"""Episodes as `EnvRunner` plays them."""

from __future__ import annotations

import json
import re
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import toy_environments
from hindcast.api import EnvironmentSpec, ModelSpec
from hindcast.datasets.validate import check_block
from hindcast.errors import DataError, SpecError, UserCodeError
from hindcast.formats.spec import DataSpec
from hindcast.models.policy import Policy
from hindcast.models.preprocessing import Preprocessing
from hindcast.record.environments import make_environment
from hindcast.record.random_policy import RandomActor
from hindcast.record.runner import Actor, EnvRunner, Episode, played_episodes_to_block
from hindcast.record.seeding import reset_seed
from support import CARTPOLE, WALK, add_position_dependence, episode_hashes, make_policy
from user_errors import raises_user_error

COMPOSITE = {"id": "toy_environments:Composite"}
CONTINUOUS = {"id": "toy_environments:Continuous"}


def make_random_policy(environment: dict[str, Any]) -> RandomActor:
    spec = EnvironmentSpec.model_validate(environment)
    env = make_environment(spec)
    env.close()
    return RandomActor(Preprocessing.from_specs(env.observation_space, env.action_space, ModelSpec(), spec))


def play_episodes(
    environment: dict[str, Any],
    policy: Actor | None = None,
    indices: range = range(20),
    width: int = 4,
    seed: int = 0,
    *,
    explore: bool = True,
) -> list[Episode]:
    spec = EnvironmentSpec.model_validate(environment)
    runner = EnvRunner(spec, policy or make_random_policy(environment), width, seed, explore)
    try:
        return list(runner.play(indices))
    finally:
        runner.close()


def hash_episodes(episodes: list[Episode]) -> dict[str, str]:
    return episode_hashes(played_episodes_to_block(episodes, "e"))


class TestEpisodes:
    def test_episodes_come_in_order_of_indices(self) -> None:
        assert [episode.index for episode in play_episodes(WALK, indices=range(5, 30))] == list(range(5, 30))

    def test_episodes_equal_those_of_single_environment(self) -> None:
        for episode in play_episodes(WALK):
            env = make_environment(EnvironmentSpec(id=WALK["id"]))
            obs, _ = env.reset(seed=reset_seed(0, "episode", episode.index))
            observations, rewards = [obs], []
            for action in episode.columns["actions"]:
                obs, reward, terminated, truncated, _ = env.step(action)
                observations.append(obs)
                rewards.append(reward)
            np.testing.assert_array_equal(episode.columns["obs"], np.stack(observations))
            np.testing.assert_array_equal(episode.columns["rewards"], rewards)
            assert (episode.terminated, episode.truncated) == (terminated, truncated) == (True, False)
            assert episode.length == len(rewards)
            assert episode.episode_return == sum(rewards)

    def test_episodes_keep_final_observation(self) -> None:
        for episode in play_episodes(WALK):
            assert len(episode.columns["obs"]) == episode.length + 1
            _, t, length, last_action = episode.columns["obs"][-1]
            assert t == length == episode.length
            assert last_action == episode.columns["actions"][-1]

    def test_truncation_is_not_termination(self) -> None:
        episodes = play_episodes({**WALK, "kwargs": {"truncates": True}})
        assert {(episode.terminated, episode.truncated) for episode in episodes} == {(False, True)}

    def test_time_limit_truncates(self) -> None:
        episodes = play_episodes({**WALK, "maxEpisodeSteps": 5})
        assert max(episode.length for episode in episodes) == 5
        long_episodes = [episode for episode in episodes if episode.columns["obs"][0, 2] > 5]
        assert long_episodes
        assert all(episode.truncated and not episode.terminated for episode in long_episodes)

    def test_short_episodes_are_not_preferred(self) -> None:
        lengths = [episode.length for episode in play_episodes(WALK, indices=range(100), width=8)]
        expected = []
        for index in range(100):
            env = make_environment(EnvironmentSpec(id=WALK["id"]))
            obs, _ = env.reset(seed=reset_seed(0, "episode", index))
            expected.append(int(obs[2]))
        assert lengths == expected

    def test_episodes_depend_on_seed(self) -> None:
        hashes = [hash_episodes(play_episodes(WALK, seed=seed)) for seed in (1, 1, 2)]
        assert hashes[0] == hashes[1]
        assert not hashes[0].items() & hashes[2].items()


POLICIES = {
    "random": (WALK, {}),
    "discrete": (WALK, {"fcnetHiddens": [64, 64]}),
    "wide": (WALK, {"fcnetHiddens": [256, 256]}),
    "continuous": (CONTINUOUS, {"distribution": "SquashedGaussian"}),
    "stacked": (WALK, {"frameStack": 3}),
    "filtered": (WALK, {"observationFilter": "MeanStd", "frameStack": 2}),
    "composite": (COMPOSITE, {}),
    "lstm": (WALK, {"recurrent": "LSTM", "cellSize": 32}),
    "gru": (COMPOSITE, {"recurrent": "GRU", "cellSize": 32}),
    "position-dependent": (WALK, {"frameStack": 2}),
}


def make_actor(name: str) -> Actor:
    environment, model = POLICIES[name]
    if name == "random":
        return make_random_policy(environment)
    policy = make_policy(environment, **model)
    if name == "filtered":
        policy.preprocessing.update({"obs": np.random.default_rng(0).normal(3, 2, (50, 4)).astype("f4")})
    return add_position_dependence(policy) if name == "position-dependent" else policy


class TestIndependence:
    """An episode depends on (seed, index) and the width alone."""

    @pytest.mark.parametrize("name", POLICIES)
    def test_episodes_do_not_depend_on_partition_of_indices(self, name: str) -> None:
        environment = POLICIES[name][0]
        expected = hash_episodes(play_episodes(environment, make_actor(name), range(24)))
        hashes: dict[str, str] = {}
        for indices in (range(9), range(9, 10), range(10, 24)):
            hashes |= hash_episodes(play_episodes(environment, make_actor(name), indices))
        assert hashes == expected

    @pytest.mark.parametrize("name", POLICIES)
    def test_episodes_do_not_depend_on_earlier_episodes(self, name: str) -> None:
        environment = POLICIES[name][0]
        runner = EnvRunner(EnvironmentSpec.model_validate(environment), make_actor(name), 4, 0, explore=True)
        list(runner.play(range(7)))
        expected = play_episodes(environment, make_actor(name), range(7, 20))
        assert hash_episodes(list(runner.play(range(7, 20)))) == hash_episodes(expected)

    @pytest.mark.parametrize("name", POLICIES)
    def test_episodes_do_not_depend_on_interrupted_play(self, name: str) -> None:
        environment = POLICIES[name][0]
        runner = EnvRunner(EnvironmentSpec.model_validate(environment), make_actor(name), 4, 0, explore=True)
        next(iter(runner.play(range(20))))
        expected = play_episodes(environment, make_actor(name))
        assert hash_episodes(list(runner.play(range(20)))) == hash_episodes(expected)

    @pytest.mark.parametrize("name", POLICIES)
    def test_episodes_do_not_depend_on_other_runner_of_policy(self, name: str) -> None:
        """The policy has acted in one slot before it acts in four, of which one stays idle."""
        environment, policy = POLICIES[name][0], make_actor(name)
        earlier_runner = EnvRunner(EnvironmentSpec.model_validate(environment), policy, 1, 0, explore=True)
        list(earlier_runner.play(range(2)))
        expected = play_episodes(environment, make_actor(name), range(3))
        assert hash_episodes(play_episodes(environment, policy, range(3))) == hash_episodes(expected)

    @pytest.mark.parametrize("name", ["wide", "position-dependent"])
    def test_episodes_do_not_depend_on_neighbours(self, name: str) -> None:
        """Play the same episode before, between and after others."""
        policy = make_actor(name)
        digests = set()
        for position in range(8):
            neighbours = [100 + i for i in range(8)]
            indices = [*neighbours[:position], 0, *neighbours[position:]]
            episodes = play_episodes(WALK, policy, indices, width=8)  # type: ignore[arg-type]
            digests.add(hash_episodes([episode for episode in episodes if episode.index == 0])["e-00000000"])
        assert len(digests) == 1

    def test_each_step_records_its_own_reward(self) -> None:
        """The slot's reward before the first step is 0, and each step of CartPole has reward 1."""
        episode = play_episodes(CARTPOLE, indices=range(1), width=1)[0]
        assert episode.columns["rewards"].tolist() == [1.0] * episode.length


class TestActions:
    def test_logp_and_inputs_match_recorded_actions(self) -> None:
        policy = make_policy(CARTPOLE)
        episode = play_episodes(CARTPOLE, policy, range(1))[0]
        inputs = episode.columns["action_dist_inputs"]
        logp = inputs - np.log(np.exp(inputs).sum(-1, keepdims=True))
        expected = logp[np.arange(episode.length), episode.columns["actions"]]
        np.testing.assert_allclose(episode.columns["action_logp"], expected, atol=1e-5)

    def test_inputs_match_recorded_observations(self) -> None:
        policy = make_policy(WALK, frameStack=3)
        for episode in play_episodes(WALK, policy, range(6)):
            obs = episode.columns["obs"][:-1]
            padded_obs = np.concatenate([np.zeros((2, 4), "f4"), obs])
            stacked_obs = np.concatenate([padded_obs[i : i + len(obs)] for i in range(3)], -1)
            expected = policy.module.forward_inference({"obs": torch.from_numpy(stacked_obs)})[
                "action_dist_inputs"
            ]
            inputs = episode.columns["action_dist_inputs"]
            np.testing.assert_allclose(inputs, expected.detach().numpy(), rtol=1e-4, atol=1e-4)

    def test_module_actions_are_recorded_and_scaled_for_environment(self) -> None:
        episode = play_episodes(CONTINUOUS, make_policy(CONTINUOUS, distribution="SquashedGaussian"))[0]
        actions = episode.columns["actions"]
        assert np.abs(actions).max() <= 1.0
        np.testing.assert_allclose(episode.columns["rewards"], 2.0 + 4.0 * actions[:, 0], rtol=1e-5)

    def test_greedy_episodes_do_not_depend_on_noise(self) -> None:
        policy = make_policy(WALK)
        greedy_episodes = play_episodes(WALK, policy, explore=False)
        assert hash_episodes(greedy_episodes) == hash_episodes(play_episodes(WALK, policy, explore=False))
        inputs = greedy_episodes[0].columns["action_dist_inputs"]
        np.testing.assert_array_equal(inputs.argmax(-1), greedy_episodes[0].columns["actions"])

    def test_greedy_random_policy_is_refused(self) -> None:
        with raises_user_error(SpecError, field="spec.policy.explore"):
            play_episodes(WALK, explore=False)


class TestSpaces:
    def test_tuple_observations_become_path_columns(self) -> None:
        for episode in play_episodes({"id": "Blackjack-v1"}):
            hand = episode.columns["obs/0"]
            assert hand.shape == (episode.length + 1,)
            assert hand.dtype.kind == "i"
            assert (hand >= 4).all()
            assert set(episode.columns["obs/2"].tolist()) <= {0, 1}

    def test_composite_spaces_become_path_columns(self) -> None:
        for episode in play_episodes(COMPOSITE):
            columns, steps = episode.columns, episode.length
            assert columns["obs/place"].shape == (steps + 1, 2)
            np.testing.assert_array_equal(columns["obs/place"][:, 0], np.arange(steps + 1))
            np.testing.assert_array_equal(columns["obs/kind/0"], np.arange(steps + 1) % 3)
            np.testing.assert_array_equal(columns["obs/kind/1"][:, 0], np.arange(steps + 1) % 2)
            assert columns["actions/move"].shape == (steps, 2)
            assert set(columns["actions/jump"].tolist()) <= {1, 2}

    def test_text_observations_are_recorded(self) -> None:
        episode = play_episodes({"id": "toy_environments:TextWalk"})[0]
        assert episode.columns["obs"].tolist() == ["go" * (t % 4) + "!" for t in range(episode.length + 1)]

    def test_infos_are_stored_with_their_observations(self) -> None:
        for episode in play_episodes(COMPOSITE):
            infos = [json.loads(text) if text else {} for text in episode.columns["infos"]]
            assert len(infos) == episode.length + 1
            assert infos[0] == {"t": 0, "names": ["a", "b"]}
            for t, info in enumerate(infos[1:], start=1):
                assert info.get("t") == (t if t % 2 else None)
                assert len(info.get("moved", [0, 0])) == 2


class TestRollout:
    def test_rollout_has_requested_number_of_steps(self) -> None:
        runner = EnvRunner(EnvironmentSpec(id=WALK["id"]), make_random_policy(WALK), 4, 0, explore=True)
        episodes = runner.rollout(1000, 50)
        assert sum(episode.length for episode in episodes) == 4 * 50
        assert all(episode.index >= 1000 for episode in episodes)
        assert len({episode.index for episode in episodes}) == len(episodes)

    def test_unfinished_episodes_come_last_without_end_flags(self) -> None:
        runner = EnvRunner(EnvironmentSpec(id=WALK["id"]), make_random_policy(WALK), 4, 0, explore=True)
        episodes = runner.rollout(0, 50)
        end_flags = [episode.terminated for episode in episodes]
        assert end_flags == sorted(end_flags, reverse=True)
        for episode in episodes:
            _, t, length, _ = episode.columns["obs"][-1]
            assert t == episode.length
            assert episode.terminated == (t == length)

    @pytest.mark.parametrize("name", ["stacked", "position-dependent"])
    def test_rollout_is_deterministic(self, name: str) -> None:
        def roll(has_played_before: bool) -> dict[str, str]:
            policy = make_actor(name)
            runner = EnvRunner(EnvironmentSpec(id=WALK["id"]), policy, 4, 0, explore=True)
            if has_played_before:
                runner.rollout(0, 13)
            return hash_episodes(runner.rollout(1000, 30))

        assert roll(has_played_before=True) == roll(has_played_before=False)


class TestWrongEnvironments:
    def make_wrong_environment(self, fault: str) -> dict[str, Any]:
        return {"id": "toy_environments:FaultyEnv", "kwargs": {"what": fault}}

    @pytest.mark.parametrize("fault", ["reset", "step"])
    def test_exception_in_reset_or_step_is_reported_with_line(self, fault: str) -> None:
        message = {"reset": "the simulator is not there", "step": "the simulator fell over"}[fault]
        pattern = rf"in {fault}\(\) raised RuntimeError at .*toy_environments\.py:\d+: {message}"
        with pytest.raises(UserCodeError, match=pattern):
            play_episodes(self.make_wrong_environment(fault), make_random_policy(WALK))

    def test_exception_in_constructor_is_reported(self) -> None:
        with pytest.raises(UserCodeError, match=r"ValueError at .*toy_environments\.py:\d+: no such level"):
            play_episodes(self.make_wrong_environment("constructor"), make_random_policy(WALK))

    def test_exception_in_constructor_of_registered_environment_is_reported(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        spec = gym.envs.registration.EnvSpec("ToyWrong-v0", entry_point="toy_environments:FaultyEnv")
        monkeypatch.setitem(gym.registry, "ToyWrong-v0", spec)
        with pytest.raises(UserCodeError, match=r"ValueError at .*toy_environments\.py:\d+: no such level"):
            make_environment(EnvironmentSpec(id="ToyWrong-v0", kwargs={"what": "constructor"}))

    def test_observations_without_fixed_shape_are_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        space = gym.spaces.Sequence(gym.spaces.Discrete(2))
        monkeypatch.setattr(toy_environments.Walk, "observation_space", space)
        with pytest.raises(SpecError, match="no fixed shape"):
            play_episodes(WALK, RandomActor(Preprocessing(gym.spaces.Discrete(2), gym.spaces.Discrete(3))))

    @pytest.mark.parametrize("fault", ["shape", "short", "missing", "not a number"])
    def test_observation_that_does_not_fit_space_is_refused(self, fault: str) -> None:
        with pytest.raises(DataError, match=r"toy_environments:FaultyEnv.* observation .*observation_space"):
            play_episodes(self.make_wrong_environment(fault), make_random_policy(WALK))

    @pytest.mark.parametrize(
        ("fault", "message"),
        [
            ("old reset", r"reset\(\) returned one value, of type ndarray; expected 2: observation, info"),
            (
                "old step",
                r"step\(\) returned 4 values; expected 5: observation, reward, terminated, truncated, info",
            ),
            ("reward", "reward.*None"),
            ("info", "info"),
        ],
    )
    def test_wrong_return_values_are_refused_with_expected_values(self, fault: str, message: str) -> None:
        with pytest.raises(UserCodeError, match=f"toy_environments:FaultyEnv.*{message}"):
            play_episodes(self.make_wrong_environment(fault), make_random_policy(WALK))

    @pytest.mark.parametrize(
        ("spec", "message"),
        [
            ({"id": "CartPole-v7"}, r"'CartPole-v7'.*did you mean 'CartPole-v"),
            ({"id": "NoSuchThing-v0"}, r"there is no Gymnasium environment 'NoSuchThing-v0'"),
            ({"id": "no_such_module:Env"}, r"there is no module 'no_such_module'"),
            ({"id": "toy_environments:Nope"}, r"has no 'Nope'"),
            ({"id": "json:JSONDecoder"}, r"returned a JSONDecoder, not a gymnasium\.Env"),
            ({"id": "CartPole-v1", "kwargs": {"gravity": "up"}}, r"kwargs.*gravity"),
            ({"id": "CartPole-v1", "wrappers": ["NoSuchWrapper"]}, r"gymnasium\.wrappers has no"),
        ],
    )
    def test_environment_that_cannot_be_created_is_reported(self, spec: dict[str, Any], message: str) -> None:
        with pytest.raises(SpecError, match=message):
            make_environment(EnvironmentSpec.model_validate(spec))

    def test_wrappers_are_applied_innermost_first(self) -> None:
        wrappers = [{"name": "TimeLimit", "kwargs": {"max_episode_steps": 3}}, "RecordEpisodeStatistics"]
        episodes = play_episodes({**CARTPOLE, "wrappers": wrappers})
        assert {episode.length for episode in episodes} == {3}
        assert json.loads(episodes[0].columns["infos"][-1])["episode"]["l"] == 3


SPACES = [
    gym.spaces.Discrete(5, start=-2),
    gym.spaces.MultiDiscrete([2, 5]),
    gym.spaces.MultiBinary(3),
    gym.spaces.Box(-2.0, 6.0, (2, 2), np.float32),
    gym.spaces.Box(-3, 4, (2,), np.int32),
    gym.spaces.Dict(a=gym.spaces.Box(0.0, 1.0, (1,)), b=gym.spaces.Tuple((gym.spaces.Discrete(2),))),
]


class TestRandomPolicy:
    @pytest.mark.parametrize("space", SPACES, ids=str)
    @pytest.mark.parametrize("normalize", [True, False])
    def test_random_actions_lie_in_space_with_exact_logp(self, space: gym.Space, normalize: bool) -> None:
        preprocessing = Preprocessing(gym.spaces.Discrete(2), space, normalize_actions=normalize)
        policy = RandomActor(preprocessing)
        noise = policy.draw_noise(np.random.default_rng(0), 2000)
        actions = policy.act({}, noise)
        assert all(space.contains(action) for action in actions.env_actions)
        logp = np.unique(actions.logp)
        assert len(logp) == 1
        assert np.exp(-logp[0]) == pytest.approx(_volume(preprocessing.action_space), rel=1e-5)

    @pytest.mark.parametrize("space", SPACES[:3], ids=str)
    def test_random_actions_are_uniform(self, space: gym.Space) -> None:
        policy = RandomActor(Preprocessing(gym.spaces.Discrete(2), space))
        actions = policy.act({}, policy.draw_noise(np.random.default_rng(0), 20_000)).actions["actions"]
        _, counts = np.unique(actions.reshape(20_000, -1), axis=0, return_counts=True)
        assert len(counts) == round(_volume(space))
        expected = 20_000 / len(counts)
        assert ((counts - expected) ** 2 / expected).sum() < 3 * len(counts)  # chi-squared

    @pytest.mark.parametrize("space", [gym.spaces.Box(-np.inf, np.inf, (2,)), gym.spaces.Text(5)], ids=str)
    def test_space_without_uniform_distribution_is_refused(self, space: gym.Space) -> None:
        with pytest.raises(SpecError, match=re.escape(str(space))):
            RandomActor(Preprocessing(gym.spaces.Discrete(2), space))


def _volume(space: gym.Space) -> float:
    """Return the number of actions, or the volume of a box of floats."""
    if isinstance(space, gym.spaces.Discrete):
        return float(space.n)
    if isinstance(space, gym.spaces.MultiDiscrete):
        return float(np.prod(space.nvec))
    if isinstance(space, gym.spaces.MultiBinary):
        return 2.0 ** np.prod(space.shape)
    if isinstance(space, gym.spaces.Box):
        extra = 1 if space.dtype.kind == "i" else 0
        return float(np.prod(space.high.astype(np.float64) - space.low + extra))
    parts = space.spaces.values() if isinstance(space, gym.spaces.Dict) else space.spaces
    return float(np.prod([_volume(part) for part in parts]))


def test_block_of_episodes_fits_spaces() -> None:
    policy = make_policy(COMPOSITE)
    block = played_episodes_to_block(play_episodes(COMPOSITE, policy), "e")
    assert isinstance(policy, Policy)
    spaces = policy.observation_space, policy.preprocessing.action_space
    spec = DataSpec.from_block(block)
    check_block(block, spec, *spaces, lambda episode: ("file", episode), normalized_actions=True)
    assert block.eps_id.tolist() == [f"e-{index:08d}" for index in range(20)]
