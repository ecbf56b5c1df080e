"""`Block`: rows of episodes, selection and concatenation."""

import numpy as np
import pytest

from episode_kit import build_block
from hindcast.episodes.block import Block


def make_block(lengths, first_id=0, **columns) -> Block:
    """Make episodes e<first_id>, e<first_id + 1>, … of these lengths, with added or replaced columns."""
    num_episodes, num_steps = len(lengths), sum(lengths)
    columns = {
        "obs": np.arange(num_steps + num_episodes) + 100 * first_id,
        "rewards": np.arange(num_steps, dtype=np.float32),
        **columns,
    }
    return build_block(columns, lengths, first_id, t_started=np.arange(num_episodes))


def test_rows_of_steps_and_observations():
    block = make_block([2, 0, 3])
    assert (block.num_episodes, block.num_steps) == (3, 5)
    assert block.start.tolist() == [0, 2, 2] and block.obs_start.tolist() == [0, 3, 4]
    assert block.episode_of_step.tolist() == [0, 0, 2, 2, 2]
    assert block.obs_row.tolist() == [0, 1, 4, 5, 6]
    assert block.rows_of("rewards", 2) == slice(2, 5)
    assert block.rows_of("obs", 1) == slice(3, 4)
    assert block.rows_of("obs/camera", 2) == slice(4, 8)
    assert block.rows_of("infos", 0) == slice(0, 3)
    assert block.nbytes == 8 * 8 + 5 * 4


def test_step_flags_are_on_last_steps_and_skip_empty_episodes():
    block = make_block([2, 0, 3])
    assert block.step_flags(block.terminated).tolist() == [False, True, False, False, True]
    assert block.step_flags(block.truncated).tolist() == [False] * 5


def test_take_copies_episodes_in_order_of_indices():
    block = make_block([2, 1, 3])
    selection = block.take([2, 0, 2])
    assert selection.length.tolist() == [3, 2, 3]
    assert selection.columns["obs"].tolist() == [5, 6, 7, 8, 0, 1, 2, 5, 6, 7, 8]
    assert selection.columns["rewards"].tolist() == [3, 4, 5, 0, 1, 3, 4, 5]
    assert selection.eps_id.tolist() == ["e2", "e0", "e2"] and selection.t_started.tolist() == [2, 0, 2]
    assert not np.shares_memory(selection.columns["obs"], block.columns["obs"])
    assert block.take([]).num_steps == 0


def test_concat_joins_blocks_in_order():
    first, second = make_block([2]), make_block([1, 2], first_id=1)
    union = Block.concat([first, second])
    assert union.length.tolist() == [2, 1, 2] and union.eps_id.tolist() == ["e0", "e1", "e2"]
    assert union.columns["obs"].tolist() == [0, 1, 2, 100, 101, 102, 103, 104]
    assert Block.concat([first]) is first
    assert [union.take([i]).columns["obs"].tolist() for i in (0, 1)] == [[0, 1, 2], [100, 101]]


def test_concat_fills_infos_that_only_some_blocks_have():
    infos = np.array(['{"a":1}', "{}"], dtype=object)
    union = Block.concat([make_block([2]), make_block([1], infos=infos)])
    assert union.columns["infos"].tolist() == ["{}", "{}", "{}", '{"a":1}', "{}"]


def test_concat_of_no_blocks_or_different_columns_raises():
    with pytest.raises(ValueError, match="at least one block"):
        Block.concat([])
    with pytest.raises(ValueError, match="differ in columns"):
        Block.concat([make_block([1]), make_block([1], action_logp=np.zeros(1))])


def test_with_columns_keeps_episodes():
    block = make_block([1, 2])
    changed_block = block.with_columns({"advantages": np.zeros(3)})
    assert list(changed_block.columns) == ["advantages"] and changed_block.length is block.length
