"""Replay buffers with RLlib's interface, compared with lists of steps."""

from __future__ import annotations

import json

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pipeline_fakes import make_block

from hindcast.episodes.convert import block_to_episodes, episodes_to_block
from hindcast.episodes.episode import SingleAgentEpisode
from hindcast.pipeline.episode_store import EpisodeStore
from hindcast.rllib.replay_buffer import EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer
from layers import examples

both_buffers = pytest.mark.parametrize("buffer_class", [EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer])


def make_episode(episode_index, steps, start=0, end="", infos=False):
    """Make an episode with observations [episode_index, t], actions t and rewards 100 * episode_index + t."""
    return SingleAgentEpisode(
        f"e{episode_index}",
        observations=[np.array([episode_index, t], np.float32) for t in range(start, start + steps + 1)],
        actions=[np.int64(t) for t in range(start, start + steps)],
        rewards=[np.float32(100 * episode_index + t) for t in range(start, start + steps)],
        infos=[{"t": t} for t in range(start, start + steps + 1)] if infos else None,
        extra_model_outputs={"action_logp": [np.float32(-t) for t in range(start, start + steps)]},
        terminated=end == "terminated",
        truncated=end == "truncated",
        t_started=start,
        len_lookback_buffer=0,
    )


def column_bytes(block):
    return sum(column.nbytes for column in block.columns.values())


def draw_episodes(buffer, count=400, **options):
    if isinstance(buffer, PrioritizedEpisodeReplayBuffer):
        return buffer.sample(count, **options)
    return buffer.sample(count, sample_episodes=True, **options)


def state_to_json(state):
    """Convert a state to JSON; fail if it contains anything but numbers, text and arrays."""
    return json.dumps(state, default=lambda value: value.tolist())


@examples(60)
@given(
    lengths=st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=5), min_size=1, max_size=30),
    capacity=st.integers(1, 60),
    nbytes=st.none() | st.integers(1, 3000),
)
def test_oldest_episodes_are_evicted_whole(lengths, capacity, nbytes):
    store, expected, first = EpisodeStore(capacity, nbytes), [], 0  # expected: one block per stored episode
    for episode_lengths in lengths:
        block = make_block(episode_lengths, first)
        store.add(block)
        expected += [block.take([index]) for index in range(len(episode_lengths))]
        first += sum(episode_lengths)
        while len(expected) > 1 and (
            sum(episode.num_steps for episode in expected) > capacity
            or sum(map(column_bytes, expected)) > (nbytes or 1 << 40)
        ):
            expected.pop(0)
        ids = [eps_id for stored_block in store.blocks for eps_id in stored_block.eps_id]
        assert ids == [episode.eps_id[0] for episode in expected]
        assert store.nbytes == sum(map(column_bytes, expected))
    assert store.num_evicted == sum(map(len, lengths)) - store.num_episodes
    steps = np.random.default_rng(0).integers(0, store.num_steps, 20)
    rewards = np.concatenate([episode.columns["rewards"] for episode in expected])
    assert (store.rows("rewards", steps) == rewards[steps]).all()


def test_store_merges_blocks():
    store = EpisodeStore(100_000)
    for episode_index in range(2000):
        store.add(make_block([3 + episode_index % 5], episode_index))
    assert len(store.blocks) < 60


def test_bytes_of_text_include_its_characters():
    store = EpisodeStore(1000)
    store.add(episodes_to_block([make_episode(0, 3, infos=True)]))
    block_without_infos = episodes_to_block([make_episode(0, 3)])
    assert store.nbytes == block_without_infos.nbytes + 4 * (8 + len('{"t":0}'))


@both_buffers
def test_fragments_are_joined_to_one_episode(buffer_class):
    buffer = buffer_class(100)
    buffer.add([make_episode(0, 4), make_episode(1, 3), make_episode(0, 2, start=4)])
    buffer.add(make_episode(1, 2, start=3, end="terminated"))
    buffer.add(make_episode(2, 5, start=7))
    assert (buffer.get_num_episodes(), buffer.get_num_timesteps()) == (3, 16)
    assert buffer.get_added_timesteps() == 16
    for item in draw_episodes(buffer, n_step=2):
        episode_index, t = item.get_observations(0)
        final_t = {0: 6, 1: 5, 2: 12}[episode_index]
        n = item.get_extra_model_outputs("n_step", 0)
        assert n == min(2, final_t - t)
        assert item.get_observations(-1).tolist() == [episode_index, t + n]
        assert item.is_terminated == (episode_index == 1 and t + n == 5)
        assert item.t_started == t


@both_buffers
def test_transition_covers_n_steps(buffer_class):
    buffer = buffer_class(1000)
    buffer.add([make_episode(index, 3 + index, end="truncated", infos=True) for index in range(8)])
    options = {"n_step": (1, 4), "gamma": 0.5, "include_infos": True, "include_extra_model_outputs": True}
    transitions = set()
    for item in draw_episodes(buffer, 1000, **options):
        (episode_index, t), n = item.get_observations(0), item.get_extra_model_outputs("n_step", 0)
        n_step_return = sum(0.5**k * (100 * episode_index + t + k) for k in range(n))
        assert item.get_rewards(0) == pytest.approx(n_step_return)
        assert item.get_actions(0) == t
        assert item.get_extra_model_outputs("action_logp", 0) == -t
        assert item.get_infos([0, -1]) == [{"t": t}, {"t": t + n}]
        assert item.id_ == f"e{int(episode_index)}"
        assert item.is_truncated == (t + n == 3 + episode_index)
        assert item.get_extra_model_outputs("weights", 0) == 1
        transitions.add((episode_index, t, int(n)))
    assert {n for _, _, n in transitions} == {1, 2, 3}
    assert len({transition[:2] for transition in transitions}) == len(buffer) == sum(range(3, 11))
    assert buffer.get_sampled_timesteps() == 1000
    assert list(draw_episodes(buffer, 1)[0].extra_model_outputs) == ["n_step", "weights"]


def test_rows_are_adjacent_steps_of_episodes():
    buffer = EpisodeReplayBuffer(1000, batch_size_B=50, batch_length_T=7)
    ends = ("terminated", "truncated", "")
    buffer.add([make_episode(index, 3 + 4 * index, end=end) for index, end in enumerate(ends)])
    sample = buffer.sample()
    names = ("actions", "rewards", "is_first", "is_last", "is_terminated", "is_truncated")
    shapes = {name: values.shape for name, values in sample.items()}
    assert shapes == {**dict.fromkeys(names, (50, 7)), "obs": (50, 7, 2)}
    for row in range(50):
        for position in range(7):
            episode_index, t = sample["obs"][row, position]
            final_t = 3 + 4 * episode_index
            ends_here = t == final_t
            begins_here = position == 0 or sample["is_last"][row, position - 1]
            assert sample["is_first"][row, position] == begins_here
            assert sample["is_last"][row, position] == (ends_here or position == 6)
            assert sample["actions"][row, position] == min(t, final_t - 1)
            assert sample["rewards"][row, position] == (100 * episode_index + t - 1 if t else 0)
            assert sample["is_terminated"][row, position] == (ends_here and episode_index == 0)
            assert sample["is_truncated"][row, position] == (ends_here and episode_index == 1)
            if position and not sample["is_first"][row, position]:
                assert sample["obs"][row, position - 1].tolist() == [episode_index, t - 1]
            elif position:
                assert t == 0
    assert buffer.get_sampled_timesteps() == 350


def test_sampled_sequences_have_lookback():
    buffer = EpisodeReplayBuffer(1000)
    buffer.add([make_episode(episode_index, 2 + 5 * episode_index) for episode_index in range(3)])
    starts = set()
    samples = buffer.sample(300, sample_episodes=True, batch_length_T=4, lookback=2, min_batch_length_T=3)
    for item in samples:
        episode_index, t = item.get_observations(0)
        assert len(item) == min(4, 2 + 5 * episode_index - t) >= 3
        starts.add((int(episode_index), int(t)))
        assert item.rewards.lookback == min(2, t)
    assert starts == {(1, t) for t in range(5)} | {(2, t) for t in range(10)}
    with pytest.raises(ValueError, match="longest stored episode has 12"):
        buffer.sample(1, sample_episodes=True, batch_length_T=20, min_batch_length_T=13)


def test_composite_values_have_the_structure_of_their_space():
    space = gym.spaces.Dict(
        place=gym.spaces.Box(-1, 1, (2,)), pair=gym.spaces.Tuple([gym.spaces.Discrete(3)] * 2)
    )
    observations = [space.sample() for _ in range(5)]
    steps = {"observations": observations, "actions": [0] * 4, "rewards": [0.0] * 4}
    buffer = EpisodeReplayBuffer(100)
    buffer.add(SingleAgentEpisode(**steps, observation_space=space, len_lookback_buffer=0))
    (item,) = draw_episodes(buffer, 1)
    assert isinstance(item.get_observations(0)["pair"], tuple)
    restored = EpisodeReplayBuffer(100)
    restored.set_state(buffer.get_state())
    sample = restored.sample(2, batch_length_T=3)
    assert sample["obs"]["place"].shape == (2, 3, 2)
    assert isinstance(sample["obs"]["pair"], tuple)


def test_blocks_of_data_are_accepted():
    buffer = EpisodeReplayBuffer(1000)
    buffer.add(make_block([4, 5]))
    buffer.add(make_block([3], first=9))
    rewards = {float(item.get_rewards(0)) for item in draw_episodes(buffer)}
    assert rewards == set(range(12))


@both_buffers
def test_buffer_after_set_state_continues_exactly(buffer_class):
    original, restored_buffer = buffer_class(60, seed=7), buffer_class(60)

    def learn(buffer, rounds):
        drawn_items = []
        for episode_index in rounds:
            buffer.add(make_episode(episode_index, 5 + episode_index % 4, infos=True))
            sample = draw_episodes(buffer, 32, n_step=2)
            drawn_items += [
                (item.id_, item.t_started, *item.get_extra_model_outputs("weights")) for item in sample
            ]
            if buffer_class is PrioritizedEpisodeReplayBuffer:
                buffer.update_priorities([np.sin(item.get_rewards(0)) for item in sample])
        return drawn_items

    learn(original, range(12))
    state = original.get_state()
    restored_buffer.set_state(state)
    assert state_to_json(restored_buffer.get_state()) == state_to_json(state)
    assert learn(original, range(12, 24)) == learn(restored_buffer, range(12, 24))
    assert state_to_json(original.get_state()) == state_to_json(restored_buffer.get_state())
    assert original.get_num_episodes_evicted() == 24 - original.get_num_episodes() > 0


def test_pending_priorities_survive_a_resume():
    original, restored_buffer = (PrioritizedEpisodeReplayBuffer(60, alpha=0.5) for _ in range(2))
    restored_buffer.set_state(original.get_state())  # of an empty buffer
    original.add([make_episode(0, 6), make_episode(1, 5)])
    original.sample(8)
    restored_buffer.set_state(original.get_state())
    for buffer in (original, restored_buffer):
        buffer.update_priorities(np.arange(8) + 2)
        buffer.add(make_episode(2, 3))
    assert state_to_json(original.get_state()) == state_to_json(restored_buffer.get_state())


def test_priorities_move_with_their_steps():
    buffer = PrioritizedEpisodeReplayBuffer(40, alpha=0.5, seed=3)
    priority_of = {}
    for episode_index in range(12):
        buffer.add(make_episode(episode_index, 8), weight=2.0)
        priority_of |= {(episode_index, t): 2.0 for t in range(8)}
        sample = buffer.sample(30)
        sampled_steps = [tuple(map(int, item.get_observations(0))) for item in sample]
        new_priorities = {step: 0.1 + (7 * step[0] + 3 * step[1]) % 5 for step in sampled_steps}
        buffer.update_priorities([new_priorities[step] for step in sampled_steps])
        priority_of |= new_priorities
    stored_steps = sorted(step for step in priority_of if step[0] >= 12 - buffer.get_num_episodes())
    powers = np.sqrt([priority_of[step] + 1e-6 for step in stored_steps])
    sample = buffer.sample(20_000, beta=0.4)
    index_of_step = {step: index for index, step in enumerate(stored_steps)}
    counts, weights = np.zeros(len(stored_steps)), np.zeros(len(stored_steps))
    for item in sample:
        step = index_of_step[tuple(map(int, item.get_observations(0)))]
        counts[step] += 1
        weights[step] = item.get_extra_model_outputs("weights", 0)
    np.testing.assert_allclose(counts / 20_000, powers / powers.sum(), atol=0.008)
    np.testing.assert_allclose(weights, (powers / powers.min()) ** -0.4, rtol=1e-5)


def test_new_steps_have_the_maximum_priority():
    buffer = PrioritizedEpisodeReplayBuffer(100, alpha=1.0)
    buffer.add(make_episode(0, 4))
    buffer.sample(200)
    buffer.update_priorities(np.full(200, 50.0))
    buffer.add(make_episode(1, 4))
    assert buffer._draws.priorities.powers[:8].tolist() == pytest.approx([50.0] * 8)


def test_invalid_arguments_of_buffer_raise():
    buffer, prioritized_buffer = EpisodeReplayBuffer(100), PrioritizedEpisodeReplayBuffer(100)
    with pytest.raises(ValueError, match="capacity_bytes is 0"):
        PrioritizedEpisodeReplayBuffer(capacity_bytes=0)
    with pytest.raises(ValueError, match="the buffer is empty"):
        buffer.sample(1)
    buffer.add(make_episode(0, 4))
    prioritized_buffer.add(make_episode(0, 4))
    with pytest.raises(ValueError, match="set one of them"):
        buffer.sample(1, batch_size_B=1)
    with pytest.raises(ValueError, match="n_step requires episodes of one step"):
        buffer.sample(1, n_step=3)
    with pytest.raises(
        ValueError, match=r"'obs' is float32 .* in the new episodes, but float32 .* in the stored"
    ):
        buffer.add(widen_observations(make_episode(1, 3)))
    with pytest.raises(ValueError, match="only one of the two has infos"):
        prioritized_buffer.add(make_episode(1, 3, infos=True))
    timed_buffer, block = EpisodeReplayBuffer(100), episodes_to_block([make_episode(0, 4)])
    timed_buffer.add(block.with_columns({**block.columns, "delta_t": np.full(4, 0.5)}))
    with pytest.raises(ValueError, match="durations of steps"):
        timed_buffer.sample(1, n_step=3, sample_episodes=True, batch_length_T=1)
    assert prioritized_buffer.get_added_timesteps() == 4
    with pytest.raises(ValueError, match="call it after sample"):
        prioritized_buffer.update_priorities([1.0])
    prioritized_buffer.sample(3)
    with pytest.raises(ValueError, match="3 items were drawn last, but priorities have shape"):
        prioritized_buffer.update_priorities([1.0])
    with pytest.raises(ValueError, match="pass a finite one"):
        prioritized_buffer.update_priorities([1.0, 2.0, np.nan])
    with pytest.raises(ValueError, match="single timesteps"):
        prioritized_buffer.sample(3, batch_length_T=4)


def widen_observations(episode):
    block = episodes_to_block([episode])
    columns = {**block.columns, "obs": np.tile(block.columns["obs"], 2)}
    return block_to_episodes(block.with_columns(columns))
