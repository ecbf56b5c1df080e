import numpy as np
import pytest

from hindcast.episodes.block import Block


def block(lengths, first_id=0, **columns) -> Block:
    n, steps = len(lengths), sum(lengths)
    columns = {
        "obs": np.arange(steps + n) + 100 * first_id,
        "rewards": np.arange(steps, dtype=np.float32),
        **columns,
    }
    return Block(
        columns=columns,
        length=np.array(lengths, dtype=np.int64),
        eps_id=np.array([f"e{first_id + i}" for i in range(n)], dtype=object),
        t_started=np.arange(n, dtype=np.int64),
        terminated=np.array([i % 2 == 0 for i in range(n)]),
        truncated=np.array([i % 2 == 1 for i in range(n)]),
    )


def test_rows_of_steps_and_observations():
    b = block([2, 0, 3])
    assert (b.num_episodes, b.num_steps) == (3, 5)
    assert b.start.tolist() == [0, 2, 2] and b.obs_start.tolist() == [0, 3, 4]
    assert b.episode_of_step.tolist() == [0, 0, 2, 2, 2]
    assert b.obs_row.tolist() == [0, 1, 4, 5, 6]
    assert b.rows_of("rewards", 2) == slice(2, 5)
    assert b.rows_of("obs", 1) == slice(3, 4)
    assert b.rows_of("obs/camera", 2) == slice(4, 8)
    assert b.rows_of("infos", 0) == slice(0, 3)
    assert b.nbytes == 8 * 8 + 5 * 4


def test_step_flags_are_on_last_steps_and_skip_empty_episodes():
    b = block([2, 0, 3])
    assert b.step_flags(b.terminated).tolist() == [False, True, False, False, True]
    assert b.step_flags(b.truncated).tolist() == [False] * 5


def test_take_copies_episodes_in_given_order():
    b = block([2, 1, 3])
    selection = b.take([2, 0, 2])
    assert selection.length.tolist() == [3, 2, 3]
    assert selection.columns["obs"].tolist() == [5, 6, 7, 8, 0, 1, 2, 5, 6, 7, 8]
    assert selection.columns["rewards"].tolist() == [3, 4, 5, 0, 1, 3, 4, 5]
    assert selection.eps_id.tolist() == ["e2", "e0", "e2"] and selection.t_started.tolist() == [2, 0, 2]
    assert not np.shares_memory(selection.columns["obs"], b.columns["obs"])
    assert b.take([]).num_steps == 0


def test_concat_joins_blocks_in_order():
    one, two = block([2]), block([1, 2], first_id=1)
    union = Block.concat([one, two])
    assert union.length.tolist() == [2, 1, 2] and union.eps_id.tolist() == ["e0", "e1", "e2"]
    assert union.columns["obs"].tolist() == [0, 1, 2, 100, 101, 102, 103, 104]
    assert Block.concat([one]) is one
    assert [union.take([i]).columns["obs"].tolist() for i in (0, 1)] == [[0, 1, 2], [100, 101]]


def test_concat_fills_infos_that_only_some_blocks_have():
    infos = np.array(['{"a":1}', "{}"], dtype=object)
    union = Block.concat([block([2]), block([1], infos=infos)])
    assert union.columns["infos"].tolist() == ["{}", "{}", "{}", '{"a":1}', "{}"]


def test_concat_different_columns_raises():
    with pytest.raises(ValueError, match="at least one block"):
        Block.concat([])
    with pytest.raises(ValueError, match="differ in columns"):
        Block.concat([block([1]), block([1], action_logp=np.zeros(1))])


def test_with_columns_keeps_episodes():
    b = block([1, 2])
    changed_block = b.with_columns({"advantages": np.zeros(3)})
    assert list(changed_block.columns) == ["advantages"] and changed_block.length is b.length
