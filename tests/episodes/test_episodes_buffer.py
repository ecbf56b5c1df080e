"""`InfiniteLookbackBuffer` in list mode and in NumPy mode."""

import numpy as np
import pytest
from gymnasium import spaces

from hindcast.episodes.lookback_buffer import InfiniteLookbackBuffer

DATA = [0, 1, 2, 3, 4, 5, 6, 7]  # three items of lookback, then five timesteps with the values 3 to 7


def make_buffer(is_numpy: bool, space: spaces.Space | None = None) -> InfiniteLookbackBuffer:
    """Make a buffer of `DATA`, in list or NumPy mode."""
    buffer = InfiniteLookbackBuffer(DATA, lookback=3, space=space)
    if is_numpy:
        buffer.finalize()
    return buffer


def to_lists(value):
    """Convert the values of either mode to lists and numbers."""
    if isinstance(value, dict):
        return {key: to_lists(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_lists(item) for item in value]
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


@pytest.mark.parametrize(
    ("indices", "neg_index_as_lookback", "expected"),
    [
        (None, False, [3, 4, 5, 6, 7]),
        (None, True, [3, 4, 5, 6, 7]),
        (0, False, 3),
        (4, False, 7),
        (-1, False, 7),
        (-5, False, 3),
        (-6, False, 2),
        (-8, False, 0),
        (np.int64(1), False, 4),
        (0, True, 3),
        (4, True, 7),
        (-1, True, 2),
        (-3, True, 0),
        ([0, 2], False, [3, 5]),
        ([-1, -2], False, [7, 6]),
        ([-8], False, [0]),
        ([], False, []),
        ([-1, -2], True, [2, 1]),
        ([0, -3], True, [3, 0]),
        (slice(None), False, [3, 4, 5, 6, 7]),
        (slice(0, 2), False, [3, 4]),
        (slice(1, None), False, [4, 5, 6, 7]),
        (slice(None, 2), False, [3, 4]),
        (slice(None, -1), False, [3, 4, 5, 6]),
        (slice(-2, None), False, [6, 7]),
        (slice(-5, -2), False, [3, 4, 5]),
        (slice(-7, None), False, [1, 2, 3, 4, 5, 6, 7]),
        (slice(-12, None), False, [0, 1, 2, 3, 4, 5, 6, 7]),
        (slice(-12, -6), False, [0, 1]),
        (slice(-2, 2), False, []),
        (slice(3, 9), False, [6, 7]),
        (slice(6, 9), False, []),
        (slice(3, 1), False, []),
        (slice(None, None, 2), False, [3, 5, 7]),
        (slice(0, 10, 3), False, [3, 6]),
        (slice(4, 1, -1), False, [7, 6, 5]),
        (slice(-1, -3, -1), False, [7, 6]),
        (slice(-2, -6, -2), False, [6, 4]),
        (slice(None, None, -1), False, [7, 6, 5, 4, 3]),
        (slice(-2, None), True, [1, 2, 3, 4, 5, 6, 7]),
        (slice(-2, 2), True, [1, 2, 3, 4]),
        (slice(-3, 0), True, [0, 1, 2]),
        (slice(-5, -2), True, [0]),
        (slice(-12, -6), True, []),
        (slice(None, -1), True, []),
        (slice(-1, -3, -1), True, [2, 1]),
        (slice(1, -4, -1), True, [4, 3, 2, 1, 0]),
    ],
)
def test_get_returns_timesteps_and_lookback(is_numpy, indices, neg_index_as_lookback, expected):
    samples = make_buffer(is_numpy).get(indices, neg_index_as_lookback=neg_index_as_lookback)
    assert to_lists(samples) == expected
    if not isinstance(indices, int | np.integer):
        assert isinstance(samples, np.ndarray if is_numpy else list)


@pytest.mark.parametrize(
    ("indices", "neg_index_as_lookback", "expected"),
    [
        (0, False, 3),
        (5, False, 9),
        (-9, False, 9),
        (-4, True, 9),
        (-8, True, 9),
        ([5], False, [9]),
        ([-9, 0], False, [9, 3]),
        ([0, 6, -3], True, [3, 9, 0]),
        (slice(3, 9), False, [6, 7, 9, 9, 9, 9]),
        (slice(6, 9), False, [9, 9, 9]),
        (slice(-12, -6), False, [9, 9, 9, 9, 0, 1]),
        (slice(-10, -9), False, [9]),
        (slice(-5, -2), True, [9, 9, 0]),
        (slice(-12, -6), True, [9, 9, 9, 9, 9, 9]),
        (slice(-5, 7), True, [9, 9, 0, 1, 2, 3, 4, 5, 6, 7, 9, 9]),
        (slice(0, 2), False, [3, 4]),
        (slice(3, 1), False, []),
        (slice(0, 10, 3), False, [3, 6, 9, 9]),
        (slice(-5, 5, 3), True, [9, 1, 4, 7]),
        (slice(7, 3, -1), False, [9, 9, 9, 7]),
        (slice(-2, -6, -2), True, [1, 9]),
    ],
)
def test_get_fills_indices_out_of_range(is_numpy, indices, neg_index_as_lookback, expected):
    for space in (None, spaces.Discrete(10)):
        buffer = make_buffer(is_numpy, space)
        samples = buffer.get(indices, neg_index_as_lookback=neg_index_as_lookback, fill=9)
        assert to_lists(samples) == expected


@pytest.mark.parametrize(
    ("indices", "neg_index_as_lookback"),
    [(5, False), (-9, False), (-4, True), (-8, True), ([0, 5], False), ([-4], True)],
)
def test_get_out_of_range_without_fill_raises(is_numpy, indices, neg_index_as_lookback):
    with pytest.raises(IndexError, match="out of range: there are 5 timesteps and 3 lookback items"):
        make_buffer(is_numpy).get(indices, neg_index_as_lookback=neg_index_as_lookback)


def test_slice_with_step_zero_raises(is_numpy):
    with pytest.raises(ValueError, match="step of a slice cannot be 0"):
        make_buffer(is_numpy).get(slice(0, 2, 0))


def test_fill_has_shape_and_dtype_of_space(is_numpy):
    space = spaces.Dict(
        camera=spaces.Box(0, 255, (2, 2), np.uint8),
        pose=spaces.Tuple((spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(4))),
    )
    sample = {"camera": np.ones((2, 2), np.uint8), "pose": (np.ones(3, np.float32), 1)}
    buffer = InfiniteLookbackBuffer([sample] * 2, space=space)
    if is_numpy:
        buffer.finalize()
    fill_value = buffer.get(5, fill=0)
    assert fill_value["camera"].shape == (2, 2) and fill_value["camera"].dtype == np.uint8
    assert fill_value["pose"][0].dtype == np.float32 and fill_value["pose"][1].dtype == np.int64
    values = buffer.get(slice(1, 4), fill=0)
    positions = values["pose"][0] if is_numpy else [item["pose"][0] for item in values]
    assert to_lists(list(positions)) == [[1, 1, 1], [0, 0, 0], [0, 0, 0]]


def test_fill_without_space_has_shape_of_arrays():
    buffer = InfiniteLookbackBuffer(np.ones((2, 3), np.float32))
    assert buffer.get(5, fill=0).shape == (3,)
    samples = buffer.get(slice(1, 4), fill=0)
    assert samples.shape == (3, 3) and samples.dtype == np.float32
    assert buffer.get([0, 7], fill=0.5).tolist() == [[1, 1, 1], [0.5, 0.5, 0.5]]


def test_fill_that_does_not_fit_raises():
    buffer = InfiniteLookbackBuffer([np.zeros(2)], space=spaces.Box(-1, 1, (2,)))
    with pytest.raises(ValueError, match=r"does not fit data of shape \(2,\)"):
        buffer.get(3, fill=[1, 2, 3])
    with pytest.raises(ValueError, match="structure"):
        buffer.get(3, fill={"a": 1})


def test_one_hot_encodes_discrete_leaves_and_fill(is_numpy):
    space = spaces.Tuple((spaces.Discrete(3, start=4), spaces.MultiDiscrete([2, 2]), spaces.Box(0, 9, (1,))))
    samples = [(4 + i, np.array([i % 2, 1]), np.array([i], np.float32)) for i in range(3)]
    buffer = InfiniteLookbackBuffer(samples, lookback=1, space=space)
    if is_numpy:
        buffer.finalize()
    last_sample = buffer.get(-1, one_hot_discrete=True)
    assert to_lists(last_sample) == [[0, 0, 1], [1, 0, 0, 1], [2]]
    assert last_sample[0].dtype == last_sample[1].dtype == np.float32
    values = buffer.get(slice(-1, 3), neg_index_as_lookback=True, fill=0, one_hot_discrete=True)
    first_leaf = values[0] if is_numpy else [item[0] for item in values]
    assert to_lists(list(first_leaf)) == [[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0]]


def test_one_hot_without_space_or_outside_it_raises(is_numpy):
    with pytest.raises(ValueError, match="requires the space"):
        make_buffer(is_numpy).get(0, one_hot_discrete=True)
    with pytest.raises(ValueError, match=r"outside Discrete\(4\)"):
        make_buffer(is_numpy, spaces.Discrete(4)).get(-1, one_hot_discrete=True)


@pytest.mark.parametrize(
    ("new_data", "indices", "neg_index_as_lookback", "expected"),
    [
        (9, 0, False, [0, 1, 2, 9, 4, 5, 6, 7]),
        (9, -1, False, [0, 1, 2, 3, 4, 5, 6, 9]),
        (9, -6, False, [0, 1, 9, 3, 4, 5, 6, 7]),
        (9, -1, True, [0, 1, 9, 3, 4, 5, 6, 7]),
        ([8, 9], [0, -1], False, [0, 1, 2, 8, 4, 5, 6, 9]),
        ([8, 9], [0, -1], True, [0, 1, 9, 8, 4, 5, 6, 7]),
        ([8, 9], slice(-2, None), False, [0, 1, 2, 3, 4, 5, 8, 9]),
        ([8, 9], slice(-1, 1), True, [0, 1, 8, 9, 4, 5, 6, 7]),
        ([8, 9], slice(0, 3, 2), False, [0, 1, 2, 8, 4, 9, 6, 7]),
        ([8, 9], slice(3, 99), False, [0, 1, 2, 3, 4, 5, 8, 9]),
        ([10, 11, 12, 13, 14], None, False, [0, 1, 2, 10, 11, 12, 13, 14]),
    ],
)
def test_set_overwrites_at_the_same_indices(is_numpy, new_data, indices, neg_index_as_lookback, expected):
    for data in (new_data, np.array(new_data)):
        buffer = make_buffer(is_numpy)
        buffer.set(data, at_indices=indices, neg_index_as_lookback=neg_index_as_lookback)
        assert to_lists(buffer.data) == expected


@pytest.mark.parametrize(
    ("new_data", "indices", "match"),
    [
        (9, 5, "index 5 .* out of range"),
        ([1, 2], [0, 5], "index 5 .* out of range"),
        ([1, 2], [0, 1, 2], "2 new samples were passed for 3 timesteps"),
        ([1, 2], None, "2 new samples were passed for 5 timesteps"),
        ([1], slice(3, 99), "1 new samples were passed for 2 timesteps"),
    ],
)
def test_invalid_set_raises_and_writes_nothing(is_numpy, new_data, indices, match):
    buffer = make_buffer(is_numpy)
    with pytest.raises(IndexError, match=match):
        buffer.set(new_data, at_indices=indices)
    assert to_lists(buffer.data) == DATA


def test_set_other_shape_in_numpy_mode_raises():
    buffer = InfiniteLookbackBuffer(np.zeros((3, 2)))
    with pytest.raises(ValueError, match=r"shape \(3,\), expected \(2,\)"):
        buffer.set(np.zeros(3), at_indices=0)
    with pytest.raises(ValueError, match="structure"):
        buffer.set({"a": np.zeros(2)}, at_indices=0)


def test_set_widens_dtype_only_when_needed():
    pixels = InfiniteLookbackBuffer(np.zeros(3, np.uint8))
    pixels.set(200, at_indices=0)
    assert pixels.data.dtype == np.uint8
    pixels.set(0.5, at_indices=1)
    assert pixels.data.tolist() == [200, 0.5, 0]
    pixels = InfiniteLookbackBuffer(np.zeros(3, np.uint8))
    pixels.set(-300, at_indices=0)
    assert pixels.data.tolist() == [-300, 0, 0]


def test_set_does_not_change_passed_arrays():
    data = np.arange(4.0)
    data.flags.writeable = False
    buffer = InfiniteLookbackBuffer(data)
    section = buffer.section(1, 3, 1, 0)
    assert np.shares_memory(buffer.data, data) and np.shares_memory(section.data, data)
    section.set(9.0, at_indices=0)
    buffer.set(7.0, at_indices=1)
    assert data.tolist() == [0, 1, 2, 3]
    assert section.data.tolist() == [9, 2] and buffer.data.tolist() == [0, 7, 2, 3]


def test_passed_list_is_copied():
    data = [1, 2]
    buffer = InfiniteLookbackBuffer(data)
    data.append(3)
    assert buffer.data == [1, 2]


def test_append_extend_pop_and_concat_change_items(is_numpy):
    buffer = make_buffer(is_numpy)
    buffer.append(8)
    buffer.extend([9, 10])
    buffer.extend(np.array([11]))
    assert to_lists(buffer.get()) == [3, 4, 5, 6, 7, 8, 9, 10, 11]
    buffer.pop()
    buffer.pop(0)
    assert to_lists(buffer.data) == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10] and buffer.lookback == 3
    for data in ([0, 20], np.array([0, 21])):
        buffer.concat(InfiniteLookbackBuffer(data, lookback=1))
    assert to_lists(buffer.get(slice(-2, None))) == [20, 21]
    with pytest.raises(IndexError, match="pop"):
        buffer.pop(99)


def test_append_to_empty_buffer_in_either_mode():
    for space in (None, spaces.Box(-1, 1, (2,), np.float32)):
        buffer = InfiniteLookbackBuffer(space=space)
        buffer.finalize()
        assert len(buffer) == 0
        buffer.append(np.ones(2, np.float32))
        assert buffer.data.tolist() == [[1, 1]] and buffer.data.dtype == np.float32


def test_append_keeps_dtype():
    rewards = InfiniteLookbackBuffer(np.zeros(2, np.float32))
    rewards.append(0.5)
    actions = InfiniteLookbackBuffer(np.zeros(2, np.int32))
    actions.append(3)
    assert rewards.data.dtype == np.float32 and actions.data.dtype == np.int32
    with pytest.raises(ValueError, match=r"new data have shape \(2,\)"):
        actions.append(np.array([1, 2]))


def test_text_is_never_truncated():
    buffer = InfiniteLookbackBuffer(["a", "bb"], space=spaces.Text(20))
    buffer.finalize()
    buffer.set("a long sentence", at_indices=0)
    buffer.append("another one")
    assert list(buffer.get()) == ["a long sentence", "bb", "another one"]
    assert buffer.get_state()["data"].dtype.kind == "U"
    assert InfiniteLookbackBuffer.from_state(buffer.get_state()) == buffer


def test_finalize_samples_of_different_shapes_raises():
    buffer = InfiniteLookbackBuffer([np.zeros(2), np.zeros(2), np.zeros(3)])
    with pytest.raises(ValueError, match=r"\(2,\) at index 0, \(3,\) at index 2"):
        buffer.finalize()
    with pytest.raises(ValueError, match="structure"):
        InfiniteLookbackBuffer([{"a": 1}, {"b": 1}]).finalize()


def test_lookback_is_clipped_and_negative_raises():
    assert InfiniteLookbackBuffer([1, 2], lookback=5).lookback == 2
    assert len(InfiniteLookbackBuffer([1, 2], lookback=5)) == 0
    with pytest.raises(ValueError, match="lookback is -1"):
        InfiniteLookbackBuffer([1], lookback=-1)
    with pytest.raises(ValueError, match="differ in length"):
        InfiniteLookbackBuffer({"a": np.zeros(2), "b": np.zeros(3)})


def test_add_number_sequence_or_buffer_returns_new_buffer(is_numpy):
    buffer = make_buffer(is_numpy)
    assert to_lists((buffer + 1).data) == [1, 2, 3, 4, 5, 6, 7, 8]
    items = [8, 9]
    assert to_lists((buffer + items).get()) == [3, 4, 5, 6, 7, 8, 9]
    assert to_lists((buffer + InfiniteLookbackBuffer([0, 8], lookback=1)).get()) == [3, 4, 5, 6, 7, 8]
    assert to_lists(buffer.data) == DATA


def test_equality_repr_and_item_access(is_numpy):
    assert make_buffer(is_numpy) == make_buffer(is_numpy)
    assert make_buffer(True) != make_buffer(False)
    assert make_buffer(is_numpy) != make_buffer(is_numpy, spaces.Discrete(9))
    assert InfiniteLookbackBuffer([1]) != InfiniteLookbackBuffer([2])
    assert "<- lookback(3) |" in repr(make_buffer(is_numpy))
    assert make_buffer(is_numpy)[-2:] is not None and to_lists(make_buffer(is_numpy)[0]) == 3
    second = make_buffer(is_numpy)
    second[0] = 30
    assert to_lists(second.get(0)) == 30
    assert make_buffer(is_numpy, spaces.Discrete(9)).space_struct == spaces.Discrete(9)
