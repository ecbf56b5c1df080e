"""Conversion of episodes' details (ids, times and custom data) to text and back."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hindcast.episodes.block import Block
from hindcast.episodes.convert import block_to_episodes, episodes_to_block
from hindcast.episodes.details import from_text, to_text
from hindcast.episodes.episode import SingleAgentEpisode

CUSTOM_DATA = [
    {"name": "a", "nested": {"list": [1, 2.5, None, True]}, "text": "ä\n"},
    {"big": 2**70, "low": -(2**63), "unsigned": 2**64 - 1, "c": 1 - 2j, "b": b"\x00\xff"},
    {"tuple": (1, ("a",)), 3: "not text", ("a", 1): [], b"k": {}},
    {"$array": "the user's own key", "empty": {}},
]
ARRAYS = [
    np.arange(6, dtype=">i2").reshape(2, 3),
    np.array([True, False]),
    np.float32(0.1),
    np.array(["a", "bc"]),
    np.zeros((0, 3)),
    np.asfortranarray(np.arange(4.0).reshape(2, 2)),
]


@pytest.mark.parametrize("custom_data", CUSTOM_DATA)
def test_details_round_trip(custom_data):
    fields = from_text(to_text(agent_id=0, module_id="m", custom_data=custom_data))
    assert fields == {"agent_id": 0, "module_id": "m", "custom_data": custom_data}
    assert list(fields["custom_data"]) == list(custom_data)


@pytest.mark.parametrize("array", ARRAYS)
def test_arrays_round_trip_is_bit_exact(array):
    restored_array = from_text(to_text(custom_data={"x": [array]}))["custom_data"]["x"][0]
    assert type(restored_array) is type(array)
    assert (restored_array.dtype, restored_array.shape) == (array.dtype, array.shape)
    assert restored_array.tobytes() == array.tobytes()


def test_nan_and_infinities_round_trip():
    values = from_text(to_text(custom_data={"x": [math.nan, math.inf, -math.inf]}))["custom_data"]["x"]
    assert math.isnan(values[0])
    assert values[1:] == [math.inf, -math.inf]


def test_empty_fields_give_empty_text():
    assert to_text(agent_id=None, custom_data={}) == ""
    assert from_text("") == {}


@pytest.mark.parametrize("value", [object(), {1, 2}, np.array([None]), np.datetime64("2026-01-01")])
def test_value_without_text_form_raises(value):
    with pytest.raises(ValueError, match="allowed are"):
        to_text(custom_data={"x": value})


@pytest.mark.parametrize(
    "text", ['["a"]', '{"custom_data":{"$array":"AA=="}}', "no json", '{"x":{"$int":[]}}']
)
def test_from_text_of_other_text_raises(text):
    with pytest.raises(ValueError):
        from_text(text)


def make_episode(**ids) -> SingleAgentEpisode:
    """Make the episode `e` of one step."""
    data = {"observations": [0.0, 1.0], "actions": [1], "rewards": [1.0]}
    return SingleAgentEpisode("e", **data, len_lookback_buffer=0, **ids)


def test_details_of_episodes_survive_block():
    first = make_episode(agent_id=("left", 1), module_id="m", multi_agent_episode_id="many")
    second = make_episode()
    first.custom_data["seed"] = np.arange(3)
    first.add_env_step(2.0, 0, 1.0)
    block = episodes_to_block([second, first])
    assert block.details is not None
    assert block.details[0] == ""
    for restored_episode, original in zip(block_to_episodes(block), (second, first), strict=True):
        for name in ("agent_id", "module_id", "multi_agent_episode_id", "_start_time", "_last_step_time"):
            assert getattr(restored_episode, name) == getattr(original, name), name
        assert repr(restored_episode.custom_data) == repr(original.custom_data)


def test_block_of_episodes_without_details_has_no_details():
    assert episodes_to_block([make_episode(), make_episode()]).details is None


def test_custom_data_without_text_form_raises_with_id_of_episode():
    episode = make_episode()
    episode.custom_data["x"] = object()
    with pytest.raises(ValueError, match="custom data or ids of episode e hold a value of type object"):
        episodes_to_block([episode])


def test_take_and_concat_keep_details():
    block_without_details = episodes_to_block([make_episode(), make_episode()])
    block_with_details = episodes_to_block([make_episode(agent_id=1), make_episode(agent_id=2)])
    union = Block.concat([block_without_details, block_with_details, block_without_details])
    assert [from_text(text).get("agent_id") for text in union.details] == [None, None, 1, 2, None, None]
    assert from_text(union.take([3]).details[0]) == {"agent_id": 2}
    assert block_with_details.with_columns({}).details is block_with_details.details
    assert block_with_details.without_details().details is None
    assert Block.concat([block_without_details, block_without_details]).details is None
