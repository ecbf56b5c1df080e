"""Conversion of episodes to blocks and back."""

import numpy as np
import pytest
from episode_builders import add_step, get_contents, make_episode, make_observation
from gymnasium import spaces

from episode_kit import build_block
from hindcast.episodes.block import Block
from hindcast.episodes.convert import block_to_episodes, episodes_to_block, info_from_json, info_to_json
from hindcast.episodes.episode import SingleAgentEpisode


def make_block(**columns) -> Block:
    """Make the episodes a (3 steps) and b (2 steps from timestep 40), with added or replaced columns."""
    columns = {
        "obs": np.arange(14, dtype=np.float32).reshape(7, 2),
        "actions": np.arange(5),
        "rewards": np.ones(5, np.float32),
        "action_logp": np.full(5, -0.5, np.float32),
        **columns,
    }
    return build_block(columns, [3, 2], eps_id=np.array(["a", "b"], object), t_started=np.array([0, 40]))


def test_episodes_to_block_makes_columns(is_numpy):
    first = make_episode(3, is_numpy=is_numpy, terminated=True)
    second = make_episode(2, is_numpy=is_numpy, id_="f", t_started=40, truncated=True)
    block = episodes_to_block([first, second])
    assert list(block.columns) == ["obs", "actions", "rewards", "logp", "infos"]
    assert block.length.tolist() == [3, 2] and block.eps_id.tolist() == ["e", "f"]
    assert block.t_started.tolist() == [0, 40]
    assert block.terminated.tolist() == [True, False] and block.truncated.tolist() == [False, True]
    assert block.columns["obs"][:, 0].tolist() == [0, 1, 2, 3, 0, 1, 2]
    assert block.columns["obs"].dtype == np.float32
    assert block.columns["actions"].tolist() == block.columns["rewards"].tolist() == [0, 1, 2, 0, 1]
    assert block.columns["infos"][3] == '{"i":3}' and block.columns["infos"].dtype == object


def test_episodes_to_block_drops_lookback_and_empty_infos():
    block = episodes_to_block([make_episode(6, len_lookback_buffer=4, t_started=10, infos=None)])
    assert block.columns["rewards"].tolist() == [4, 5] and block.t_started.tolist() == [10]
    assert block.columns["obs"][:, 0].tolist() == [4, 5, 6]
    assert "infos" not in block.columns
    block_with_infos = episodes_to_block([make_episode(1, infos=None), make_episode(1, infos=[{}, {"x": 1}])])
    assert block_with_infos.columns["infos"].tolist() == ["{}", "{}", "{}", '{"x":1}']


def test_block_to_episodes_returns_views():
    block = make_block()
    first, second = block_to_episodes(block, action_space=spaces.Discrete(9))
    assert (first.id_, first.t_started, first.t, second.id_, second.t_started, second.t) == (
        "a",
        0,
        3,
        "b",
        40,
        42,
    )
    assert (first.is_terminated, first.is_truncated) == (True, False)
    assert (second.is_terminated, second.is_truncated) == (False, True)
    assert second.is_numpy and second.rewards.lookback == 0
    assert second.get_observations().tolist() == [[8, 9], [10, 11], [12, 13]]
    assert second.get_actions().tolist() == [3, 4] and second.get_actions(0, one_hot_discrete=True)[3] == 1
    for array, column in (
        (second.get_observations(), "obs"),
        (second.get_actions(), "actions"),
        (second.get_rewards(), "rewards"),
        (second.get_extra_model_outputs("action_logp"), "action_logp"),
    ):
        assert np.shares_memory(array, block.columns[column])
    assert second.get_infos() == [{}, {}, {}]


def test_set_on_episode_does_not_change_block():
    block = make_block()
    for column in block.columns.values():
        column.flags.writeable = False
    episode = block_to_episodes(block)[1]
    episode.set_rewards(new_data=[7.0, 8.0])
    episode.is_truncated = False
    add_step(episode, 5, extra_model_outputs={"action_logp": -1.0})
    assert episode.get_rewards().tolist() == [7, 8, 5] and episode.get_rewards().dtype == np.float32
    assert block.columns["rewards"].tolist() == [1, 1, 1, 1, 1]


def test_block_to_episodes_decodes_infos():
    texts = ["{}", '{"lives": 3, "pos": [1.5, 2]}', "", "{}", "{}", "{}", '{"done": true}']
    first, second = block_to_episodes(make_block(infos=np.array(texts, dtype=object)))
    assert first.get_infos() == [{}, {"lives": 3, "pos": [1.5, 2]}, {}, {}]
    assert second[1:2].get_infos() == [{}, {"done": True}]


def test_info_json_round_trip():
    info = {"a": np.float32(1.5), "b": np.arange(2), "c": {"d": None}, "e": np.nan, 3: "x", "s": {1}}
    plain_info = {"a": 1.5, "b": [0, 1], "c": {"d": None}, "e": None, "3": "x", "s": "{1}"}
    assert info_from_json(info_to_json(info)) == plain_info
    assert info_to_json({}) == "{}" and info_from_json("") == {}


def test_nested_values_become_one_column_per_leaf():
    observation_space = spaces.Dict(
        camera=spaces.Box(0, 255, (2, 2), np.uint8),
        pose=spaces.Tuple((spaces.Box(-1, 1, (3,)), spaces.Text(20))),
    )
    action_space = spaces.Tuple((spaces.Discrete(3), spaces.Box(-1, 1, (1,))))
    episode = SingleAgentEpisode(observation_space=observation_space, action_space=action_space)
    episode.add_env_reset({"camera": np.zeros((2, 2), np.uint8), "pose": (np.zeros(3, np.float32), "start")})
    for t in range(2):
        episode.add_env_step(
            {"camera": np.full((2, 2), t, np.uint8), "pose": (np.full(3, t, np.float32), "go" * t)},
            (t, np.ones(1, np.float32)),
            1.0,
            extra_model_outputs={"state_out": {"h": np.zeros(4), "c": (1, 2)}},
        )
    block = episodes_to_block([episode])
    assert {name: (column.shape, column.dtype.kind) for name, column in block.columns.items()} == {
        "obs/camera": ((3, 2, 2), "u"),
        "obs/pose/0": ((3, 3), "f"),
        "obs/pose/1": ((3,), "O"),
        "actions/0": ((2,), "i"),
        "actions/1": ((2, 1), "f"),
        "rewards": ((2,), "f"),
        "state_out/h": ((2, 4), "f"),
        "state_out/c/0": ((2,), "i"),
        "state_out/c/1": ((2,), "i"),
    }
    for options in ({}, {"observation_space": observation_space, "action_space": action_space}):
        (restored_episode,) = block_to_episodes(block, **options)
        assert restored_episode.get_observations(0)["pose"][1] == "start"
        assert restored_episode.get_observations(1)["pose"][1] == ""
        assert restored_episode.get_actions(1)[0] == 1
        assert restored_episode.get_extra_model_outputs("state_out", 0)["c"] == (1, 2)
        assert restored_episode.get_observations(0).keys() == {"camera", "pose"}


def test_episode_without_steps_adds_only_its_observation():
    block = episodes_to_block([make_episode(0, id_="z", extra_model_outputs=None), make_episode(2)])
    assert block.length.tolist() == [0, 2] and block.columns["obs"][:, 0].tolist() == [0, 0, 1, 2]
    empty_episode, second = block_to_episodes(block)
    assert (len(empty_episode), len(second)) == (0, 2)
    assert empty_episode.get_observations(0).tolist() == [0, 0]


@pytest.mark.parametrize(
    ("episodes", "message"),
    [
        ([], "at least one episode"),
        ([SingleAgentEpisode("x")], "episode x has no observation"),
        ([make_episode(0)], "none of the 1 episodes has a step"),
        (
            [make_episode(1), make_episode(1, id_="f", extra_model_outputs=None)],
            r"differ in columns: \['actions', 'obs', 'rewards'\] in episode f, .*'logp'.* in others",
        ),
        (
            [make_episode(1), make_episode(1, observations=[np.zeros(3)] * 2)],
            r"differ in the shape of obs: \[\(2,\), \(3,\)\]",
        ),
        (
            [make_episode(1, observations=[np.zeros(2), np.zeros(3)])],
            "obs of episode e: samples differ in shape",
        ),
        ([make_episode(1, extra_model_outputs={"obs": [1]})], "extra model output named 'obs'"),
        ([make_episode(1, extra_model_outputs={"a/b": [1]})], "extra model output named 'a/b'"),
        (
            [make_episode(1, extra_model_outputs={"x": [None]})],
            "x of episode e holds values that are neither",
        ),
    ],
)
def test_invalid_episodes_to_block_raises(episodes, message):
    with pytest.raises(ValueError, match=message):
        episodes_to_block(episodes)


def test_block_without_actions_to_episodes_raises():
    block = make_block()
    columns = {name: column for name, column in block.columns.items() if name != "actions"}
    with pytest.raises(ValueError, match="the leaf 'actions' does not exist"):
        block_to_episodes(block.with_columns(columns))


def test_slices_converted_to_block_and_back_concat_to_the_episode():
    complete_episode = make_episode(6, terminated=True)
    head, tail = complete_episode[:4], complete_episode[4:]
    block = episodes_to_block([head, tail])
    first, second = block_to_episodes(block)
    first.concat_episode(second)
    assert get_contents(first) == get_contents(complete_episode)
    assert first.get_observations(-1).tolist() == make_observation(6).tolist()
