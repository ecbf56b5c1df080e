"""States of episodes, which are the rows of RLlib's episode files."""

import msgpack
import msgpack_numpy
import numpy as np
import pytest
from episode_builders import ACTION_SPACE, OBSERVATION_SPACE, get_contents, make_episode
from gymnasium import spaces

from hindcast.episodes.episode import SingleAgentEpisode
from hindcast.episodes.spaces import space_from_state, space_to_state

STATE_KEYS = [
    "id_", "agent_id", "module_id", "multi_agent_episode_id", "observations", "actions", "rewards", "infos",
    "extra_model_outputs", "is_terminated", "is_truncated", "t_started", "t", "_observation_space", "_action_space",
    "_start_time", "_last_step_time", "custom_data",
]  # fmt: skip
# The scalar float32 -inf as a .npy file, by zlib and base64: existing episode files contain this text.
MINUS_INFINITY = (
    "eJyb7BfqGxDJyFDGUK2eklqcXKRupaBuk2airqOgnpZfVFKUmBefX5SSChJ3S8wpTgWKF2ckFqQC+RqaOgq1ChQBLgaGhv8AupYcug=="
)
NESTED_SPACE = spaces.Dict(
    camera=spaces.Box(0, 255, (2, 2), np.uint8),
    pose=spaces.Tuple((spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(4))),
)


def pack_and_unpack(state):
    """Pack and unpack a state with MessagePack, as episode files do; tuples become lists."""
    data = msgpack.packb(state, default=msgpack_numpy.encode)
    return msgpack.unpackb(data, object_hook=msgpack_numpy.decode, strict_map_key=False)


def test_state_has_keys_of_rllib_episode_files(is_numpy):
    changes = {"len_lookback_buffer": 2, "t_started": 10, "truncated": True, "agent_id": "a"}
    episode = make_episode(is_numpy=is_numpy, **changes)
    episode.custom_data["note"] = 1
    state = episode.get_state()
    assert list(state) == STATE_KEYS
    assert state["actions"]["space"] == {"space": "discrete", "n": 10, "start": 0}
    rewards = state["rewards"]
    high = rewards["space"]["high"]
    assert rewards["space"] == {
        "space": "box",
        "low": MINUS_INFINITY,
        "high": high,
        "shape": (),
        "dtype": "<f4",
    }
    assert (rewards["lookback"], rewards["finalized"]) == (2, is_numpy)
    assert state["infos"]["finalized"] is False and state["infos"]["space"] is None
    assert state["observations"]["space"] == state["_observation_space"]

    restored_episode = SingleAgentEpisode.from_state(pack_and_unpack(state))
    assert get_contents(restored_episode) == get_contents(episode)
    assert restored_episode.is_numpy == is_numpy
    assert restored_episode.custom_data == {"note": 1} and restored_episode.agent_id == "a"
    assert restored_episode.observation_space == OBSERVATION_SPACE
    assert restored_episode.action_space == ACTION_SPACE
    assert restored_episode.observations == episode.observations


def test_state_of_empty_episode_has_no_outputs_and_spaces():
    state = SingleAgentEpisode().get_state()
    assert state["extra_model_outputs"] is None and state["_observation_space"] is None
    assert len(SingleAgentEpisode.from_state(state)) == 0
    state = make_episode(len_lookback_buffer="auto").get_state()
    assert len(state["extra_model_outputs"]["logp"]["data"]) == 6


def test_tuples_round_trip(is_numpy):
    sample = {"camera": np.ones((2, 2), np.uint8), "pose": (np.zeros(3, np.float32), 2)}
    episode = SingleAgentEpisode(
        observations=[sample] * 3,
        actions=[(0, 1)] * 2,
        rewards=[1.0] * 2,
        observation_space=NESTED_SPACE,
        action_space=spaces.Tuple((spaces.Discrete(2), spaces.Discrete(2))),
        len_lookback_buffer=0,
    )
    if is_numpy:
        episode.to_numpy()
    restored_episode = SingleAgentEpisode.from_state(pack_and_unpack(episode.get_state()))
    assert restored_episode.observations == episode.observations
    assert restored_episode.actions == episode.actions
    assert isinstance(restored_episode.get_observations(0)["pose"], tuple)
    assert isinstance(restored_episode.get_actions(0), tuple)


def test_episode_from_state_is_writable():
    episode = SingleAgentEpisode.from_state(pack_and_unpack(make_episode(is_numpy=True).get_state()))
    episode.set_rewards(new_data=9.0, at_indices=0)
    assert episode.get_rewards(0) == 9.0


def test_from_state_accepts_numpy_flags_and_missing_custom_data():
    state = {**make_episode().get_state(), "is_terminated": np.bool_(True)}
    del state["custom_data"]
    episode = SingleAgentEpisode.from_state(pack_and_unpack(state))
    assert episode.is_terminated is True and episode.custom_data == {}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"actions": None, "t": None}, "lacks actions, t;"),
        ({"t": 9}, "ends at timestep 9, but its steps end at 6"),
        ({"actions": {"data": []}}, "column lacks 'lookback'"),
        ({"_action_space": {"space": "moon"}}, "space of the kind 'moon'; allowed are box, discrete"),
        ({"_action_space": {"space": "box", "low": "x"}}, "box space in an episode's state cannot be read"),
    ],
)
def test_from_invalid_state_raises(changes, message):
    state = make_episode().get_state() | changes
    for key in [key for key in changes if changes[key] is None]:
        del state[key]
    with pytest.raises(ValueError, match=message):
        SingleAgentEpisode.from_state(state)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-np.inf, np.inf, (2, 3), np.float64),
        spaces.Box(np.array([0, -1], np.float32), np.array([1, 5], np.float32)),
        spaces.Box(0, 255, (1,), np.uint8),
        spaces.Discrete(3, start=-1),
        spaces.MultiBinary(4),
        spaces.MultiBinary([2, 3]),
        spaces.MultiDiscrete([2, 3]),
        spaces.MultiDiscrete([[2, 3], [4, 5]]),
        spaces.MultiDiscrete([2, 3], start=[1, -1]),
        spaces.Text(5, min_length=0, charset="ab"),
        NESTED_SPACE,
    ],
    ids=str,
)
def test_space_state_round_trip(space):
    assert space_from_state(pack_and_unpack(space_to_state(space))) == space


def test_space_without_state_raises():
    with pytest.raises(ValueError, match=r"Sequence.* cannot be part of an episode's state"):
        space_to_state(spaces.Sequence(spaces.Discrete(2)))
    assert space_from_state(None) is None
