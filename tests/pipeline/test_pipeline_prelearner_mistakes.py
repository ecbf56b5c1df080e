"""Pre-learners that work on rows: each mistake is one sentence with the user's file and line."""

from __future__ import annotations

import re
import uuid
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from hindcast import OfflinePreLearner
from hindcast.episodes.episode import SingleAgentEpisode
from hindcast.episodes.spaces import space_to_json
from hindcast.errors import UserCodeError

HERE = Path(__file__)
ROWS = {"value": np.arange(6, dtype=np.float32)}
MESSAGES = {"observationSpace": space_to_json(gym.spaces.Box(-9, 9, (1,), np.float32))}


def episodes_of(values: Any, rewards: Any = None, width: int = 1) -> dict[str, list[SingleAgentEpisode]]:
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
    first, second = episodes["episodes"]
    assert np.array_equal(first.get_observations(), [[0, 1], [1, 1], [1, 1]])
    assert np.array_equal(second.get_observations(), [[2, 1], [2, 1]])
    assert not first.extra_model_outputs


class Right(OfflinePreLearner):
    def _map_to_episodes(self, batch, **kwargs):
        return episodes_of(batch["value"])


class Noisy(OfflinePreLearner):
    def _map_to_episodes(self, batch, **kwargs):
        return episodes_of(batch["value"] + np.random.normal())


class Counting(OfflinePreLearner):
    num_calls = 0

    def _map_to_episodes(self, batch, **kwargs):
        self.num_calls += 1
        return episodes_of(batch["value"] + self.num_calls)


class Mutating(OfflinePreLearner):
    @staticmethod
    def _map_to_episodes(batch, **kwargs):
        batch["value"] += 1  # mutates
        return episodes_of(batch["value"])


class Texts(OfflinePreLearner):
    def _map_to_episodes(self, batch, **kwargs):
        return episodes_of(batch["value"][:3], ["a", "b"])


class Nothing(OfflinePreLearner):
    def _map_to_episodes(self, batch, **kwargs):
        return None


class Wide(OfflinePreLearner):
    def _map_to_episodes(self, batch, **kwargs):
        return episodes_of(batch["value"], width=2)


class OfBatches(OfflinePreLearner):
    def _map_sample_batch_to_episode(self, batch, **kwargs):
        return episodes_of(batch["value"])


class NoisyRows(OfflinePreLearner):
    @classmethod
    def map_rows(cls, rows, **kwargs):
        return episodes_of(rows["value"] * np.random.normal())["episodes"]


class NoisyBatch(OfflinePreLearner):
    def __call__(self, batch):
        columns = {"obs": batch["value"][:, None] + np.random.normal(), "actions": np.zeros(6, np.int64)}
        return {"default_policy": columns}


MAPS, NOISE = (
    "_map_to_episodes",
    "returned two different columns '{}' for the same data: draw random numbers only from",
)
MISTAKES = {
    Noisy: (MAPS, NOISE.format("obs")),
    Counting: (MAPS, NOISE.format("obs")),
    Mutating: (MAPS, "raised ValueError at {}: output array is read-only"),
    Texts: (MAPS, "returned rewards that are not numbers, such as 'a'."),
    Nothing: (MAPS, "returned a NoneType; it must return a list of SingleAgentEpisode."),
    Wide: (MAPS, "returned 'obs' of shape [2]; the observation space has [1]."),
    OfBatches: (
        "_map_sample_batch_to_episode",
        "is only called for SampleBatch data: override _map_to_episodes",
    ),
    NoisyRows: ("map_rows", NOISE.format("obs")),
    NoisyBatch: ("__call__", NOISE.format("obs")),
}


def test_valid_prelearner_is_accepted() -> None:
    block = Right.make_episodes(ROWS, {}, MESSAGES, "a file")
    assert block is not None
    assert block.length.tolist() == [5]
    assert ROWS["value"].flags.writeable


@pytest.mark.parametrize("kind", MISTAKES, ids=lambda kind: kind.__name__)
def test_mistake_raises_one_sentence(kind: type[OfflinePreLearner]) -> None:
    method, expected = MISTAKES[kind]
    with pytest.raises(UserCodeError) as error:
        kind.make_episodes(ROWS, {}, MESSAGES, "a file")
    message = str(error.value)
    assert message.startswith(f"{kind.__name__}.{method}, given a file, ")
    found = re.search(re.escape(str(HERE)) + r":(\d+)", message)
    assert found is not None, message
    assert re.search(r"def |mutates|@", HERE.read_text().splitlines()[int(found[1]) - 1])
    assert expected.format(found[0]) in message
    assert "\n" not in message
