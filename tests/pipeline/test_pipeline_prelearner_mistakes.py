"""Mistakes in pre-learners that map rows are reported in one sentence, with the user's file and line."""

from __future__ import annotations

import uuid
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from hindcast import OfflinePreLearner
from hindcast.episodes.episode import SingleAgentEpisode
from hindcast.episodes.spaces import space_to_json
from hindcast.errors import UserCodeError

ROWS = {"value": np.arange(6, dtype=np.float32)}
TRAINING = {"observationSpace": space_to_json(gym.spaces.Box(-9, 9, (1,), np.float32))}


def make_mapped_episode(
    values: Any, rewards: Any = None, width: int = 1
) -> dict[str, list[SingleAgentEpisode]]:
    observations = [np.full(width, value, np.float32) for value in values]
    episode = SingleAgentEpisode(
        uuid.uuid4().hex,
        observations=observations,
        actions=[0] * (len(observations) - 1),
        rewards=[0.0] * (len(observations) - 1) if rewards is None else rewards,
        terminated=True,
        len_lookback_buffer=0,
    )
    return {"episodes": [episode]}


def test_schema_with_several_columns_stacks_one_vector() -> None:
    rows = {"age": np.arange(3), "weight": np.ones(3), "actions": np.zeros(3, int), "rewards": np.ones(3)}
    rows["eps_id"] = np.array(["a", "a", "b"], dtype=object)
    episodes = OfflinePreLearner._map_to_episodes(None, batch=rows, schema={"obs": ["age", "weight"]})
    first_episode, second_episode = episodes["episodes"]
    assert np.array_equal(first_episode.get_observations(), [[0, 1], [1, 1], [1, 1]])
    assert np.array_equal(second_episode.get_observations(), [[2, 1], [2, 1]])
    assert not first_episode.extra_model_outputs


class ValidMapper(OfflinePreLearner):
    def _map_to_episodes(self, batch, **kwargs):
        return make_mapped_episode(batch["value"])


class TextRewards(OfflinePreLearner):
    def _map_to_episodes(self, batch, **kwargs):
        return make_mapped_episode(batch["value"][:3], ["a", "b"])


class ReturnsNone(OfflinePreLearner):
    def _map_to_episodes(self, batch, **kwargs):
        return None


class WideObservations(OfflinePreLearner):
    def _map_to_episodes(self, batch, **kwargs):
        return make_mapped_episode(batch["value"], width=2)


class SampleBatchMapper(OfflinePreLearner):
    def _map_sample_batch_to_episode(self, batch, **kwargs):
        return make_mapped_episode(batch["value"])


MAP_METHOD = "_map_to_episodes"
MISTAKES = {
    TextRewards: (MAP_METHOD, "returned rewards that are not numbers, such as 'a'."),
    ReturnsNone: (MAP_METHOD, "returned a NoneType; it must return a Block or a list of SingleAgentEpisode."),
    WideObservations: (MAP_METHOD, "returned 'obs' of shape [2]; the observation space has [1]."),
    SampleBatchMapper: (
        "_map_sample_batch_to_episode",
        "is only called for SampleBatch data: override _map_to_episodes",
    ),
}


def test_valid_prelearner_is_accepted() -> None:
    block = ValidMapper.make_episodes(ROWS, {}, TRAINING, "a file")
    assert block is not None
    assert block.length.tolist() == [5]


@pytest.mark.parametrize("cls", MISTAKES, ids=lambda cls: cls.__name__)
def test_mistake_is_reported_in_one_sentence(cls: type[OfflinePreLearner]) -> None:
    method, expected = MISTAKES[cls]
    with pytest.raises(UserCodeError) as error:
        cls.make_episodes(ROWS, {}, TRAINING, "a file")
    message = str(error.value)
    assert message.startswith(f"{cls.__name__}.{method}, given a file, ")
    assert f"{__file__}:{getattr(cls, method).__code__.co_firstlineno}" in message
    assert expected in message
    assert "\n" not in message
