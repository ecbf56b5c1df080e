"""Blocks and mistakes as they travel from data workers."""

import pickle

import numpy as np
import pytest
from pipeline_fakes import block_of

from hindcast import errors


def round_trip(value):
    """As Ray stores it: arrays outside the pickle, where they are viewed."""
    buffers = []
    data = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    return pickle.loads(data, buffers=buffers)


def test_block_survives_the_object_store():
    block = block_of([3, 1, 4])
    text = np.array([f"ä{step}" for step in range(8)], dtype=object)
    extra_columns = {
        "obs": np.arange(11 * 12, dtype=np.uint8).reshape(11, 3, 4)[:, ::2],
        "note": text,
        "none": np.zeros((8, 0), np.float32),
        "big": np.arange(8, dtype=">i4"),
    }
    block = block.with_columns({**block.columns, **extra_columns})
    back = round_trip(block)
    assert list(back.columns) == list(block.columns)
    for one, other in [
        *((back.columns[leaf], block.columns[leaf]) for leaf in block.columns),
        *((getattr(back, name), getattr(block, name)) for name in ("length", "eps_id", "t_started")),
        *((getattr(back, name), getattr(block, name)) for name in ("terminated", "truncated")),
    ]:
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


def test_block_without_steps_survives_the_object_store():
    back = round_trip(block_of([2]).take([]))
    assert (back.num_episodes, back.num_steps) == (0, 0)
    assert back.columns["obs"].shape == (0, 3)


def test_arrays_from_the_object_store_are_views():
    block = block_of([3, 4])
    block = block.with_columns({leaf: np.ascontiguousarray(column) for leaf, column in block.columns.items()})
    back = round_trip(block)
    for leaf, column in block.columns.items():
        assert np.shares_memory(back.columns[leaf], column)


@pytest.mark.parametrize("kind", [errors.DataError, errors.UserCodeError, errors.OutOfMemory])
def test_error_keeps_its_class_and_message(kind):
    with pytest.raises(kind, match=r"^file a\.parquet, row 3: ä$"):
        errors.unwrap(round_trip(kind("file a.parquet, row 3: ä")))
