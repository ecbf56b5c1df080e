import copy
import pickle

import numpy as np
import pytest
from episode_builders import add_step, contents, first_entries, make_episode, observation

from hindcast.episodes.episode import SingleAgentEpisode


@pytest.fixture(params=[False, True], ids=["list", "numpy"])
def numpy(request):
    return request.param


@pytest.mark.parametrize(
    ("lookback", "rewards"), [(0, []), (1, [5]), (3, [3, 4, 5]), (99, [0, 1, 2, 3, 4, 5])]
)
def test_cut_continues_at_last_observation(numpy, lookback, rewards):
    episode = make_episode(numpy=numpy, t_started=10, agent_id="a", module_id="m", multi_agent_episode_id="E")
    episode.custom_data["note"] = 1
    rest = episode.cut(lookback)
    assert contents(rest) == {
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
    assert (rest.agent_id, rest.module_id, rest.multi_agent_episode_id) == ("a", "m", "E")
    assert rest.is_numpy == numpy and rest.custom_data == {"note": 1}
    add_step(rest, 6)
    rest.custom_data["note"] = 2
    assert len(episode) == 6 and episode.custom_data == {"note": 1}


def test_cut_reaches_into_the_lookback(numpy):
    rest = make_episode(numpy=numpy, len_lookback_buffer=3).cut(5)
    assert contents(rest)["rewards"] == [1, 2, 3, 4, 5] and (rest.t_started, len(rest)) == (3, 0)


def test_cut_directly_after_reset():
    episode = SingleAgentEpisode()
    episode.add_env_reset(observation(0))
    rest = episode.cut(3)
    add_step(rest, 0)
    episode.concat_episode(rest)
    assert len(episode) == 1 and episode.get_extra_model_outputs("logp") == [0.0]
    assert len(SingleAgentEpisode().cut()) == 0


def test_cut_done_episode_or_negative_lookback_raises():
    with pytest.raises(ValueError, match="episode e is done"):
        make_episode(terminated=True).cut()
    with pytest.raises(ValueError, match="len_lookback_buffer is -1"):
        make_episode().cut(-1)


@pytest.mark.parametrize("left", [False, True], ids=["list", "numpy"])
@pytest.mark.parametrize("right", [False, True], ids=["list", "numpy"])
def test_concat_adds_next_fragment(left, right):
    episode = make_episode()
    episode.custom_data.update(x=1, y=1)
    rest = episode.cut(2)
    rest.custom_data.update(x=2, z=3)
    for t in (6, 7):
        add_step(rest, t, truncated=t == 7)
    if left:
        episode.to_numpy()
    if right:
        rest.to_numpy()
    episode.concat_episode(rest)
    assert contents(episode) == contents(make_episode(8, truncated=True))
    assert episode.is_numpy == left and episode.custom_data == {"x": 2, "y": 1, "z": 3}
    episode.validate()


def test_concat_fragment_without_steps():
    episode = make_episode(extra_model_outputs=None)
    rest = episode.cut()
    rest.is_truncated = True
    episode.concat_episode(rest)
    assert len(episode) == 6 and episode.is_truncated


@pytest.mark.parametrize(
    ("left", "right", "match"),
    [
        ({}, {"id_": "other"}, "a part of episode other cannot continue episode e"),
        ({"terminated": True}, {}, "episode e is done"),
        ({}, {"t_started": 9}, "ends at timestep 6, the other part starts at 9"),
        ({}, {"observations": [observation(t) for t in range(7)]}, "does not start with this part's last"),
        ({}, {"extra_model_outputs": None}, r"extra model outputs \[\], earlier steps have \['logp'\]"),
        ({"extra_model_outputs": None}, {}, r"extra model outputs \['logp'\], earlier steps have \[\]"),
    ],
)
def test_concat_other_fragment_raises(left, right, match):
    episode = make_episode(**left)
    follows = {"t_started": 6, "observations": [observation(6 + t) for t in range(7)], **right}
    before = contents(episode)
    with pytest.raises(ValueError, match=match):
        episode.concat_episode(make_episode(**follows))
    assert contents(episode) == before


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
def test_slice_returns_steps_and_lookback(numpy, steps, len_lookback_buffer, expected):
    t_started, rewards, lookback = expected
    episode = make_episode(numpy=numpy, len_lookback_buffer=2, t_started=10)
    part = episode.slice(steps, len_lookback_buffer=len_lookback_buffer)
    columns = contents(part)
    assert columns["rewards"] == columns["actions"] == rewards
    assert columns["logp"] == [t / 4 for t in rewards]
    assert columns["t"] == (t_started, t_started + len(rewards) - lookback)
    assert columns["lookback"] == lookback and part.is_numpy == numpy
    assert len(columns["observations"]) == len(rewards) + 1
    assert [info["i"] for info in columns["infos"]] == columns["observations"]
    # observation t of the original precedes reward t
    assert columns["observations"][: len(rewards)] == rewards
    assert columns["observations"][lookback] == t_started - 10 + 2
    part.validate()


@pytest.mark.parametrize(
    ("steps", "ends"),
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
def test_slice_with_last_step_is_done(numpy, steps, ends):
    terminated = make_episode(numpy=numpy, terminated=True)[steps]
    truncated = make_episode(numpy=numpy, truncated=True)[steps]
    assert (terminated.is_terminated, terminated.is_truncated) == (ends, False)
    assert (truncated.is_terminated, truncated.is_truncated) == (False, ends)


def test_slice_with_step_selects_every_kth(numpy):
    part = make_episode(numpy=numpy, len_lookback_buffer=2, t_started=10)[0:4:2]
    columns = contents(part)
    assert columns["observations"] == [2, 4, 6] and columns["rewards"] == [2, 4] and columns["lookback"] == 0
    with pytest.raises(ValueError, match="goes beyond its end"):
        make_episode(5)[0:5:2]
    with pytest.raises(ValueError, match="has the step -1"):
        make_episode()[::-1]


def test_index_that_is_not_a_slice_raises():
    with pytest.raises(TypeError, match=r"episode\[0\] is not a slice"):
        make_episode()[0]
    with pytest.raises(ValueError, match="len_lookback_buffer is -2"):
        make_episode().slice(slice(0, 2), len_lookback_buffer=-2)


def test_set_on_slice_does_not_change_episode(numpy):
    episode = make_episode(numpy=numpy)
    part = episode[1:4]
    if numpy:
        assert np.shares_memory(part.get_observations(), episode.get_observations())
    part.set_rewards(new_data=50.0, at_indices=0)
    episode.set_rewards(new_data=70.0, at_indices=2)
    assert list(episode.get_rewards()) == [0, 1, 70, 3, 4, 5] and list(part.get_rewards()) == [50, 2, 3]


def test_slice_keeps_lazy_infos():
    episode = make_episode(infos=lambda: [{"i": t} for t in range(7)])
    assert [info["i"] for info in episode[2:4].get_infos()] == [2, 3, 4]
    assert [info["i"] for info in episode.cut(2).infos.data] == [4, 5, 6]
    assert make_episode(infos=None)[2:4].get_infos() == [{}] * 3


def test_episode_can_be_copied_and_pickled(numpy):
    episode = make_episode(numpy=numpy, infos=None)
    for copied in (copy.deepcopy(episode), pickle.loads(pickle.dumps(episode[0:6]))):
        add_step(copied, 6)
        assert contents(copied)["rewards"] == [0, 1, 2, 3, 4, 5, 6] and len(copied.get_infos()) == 8
    assert len(episode) == 6 and first_entries(episode.get_observations()) == [0, 1, 2, 3, 4, 5, 6]
