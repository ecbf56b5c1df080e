"""`SingleAgentEpisode`: steps, lookback, getters and setters, in list mode and in NumPy mode."""

import numpy as np
import pytest
from episode_builders import (
    ACTION_SPACE,
    OBSERVATION_SPACE,
    add_step,
    first_entries,
    make_episode,
    make_observation,
)
from gymnasium import spaces

from hindcast.episodes.episode import SingleAgentEpisode


def make_stepped_episode(**changes) -> SingleAgentEpisode:
    """Make an episode by a reset and three steps."""
    episode = SingleAgentEpisode(observation_space=OBSERVATION_SPACE, action_space=ACTION_SPACE, **changes)
    episode.add_env_reset(make_observation(0), {"i": 0})
    for t in range(3):
        add_step(episode, t)
    return episode


def test_new_episode_is_empty():
    episode = SingleAgentEpisode()
    assert len(episode.id_) == 32 and episode.id_ != SingleAgentEpisode().id_
    assert (len(episode), episode.t_started, episode.t) == (0, 0, 0)
    assert not (episode.is_reset or episode.is_done or episode.is_numpy)
    assert episode.get_return() == 0.0 and episode.get_duration_s() == 0.0
    assert (episode.agent_id, episode.module_id, episode.multi_agent_episode_id) == (None, None, None)
    assert episode.custom_data == {}
    episode.validate()


def test_add_env_step_appends_to_columns():
    episode = make_stepped_episode(t_started=10, agent_id="a", module_id="m", multi_agent_episode_id="E")
    assert (len(episode), episode.t_started, episode.t) == (3, 10, 13)
    assert episode.env_steps() == episode.agent_steps() == 3
    assert first_entries(episode.get_observations()) == [0, 1, 2, 3]
    assert episode.get_actions() == [0, 1, 2]
    assert episode.get_rewards() == [0.0, 1.0, 2.0]
    assert episode.get_infos() == [{"i": 0}, {"i": 1}, {"i": 2}, {"i": 3}]
    assert episode.get_extra_model_outputs("logp") == [0.0, 0.25, 0.5]
    assert episode.get_return() == 3.0
    assert episode.get_duration_s() > 0.0
    assert not episode.is_done
    add_step(episode, 3, terminated=np.True_)
    assert episode.is_done and episode.is_terminated is True and episode.is_truncated is False
    assert repr(episode) == f"SAEps(len=4 done=True R=6.0 id_={episode.id_})"


def test_add_env_step_in_numpy_mode():
    episode = make_stepped_episode().to_numpy()
    add_step(episode, 3, truncated=True)
    assert episode.is_truncated and episode.is_numpy
    assert episode.get_actions().tolist() == [0, 1, 2, 3]
    assert episode.get_extra_model_outputs("logp").tolist() == [0.0, 0.25, 0.5, 0.75]
    assert first_entries(episode.get_observations()) == [0, 1, 2, 3, 4]
    assert episode.get_infos(-1) == {"i": 4}


def test_to_numpy_before_first_step():
    episode = SingleAgentEpisode(observation_space=OBSERVATION_SPACE, action_space=spaces.Box(-1, 1, (3,)))
    episode.add_env_reset(make_observation(0))
    episode.to_numpy()
    assert episode.is_numpy and episode.get_actions().shape == (0, 3)
    outputs = {"logp": np.float32(-1)}
    episode.add_env_step(make_observation(1), np.ones(3, np.float32), 1.0, extra_model_outputs=outputs)
    assert episode.get_actions().tolist() == [[1, 1, 1]] and episode.get_actions().dtype == np.float32
    assert episode.get_extra_model_outputs("logp").tolist() == [-1]
    episode.validate()


def test_invalid_add_env_step_raises():
    with pytest.raises(ValueError, match="call add_env_reset before add_env_step"):
        SingleAgentEpisode().add_env_step(make_observation(1), 0, 0.0)
    episode = make_stepped_episode(id_="e")
    with pytest.raises(ValueError, match="episode e has already been reset"):
        episode.add_env_reset(make_observation(0))
    message = r"step 3 of episode e has the extra model outputs \[\], .*\['logp'\]"
    with pytest.raises(ValueError, match=message):
        add_step(episode, 3, extra_model_outputs={})
    assert len(episode) == 3
    episode.validate()
    add_step(episode, 3, terminated=True)
    with pytest.raises(ValueError, match="episode e is done"):
        add_step(episode, 4)


@pytest.mark.parametrize(
    ("len_lookback_buffer", "lookback", "length", "episode_return"),
    [("auto", 6, 0, 0.0), (0, 0, 6, 15.0), (1, 1, 5, 15.0), (2, 2, 4, 14.0), (6, 6, 0, 0.0), (10, 6, 0, 0.0)],
)
def test_len_lookback_buffer_splits_given_data(
    is_numpy, len_lookback_buffer, lookback, length, episode_return
):
    episode = make_episode(is_numpy=is_numpy, len_lookback_buffer=len_lookback_buffer, t_started=100)
    assert (len(episode), episode.t_started, episode.t) == (length, 100, 100 + length)
    buffers = [episode.observations, episode.actions, episode.rewards, episode.infos]
    assert {buffer.lookback for buffer in [*buffers, *episode.extra_model_outputs.values()]} == {lookback}
    assert len(episode.get_observations()) == length + 1
    assert episode.get_return() == episode_return
    assert episode.is_reset and not episode.is_done


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"len_lookback_buffer": -1}, "len_lookback_buffer is -1"),
        ({"len_lookback_buffer": "all"}, "len_lookback_buffer is 'all'"),
        ({"observations": [make_observation(0)] * 3}, "6 rewards, so it must have 7 observations .* has 3"),
        ({"observations": None}, "must have 7 observations .* has 0"),
        ({"actions": [1]}, "must have 6 actions .* has 1"),
        ({"rewards": [1.0, 2.0]}, "2 rewards, so it must have 2 actions .* has 6"),
        ({"infos": [{}]}, "must have 7 infos .* has 1"),
        ({"extra_model_outputs": {"logp": [0.0] * 7}}, "must have 6 logp .* has 7"),
        ({"actions": {"a": np.zeros(6), "b": np.zeros(5)}}, "differ in length"),
    ],
)
def test_inconsistent_columns_raise(changes, message):
    with pytest.raises(ValueError, match=message):
        make_episode(**changes)


def test_episode_from_arrays_has_views():
    observations, rewards = np.zeros((4, 2), np.float32), np.ones(3)
    arguments = {"observations": observations, "actions": np.arange(3), "rewards": rewards}
    episode = SingleAgentEpisode(**arguments, len_lookback_buffer=0)
    assert episode.is_numpy
    assert np.shares_memory(episode.get_observations(), observations)
    episode.set_rewards(new_data=5.0, at_indices=0)
    assert rewards.tolist() == [1, 1, 1] and episode.get_return() == 7.0
    arguments |= {"observations": list(observations), "actions": [0, 1, 2]}
    list_episode = SingleAgentEpisode(**arguments, len_lookback_buffer=0)
    assert not list_episode.is_numpy and list_episode.to_numpy().is_numpy


def test_default_infos_are_separate_empty_dicts():
    episode = make_episode(infos=None)
    episode.get_infos(0)["mine"] = 1
    assert episode.get_infos() == [{"mine": 1}] + [{}] * 6
    assert make_episode(infos=lambda: [{"i": t} for t in range(7)]).get_infos(3) == {"i": 3}


@pytest.mark.parametrize(
    ("indices", "neg_index_as_lookback", "per_observation", "per_step"),
    [
        (None, False, [2, 3, 4, 5, 6], [2, 3, 4, 5]),
        (0, False, 2, 2),
        (3, False, 5, 5),
        (-1, False, 6, 5),
        (-4, False, 3, 2),
        (-6, False, 1, 0),
        (-1, True, 1, 1),
        (-2, True, 0, 0),
        ([0, -1], False, [2, 6], [2, 5]),
        ([0, -1], True, [2, 1], [2, 1]),
        (slice(None), True, [2, 3, 4, 5, 6], [2, 3, 4, 5]),
        (slice(1, 3), False, [3, 4], [3, 4]),
        (slice(-2, None), False, [5, 6], [4, 5]),
        (slice(-1, 2), True, [1, 2, 3], [1, 2, 3]),
        (slice(-1, 2), False, [], []),
    ],
)
def test_getters_return_timesteps_and_lookback(
    is_numpy, indices, neg_index_as_lookback, per_observation, per_step
):
    episode = make_episode(is_numpy=is_numpy, len_lookback_buffer=2)
    is_single = isinstance(indices, int)
    options = {"neg_index_as_lookback": neg_index_as_lookback}

    def convert_items(result, convert=float):
        return convert(result) if is_single else [convert(item) for item in result]

    assert (
        convert_items(episode.get_observations(indices, **options), lambda item: item[0]) == per_observation
    )
    assert convert_items(episode.get_infos(indices, **options), lambda info: info["i"]) == per_observation
    assert convert_items(episode.get_actions(indices, **options)) == per_step
    assert convert_items(episode.get_rewards(indices, **options)) == per_step
    logp = convert_items(episode.get_extra_model_outputs("logp", indices, **options), lambda value: 4 * value)
    assert logp == per_step


def test_getters_fill_and_encode_one_hot(is_numpy):
    episode = make_episode(is_numpy=is_numpy, len_lookback_buffer=2)
    rewards = episode.get_rewards(slice(-4, 5), neg_index_as_lookback=True, fill=0.5)
    assert [float(reward) for reward in rewards] == [0.5, 0.5, 0, 1, 2, 3, 4, 5, 0.5]
    assert episode.get_observations(99, fill=7.0).tolist() == [7, 7]
    assert episode.get_extra_model_outputs("logp", [0, 99], fill=0.0)[1] == 0.0
    assert episode.get_infos([0, 99], fill={"none": True}) == [{"i": 2}, {"none": True}]
    assert episode.get_actions(-1, one_hot_discrete=True).tolist() == [0, 0, 0, 0, 0, 1, 0, 0, 0, 0]
    assert episode.get_observations(-1, one_hot_discrete=True).tolist() == [6, 6]


def test_getters_of_missing_data_raise(is_numpy):
    episode = make_episode(is_numpy=is_numpy)
    with pytest.raises(IndexError, match=r"index 6 .* 6 timesteps and 0 lookback items"):
        episode.get_actions(6)
    assert first_entries([episode.get_observations(6)]) == [6]
    with pytest.raises(KeyError, match="no extra model output 'vf_preds'; it has: logp"):
        episode.get_extra_model_outputs("vf_preds")
    with pytest.raises(KeyError, match="no extra model output 'vf_preds'"):
        episode.set_extra_model_outputs(key="vf_preds", new_data=0.0, at_indices=0)
    with pytest.raises(ValueError, match="observation_space/action_space"):
        make_episode(is_numpy=is_numpy, action_space=None).get_actions(0, one_hot_discrete=True)


def test_setters_overwrite_timesteps(is_numpy):
    episode = make_episode(is_numpy=is_numpy, len_lookback_buffer=1)
    episode.set_observations(new_data=make_observation(50), at_indices=-1)
    episode.set_actions(new_data=[8, 9], at_indices=slice(0, 2))
    episode.set_rewards(new_data=[0.5] * 5)
    episode.set_extra_model_outputs(key="logp", new_data=[7.0], at_indices=[-1], neg_index_as_lookback=True)
    assert first_entries(episode.get_observations()) == [1, 2, 3, 4, 5, 50]
    assert list(episode.get_actions()) == [8, 9, 3, 4, 5]
    assert episode.get_return() == 2.5
    assert episode.get_extra_model_outputs("logp", -6) == 7.0


def test_space_can_be_set_later():
    episode = make_episode(action_space=None, observation_space=None)
    episode.action_space, episode.observation_space = ACTION_SPACE, OBSERVATION_SPACE
    assert episode.get_actions(1, one_hot_discrete=True)[1] == 1
    assert episode.observation_space is episode.observations.space is OBSERVATION_SPACE


def test_get_data_dict_has_columns_of_equal_length(is_numpy):
    episode = make_episode(is_numpy=is_numpy, len_lookback_buffer=2, t_started=10, terminated=True)
    data = episode.get_data_dict()
    assert list(data["terminateds"]) == [False, False, False, True]
    assert list(data["truncateds"]) == [False] * 4
    assert list(data["t"]) == [10, 11, 12, 13] and list(data["eps_id"]) == ["e"] * 4
    assert first_entries(data["obs"]) == list(data["rewards"]) == list(data["actions"]) == [2, 3, 4, 5]
    assert [info["i"] for info in data["infos"]] == [2, 3, 4, 5]
    assert {len(column) for column in data.values()} == {4}
    assert {len(column) for column in SingleAgentEpisode().get_data_dict().values()} == {0}


def test_nested_observations_and_actions_are_supported():
    space = spaces.Dict(camera=spaces.Box(0, 255, (2,), np.uint8), id=spaces.Discrete(9))
    episode = SingleAgentEpisode(
        observation_space=space, action_space=spaces.Tuple((spaces.Discrete(3), spaces.Discrete(3)))
    )
    episode.add_env_reset({"camera": np.zeros(2, np.uint8), "id": 0})
    for t in range(2):
        episode.add_env_step({"camera": np.full(2, t, np.uint8), "id": t}, (t, 2 - t), 1.0)
    episode.to_numpy()
    assert episode.get_observations()["camera"].shape == (3, 2)
    assert episode.get_observations(-1)["id"] == 1
    assert [part.tolist() for part in episode.get_actions()] == [[0, 1], [2, 1]]
    one_hot = episode.get_actions(1, one_hot_discrete=True)
    assert [part.tolist() for part in one_hot] == [[0, 1, 0], [0, 1, 0]]
    episode.set_actions(new_data=(2, 2), at_indices=0)
    assert episode.get_actions(0) == (2, 2)


def test_to_numpy_of_different_shapes_raises():
    episode = make_episode(observations=[np.zeros(2)] * 6 + [np.zeros(3)])
    with pytest.raises(ValueError, match=r"\(2,\) at index 0, \(3,\) at index 6"):
        episode.to_numpy()
