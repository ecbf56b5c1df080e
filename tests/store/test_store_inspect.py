from __future__ import annotations

import json

import numpy as np
import pytest
from gymnasium import spaces

from hindcast.episodes.block import Block
from hindcast.store.dataset import open_dataset
from hindcast.store.episode_dataset import EpisodeDataset
from hindcast.store.filesystem import resolve
from hindcast.store.footers import index_file
from hindcast.store.inspect import sample_units, summarise
from hindcast.store.spec import DataSpec
from hindcast.store.statistics import Distribution
from hindcast.store.units import Unit
from hindcast.store.writer import EpisodeWriter


def summary_of(folder, block: Block, action_space=None, **options):
    spec = DataSpec.of_block(block, spaces.Box(-10, 10, (4,), np.float32), action_space, "Test-v0")
    with EpisodeWriter(resolve(folder), spec, "s") as writer:
        writer.write(block)
    return summarise(open_dataset(folder), **options)


def messages(summary, severity: str) -> list[str]:
    return [problem.message for problem in summary.problems if problem.severity == severity]


def changed(block: Block, **columns: np.ndarray) -> Block:
    return block.with_columns({**block.columns, **columns})


def test_a_picture_of_a_dataset(kit, tmp_path):
    block = kit.block([3, 5, 2])
    rewards = np.array([1, 0, 2, 0, 0, 0, 0, 4, 1, 1], np.float32)
    actions = np.array([0, 0, 2, 0, 2, 2, 0, 2, 2, 2])
    block = changed(block, rewards=rewards, actions=actions, action_logp=np.zeros(10, np.float32))
    summary = summary_of(tmp_path, block, spaces.Discrete(3))
    assert (summary.episodes, summary.timesteps, summary.files) == (3, 10, 1)
    assert (summary.sampled_episodes, summary.sampled_timesteps) == (3, 10)
    assert summary.environment == "Test-v0"
    assert summary.columns["obs"] == "float32 [4]"
    assert summary.has_logp
    assert summary.returns is not None
    assert (summary.returns.min, summary.returns.mean, summary.returns.max) == (2, 3, 4)
    assert summary.lengths is not None
    assert (summary.lengths.min, summary.lengths.median, summary.lengths.max) == (2, 3, 5)
    assert summary.zero_rewards == 0.5
    assert summary.actions[0].values == {0: 4, 2: 6}
    assert summary.terminated == pytest.approx(2 / 3)
    assert summary.truncated == pytest.approx(1 / 3)
    assert summary.problems == ()
    assert json.loads(json.dumps(summary.to_json()))["sampledEpisodes"] == 3


def test_continuous_actions_have_a_distribution_for_each_dimension(kit, tmp_path):
    actions = np.stack([np.arange(10), np.linspace(-5, 5, 10)], 1).astype(np.float32)
    summary = summary_of(tmp_path, changed(kit.block(), actions=actions), spaces.Box(-4, 10, (2,)))
    first, second = summary.actions[0].dimensions
    assert (first.min, first.max, second.mean) == (0, 9, pytest.approx(0, abs=1e-6))
    assert sum(second.counts) == 10
    assert "5.0% of 'actions' lie outside the bounds" in " ".join(messages(summary, "info"))


def test_wrong_values_are_errors_with_their_place(kit, tmp_path):
    block = kit.block([3, 5, 2])
    block.columns["obs"][6, 1] = np.nan
    block.columns["actions"][9] = 3
    summary = summary_of(tmp_path, block, spaces.Discrete(3))
    errors = messages(summary, "error")
    assert len(errors) == 2
    assert "s-000.parquet, row 1 (episode e1), t = 2: 'obs' has nan, expected a finite number" in errors[0]
    assert "row 2 (episode e2), t = 1: 'actions' has 3, expected an integer in [0, 2]" in errors[1]
    assert summary.problems[0].severity == "error"
    json.dumps(summary.to_json(), allow_nan=False)


def test_warnings(kit, tmp_path):
    block = changed(kit.block([3, 0, 2]), rewards=np.zeros(5, np.float32))
    block.eps_id[2] = "e0"
    block.terminated[2] = block.truncated[2] = True
    warnings = messages(summary_of(tmp_path, block), "warning")
    assert len(warnings) == 4
    assert "1 episode ids occur more than once (first: e0)" in warnings[0]
    assert "1 of 3 episodes have no timesteps" in warnings[1]
    assert "1 of 3 episodes are both terminated and truncated" in warnings[2]
    assert "all 5 sampled rewards are 0" in warnings[3]


def test_remarks(kit, tmp_path):
    block = kit.block([20, 20])
    block.columns["obs"][:, 2] = 0.5
    block.terminated[:] = block.truncated[:] = False
    remarks = messages(summary_of(tmp_path, block), "info")
    assert "2 of 2 episodes end neither terminated nor truncated" in remarks[0]
    assert "'obs' never changes in 1 of 4 dimensions (2)" in remarks[1]
    assert "there is no 'action_logp'" in remarks[2]


def test_a_sample_is_spread_over_the_dataset_and_sizes_are_exact(kit, tmp_path):
    for i in range(10):
        kit.write(tmp_path, kit.block([10] * 2, first=2 * i), stem=f"f{i}")
    files = [index_file(entry.location, entry.relative) for entry in resolve(tmp_path).files()]
    dataset = EpisodeDataset(files[0].spec, files, unit_bytes=1)
    summary = summarise(dataset, sample_limit=60)
    assert (summary.episodes, summary.timesteps, summary.files) == (20, 200, 10)
    assert (summary.sampled_episodes, summary.sampled_timesteps) == (6, 60)
    assert summary.lengths is not None
    assert summary.lengths.count == 20


def test_units_sampled_are_even_and_at_least_one():
    units = [Unit(i, (), np.array([10]), 1) for i in range(10)]
    assert [unit.id for unit in sample_units(units, 30)] == [0, 4, 9]
    assert [unit.id for unit in sample_units(units, 1)] == [0]
    assert len(sample_units(units, 10**9)) == 10


def test_distributions():
    whole = Distribution.of(np.array([1, 1, 3]))
    assert whole is not None
    assert (whole.count, whole.min, whole.median, whole.max) == (3, 1, 1, 3)
    assert whole.edges == (0.5, 1.5, 2.5, 3.5)
    assert whole.counts == (2, 0, 1)
    real = Distribution.of(np.append(np.linspace(0, 1, 100), np.nan))
    assert real is not None
    assert real.count == sum(real.counts) == 100
    assert len(real.edges) == 21
    constant = Distribution.of(np.full(5, 0.1))
    assert constant is not None
    assert constant.counts == (5,)
    assert Distribution.of(np.array([np.nan])) is None
