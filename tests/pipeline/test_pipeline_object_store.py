"""Blocks and errors survive the transport from data workers by Ray's object store."""

import pickle

import numpy as np
import pytest
from pipeline_fakes import make_block

from hindcast import errors


def round_trip(value):
    """Pickle and unpickle as Ray does, which stores arrays outside the pickle and returns views of them."""
    buffers = []
    data = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    return pickle.loads(data, buffers=buffers)


def test_block_survives_the_object_store():
    block = make_block([3, 1, 4])
    text = np.array([f"ä{step}" for step in range(8)], dtype=object)
    extra_columns = {
        "obs": np.arange(11 * 12, dtype=np.uint8).reshape(11, 3, 4)[:, ::2],
        "note": text,
        "none": np.zeros((8, 0), np.float32),
        "big": np.arange(8, dtype=">i4"),
    }
    block = block.with_columns({**block.columns, **extra_columns})
    restored = round_trip(block)
    assert list(restored.columns) == list(block.columns)
    for actual, expected in [
        *((restored.columns[leaf], block.columns[leaf]) for leaf in block.columns),
        *((getattr(restored, name), getattr(block, name)) for name in ("length", "eps_id", "t_started")),
        *((getattr(restored, name), getattr(block, name)) for name in ("terminated", "truncated")),
    ]:
        assert actual.dtype == expected.dtype
        np.testing.assert_array_equal(actual, expected)


def test_block_without_steps_survives_the_object_store():
    restored = round_trip(make_block([2]).take([]))
    assert (restored.num_episodes, restored.num_steps) == (0, 0)
    assert restored.columns["obs"].shape == (0, 3)


def test_arrays_from_the_object_store_are_views():
    block = make_block([3, 4])
    block = block.with_columns({leaf: np.ascontiguousarray(column) for leaf, column in block.columns.items()})
    restored = round_trip(block)
    for leaf, column in block.columns.items():
        assert np.shares_memory(restored.columns[leaf], column)


@pytest.mark.parametrize("error_class", [errors.DataError, errors.UserCodeError, errors.OutOfMemory])
def test_error_keeps_its_class_and_message(error_class):
    with pytest.raises(error_class, match=r"^file a\.parquet, row 3: ä$"):
        errors.unwrap(round_trip(error_class("file a.parquet, row 3: ä")))
