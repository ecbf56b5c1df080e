"""Each combination of overrides of a pre-learner in RLlib's form does what each of them does alone."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from hindcast import ConnectorV2, DQNConfig, EpisodeReplayBuffer, OfflinePreLearner, SingleAgentEpisode
from hindcast.episodes.block import Block
from hindcast.episodes.convert import episodes_to_block
from hindcast.errors import SpecError, UserCodeError
from hindcast.run.training.options_document import training_options

SPACES = (gym.spaces.Box(-99, 99, (2,), np.float32), gym.spaces.Discrete(20))
NUM_STEPS = 6
KINDS = ("table", "recording", "sample_batch")


def scale(episodes: list[SingleAgentEpisode], factor: float) -> list[SingleAgentEpisode]:
    for episode in episodes:
        episode.set_rewards(new_data=[factor * float(reward) for reward in episode.get_rewards()])
    return episodes


class ScaledBuffer(EpisodeReplayBuffer):
    def add(self, episodes):
        super().add(scale(list(episodes), 13.0))


class ScalingConnector(ConnectorV2):
    def __call__(self, *, batch, episodes, **kwargs):
        scale(episodes, 17.0)
        return batch


class OnlyInitialises(OfflinePreLearner):
    num_constructed = 0

    def __init__(self, config, **kwargs):
        super().__init__(config=config, **kwargs)
        type(self).num_constructed += 1


class ChangesConnectors(OfflinePreLearner):
    def __init__(self, config, **kwargs):
        super().__init__(config=config, **kwargs)
        self._learner_connector.prepend(ScalingConnector())


class SetsBuffer(OfflinePreLearner):
    def __init__(self, config, **kwargs):
        super().__init__(config=config, **kwargs)
        self.episode_buffer = ScaledBuffer(capacity=1000)


class Calls(OfflinePreLearner):
    def __call__(self, batch):
        result = super().__call__(batch)
        return {**result, "default_policy/rewards": result["default_policy/rewards"] * 3.0}


class MapsRows(OfflinePreLearner):
    def _map_to_episodes(self, batch, **kwargs):
        return {"episodes": scale(super()._map_to_episodes(batch, **kwargs)["episodes"], 5.0)}


class MapsSampleBatches(OfflinePreLearner):
    def _map_sample_batch_to_episode(self, batch, **kwargs):
        return {"episodes": scale(super()._map_sample_batch_to_episode(batch, **kwargs)["episodes"], 5.0)}


class Validates(OfflinePreLearner):
    def _validate_episodes(self, episodes):
        return scale(list(super()._validate_episodes(episodes)), 7.0)


class Postprocesses(OfflinePreLearner):
    def _postprocess_and_sample(self, episodes):
        return scale(super()._postprocess_and_sample(episodes), 11.0)


class HasBuffer(OfflinePreLearner):
    default_prelearner_buffer_class = ScaledBuffer


class HasBufferArguments(OfflinePreLearner):
    @property
    def default_prelearner_buffer_kwargs(self):
        return super().default_prelearner_buffer_kwargs | {"capacity": 1000}


FACTORS: Mapping[type[OfflinePreLearner], float] = {
    OnlyInitialises: 1.0,
    ChangesConnectors: 17.0,
    SetsBuffer: 13.0,
    Calls: 3.0,
    MapsRows: 5.0,
    MapsSampleBatches: 5.0,
    Validates: 7.0,
    Postprocesses: 11.0,
    HasBuffer: 13.0,
    HasBufferArguments: 1.0,
}
"""Class with one override -> the factor by which it scales rewards."""
SAMPLING = {SetsBuffer, Validates, Postprocesses, HasBuffer, HasBufferArguments}


def make_rows() -> dict[str, Any]:
    observations = np.arange(2 * NUM_STEPS, dtype=np.float32).reshape(NUM_STEPS, 2)
    return {
        "eps_id": np.array(["a"] * 4 + ["b"] * 2, object),
        "t": np.array([0, 1, 2, 3, 0, 1]),
        "obs": observations,
        "new_obs": observations + 2,
        "actions": np.arange(NUM_STEPS),
        "rewards": np.arange(1.0, NUM_STEPS + 1),
        "terminateds": np.array([False] * 3 + [True, False, True]),
        "truncateds": np.zeros(NUM_STEPS, np.bool_),
    }


def make_data(kind: str) -> Mapping[str, Any] | Block:
    rows = make_rows()
    if kind == "table":
        return rows
    if kind == "recording":
        return episodes_to_block(OfflinePreLearner._map_to_episodes(rows)["episodes"])
    batches = {name: np.empty(2, object) for name in rows}
    for name, values in rows.items():
        batches[name][:] = [values[:4], values[4:]]
    return batches


@cache
def make_training(kind: str) -> dict[str, Any]:
    config = DQNConfig().environment(observation_space=SPACES[0], action_space=SPACES[1])
    config.rl_module(model_config={"fcnet_hiddens": [4]}).training(train_batch_size_per_learner=20)
    config.offline_data(input_="rows.json", input_read_sample_batches=kind == "sample_batch")
    config.offline_data(prelearner_class=OnlyInitialises)
    training = config.plan().training
    assert training is not None
    return training_options(training, training.spec.input[0])


def map_rewards(cls: type[OfflinePreLearner], kind: str) -> tuple[set[float], int]:
    """Return the factors of the rewards that the class makes of the data, and the number of timesteps."""
    block = cls.make_episodes(make_data(kind), {}, make_training(kind), f"{kind}, unit 0")
    assert block is not None
    factors = block.columns["rewards"] / (block.columns["actions"] + 1)
    return {round(float(factor), 3) for factor in factors}, block.num_steps


def draw_combinations(kind: str) -> list[tuple[type[OfflinePreLearner], ...]]:
    """Return each class alone, and twelve combinations of several."""
    # A class with only the mapper of another kind of data is refused; see below.
    classes = [
        cls for cls in FACTORS if cls is not (MapsRows if kind == "sample_batch" else MapsSampleBatches)
    ]
    rng = np.random.default_rng(KINDS.index(kind))
    drawn = [tuple(rng.permutation(classes)[: rng.integers(2, len(classes) + 1)]) for _ in range(12)]
    return [
        *((cls,) for cls in classes),
        *(bases for bases in drawn if not {HasBuffer, SetsBuffer} <= {*bases}),
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_each_combination_of_overrides_has_the_effect_of_each(kind: str) -> None:
    for bases in draw_combinations(kind):
        cls: Any = type("Combined", bases, {})
        expected_factor = float(np.prod([FACTORS[base] for base in bases]))
        factors, num_steps = map_rewards(cls, kind)
        assert factors == {round(expected_factor, 3)}, bases
        assert num_steps == (20 if SAMPLING & {*bases} else NUM_STEPS), bases
        assert OnlyInitialises not in bases or cls.num_constructed > 0
        assert cls.maps_any_rows(), bases
        assert cls.runs_connectors() == bool({Calls, ChangesConnectors} & {*bases}), bases


class Empty(OfflinePreLearner):
    pass


def test_class_without_overrides_is_the_base_class_also_with_a_buffer() -> None:
    assert not Empty.maps_any_rows()
    training = make_training("table")
    options = {**training["options"], "prelearner_buffer_class": "hindcast:EpisodeReplayBuffer"}
    block = Empty.make_episodes(make_rows(), {}, {**training, "options": options}, "rows")
    assert block is not None
    assert block.num_steps == 20


class MapsBlocks(OfflinePreLearner):
    def _map_to_episodes(self, block):
        return block


class CallsUnits(OfflinePreLearner):
    def __call__(self, unit, epoch=0):
        return super().__call__(unit, epoch)


@pytest.mark.parametrize(
    ("bases", "message"),
    [
        ((OnlyInitialises, MapsBlocks), "since its __init__ is, but its _map_to_episodes is not"),
        ((OnlyInitialises, CallsUnits), "since its __init__ is, but its __call__ is not"),
        ((Calls, MapsBlocks), "since its __call__ is, but its _map_to_episodes is not"),
    ],
)
def test_mixed_forms_are_refused(bases: tuple[type[OfflinePreLearner], ...], message: str) -> None:
    with pytest.raises(SpecError, match=f"Mixed is in RLlib's form, {message}: give "):
        type("Mixed", bases, {}).maps_any_rows()  # type: ignore[attr-defined]


@pytest.mark.parametrize("cls", [OnlyInitialises, HasBuffer])
def test_rows_without_observations_are_an_error_that_names_the_class(cls: type[OfflinePreLearner]) -> None:
    rows = {"text": np.array(["a", "b"], object)}
    with pytest.raises(
        UserCodeError, match=rf"^{cls.__name__}, given rows, raised KeyError .*no column 'obs'"
    ):
        cls.make_episodes(rows, {}, make_training("table"), "rows")
