"""Cutting, slicing and concatenating episodes, in list mode and in NumPy mode."""

import copy
import pickle

import numpy as np
import pytest
from episode_builders import add_step, first_entries, get_contents, make_episode, make_observation

from hindcast.episodes.episode import SingleAgentEpisode


@pytest.mark.parametrize(
    ("lookback", "rewards"), [(0, []), (1, [5]), (3, [3, 4, 5]), (99, [0, 1, 2, 3, 4, 5])]
)
def test_cut_continues_at_last_observation(is_numpy, lookback, rewards):
    ids = {"agent_id": "a", "module_id": "m", "multi_agent_episode_id": "E"}
    episode = make_episode(is_numpy=is_numpy, t_started=10, **ids)
    episode.custom_data["note"] = 1
    fragment = episode.cut(lookback)
    assert get_contents(fragment) == {
        "id": "e",
        "t": (16, 16),
        "lookback": len(rewards),
        "done": (False, False),
        "observations": [*rewards, 6],
        "infos": [{"i": t} for t in [*rewards, 6]],
        "actions": rewards,
        "rewards": rewards,
        "logp": [t / 4 for t in rewards],
    }
    assert (fragment.agent_id, fragment.module_id, fragment.multi_agent_episode_id) == ("a", "m", "E")
    assert fragment.is_numpy == is_numpy and fragment.custom_data == {"note": 1}
    add_step(fragment, 6)
    fragment.custom_data["note"] = 2
    assert len(episode) == 6 and episode.custom_data == {"note": 1}


def test_cut_reaches_into_the_lookback(is_numpy):
    fragment = make_episode(is_numpy=is_numpy, len_lookback_buffer=3).cut(5)
    assert get_contents(fragment)["rewards"] == [1, 2, 3, 4, 5]
    assert (fragment.t_started, len(fragment)) == (3, 0)


def test_cut_directly_after_reset():
    episode = SingleAgentEpisode()
    episode.add_env_reset(make_observation(0))
    fragment = episode.cut(3)
    add_step(fragment, 0)
    episode.concat_episode(fragment)
    assert len(episode) == 1 and episode.get_extra_model_outputs("logp") == [0.0]
    assert len(SingleAgentEpisode().cut()) == 0


def test_cut_done_episode_or_negative_lookback_raises():
    with pytest.raises(ValueError, match="episode e is done"):
        make_episode(terminated=True).cut()
    with pytest.raises(ValueError, match="len_lookback_buffer is -1"):
        make_episode().cut(-1)


@pytest.mark.parametrize("is_episode_numpy", [False, True], ids=["list", "numpy"])
@pytest.mark.parametrize("is_fragment_numpy", [False, True], ids=["list", "numpy"])
def test_concat_adds_next_fragment(is_episode_numpy, is_fragment_numpy):
    episode = make_episode()
    episode.custom_data.update(x=1, y=1)
    fragment = episode.cut(2)
    fragment.custom_data.update(x=2, z=3)
    for t in (6, 7):
        add_step(fragment, t, truncated=t == 7)
    if is_episode_numpy:
        episode.to_numpy()
    if is_fragment_numpy:
        fragment.to_numpy()
    episode.concat_episode(fragment)
    assert get_contents(episode) == get_contents(make_episode(8, truncated=True))
    assert episode.is_numpy == is_episode_numpy and episode.custom_data == {"x": 2, "y": 1, "z": 3}
    episode.validate()


def test_concat_fragment_without_steps():
    episode = make_episode(extra_model_outputs=None)
    fragment = episode.cut()
    fragment.is_truncated = True
    episode.concat_episode(fragment)
    assert len(episode) == 6 and episode.is_truncated


@pytest.mark.parametrize(
    ("episode_changes", "fragment_changes", "message"),
    [
        ({}, {"id_": "other"}, "a fragment of episode other cannot continue episode e"),
        ({"terminated": True}, {}, "episode e is done"),
        ({}, {"t_started": 9}, "ends at timestep 6, but the next fragment starts at 9"),
        ({}, {"observations": [make_observation(0)] * 7}, "does not start with the previous fragment's last"),
        ({}, {"extra_model_outputs": None}, r"extra model outputs \[\], earlier steps have \['logp'\]"),
        ({"extra_model_outputs": None}, {}, r"extra model outputs \['logp'\], earlier steps have \[\]"),
    ],
)
def test_concat_other_fragment_raises(episode_changes, fragment_changes, message):
    episode = make_episode(**episode_changes)
    fragment_arguments = {"observations": [make_observation(6 + t) for t in range(7)], **fragment_changes}
    contents_before = get_contents(episode)
    with pytest.raises(ValueError, match=message):
        episode.concat_episode(make_episode(**{"t_started": 6, **fragment_arguments}))
    assert get_contents(episode) == contents_before


@pytest.mark.parametrize(
    ("steps", "len_lookback_buffer", "expected"),
    [
        (slice(None), None, (10, [0, 1, 2, 3, 4, 5], 2)),
        (slice(None), 0, (10, [2, 3, 4, 5], 0)),
        (slice(None), 1, (10, [1, 2, 3, 4, 5], 1)),
        (slice(0, 3), 3, (10, [0, 1, 2, 3, 4], 2)),
        (slice(1, 3), None, (11, [1, 2, 3, 4], 2)),
        (slice(1, 3), 3, (11, [0, 1, 2, 3, 4], 3)),
        (slice(2, None), 1, (12, [3, 4, 5], 1)),
        (slice(None, -1), 0, (10, [2, 3, 4], 0)),
        (slice(-3, -1), 0, (11, [3, 4], 0)),
        (slice(0, 0), 1, (10, [1], 1)),
        (slice(2, 2), 3, (12, [1, 2, 3], 3)),
        (slice(4, None), 0, (14, [], 0)),
        (slice(3, 1), 0, (13, [], 0)),
        (slice(0, 99), 0, (10, [2, 3, 4, 5], 0)),
        (slice(99, None), 0, (14, [], 0)),
        (slice(-5, None), 0, (9, [1, 2, 3, 4, 5], 0)),
        (slice(-5, None), 3, (9, [0, 1, 2, 3, 4, 5], 1)),
        (slice(-99, -99), 0, (8, [], 0)),
    ],
)
def test_slice_returns_steps_and_lookback(is_numpy, steps, len_lookback_buffer, expected):
    t_started, rewards, lookback = expected
    episode = make_episode(is_numpy=is_numpy, len_lookback_buffer=2, t_started=10)
    section = episode.slice(steps, len_lookback_buffer=len_lookback_buffer)
    columns = get_contents(section)
    assert columns["rewards"] == columns["actions"] == rewards
    assert columns["logp"] == [t / 4 for t in rewards]
    assert columns["t"] == (t_started, t_started + len(rewards) - lookback)
    assert columns["lookback"] == lookback and section.is_numpy == is_numpy
    assert len(columns["observations"]) == len(rewards) + 1
    assert [info["i"] for info in columns["infos"]] == columns["observations"]
    # observation t of the original precedes reward t
    assert columns["observations"][: len(rewards)] == rewards
    # the original episode starts at timestep 10, after a lookback of 2 steps
    assert columns["observations"][lookback] == t_started - 10 + 2
    section.validate()


@pytest.mark.parametrize(
    ("steps", "is_done"),
    [
        (slice(None), True),
        (slice(2, None), True),
        (slice(2, 6), True),
        (slice(0, 99), True),
        (slice(6, None), True),
        (slice(None, -1), False),
        (slice(0, 5), False),
        (slice(2, 2), False),
        (slice(0, 6, 2), True),
        (slice(0, 4, 2), False),
    ],
)
def test_slice_is_done_if_it_reaches_the_end(is_numpy, steps, is_done):
    terminated = make_episode(is_numpy=is_numpy, terminated=True)[steps]
    truncated = make_episode(is_numpy=is_numpy, truncated=True)[steps]
    assert (terminated.is_terminated, terminated.is_truncated) == (is_done, False)
    assert (truncated.is_terminated, truncated.is_truncated) == (False, is_done)


def test_slice_with_step_selects_every_kth(is_numpy):
    section = make_episode(is_numpy=is_numpy, len_lookback_buffer=2, t_started=10)[0:4:2]
    columns = get_contents(section)
    assert columns["observations"] == [2, 4, 6] and columns["rewards"] == [2, 4] and columns["lookback"] == 0
    with pytest.raises(ValueError, match="goes beyond its end"):
        make_episode(5)[0:5:2]
    with pytest.raises(ValueError, match="has the step -1"):
        make_episode()[::-1]


def test_index_that_is_not_a_slice_and_negative_lookback_raise():
    with pytest.raises(TypeError, match=r"episode\[0\] is not a slice"):
        make_episode()[0]
    with pytest.raises(ValueError, match="len_lookback_buffer is -2"):
        make_episode().slice(slice(0, 2), len_lookback_buffer=-2)


def test_set_on_slice_does_not_change_episode(is_numpy):
    episode = make_episode(is_numpy=is_numpy)
    section = episode[1:4]
    if is_numpy:
        assert np.shares_memory(section.get_observations(), episode.get_observations())
    section.set_rewards(new_data=50.0, at_indices=0)
    episode.set_rewards(new_data=70.0, at_indices=2)
    assert list(episode.get_rewards()) == [0, 1, 70, 3, 4, 5] and list(section.get_rewards()) == [50, 2, 3]


def test_slice_keeps_lazy_infos():
    episode = make_episode(infos=lambda: [{"i": t} for t in range(7)])
    assert [info["i"] for info in episode[2:4].get_infos()] == [2, 3, 4]
    assert [info["i"] for info in episode.cut(2).infos.data] == [4, 5, 6]
    assert make_episode(infos=None)[2:4].get_infos() == [{}] * 3


def test_episode_can_be_copied_and_pickled(is_numpy):
    episode = make_episode(is_numpy=is_numpy, infos=None)
    for episode_copy in (copy.deepcopy(episode), pickle.loads(pickle.dumps(episode[0:6]))):
        add_step(episode_copy, 6)
        assert get_contents(episode_copy)["rewards"] == [0, 1, 2, 3, 4, 5, 6]
        assert len(episode_copy.get_infos()) == 8
    assert len(episode) == 6 and first_entries(episode.get_observations()) == [0, 1, 2, 3, 4, 5, 6]
