"""A training on recorded data and on what its own policy plays in the meantime."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from algorithm_toys import NStepQ, NStepQOptions, PrioritisedQ
from hindcast.api import EnvironmentSpec, ModelSpec
from hindcast.api.pipeline import PipelineSpec
from hindcast.learn.checkpoint import CheckpointStore
from hindcast.pipeline.live_feed import Live
from hindcast.pipeline.offline_data import Input, OfflineData, open_sources
from hindcast.record.live import LivePlayer
from hindcast.run.spaces import environment_spaces
from hindcast.run.trainer import Trainer, new_learner
from hindcast.storage.location import resolve
from support import WALK


def trainer(walks: Path, kind: type[NStepQ]) -> Trainer:
    environment = EnvironmentSpec.model_validate(WALK)
    algorithm = kind(NStepQOptions(train_batch_size_per_learner=32))
    spaces = environment_spaces(environment)
    policy, learner = new_learner(algorithm, spaces, ModelSpec(fcnet_hiddens=[16]), environment, seed=3)
    player = LivePlayer(environment, policy, seed=3, width=2)
    data = OfflineData(
        open_sources([Input(str(walks), 0.6)]),
        algorithm.needs(),
        batch_size=32,
        pipeline=PipelineSpec(dataset_num_iters_per_learner=8),
        seed=3,
        preprocessing=policy.preprocessing,
        live=[Live("sampler", player, 0.4, episodes=2, every=64, capacity=200)],
    )
    return Trainer("toy", policy, learner, data)


@pytest.mark.parametrize("kind", [NStepQ, PrioritisedQ])
def test_a_mix_with_live_samples_goes_on_to_the_bit(kind: type[NStepQ], walks: Path, tmp_path: Path) -> None:
    whole, parted, resumed = (trainer(walks, kind) for _ in range(3))
    whole.begin()
    parted.begin()
    results = [whole.iterate() for _ in range(6)]
    for _ in range(3):
        parted.iterate()
    store = CheckpointStore(resolve(tmp_path))
    parted.save(store)
    newest = store.latest()
    assert newest is not None
    resumed.load(newest)
    for result in results[3:]:
        again = resumed.iterate()
        assert again["learners"] == result["learners"]
        assert again["timesteps_played"] == result["timesteps_played"]
    assert results[-1]["timesteps_played"] > results[0]["timesteps_played"] > 0
    ours, expected = resumed.learner.state().tensors, whole.learner.state().tensors
    assert all(torch.equal(ours[name], tensor) for name, tensor in expected.items())
    for each in (whole, parted, resumed):
        each.close()
