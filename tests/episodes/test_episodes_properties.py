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
INFO_VALUES = st.integers(-9, 9) | st.booleans() | st.text(max_size=3)
INFOS = st.dictionaries(st.text(max_size=3), INFO_VALUES, max_size=2)


@st.composite
def episodes(draw, observation_space=None, action_space=None, outputs=None, with_lookback=True):
    """Draw an episode in list or NumPy mode; spaces and names of outputs are drawn if they are None."""
    observation_space = observation_space or draw(st.sampled_from(SPACES))
    action_space = action_space or draw(st.sampled_from(SPACES))
    num_steps = draw(st.integers(1, 9))
    for space in (observation_space, action_space):
        space.seed(draw(st.integers(0, 2**31 - 1)))
    values = {
        "action_logp": np.float32(-0.5),
        "vf_preds": 1.0,
        "state_out": {"h": np.arange(2.0), "c": {"x": 1}},
    }
    names = draw(st.sets(st.sampled_from(list(values)))) if outputs is None else outputs
    episode = SingleAgentEpisode(
        draw(st.text("abcdef", min_size=1, max_size=4)),
        observations=[observation_space.sample() for _ in range(num_steps + 1)],
        observation_space=observation_space,
        infos=draw(st.none() | st.lists(INFOS, min_size=num_steps + 1, max_size=num_steps + 1)),
        actions=[action_space.sample() for _ in range(num_steps)],
        action_space=action_space,
        rewards=draw(st.lists(st.floats(-9, 9, width=32), min_size=num_steps, max_size=num_steps)),
        terminated=draw(st.booleans()),
        truncated=draw(st.booleans()),
        extra_model_outputs={name: [values[name]] * num_steps for name in sorted(names)},
        t_started=draw(st.integers(0, 1000)),
        len_lookback_buffer=draw(st.integers(0, num_steps - 1)) if with_lookback else 0,
        agent_id=draw(st.none() | st.just("agent")),
    )
    return episode.to_numpy() if draw(st.booleans()) else episode


@st.composite
def lists_of_episodes(draw):
    """Draw episodes with equal spaces and outputs, but with different lengths, ids and values."""
    options = {
        "observation_space": draw(st.sampled_from(SPACES)),
        "action_space": draw(st.sampled_from(SPACES)),
        "outputs": draw(st.sets(st.sampled_from(["action_logp", "state_out"]))),
    }
    return draw(st.lists(episodes(**options), min_size=1, max_size=4))


def assert_same(first: SingleAgentEpisode, second: SingleAgentEpisode, with_lookback: bool = True) -> None:
    """Assert equality except for mode and dtype; unless `with_lookback`, lookbacks are not compared."""
    assert (first.id_, first.t_started, first.t) == (second.id_, second.t_started, second.t)
    assert (first.is_terminated, first.is_truncated) == (second.is_terminated, second.is_truncated)
    assert first.extra_model_outputs.keys() == second.extra_model_outputs.keys()
    assert not with_lookback or first.rewards.lookback == second.rewards.lookback
    start = -first.rewards.lookback if with_lookback else 0
    names = ("observations", "actions", "rewards", "infos")
    pairs = [(getattr(first, name), getattr(second, name)) for name in names]
    pairs += [(buffer, second.extra_model_outputs[key]) for key, buffer in first.extra_model_outputs.items()]
    for first_buffer, second_buffer in pairs:
        assert len(first_buffer) == len(second_buffer)
        for t in range(start, len(first_buffer)):
            values = [buffer.get(t, neg_index_as_lookback=True) for buffer in (first_buffer, second_buffer)]
            assert nested.equal(*values), f"timestep {t}: {values}"


@examples(40)
@given(lists_of_episodes())
def test_episodes_to_block_round_trip(original_episodes):
    block = episodes_to_block(original_episodes)
    original_spaces = (original_episodes[0].observation_space, original_episodes[0].action_space)
    for original, restored_episode in zip(
        original_episodes, block_to_episodes(block, *original_spaces), strict=True
    ):
        assert_same(original, restored_episode, with_lookback=False)
        restored_episode.validate()


@examples(40)
@given(lists_of_episodes())
def test_block_to_episodes_round_trip(original_episodes):
    block = episodes_to_block(original_episodes)
    restored_block = episodes_to_block(block_to_episodes(block, original_episodes[0].observation_space))
    assert restored_block.columns.keys() == block.columns.keys()
    for name, column in block.columns.items():
        assert restored_block.columns[name].dtype == column.dtype
        assert np.array_equal(restored_block.columns[name], column)
    for name in ("length", "eps_id", "t_started", "terminated", "truncated"):
        assert np.array_equal(getattr(restored_block, name), getattr(block, name))


@examples(40)
@given(lists_of_episodes(), st.data())
def test_concatenated_blocks_equal_original_block(original_episodes, data):
    block = episodes_to_block(original_episodes)
    boundary = data.draw(st.integers(0, block.num_episodes))
    union = Block.concat([block.take(range(boundary)), block.take(range(boundary, block.num_episodes))])
    assert all(np.array_equal(union.columns[name], column) for name, column in block.columns.items())
    assert np.array_equal(union.length, block.length)


@examples(40)
@given(episodes())
def test_state_round_trip_through_messagepack(episode):
    episode.custom_data["note"] = [1, "x"]
    data = msgpack.packb(episode.get_state(), default=msgpack_numpy.encode)
    state = msgpack.unpackb(data, object_hook=msgpack_numpy.decode, strict_map_key=False)
    restored_episode = SingleAgentEpisode.from_state(state)
    assert_same(episode, restored_episode)
    assert restored_episode.is_numpy == episode.is_numpy and restored_episode.custom_data == {
        "note": [1, "x"]
    }
    assert restored_episode.observation_space == episode.observation_space
    assert restored_episode.action_space == episode.action_space


@examples(40)
@given(episodes(), st.data())
def test_concatenated_slices_equal_episode(episode, data):
    boundary = data.draw(st.integers(0, len(episode)))
    head, tail = episode[:boundary], episode[boundary:]
    assert len(head) + len(tail) == len(episode)
    assert head.t == tail.t_started == episode.t_started + boundary
    head.is_terminated = head.is_truncated = False
    head.concat_episode(tail)
    assert_same(head, episode)
    head.validate()


@examples(40)
@given(episodes(), st.data())
def test_steps_added_to_cut_fragment_equal_steps_added_to_episode(episode, data):
    episode.is_terminated = episode.is_truncated = False
    episode_copy = episode[:]
    fragment = episode_copy.cut(data.draw(st.integers(0, 5)))
    if data.draw(st.booleans()):
        fragment.to_numpy()
    for _ in range(data.draw(st.integers(0, 3))):
        step = (episode.observation_space.sample(), episode.action_space.sample(), 1.0)
        outputs = {key: buffer.get(-1) for key, buffer in episode.extra_model_outputs.items()}
        for target in (episode, fragment):
            target.add_env_step(*step, {"x": 1}, extra_model_outputs=outputs)
    episode_copy.concat_episode(fragment)
    assert_same(episode_copy, episode)


@examples(40)
@given(episodes(), st.integers(-12, 12), st.integers(-12, 12), st.integers(0, 4))
def test_slice_equals_getters(episode, start, stop, lookback):
    section = episode.slice(slice(start, stop), len_lookback_buffer=lookback)
    assert nested.equal(list(section.get_rewards()), list(episode.get_rewards(slice(start, stop))))
    assert section.rewards.lookback <= lookback and section.t - section.t_started == len(section)
    offset = section.t_started - episode.t_started
    for t in range(-section.rewards.lookback, len(section) + 1):
        observation = section.get_observations(t, neg_index_as_lookback=True)
        assert nested.equal(observation, episode.get_observations(t + offset, neg_index_as_lookback=True))
    assert section.is_done == (episode.is_done and section.t == episode.t)


BOUND = st.none() | st.integers(-12, 12)


@examples(40)
@given(
    st.lists(st.integers(0, 99), max_size=8),
    st.integers(0, 8),
    st.builds(slice, BOUND, BOUND, st.sampled_from([None, 1, 2, 3, -1, -2])),
    st.booleans(),
    st.booleans(),
)
def test_slice_equals_list_of_its_indices(data, lookback, indices, is_numpy, neg_index_as_lookback):
    buffer = InfiniteLookbackBuffer(data, lookback)
    num_timesteps, num_lookback = len(buffer), buffer.lookback
    if is_numpy:
        buffer.finalize()
    items = buffer.get(indices, neg_index_as_lookback=neg_index_as_lookback, fill=-1)

    def timestep(index, default):
        if index is None:
            return default
        return index if index >= 0 or neg_index_as_lookback else num_timesteps + index

    step = indices.step or 1
    start = timestep(indices.start, 0 if step > 0 else num_timesteps - 1)
    stop = timestep(indices.stop, num_timesteps if step > 0 else -1)
    expected = [
        data[num_lookback + t] if -num_lookback <= t < num_timesteps else -1 for t in range(start, stop, step)
    ]
    assert list(items) == expected
    available_items = buffer.get(indices, neg_index_as_lookback=neg_index_as_lookback)
    assert list(available_items) == [value for value in expected if value != -1]
