"""Summaries of datasets: statistics, samples, coverage and guessed spaces."""

from __future__ import annotations

import json

import numpy as np
import pytest
from gymnasium import spaces

from episode_kit import replace_columns
from hindcast.datasets.episode_dataset import EpisodeDataset
from hindcast.datasets.file_index import index_file
from hindcast.datasets.inspection.sample import sample_units
from hindcast.datasets.inspection.statistics import ColumnDistributions, ThinnedRows, ValueDistribution
from hindcast.datasets.inspection.summarising import compute_coverage, guess_space, summarise
from hindcast.datasets.opening import open_dataset
from hindcast.datasets.units import Unit
from hindcast.datasets.writer import BlockWriter
from hindcast.episodes.block import Block
from hindcast.episodes.spaces import space_from_json
from hindcast.formats.spec import DataSpec, Leaf
from hindcast.storage.location import resolve


def write_and_summarise(folder, block: Block, action_space=None, **options):
    """Write a block to a folder, and summarise it."""
    spec = DataSpec.from_block(block, spaces.Box(-10, 10, (4,), np.float32), action_space, "Test-v0")
    with BlockWriter(resolve(folder), spec, "s") as writer:
        writer.write(block)
    return summarise(open_dataset(folder), **options)


def test_non_finite_reward_excludes_only_the_return_of_its_episode(kit, tmp_path):
    rewards = np.array([1, 1, np.nan, 2, 2, np.inf, 3], np.float32)
    summary = write_and_summarise(tmp_path, replace_columns(kit.block([2, 1, 2, 1, 1]), rewards=rewards))
    assert summary.returns is not None
    assert (summary.returns.count, summary.returns.min, summary.returns.max) == (3, 2, 4)
    assert summary.rewarded_episodes_share == 1


def test_summary_describes_the_dataset(kit, tmp_path):
    block = kit.block([3, 5, 2])
    rewards = np.array([1, 0, 2, 0, 0, 0, 0, 4, 1, 1], np.float32)
    actions = np.array([0, 0, 2, 0, 2, 2, 0, 2, 2, 2])
    block = replace_columns(block, rewards=rewards, actions=actions, action_logp=np.zeros(10, np.float32))
    summary = write_and_summarise(tmp_path, block, spaces.Discrete(3))
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
    assert summary.layouts == ("episodes/arrow",)
    assert summary.stored_bytes == sum(path.stat().st_size for path in tmp_path.iterdir())
    assert (summary.observation_space_from, summary.action_space_from) == ("recorded", "recorded")
    assert summary.rewarded_episodes_share == 1
    assert summary.problems == ()
    assert json.loads(json.dumps(summary.to_json()))["sampledEpisodes"] == 3


def test_continuous_actions_have_a_distribution_for_each_dimension(kit, tmp_path):
    actions = np.stack([np.arange(10), np.linspace(-5, 5, 10)], 1).astype(np.float32)
    block = replace_columns(kit.block(), actions=actions)
    summary = write_and_summarise(tmp_path, block, spaces.Box(-4, 10, (2,)))
    first, second = summary.actions[0].dimensions
    assert (first.min, first.max, second.mean) == (0, 9, pytest.approx(0, abs=1e-6))
    assert sum(second.counts) == 10
    (problem,) = [problem for problem in summary.problems if problem.kind == "outside-space"]
    assert problem.severity == "info"
    assert "t 0): 'actions' has -5.0" in problem.message


def test_sample_is_spread_over_the_dataset_and_sizes_are_exact(kit, tmp_path):
    for i in range(10):
        kit.write(tmp_path, kit.block([10] * 2, first=2 * i), stem=f"f{i}")
    files = [index_file(entry.location, entry.relative_path) for entry in resolve(tmp_path).files()]
    dataset = EpisodeDataset(files[0].spec, files, unit_bytes=1)
    summary = summarise(dataset, sample_limit=60)
    assert (summary.episodes, summary.timesteps, summary.files) == (20, 200, 10)
    assert (summary.sampled_episodes, summary.sampled_timesteps) == (16, 160)
    assert summary.checked_episodes == 20  # ids and flags are in separate columns
    assert summary.lengths is not None
    assert summary.lengths.count == 20


def test_sampled_units_are_evenly_spread_and_at_least_eight():
    units = [Unit(i, (), np.array([10]), 1) for i in range(100)]
    assert [unit.id for unit in sample_units(units, 90)] == [0, 12, 25, 37, 50, 62, 74, 87, 99]
    assert [unit.id for unit in sample_units(units, 1)] == [0, 14, 28, 42, 57, 71, 85, 99]
    assert len(sample_units(units, 10**9)) == 100
    assert len(sample_units(units, None)) == 100
    assert sample_units([], 5) == []


def test_sample_has_at_most_one_gibibyte():
    units = [Unit(i, (), np.array([10]), 16 << 20) for i in range(1000)]
    assert len(sample_units(units, 10**9)) == 64


def test_distribution_matches_numpy():
    distribution = ValueDistribution.from_values(np.array([1, 1, 3]))
    assert distribution is not None
    assert (distribution.count, distribution.min, distribution.median, distribution.max) == (3, 1, 1, 3)
    assert distribution.edges == (0.5, 1.5, 2.5, 3.5)
    assert distribution.counts == (2, 0, 1)
    float_distribution = ValueDistribution.from_values(np.append(np.linspace(0, 1, 100), np.nan))
    assert float_distribution is not None
    assert float_distribution.count == sum(float_distribution.counts) == 100
    assert len(float_distribution.edges) == 21
    constant_distribution = ValueDistribution.from_values(np.full(5, 0.1))
    assert constant_distribution is not None
    assert constant_distribution.counts == (5,)
    assert ValueDistribution.from_values(np.array([np.nan])) is None


def test_distribution_of_parts_equals_distribution_of_whole_array():
    rng = np.random.default_rng(0)
    values = np.stack([rng.normal(5, 2, 1000), rng.integers(0, 4, 1000)], 1)
    values[17, 0] = np.nan
    columns = ColumnDistributions()
    for part in np.split(values, [10, 11, 500]):
        columns.add(part)
    distributions = columns.compute()
    expected_distributions = [ValueDistribution.from_values(column) for column in values.T]
    for distribution, expected in zip(distributions, expected_distributions, strict=True):
        assert distribution is not None
        assert expected is not None
        for statistic in ("count", "min", "mean", "median", "max", "std"):
            assert getattr(distribution, statistic) == pytest.approx(getattr(expected, statistic))
        assert distribution.counts == expected.counts
    first = distributions[0]
    assert first is not None
    finite_values = np.delete(values[:, 0], 17)
    assert (first.mean, first.std) == pytest.approx((finite_values.mean(), finite_values.std()))


def test_thinned_rows_are_evenly_spread():
    thinned_rows = ThinnedRows(max_rows=100)
    for start in range(0, 1000, 7):
        thinned_rows.add(np.arange(start, min(start + 7, 1000)))
    assert thinned_rows.rows is not None
    assert thinned_rows.rows.tolist() == list(range(0, 1000, 16))


def test_coverage_counts_cells_along_the_principal_components():
    rng = np.random.default_rng(0)
    square_coverage = compute_coverage(rng.uniform(size=(20_000, 2)))
    assert square_coverage is not None
    # The components are not parallel to the axes, so the corners of the grid are empty.
    assert square_coverage.occupied_share > 0.5
    angles = np.linspace(0, 6, 1000)
    circle_coverage = compute_coverage(np.stack([np.cos(angles), np.sin(angles)], 1))
    assert circle_coverage is not None
    assert circle_coverage.occupied_share < 0.2
    assert sum(map(sum, square_coverage.counts)) == square_coverage.observations == 20_000


def test_coverage_of_one_varying_dimension_and_of_no_dimension():
    coverage = compute_coverage(np.stack([np.linspace(0, 1, 100), np.full(100, 3.0)], 1))
    assert coverage is not None
    assert (coverage.occupied_share, coverage.explained_variance) == (1, 1)
    assert np.shape(coverage.counts) == (20, 1)
    noise = np.random.default_rng(0).normal(size=(1000, 3)) * 1e-9
    line_coverage = compute_coverage(np.linspace(0, 1, 1000)[:, None] * [1.0, -2.0, 1e9] + noise)
    assert line_coverage is not None
    assert (len(line_coverage.counts[0]), line_coverage.explained_variance) == (1, pytest.approx(1))
    assert compute_coverage(np.full((100, 3), 0.1, np.float32)) is None
    assert compute_coverage(np.zeros((0, 3))) is None
    assert compute_coverage(np.full((5, 1), np.nan)) is None


def test_ranges_are_compared_with_the_bounds_of_the_space(kit, tmp_path):
    block = kit.block([30])
    block.columns["obs"][:] = np.linspace(-1, 1, 31)[:, None] * [10, 5, 1, 0]
    (leaf,) = write_and_summarise(tmp_path, block).observations
    assert leaf.low == (-10, -5, -1, 0)
    assert leaf.share_of_space == pytest.approx((1, 0.5, 0.1, 0))
    assert (leaf.dimensions, leaf.shown_dimensions, leaf.constant_dimensions) == (4, (0, 1, 2, 3), 1)


def test_missing_spaces_are_guessed(kit, tmp_path):
    block = kit.block([5])
    columns = {
        "obs/0": np.zeros((6, 3), np.float32),
        "obs/1/frame": np.zeros((6, 2, 2), np.uint8),
        "obs/1/on": np.array([0, 1] * 3, bool),
        "actions": np.array([0, 3, 1, 1, 1]),
        "rewards": block.columns["rewards"],
    }
    with BlockWriter(resolve(tmp_path), DataSpec.from_block(block.with_columns(columns)), "s") as writer:
        writer.write(block.with_columns(columns))
    summary = summarise(open_dataset(tmp_path))
    assert (summary.observation_space_from, summary.action_space_from) == ("guessed", "guessed")
    assert summary.action_space == {"type": "Discrete", "n": 4, "start": 0}
    assert summary.actions[0].values == {0: 1, 1: 3, 3: 1}
    second_space = spaces.Dict({"frame": spaces.Box(0, 255, (2, 2), np.uint8), "on": spaces.Discrete(2)})
    expected = spaces.Tuple([spaces.Box(-np.inf, np.inf, (3,), np.float32), second_space])
    assert space_from_json(summary.observation_space) == expected


@pytest.mark.parametrize(
    ("dtype", "largest", "space_class"),
    [
        ("uint8", 255, spaces.Discrete),
        ("int64", 4, spaces.Discrete),
        ("uint64", 4, spaces.Discrete),
        ("int64", 2**63 - 1, spaces.Box),
        ("uint64", 2**64 - 1, spaces.Box),
    ],
)
def test_guessed_space_contains_the_largest_integer(dtype, largest, space_class):
    bounds = np.zeros((), dtype), np.array(largest, dtype)
    spec = DataSpec({"actions": Leaf(np.dtype(dtype), ())})
    space = guess_space(spec, "actions", {"actions": bounds})
    assert isinstance(space, space_class)
    assert space.contains(bounds[0])
    assert space.contains(bounds[1])


def test_values_of_discrete_observations_are_counted(kit, tmp_path):
    block = replace_columns(kit.block([30]), obs=np.arange(31) % 5)
    with BlockWriter(resolve(tmp_path), DataSpec.from_block(block, spaces.Discrete(16)), "s") as writer:
        writer.write(block)
    summary = summarise(open_dataset(tmp_path))
    (leaf,) = summary.observations
    assert (leaf.values_seen, leaf.values, summary.coverage) == (5, 16, None)


def test_space_of_text_is_not_guessed(kit, tmp_path):
    block = kit.block([5])
    block = replace_columns(block, obs=np.array(list("abcdef"), object))
    with BlockWriter(resolve(tmp_path), DataSpec.from_block(block), "s") as writer:
        writer.write(block)
    summary = summarise(open_dataset(tmp_path), None)
    assert (summary.observation_space, summary.observation_space_from, summary.coverage) == (None, None, None)


SUMMARY_FIELDS = {
    "layouts", "preparedPath", "episodes", "timesteps", "bytes", "storedBytes", "files", "digest", "environment",
    "observationSpace", "actionSpace", "observationSpaceFrom", "actionSpaceFrom", "columns", "sampledEpisodes",
    "sampledTimesteps", "checkedEpisodes", "lengths", "returns", "rewards", "zeroRewards",
    "rewardedEpisodesShare", "observations", "coverage", "actions", "terminated", "truncated", "hasLogp",
    "tableColumns", "verdict", "problems",
}  # fmt: skip


def test_summary_json_keeps_its_fields(kit, tmp_path):
    document = write_and_summarise(tmp_path, kit.block([30, 3])).to_json()
    assert document.keys() == SUMMARY_FIELDS
    assert document["problems"][0].keys() == {"severity", "kind", "message", "path", "row"}
    assert document["observations"][0].keys() == {
        "name", "dimensions", "shownDimensions", "low", "high", "shareOfSpace", "constantDimensions", "valuesSeen",
        "values", "dimensionNames", "missing", "isImage",
    }  # fmt: skip
    assert document["coverage"].keys() == {
        "observations", "side", "occupiedShare", "evenness", "explainedVariance", "counts",
    }  # fmt: skip
    json.dumps(document, allow_nan=False)
