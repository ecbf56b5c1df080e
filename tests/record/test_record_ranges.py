"""Ranges of episodes, into which recordings are divided."""

from __future__ import annotations

import pytest

from hindcast.formats.dataset_folder.commits import Commit
from hindcast.record.extent import EpisodeExtent, Extent, TimestepExtent


def make_commit(number: int, episodes: int, timesteps: int, first: int = 0) -> Commit:
    return Commit(range=number, files=(), episodes=episodes, timesteps=timesteps, first=first)


def list_ranges(extent: Extent) -> list[range]:
    """Return all ranges of a recording whose extent is a number of episodes."""
    ranges: list[range] = []
    while (work := extent.next_range({}, set(range(len(ranges))))) is not None:
        assert work.number == len(ranges)
        ranges.append(work.indices)
    return ranges


class TestRangesOfEpisodes:
    @pytest.mark.parametrize("total", [1, 31, 32, 33, 500, 5000, 100_001])
    @pytest.mark.parametrize("width", [1, 3, 8, 64])
    @pytest.mark.parametrize("episodes_per_file", [None, 1, 25, 10**9])
    def test_ranges_partition_indices(self, total: int, width: int, episodes_per_file: int | None) -> None:
        extent = EpisodeExtent(total, width, episodes_per_file)
        ranges = list_ranges(extent)
        assert [index for indices in ranges for index in indices] == list(range(total))
        assert extent.num_ranges_left({}) == len(ranges)

    @pytest.mark.parametrize(
        ("total", "width", "episodes_per_file", "sizes"),
        [
            (500, 8, None, {32}),  # four episodes per slot
            (500, 8, 25, {50}),  # whole files
            (500, 8, 1000, {32}),  # too few episodes to fill a file
            (100_000, 8, None, {1568}),  # 64 ranges, each a multiple of the width
            (100_000, 8, 500, {2000}),
            (3, 8, None, {3}),
        ],
    )
    def test_range_size_follows_from_total_and_width(
        self, total: int, width: int, episodes_per_file: int | None, sizes: set[int]
    ) -> None:
        ranges = list_ranges(EpisodeExtent(total, width, episodes_per_file))
        assert {len(indices) for indices in ranges[:-1] or ranges} == sizes
        assert len(ranges) <= 64


class TestRangesOfTimesteps:
    def indices_of_range(
        self, number: int, episodes_per_file: int | None = None, mean_length: float = 200.0
    ) -> range:
        """Return the indices of a range, given the mean length of range 0."""
        commits = {} if number == 0 else {0: make_commit(0, episodes=10, timesteps=round(10 * mean_length))}
        work = TimestepExtent(10**6, 8, episodes_per_file).next_range(commits, set(range(1, number)))
        assert work is not None
        assert work.number == number
        return work.indices

    @pytest.mark.parametrize(
        ("mean_length", "size"), [(1.0, 15_632), (200.0, 80), (10_000.0, 32), (0.2, 15_632)]
    )
    def test_range_size_follows_from_mean_length(self, mean_length: float, size: int) -> None:
        first_range, second_range = (self.indices_of_range(i, None, mean_length) for i in (1, 2))
        assert len(first_range) == size
        assert first_range.start == self.indices_of_range(0).stop
        assert second_range.start == first_range.stop

    def test_range_fills_files(self) -> None:
        assert [len(self.indices_of_range(number, episodes_per_file=50)) % 50 for number in (1, 2)] == [0, 0]


class TestEpisodeExtent:
    extent: Extent = EpisodeExtent(70, width=8, episodes_per_file=None)

    def test_next_range_skips_ranges_in_progress(self) -> None:
        in_progress: set[int] = set()
        range_sizes = []
        while (work := self.extent.next_range({}, in_progress)) is not None:
            range_sizes.append((work.number, len(work.indices)))
            in_progress.add(work.number)
        assert range_sizes == [(0, 32), (1, 32), (2, 6)]

    def test_next_range_fills_gaps(self) -> None:
        work = self.extent.next_range({0: make_commit(0, 32, 640), 2: make_commit(2, 6, 90)}, set())
        assert work is not None
        assert (work.number, work.indices) == (1, range(32, 64))

    def test_num_done_counts_committed_episodes(self) -> None:
        commits = {0: make_commit(0, 32, 640), 2: make_commit(2, 6, 90)}
        assert (self.extent.num_done(commits), self.extent.total, self.extent.unit) == (38, 70, "episodes")


class TestTimestepExtent:
    extent: Extent = TimestepExtent(5000, width=8, episodes_per_file=None)

    def test_only_range_0_is_recorded_until_its_lengths_are_known(self) -> None:
        work = self.extent.next_range({}, set())
        assert work is not None
        assert work.number == 0
        assert self.extent.next_range({}, {0}) is None

    def test_no_range_follows_when_prefix_of_commits_reaches_total(self) -> None:
        commits = {0: make_commit(0, 32, 2000), 2: make_commit(2, 32, 4000)}
        assert self.extent.num_done(commits) == 2000
        work = self.extent.next_range(commits, set())
        assert work is not None
        assert work.number == 1
        commits[1] = make_commit(1, 32, 100)
        assert self.extent.num_done(commits) == 6100
        assert self.extent.next_range(commits, set()) is None
