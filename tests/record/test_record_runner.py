"""Episodes as `EnvRunner` plays them."""

from __future__ import annotations

import json
import re
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import toy_environments
from hindcast.api import EnvironmentSpec, ModelSpec
from hindcast.datasets.validate import check_block
from hindcast.errors import DataError, SpecError, UserCodeError
from hindcast.formats.spec import DataSpec
from hindcast.models.policy import Policy
from hindcast.models.preprocessing import Preprocessing
from hindcast.record.environments import make_environment
from hindcast.record.random_policy import RandomActor
from hindcast.record.runner import Actor, EnvRunner, Episode, episodes_to_block
from hindcast.record.seeding import reset_seed
from support import CARTPOLE, WALK, add_position_dependence, episode_hashes, make_policy

COMPOSITE = {"id": "toy_environments:Composite"}
CONTINUOUS = {"id": "toy_environments:Continuous"}


def random_policy(environment: dict[str, Any]) -> RandomActor:
    spec = EnvironmentSpec.model_validate(environment)
    made = make_environment(spec)
    made.close()
    return RandomActor(Preprocessing.from_specs(made.observation_space, made.action_space, ModelSpec(), spec))


def play(
    environment: dict[str, Any],
    policy: Actor | None = None,
    indices: range = range(20),
    width: int = 4,
    seed: int = 0,
    *,
    explore: bool = True,
) -> list[Episode]:
    spec = EnvironmentSpec.model_validate(environment)
    runner = EnvRunner(spec, policy or random_policy(environment), width, seed, explore)
    try:
        return list(runner.play(indices))
    finally:
        runner.close()


def hashes(episodes: list[Episode]) -> dict[str, str]:
    return episode_hashes(episodes_to_block(episodes, "e"))


class TestEpisodes:
    def test_come_in_the_order_of_their_indices(self) -> None:
        assert [episode.index for episode in play(WALK, indices=range(5, 30))] == list(range(5, 30))

    def test_are_what_the_environment_gives_when_played_alone(self) -> None:
        for episode in play(WALK):
            env = make_environment(EnvironmentSpec(id=WALK["id"]))
            obs, _ = env.reset(seed=reset_seed(0, "episode", episode.index))
            seen, rewards = [obs], []
            for action in episode.columns["actions"]:
                obs, reward, terminated, truncated, _ = env.step(action)
                seen.append(obs)
                rewards.append(reward)
            np.testing.assert_array_equal(episode.columns["obs"], np.stack(seen))
            np.testing.assert_array_equal(episode.columns["rewards"], rewards)
            assert (episode.terminated, episode.truncated) == (terminated, truncated) == (True, False)
            assert episode.length == len(rewards)
            assert episode.episode_return == sum(rewards)

    def test_keep_the_final_observation(self) -> None:
        for episode in play(WALK):
            assert len(episode.columns["obs"]) == episode.length + 1
            _, t, length, last_action = episode.columns["obs"][-1]
            assert t == length == episode.length
            assert last_action == episode.columns["actions"][-1]

    def test_truncation_is_not_termination(self) -> None:
        episodes = play({**WALK, "kwargs": {"truncates": True}})
        assert {(episode.terminated, episode.truncated) for episode in episodes} == {(False, True)}

    def test_a_time_limit_truncates(self) -> None:
        episodes = play({**WALK, "maxEpisodeSteps": 5})
        assert max(episode.length for episode in episodes) == 5
        longer = [episode for episode in episodes if episode.columns["obs"][0, 2] > 5]
        assert longer
        assert all(episode.truncated and not episode.terminated for episode in longer)

    def test_are_not_biased_to_short_ones(self) -> None:
        lengths = [episode.length for episode in play(WALK, indices=range(100), width=8)]
        expected = []
        for index in range(100):
            env = make_environment(EnvironmentSpec(id=WALK["id"]))
            obs, _ = env.reset(seed=reset_seed(0, "episode", index))
            expected.append(int(obs[2]))
        assert lengths == expected

    def test_depend_on_the_seed(self) -> None:
        assert hashes(play(WALK, seed=1)) == hashes(play(WALK, seed=1))
        assert not hashes(play(WALK, seed=1)).items() & hashes(play(WALK, seed=2)).items()


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
    "by position": (WALK, {"frameStack": 2}),
}


def actor(name: str) -> Actor:
    environment, model = POLICIES[name]
    if name == "random":
        return random_policy(environment)
    policy = make_policy(environment, **model)
    if name == "filtered":
        policy.preprocessing.update({"obs": np.random.default_rng(0).normal(3, 2, (50, 4)).astype("f4")})
    return add_position_dependence(policy) if name == "by position" else policy


class TestIndependence:
    """An episode follows from (seed, index) and the width; from nothing else."""

    @pytest.mark.parametrize("name", POLICIES)
    def test_of_how_the_indices_are_dealt_out(self, name: str) -> None:
        environment = POLICIES[name][0]
        together = hashes(play(environment, actor(name), range(24)))
        parts = [range(9), range(9, 10), range(10, 24)]
        apart = [hashes(play(environment, actor(name), part)) for part in parts]
        assert {eps_id: value for part in apart for eps_id, value in part.items()} == together

    @pytest.mark.parametrize("name", POLICIES)
    def test_of_what_the_runner_played_before(self, name: str) -> None:
        environment = POLICIES[name][0]
        runner = EnvRunner(EnvironmentSpec.model_validate(environment), actor(name), 4, 0, explore=True)
        list(runner.play(range(7)))
        again = list(runner.play(range(7, 20)))
        assert hashes(again) == hashes(play(environment, actor(name), range(7, 20)))

    @pytest.mark.parametrize("name", POLICIES)
    def test_of_an_interrupted_play(self, name: str) -> None:
        environment = POLICIES[name][0]
        runner = EnvRunner(EnvironmentSpec.model_validate(environment), actor(name), 4, 0, explore=True)
        next(iter(runner.play(range(20))))
        assert hashes(list(runner.play(range(20)))) == hashes(play(environment, actor(name)))

    @pytest.mark.parametrize("name", POLICIES)
    def test_of_what_the_policy_played_elsewhere(self, name: str) -> None:
        """With slots that stay idle, after acting in another number of them."""
        environment, policy = POLICIES[name][0], actor(name)
        before = EnvRunner(EnvironmentSpec.model_validate(environment), policy, 1, 0, explore=True)
        list(before.play(range(2)))
        assert hashes(play(environment, policy, range(3))) == hashes(play(environment, actor(name), range(3)))

    @pytest.mark.parametrize("name", ["wide", "by position"])
    def test_of_its_neighbours(self, name: str) -> None:
        """The same episode after, before and between others."""
        policy = actor(name)
        found = set()
        for place in range(8):
            neighbours = [100 + i for i in range(8)]
            indices = [*neighbours[:place], 0, *neighbours[place:]]
            episodes = play(WALK, policy, indices, width=8)  # type: ignore[arg-type]
            found.add(hashes([episode for episode in episodes if episode.index == 0])["e-00000000"])
        assert len(found) == 1

    def test_of_rewards_of_episodes_that_are_over(self) -> None:
        alone = play(CARTPOLE, indices=range(1), width=1)[0]
        assert alone.columns["rewards"].tolist() == [1.0] * alone.length


class TestActions:
    def test_logp_and_inputs_are_those_of_the_recorded_actions(self) -> None:
        policy = make_policy(CARTPOLE)
        episode = play(CARTPOLE, policy, range(1))[0]
        inputs = episode.columns["action_dist_inputs"]
        logp = inputs - np.log(np.exp(inputs).sum(-1, keepdims=True))
        expected = logp[np.arange(episode.length), episode.columns["actions"]]
        np.testing.assert_allclose(episode.columns["action_logp"], expected, atol=1e-5)

    def test_inputs_are_those_of_the_recorded_observations(self) -> None:
        policy = make_policy(WALK, frameStack=3)
        for episode in play(WALK, policy, range(6)):
            obs = episode.columns["obs"][:-1]
            padded = np.concatenate([np.zeros((2, 4), "f4"), obs])
            stacked = np.concatenate([padded[i : i + len(obs)] for i in range(3)], -1)
            expected = policy.module.forward_inference({"obs": _tensor(stacked)})["action_dist_inputs"]
            np.testing.assert_allclose(
                episode.columns["action_dist_inputs"], expected.detach().numpy(), rtol=1e-4, atol=1e-4
            )

    def test_module_actions_are_recorded_and_scaled_ones_arrive(self) -> None:
        episode = play(CONTINUOUS, make_policy(CONTINUOUS, distribution="SquashedGaussian"))[0]
        actions = episode.columns["actions"]
        assert np.abs(actions).max() <= 1.0
        np.testing.assert_allclose(episode.columns["rewards"], 2.0 + 4.0 * actions[:, 0], rtol=1e-5)

    def test_greedy_episodes_do_not_depend_on_noise(self) -> None:
        policy = make_policy(WALK)
        greedy = play(WALK, policy, explore=False)
        assert hashes(greedy) == hashes(play(WALK, policy, explore=False))
        inputs = greedy[0].columns["action_dist_inputs"]
        np.testing.assert_array_equal(inputs.argmax(-1), greedy[0].columns["actions"])

    def test_a_random_policy_without_exploration_is_refused(self) -> None:
        with pytest.raises(SpecError, match=r"spec\.policy\.explore"):
            play(WALK, explore=False)


def _tensor(rows: NDArray[Any]) -> Any:
    return torch.from_numpy(rows)


class TestSpaces:
    def test_tuple_observations(self) -> None:
        for episode in play({"id": "Blackjack-v1"}):
            hand = episode.columns["obs/0"]
            assert hand.shape == (episode.length + 1,)
            assert hand.dtype.kind == "i"
            assert (hand >= 4).all()
            assert set(episode.columns["obs/2"].tolist()) <= {0, 1}

    def test_composite_observations_and_actions(self) -> None:
        for episode in play(COMPOSITE):
            columns, steps = episode.columns, episode.length
            assert columns["obs/place"].shape == (steps + 1, 2)
            np.testing.assert_array_equal(columns["obs/place"][:, 0], np.arange(steps + 1))
            np.testing.assert_array_equal(columns["obs/kind/0"], np.arange(steps + 1) % 3)
            np.testing.assert_array_equal(columns["obs/kind/1"][:, 0], np.arange(steps + 1) % 2)
            assert columns["actions/move"].shape == (steps, 2)
            assert set(columns["actions/jump"].tolist()) <= {1, 2}

    def test_text_observations(self) -> None:
        episode = play({"id": "toy_environments:Speaking"})[0]
        assert episode.columns["obs"].tolist() == ["go" * (t % 4) + "!" for t in range(episode.length + 1)]

    def test_infos_stand_at_their_observations(self) -> None:
        for episode in play(COMPOSITE):
            infos = [json.loads(text) if text else {} for text in episode.columns["infos"]]
            assert len(infos) == episode.length + 1
            assert infos[0] == {"t": 0, "names": ["a", "b"]}
            for t, info in enumerate(infos[1:], start=1):
                assert info.get("t") == (t if t % 2 else None)
                assert len(info.get("moved", [0, 0])) == 2


class TestRollout:
    def test_has_exactly_the_steps_asked_for(self) -> None:
        runner = EnvRunner(EnvironmentSpec(id=WALK["id"]), random_policy(WALK), 4, 0, explore=True)
        episodes = runner.rollout(1000, 50)
        assert sum(episode.length for episode in episodes) == 4 * 50
        assert all(episode.index >= 1000 for episode in episodes)
        assert len({episode.index for episode in episodes}) == len(episodes)

    def test_what_still_runs_comes_last_and_is_neither_terminated_nor_truncated(self) -> None:
        runner = EnvRunner(EnvironmentSpec(id=WALK["id"]), random_policy(WALK), 4, 0, explore=True)
        episodes = runner.rollout(0, 50)
        done = [episode.terminated for episode in episodes]
        assert done == sorted(done, reverse=True)
        for episode in episodes:
            _, t, length, _ = episode.columns["obs"][-1]
            assert t == episode.length
            assert episode.terminated == (t == length)

    @pytest.mark.parametrize("name", ["stacked", "by position"])
    def test_is_the_same_again(self, name: str) -> None:
        def roll(before: bool) -> dict[str, str]:
            policy = actor(name)
            runner = EnvRunner(EnvironmentSpec(id=WALK["id"]), policy, 4, 0, explore=True)
            if before:
                runner.rollout(0, 13)
            return hashes(runner.rollout(1000, 30))

        assert roll(before=True) == roll(before=False)


class TestWrongEnvironments:
    def wrong(self, what: str) -> dict[str, Any]:
        return {"id": "toy_environments:Wrong", "kwargs": {"what": what}}

    @pytest.mark.parametrize("what", ["reset", "step"])
    def test_an_exception_is_one_sentence_with_its_line(self, what: str) -> None:
        said = {"reset": "the simulator is not there", "step": "the simulator fell over"}[what]
        pattern = rf"in {what}\(\) raised RuntimeError at .*toy_environments\.py:\d+: {said}"
        with pytest.raises(UserCodeError, match=pattern):
            play(self.wrong(what), random_policy(WALK))

    def test_an_exception_in_the_constructor(self) -> None:
        with pytest.raises(UserCodeError, match=r"ValueError at .*toy_environments\.py:\d+: no such level"):
            play(self.wrong("constructor"), random_policy(WALK))

    def test_an_exception_in_the_constructor_of_a_registered_one(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        spec = gym.envs.registration.EnvSpec("ToyWrong-v0", entry_point="toy_environments:Wrong")
        monkeypatch.setitem(gym.registry, "ToyWrong-v0", spec)
        with pytest.raises(UserCodeError, match=r"ValueError at .*toy_environments\.py:\d+: no such level"):
            make_environment(EnvironmentSpec(id="ToyWrong-v0", kwargs={"what": "constructor"}))

    def test_observations_without_a_fixed_shape(self, monkeypatch: pytest.MonkeyPatch) -> None:
        space = gym.spaces.Sequence(gym.spaces.Discrete(2))
        monkeypatch.setattr(toy_environments.Walk, "observation_space", space)
        with pytest.raises(SpecError, match="no fixed shape"):
            play(WALK, RandomActor(Preprocessing(gym.spaces.Discrete(2), gym.spaces.Discrete(3))))

    @pytest.mark.parametrize("what", ["shape", "short", "missing", "not a number"])
    def test_an_observation_that_does_not_fit_its_space(self, what: str) -> None:
        with pytest.raises(DataError, match=r"toy_environments:Wrong.* observation .*observation_space"):
            play(self.wrong(what), random_policy(WALK))

    @pytest.mark.parametrize(
        ("what", "said"),
        [
            (
                "old reset",
                r"reset\(\) must return \(observation, info\), .* returned one value, of type ndarray",
            ),
            (
                "old step",
                r"step\(\) returned 4 values; Gymnasium's returns 5: observation, reward, terminated, truncated, info",
            ),
        ],
    )
    def test_an_old_one_is_told_what_gymnasium_returns(self, what: str, said: str) -> None:
        with pytest.raises(UserCodeError, match=f"toy_environments:Wrong.*{said}"):
            play(self.wrong(what), random_policy(WALK))

    def test_a_reward_that_is_no_number(self) -> None:
        with pytest.raises(UserCodeError, match=r"toy_environments:Wrong.*reward.*None"):
            play(self.wrong("reward"), random_policy(WALK))

    def test_an_info_that_is_no_json(self) -> None:
        with pytest.raises(UserCodeError, match=r"toy_environments:Wrong.*info"):
            play(self.wrong("info"), random_policy(WALK))

    @pytest.mark.parametrize(
        ("spec", "said"),
        [
            ({"id": "CartPole-v7"}, r"'CartPole-v7'.*did you mean 'CartPole-v"),
            ({"id": "NoSuchThing-v0"}, r"there is no Gymnasium environment 'NoSuchThing-v0'"),
            ({"id": "no_such_module:Env"}, r"there is no module 'no_such_module'"),
            ({"id": "toy_environments:Nope"}, r"has no 'Nope'"),
            ({"id": "json:JSONDecoder"}, r"made a JSONDecoder, not a gymnasium\.Env"),
            ({"id": "CartPole-v1", "kwargs": {"gravity": "up"}}, r"kwargs.*gravity"),
            ({"id": "CartPole-v1", "wrappers": ["NoSuchWrapper"]}, r"gymnasium\.wrappers has no"),
        ],
    )
    def test_an_environment_that_cannot_be_made(self, spec: dict[str, Any], said: str) -> None:
        with pytest.raises(SpecError, match=said):
            make_environment(EnvironmentSpec.model_validate(spec))

    def test_wrappers_are_applied_innermost_first(self) -> None:
        wrappers = [{"name": "TimeLimit", "kwargs": {"max_episode_steps": 3}}, "RecordEpisodeStatistics"]
        episodes = play({**CARTPOLE, "wrappers": wrappers})
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
    def test_actions_lie_in_the_space_and_their_logp_is_exact(
        self, space: gym.Space, normalize: bool
    ) -> None:
        preprocessing = Preprocessing(gym.spaces.Discrete(2), space, normalize_actions=normalize)
        policy = RandomActor(preprocessing)
        noise = policy.draw_noise(np.random.default_rng(0), 2000)
        acted = policy.act({}, noise)
        assert all(space.contains(action) for action in acted.env_actions)
        logp = np.unique(acted.logp)
        assert len(logp) == 1
        assert np.exp(-logp[0]) == pytest.approx(_volume(preprocessing.action_space), rel=1e-5)

    @pytest.mark.parametrize("space", SPACES[:3], ids=str)
    def test_every_action_comes_equally_often(self, space: gym.Space) -> None:
        policy = RandomActor(Preprocessing(gym.spaces.Discrete(2), space))
        actions = policy.act({}, policy.draw_noise(np.random.default_rng(0), 20_000)).actions["actions"]
        _, counts = np.unique(actions.reshape(20_000, -1), axis=0, return_counts=True)
        assert len(counts) == round(_volume(space))
        expected = 20_000 / len(counts)
        assert ((counts - expected) ** 2 / expected).sum() < 3 * len(counts)  # chi-squared

    @pytest.mark.parametrize("space", [gym.spaces.Box(-np.inf, np.inf, (2,)), gym.spaces.Text(5)], ids=str)
    def test_a_space_without_a_uniform_distribution_is_refused(self, space: gym.Space) -> None:
        with pytest.raises(SpecError, match=re.escape(str(space))):
            RandomActor(Preprocessing(gym.spaces.Discrete(2), space))


def _volume(space: gym.Space) -> float:
    """Number of actions, or the volume of a box of floats."""
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


def test_a_block_of_episodes_fits_its_spaces() -> None:
    policy = make_policy(COMPOSITE)
    block = episodes_to_block(play(COMPOSITE, policy), "e")
    assert isinstance(policy, Policy)
    check_block(
        block,
        DataSpec.from_block(block),
        policy.observation_space,
        policy.preprocessing.action_space,
        lambda episode: ("file", episode),
        normalized_actions=True,
    )
    assert block.eps_id.tolist() == [f"e-{index:08d}" for index in range(20)]
