"""`OfflineData` in RLlib's form: filtered data, an overridden `sample`, iterators and shards."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hindcast import BCConfig, OfflineData
from hindcast.errors import UserCodeError, UserError
from hindcast.formats.media.ray_data import limit_retries
from hindcast.rllib.builder.config import AlgorithmConfig
from hindcast.rllib.offline_data import RLlibOfflineData

NUM_STEPS = 308
"""Number of timesteps in `walks`."""


class Halves(OfflineData):
    def sample(self, num_samples, return_iterator=False, num_shards=1):
        options = {"return_iterator": return_iterator, "num_shards": num_shards}
        batch = super().sample(num_samples=num_samples, **options)
        columns = batch["default_policy"]
        columns["obs"] = columns["obs"] / 2
        return batch


class HalvesFlatBatch(OfflineData):
    """Returns columns whose names contain the module's."""

    def sample(self, *args, **kwargs):
        columns = super().sample(*args, **kwargs)["default_policy"]
        columns["obs"] = columns["obs"] / 2
        return {f"default_policy/{name}": values for name, values in columns.items()}


class HalvesTensors(OfflineData):
    """Is in Hindcast's form."""

    def sample(self, num_samples):
        batch = super().sample(num_samples)
        return {**batch, "obs": batch["obs"] / 2}


class Raises(OfflineData):
    def sample(self, num_samples, return_iterator=False, num_shards=1):
        return super().sample(num_samples)["no_such_module"]


class Filters(OfflineData):
    def __init__(self, config):
        super().__init__(config)
        self.data = self.data.filter(lambda row: row["t"] < 4)


class LacksSuper(OfflineData):
    def __init__(self, config):
        self.config = config


class FiltersWithoutSuper(OfflineData):
    def __init__(self, config):
        self.data = self.data.filter(lambda row: row["t"] < 4)


class RaisesOnConstruction(OfflineData):
    def __init__(self, config):
        self.data = 1 // 0


def make_config(data: Path, cls: type[OfflineData] | None = None) -> AlgorithmConfig:
    config = BCConfig().environment("toy_environments:Walk").training(train_batch_size_per_learner=64)
    return config.offline_data(input_=str(data), offline_data_class=cls, dataset_num_iters_per_learner=1)


def first_batch(config: AlgorithmConfig) -> dict[str, Any]:
    with config.build_algo() as algo:
        assert algo.offline_data is not None
        batch = {leaf: tensor.clone() for leaf, tensor in algo.offline_data.next().items()}
        assert np.isfinite(algo.train()["learners"]["default_policy"]["total_loss"])
        return batch


@pytest.mark.parametrize("cls", [Halves, HalvesFlatBatch, HalvesTensors])
def test_sample_with_super_changes_the_batches_of_a_training(cls: type[OfflineData], walks: Path) -> None:
    batch, default_batch = (first_batch(make_config(walks, item)) for item in (cls, None))
    torch.testing.assert_close(batch["obs"], default_batch["obs"] / 2)
    assert torch.equal(batch["actions"], default_batch["actions"])


def test_mistake_in_sample_names_the_users_line(walks: Path) -> None:
    with pytest.raises(UserCodeError, match=r"Raises\.sample raised KeyError at .*rllib_offline_data\.py"):
        first_batch(make_config(walks, Raises))


def test_sample_without_a_training_returns_batches_and_iterators(walks: Path) -> None:
    data = OfflineData(make_config(walks))
    default_batch = first_batch(make_config(walks))
    batch = data.sample(num_samples=64)
    np.testing.assert_array_equal(batch["default_policy"]["obs"], default_batch["obs"])
    assert batch.env_steps() == 64
    (iterator,) = data.sample(num_samples=100, return_iterator=True)
    sizes = [len(part["default_policy/obs"]) for part in iterator.iter_batches()]
    assert sizes == [100, 100, 100, 8]
    assert [part.env_steps() for part in iterator] == sizes  # another pass


@pytest.mark.parametrize("num_shards", [2, 3])
def test_shards_have_different_items_and_equal_sizes(num_shards: int, walks: Path) -> None:
    data = OfflineData(make_config(walks))
    iterators = data.sample(num_samples=10, return_iterator=True, num_shards=num_shards)
    shards = [
        np.concatenate([batch["default_policy/obs"] for batch in iterator.iter_batches(batch_size=32)])
        for iterator in iterators
    ]
    assert {len(shard) for shard in shards} == {NUM_STEPS // num_shards}
    (whole,) = OfflineData(make_config(walks)).sample(NUM_STEPS, return_iterator=True)
    (batch,) = whole.iter_batches()
    expected = sorted(map(tuple, batch["default_policy/obs"].tolist()))
    actual = sorted(tuple(row) for shard in shards for row in shard.tolist())
    assert set(actual) <= set(expected)
    assert len(actual) == NUM_STEPS // num_shards * num_shards
    if NUM_STEPS % num_shards == 0:
        assert actual == expected


@pytest.mark.ray
@pytest.mark.usefixtures("ray_here")
@pytest.mark.filterwarnings("ignore")
def test_filtered_data_are_trained_on_and_sampled(walks: Path) -> None:
    (whole,) = OfflineData(make_config(walks)).sample(NUM_STEPS, return_iterator=True)
    (expected,) = whole.iter_batches()
    # The first timesteps of each episode pass; without them the whole data have further ones.
    data = Filters(make_config(walks))
    num_rows = data.data.count()
    assert 0 < num_rows < NUM_STEPS
    rows = {tuple(np.asarray(row["obs"], np.float32).tolist()) for row in data.data.take_all()}
    assert rows < set(map(tuple, expected["default_policy/obs"].tolist()))
    sampled = data.sample(20)["default_policy"]["obs"]
    assert set(map(tuple, sampled.tolist())) <= rows
    with make_config(walks, Filters).build_algo() as algo:
        assert algo.offline_data is not None
        assert algo.offline_data.epoch_size == num_rows
        batch = algo.offline_data.next()["obs"]
        assert set(map(tuple, batch.tolist())) <= rows


class FailsOnRows(OfflineData):
    def __init__(self, config):
        super().__init__(config)
        self.data = self.data.map(lambda row: {**row, "rewards": row["no_such"]})


@pytest.mark.ray
@pytest.mark.usefixtures("ray_here")
def test_error_in_a_function_of_ray_data_names_the_users_line(walks: Path) -> None:
    with pytest.raises(UserCodeError) as error:
        make_config(walks, FailsOnRows).build_algo()
    assert re.search(
        rf"a function on its rows raised KeyError at {re.escape(__file__)}:\d+: 'no_such'$", str(error.value)
    )
    assert "\n" not in str(error.value)


class Passes:
    def __call__(self, batch):
        return batch


@pytest.mark.ray
@pytest.mark.usefixtures("ray_here")
def test_function_that_kills_its_process_is_not_called_without_end() -> None:
    import ray.data

    rows = ray.data.from_items([1])
    in_tasks, in_actors = rows.map(lambda row: row), rows.map_batches(Passes, concurrency=1)
    for data, names in ((in_tasks, ["max_retries"]), (in_actors, ["max_restarts", "max_task_retries"])):
        limit_retries(data)
        assert sorted(data._logical_plan.dag.ray_remote_args) == names


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (LacksSuper, r"^spec\.pipeline\.offlineData is LacksSuper, whose __init__ neither calls super"),
        (
            FiltersWithoutSuper,
            r"^spec\.pipeline\.offlineData is FiltersWithoutSuper, whose __init__ neither calls super",
        ),
        (
            RaisesOnConstruction,
            r"^spec\.pipeline\.offlineData: RaisesOnConstruction raised ZeroDivisionError at .*:\d+: ",
        ),
    ],
)
def test_constructor_that_fails_is_reported_under_the_class(
    cls: type[RLlibOfflineData], message: str, walks: Path
) -> None:
    with pytest.raises(UserError, match=message):
        cls.read_rows({"path": str(walks)})
