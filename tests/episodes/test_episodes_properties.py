"""Round trips that hold for every episode: nested or flat, list or NumPy mode, with or without lookback."""

import msgpack
import msgpack_numpy
import numpy as np
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from hindcast.episodes import nested
from hindcast.episodes.block import Block
from hindcast.episodes.convert import block_to_episodes, episodes_to_block
from hindcast.episodes.episode import SingleAgentEpisode
from hindcast.episodes.lookback_buffer import InfiniteLookbackBuffer
from layers import examples

SPACES = [
    spaces.Discrete(7, start=-2),
    spaces.Box(-1, 1, (2,), np.float32),
    spaces.Box(0, 255, (2, 1), np.uint8),
    spaces.MultiDiscrete([3, 4]),
    spaces.MultiBinary(3),
    spaces.Text(6, min_length=0),
    spaces.Dict(
        a=spaces.Discrete(5),
        b=spaces.Tuple((spaces.Box(-1, 1, (2,), np.float64), spaces.Dict({"0": spaces.Discrete(2)}))),
    ),
]
INFOS = st.dictionaries(
    st.text(max_size=3), st.integers(-9, 9) | st.booleans() | st.text(max_size=3), max_size=2
)


@st.composite
def episodes(draw, observation_space=None, action_space=None, outputs=None, lookback=True):
    observation_space = observation_space or draw(st.sampled_from(SPACES))
    action_space = action_space or draw(st.sampled_from(SPACES))
    steps = draw(st.integers(1, 9))
    for space in (observation_space, action_space):
        space.seed(draw(st.integers(0, 2**31 - 1)))
    names = (
        draw(st.sets(st.sampled_from(["action_logp", "vf_preds", "state_out"])))
        if outputs is None
        else outputs
    )
    values = {
        "action_logp": np.float32(-0.5),
        "vf_preds": 1.0,
        "state_out": {"h": np.arange(2.0), "c": {"x": 1}},
    }
    episode = SingleAgentEpisode(
        draw(st.text("abcdef", min_size=1, max_size=4)),
        observations=[observation_space.sample() for _ in range(steps + 1)],
        observation_space=observation_space,
        infos=draw(st.none() | st.lists(INFOS, min_size=steps + 1, max_size=steps + 1)),
        actions=[action_space.sample() for _ in range(steps)],
        action_space=action_space,
        rewards=draw(st.lists(st.floats(-9, 9, width=32), min_size=steps, max_size=steps)),
        terminated=draw(st.booleans()),
        truncated=draw(st.booleans()),
        extra_model_outputs={name: [values[name]] * steps for name in sorted(names)},
        t_started=draw(st.integers(0, 1000)),
        len_lookback_buffer=draw(st.integers(0, steps - 1)) if lookback else 0,
        agent_id=draw(st.none() | st.just("agent")),
    )
    return episode.to_numpy() if draw(st.booleans()) else episode


@st.composite
def lists_of_episodes(draw):
    same = {
        "observation_space": draw(st.sampled_from(SPACES)),
        "action_space": draw(st.sampled_from(SPACES)),
        "outputs": draw(st.sets(st.sampled_from(["action_logp", "state_out"]))),
    }
    return draw(st.lists(episodes(**same), min_size=1, max_size=4))


def assert_same(one: SingleAgentEpisode, other: SingleAgentEpisode, lookback: bool = True) -> None:
    """Assert equality except for mode and dtype; without `lookback`, from the first timestep on."""
    assert (one.id_, one.t_started, one.t) == (other.id_, other.t_started, other.t)
    assert (one.is_terminated, one.is_truncated) == (other.is_terminated, other.is_truncated)
    assert one.extra_model_outputs.keys() == other.extra_model_outputs.keys()
    assert not lookback or one.rewards.lookback == other.rewards.lookback
    first = -one.rewards.lookback if lookback else 0
    pairs = [
        (getattr(one, name), getattr(other, name)) for name in ("observations", "actions", "rewards", "infos")
    ]
    pairs += [(buffer, other.extra_model_outputs[key]) for key, buffer in one.extra_model_outputs.items()]
    for own_buffer, other_buffer in pairs:
        assert len(own_buffer) == len(other_buffer)
        for t in range(first, len(own_buffer)):
            values = [buffer.get(t, neg_index_as_lookback=True) for buffer in (own_buffer, other_buffer)]
            assert nested.equal(*values), f"timestep {t}: {values}"


@examples(40)
@given(lists_of_episodes())
def test_episodes_to_block_round_trip(given_episodes):
    block = episodes_to_block(given_episodes)
    spaces_given = (given_episodes[0].observation_space, given_episodes[0].action_space)
    for original, copy_read in zip(given_episodes, block_to_episodes(block, *spaces_given), strict=True):
        assert_same(original, copy_read, lookback=False)
        copy_read.validate()


@examples(40)
@given(lists_of_episodes())
def test_block_to_episodes_round_trip(given_episodes):
    block = episodes_to_block(given_episodes)
    copy_read = episodes_to_block(block_to_episodes(block, given_episodes[0].observation_space))
    assert copy_read.columns.keys() == block.columns.keys()
    for name, column in block.columns.items():
        assert copy_read.columns[name].dtype == column.dtype
        assert np.array_equal(copy_read.columns[name], column)
    for name in ("length", "eps_id", "t_started", "terminated", "truncated"):
        assert np.array_equal(getattr(copy_read, name), getattr(block, name))


@examples(40)
@given(lists_of_episodes(), st.data())
def test_block_of_fragments_equals_block_of_episode(given_episodes, data):
    block = episodes_to_block(given_episodes)
    split = data.draw(st.integers(0, block.num_episodes))
    parts = [block.take(list(range(split))), block.take(list(range(split, block.num_episodes)))]
    union = Block.concat(parts)
    assert all(np.array_equal(union.columns[name], column) for name, column in block.columns.items())
    assert np.array_equal(union.length, block.length)


@examples(40)
@given(episodes())
def test_state_round_trip_through_messagepack(episode):
    episode.custom_data["note"] = [1, "x"]
    data = msgpack.packb(episode.get_state(), default=msgpack_numpy.encode)
    state = msgpack.unpackb(data, object_hook=msgpack_numpy.decode, strict_map_key=False)
    copy_read = SingleAgentEpisode.from_state(state)
    assert_same(episode, copy_read)
    assert copy_read.is_numpy == episode.is_numpy and copy_read.custom_data == {"note": [1, "x"]}
    assert (copy_read.observation_space, copy_read.action_space) == (
        episode.observation_space,
        episode.action_space,
    )


@examples(40)
@given(episodes(), st.data())
def test_concatenated_slices_equal_episode(episode, data):
    at = data.draw(st.integers(0, len(episode)))
    head, tail = episode[:at], episode[at:]
    assert len(head) + len(tail) == len(episode)
    assert head.t == tail.t_started == episode.t_started + at
    head.is_terminated = head.is_truncated = False
    head.concat_episode(tail)
    assert_same(head, episode)
    head.validate()


@examples(40)
@given(episodes(), st.data())
def test_steps_added_to_cut_fragment_equal_steps_added_to_episode(episode, data):
    episode.is_terminated = episode.is_truncated = False
    copied = episode[:]
    rest = copied.cut(data.draw(st.integers(0, 5)))
    if data.draw(st.booleans()):
        rest.to_numpy()
    for _ in range(data.draw(st.integers(0, 3))):
        step = (episode.observation_space.sample(), episode.action_space.sample(), 1.0)
        outputs = {key: buffer.get(-1) for key, buffer in episode.extra_model_outputs.items()}
        for target in (episode, rest):
            target.add_env_step(*step, {"x": 1}, extra_model_outputs=outputs)
    copied.concat_episode(rest)
    assert_same(copied, episode)


@examples(40)
@given(episodes(), st.integers(-12, 12), st.integers(-12, 12), st.integers(0, 4))
def test_slice_equals_getters(episode, start, stop, lookback):
    part = episode.slice(slice(start, stop), len_lookback_buffer=lookback)
    assert nested.equal(list(part.get_rewards()), list(episode.get_rewards(slice(start, stop))))
    assert part.rewards.lookback <= lookback and part.t - part.t_started == len(part)
    offset = part.t_started - episode.t_started
    for t in range(-part.rewards.lookback, len(part) + 1):
        observation = part.get_observations(t, neg_index_as_lookback=True)
        assert nested.equal(observation, episode.get_observations(t + offset, neg_index_as_lookback=True))
    assert part.is_done == (episode.is_done and part.t == episode.t)


BOUND = st.none() | st.integers(-12, 12)


@examples(40)
@given(
    st.lists(st.integers(0, 99), max_size=8),
    st.integers(0, 8),
    st.builds(slice, BOUND, BOUND, st.sampled_from([None, 1, 2, 3, -1, -2])),
    st.booleans(),
    st.booleans(),
)
def test_slice_equals_list_of_its_indices(data, lookback, indices, numpy, as_lookback):
    buffer = InfiniteLookbackBuffer(data, lookback)
    n, before = len(buffer), buffer.lookback
    if numpy:
        buffer.finalize()
    items = buffer.get(indices, neg_index_as_lookback=as_lookback, fill=-1)

    def timestep(index, default):
        if index is None:
            return default
        return index if index >= 0 or as_lookback else n + index

    step = indices.step or 1
    first = timestep(indices.start, 0 if step > 0 else n - 1)
    last = timestep(indices.stop, n if step > 0 else -1)
    expected = [data[before + t] if -before <= t < n else -1 for t in range(first, last, step)]
    assert list(items) == expected
    present = buffer.get(indices, neg_index_as_lookback=as_lookback)
    assert list(present) == [value for value in expected if value != -1]
