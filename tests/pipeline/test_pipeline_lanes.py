"""Any number of learners together deliver the same batches, and each reads little more than its part of the data."""

from __future__ import annotations

import hashlib
import random
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
import torch
from pipeline_fakes import ALL_COLUMNS, FEED_CLASSES, FakeDataset, make_loader, random_dataset

from hindcast.api.pipeline import PipelineSpec
from hindcast.errors import SpecError
from hindcast.models.preprocessing import Preprocessing
from hindcast.pipeline.executors import Local
from hindcast.pipeline.items import count_items
from hindcast.pipeline.lane_feed import LaneFeed
from hindcast.pipeline.loader import locate_piece
from hindcast.pipeline.needs import Needs
from hindcast.pipeline.offline_data import OfflineData, Source
from hindcast.pipeline.shard import Shard
from hindcast.pipeline.targets import Targets
from hindcast.pipeline.window import Batch, Recipe
from user_errors import raises_user_error

UNITS = [[3 + i % 5, 1 + i % 3] for i in range(111)] + [[12]]
STEPS = sum(
    map(sum, UNITS)
)  # a prime number, so that no number of lanes, learners or items in a batch divides it
NUM_LEARNERS = (1, 2, 3, 4, 7, 16)


class Learners:
    """The feeds of all learners of a group, each over all lanes of its own."""

    def __init__(
        self,
        stack: ExitStack,
        feed_kind: str,
        num_learners: int,
        dataset: FakeDataset | None = None,
        *,
        targets: Targets | None = None,
        recipe: Recipe | None = None,
        delay: float = 0.0,
        batch_size: int = 64,
        **order: Any,
    ) -> None:
        self.datasets = [dataset or FakeDataset(UNITS) for _ in range(num_learners)]
        self.read_steps = [0] * num_learners
        recipe = recipe or Recipe(Needs(frozenset({"rewards"}), targets=targets is not None))
        self.feeds: list[LaneFeed] = []
        for rank, rank_dataset in enumerate(self.datasets):

            def prelearn(unit: Any, epoch: int, rank: int = rank, dataset: Any = rank_dataset) -> Any:
                time.sleep(random.random() * delay)
                self.read_steps[rank] += int(unit.lengths.sum()) if epoch == 0 else 0
                return dataset.read(unit)

            loader = make_loader(rank_dataset, recipe, prelearn, **({"window_steps": 300} | order))
            shard = Shard(rank, num_learners)
            self.feeds.append(FEED_CLASSES[feed_kind](loader, batch_size, targets, shard))
            stack.callback(self.feeds[-1].close)

    def next(self) -> list[Batch]:
        return [feed.next() for feed in self.feeds]

    @property
    def cursor(self) -> int:
        (cursor,) = {feed.cursor for feed in self.feeds}
        return cursor


def steps_of(shards: Sequence[Batch]) -> np.ndarray:
    """Return the steps of a global batch, sorted: its order among learners does not matter."""
    return np.sort(np.concatenate([shard["rewards"].numpy() for shard in shards]))


def hash_batches(learners: Learners, num_batches: int) -> list[str]:
    return [hashlib.sha256(steps_of(learners.next()).tobytes()).hexdigest() for _ in range(num_batches)]


@pytest.mark.parametrize("feed_kind", list(FEED_CLASSES))
def test_global_batches_are_the_same_for_any_number_of_learners(feed_kind):
    """Three epochs; the reference is a single learner."""
    assert STEPS % 64
    num_batches = 3 * STEPS // 64 + 1
    with ExitStack() as stack:
        expected = hash_batches(Learners(stack, "resident", 1), num_batches)
        for num_learners in NUM_LEARNERS:
            learners = Learners(stack, feed_kind, num_learners, delay=0.001 if num_learners == 3 else 0.0)
            assert hash_batches(learners, num_batches) == expected


@pytest.mark.parametrize("feed_kind", list(FEED_CLASSES))
def test_resume_with_other_numbers_of_learners_continues_the_order(feed_kind):
    """Three learners, then two, then four, each from the middle of an epoch."""
    with ExitStack() as stack:
        expected = hash_batches(Learners(stack, "streaming", 1), 60)
        actual, state = [], None
        for num_learners, num_batches in ((3, 13), (2, 22), (4, 25)):
            learners = Learners(stack, feed_kind, num_learners)
            for feed in learners.feeds if state else ():
                feed.seek(state)
            actual += hash_batches(learners, num_batches)
            state = learners.feeds[0].state()
        assert actual == expected


def test_learner_reads_little_more_than_its_part():
    dataset = FakeDataset([[10, 10]] * 500)
    for num_learners in (1, 3, 16):
        with ExitStack() as stack:
            learners = Learners(stack, "streaming", num_learners, dataset, window_steps=1280, batch_size=500)
            while learners.cursor < 10_000:
                learners.next()
            order = learners.feeds[0]._order
            fractions = [len(order.lanes(Shard(rank, num_learners))) / 64 for rank in range(num_learners)]
        for num_steps, fraction in zip(learners.read_steps, fractions, strict=True):
            assert num_steps <= 1.15 * fraction * 10_000


def test_unit_that_several_lanes_wait_for_is_read_once():
    dataset, executor = FakeDataset([[9]] * 3), Local()
    started, may_continue = threading.Event(), threading.Event()

    def prelearn(unit: Any, epoch: int) -> Any:
        started.set()
        may_continue.wait(10)
        return dataset.read(unit)

    def submit(unit: int, epoch: int = 0) -> Any:
        return executor.submit(
            prelearn, dataset.units[unit], epoch, lambda block: float(block.columns["rewards"][0])
        )

    first = submit(0)
    assert started.wait(10)
    futures = [submit(unit, epoch) for unit, epoch in ((1, 0), (2, 0), (1, 0), (1, 1), (1, 0))]
    futures[1].cancel()
    may_continue.set()
    assert first.result(10) == 0.0
    assert [future.result(10) for future in futures if not future.cancelled()] == [9.0] * 4
    assert dataset.reads == [0, 1, 1]


def test_resident_learner_holds_only_its_part():
    with ExitStack() as stack:
        learners = Learners(stack, "resident", 4, FakeDataset([[10, 10]] * 500))
        learners.next()
        for feed in learners.feeds:
            assert feed._resident.data.num_steps <= 10_000 / 4 + 40


def test_batches_of_long_episodes_have_steps_of_all_episodes_within_the_window():
    length, window_bytes = 1_000_000, 8 << 20
    dataset = FakeDataset([[length]] * 6, obs_shape=(1,))
    step_bytes = dataset.nbytes / dataset.num_steps
    with ExitStack() as stack:
        options = {"window_steps": 1 << 30, "window_bytes": window_bytes, "batch_size": 1024}
        learners = Learners(stack, "streaming", 1, dataset, **options)
        for _ in range(300):  # several windows of each lane
            (batch,) = learners.next()
            counts = np.bincount(batch["rewards"].int().numpy() // length, minlength=6)
            assert counts.min() > 1024 / 6 - 2 * 64
            windows = [lane._current for lane in learners.feeds[0]._lanes if lane._current]
            assert sum(window.data.num_steps - 1 for window in windows) * step_bytes <= window_bytes


def test_window_of_a_long_episode_holds_only_its_piece():
    with ExitStack() as stack:
        learners = Learners(stack, "streaming", 1, FakeDataset([[20_000]] * 6))
        learners.next()
        windows = [lane._current for lane in learners.feeds[0]._lanes]
        assert sum(window.data.num_steps for window in windows) <= 6 * 20_000 + len(windows)
        assert max(window.data.num_steps for window in windows) <= 6 * 20_000 / len(windows) + 1


def test_piece_is_cut_without_indices_of_its_steps(monkeypatch):
    dataset = FakeDataset([[40, 60]])
    block = dataset.read(dataset.units[0])
    piece = locate_piece(dataset.units[0], 10, 90, Recipe(Needs(frozenset({"rewards"}))))
    monkeypatch.setattr("hindcast.episodes.block.concat_ranges", lambda *_: pytest.fail("builds indices"))
    rewards = piece.take(block).columns["rewards"]
    assert np.shares_memory(rewards, block.columns["rewards"])
    assert len(rewards) == piece.length.sum()


def box(shape=(2, 2)):
    import gymnasium as gym

    return gym.spaces.Box(-1, 1, shape, "float32")


@pytest.mark.parametrize("feed_kind", list(FEED_CLASSES))
@pytest.mark.parametrize("num_learners", [1, 3])
@pytest.mark.parametrize(
    "needs",
    [
        {"n_step": 1},
        {"n_step": 4, "gamma": 0.9, "columns": ALL_COLUMNS | {"n_step", "discounts", "new_actions", "t"}},
        {"seq_len": 5, "burn_in": 2},
    ],
)
def test_pieces_have_the_items_of_whole_episodes(feed_kind, num_learners, needs):
    """Compare with items gathered from all data at once: steps before and after a piece are part of its items."""
    for seed in range(4):
        rng = np.random.default_rng(seed)
        dataset = FakeDataset(
            [rng.integers(1, 90, rng.integers(1, 4)).tolist() for _ in range(8)], obs_shape=(2, 2)
        )
        recipe = Recipe(
            Needs(**({"columns": ALL_COLUMNS} | needs)), Preprocessing(box(), box(), frame_stack=3)
        )
        items = np.array([count_items(unit.lengths, recipe.needs).sum() for unit in dataset.units])
        all_data = make_loader(dataset, recipe).load_all(0)
        expected = all_data.gather(torch.arange(int(items.sum())))
        item_of_step = {_key(expected, index): index for index in range(len(expected["rewards"]))}
        with ExitStack() as stack:
            learners = Learners(
                stack, feed_kind, num_learners, dataset, recipe=recipe, unit_items=items, window_steps=40
            )
            while learners.cursor < items.sum():
                for batch in learners.next():
                    index = torch.tensor([item_of_step[_key(batch, i)] for i in range(len(batch["rewards"]))])
                    for leaf, column in batch.items():
                        assert torch.equal(column, expected[leaf][index]), leaf


def _key(batch: Batch, index: int) -> float:
    """Return a number that identifies an item: its first action."""
    return float(batch["actions"][index].flatten()[0])


def synchronise(feeds: Sequence[LaneFeed]) -> None:
    """Synchronise feeds as a group of learners does."""
    values: list[Any] = []
    for _ in range(2):  # the second time, `values` are complete
        for feed in feeds:
            feed.synchronise(
                lambda value: [*values] if len(values) == len(feeds) else values.append(value) or [value]
            )


@pytest.mark.parametrize("feed_kind", list(FEED_CLASSES))
@pytest.mark.parametrize("every", [None, 5])
def test_targets_and_their_ages_do_not_depend_on_the_number_of_learners(feed_kind, every):
    updates = 0

    def compute(window):
        episode = torch.repeat_interleave(torch.arange(len(window.length)), window.length)
        totals = torch.zeros(len(window.length)).index_add(0, episode, window.columns["rewards"])
        return {"total": totals[episode], "updates": torch.full((window.num_steps,), updates)}

    targets = Targets(compute, lambda: updates, every)
    totals = {}
    for block in FakeDataset(UNITS).blocks:
        returns = np.add.reduceat(block.columns["rewards"], block.start)
        totals |= dict(zip(block.columns["rewards"], np.repeat(returns, block.length), strict=True))

    with ExitStack() as stack:
        groups = [Learners(stack, feed_kind, num, targets=targets) for num in (1, 2, 3)]
        for updates in range(40):
            if updates == 25:
                # Each group resumes with the checkpoint of the next one, which has another number of learners.
                positions = []
                for learners in groups:
                    synchronise(learners.feeds)
                    leader = learners.feeds[0]
                    positions.append((leader.state(), leader.tensors()))
                for learners, position in zip(groups, [*positions[1:], positions[0]], strict=True):
                    for feed in learners.feeds:
                        feed.seek(*position)
                        assert feed.state() == position[0]
            batches = []
            for learners in groups:
                shards = learners.next()
                columns = {leaf: torch.cat([shard[leaf] for shard in shards]) for leaf in shards[0]}
                order = columns["rewards"].argsort()
                batches.append({leaf: column[order] for leaf, column in columns.items()})
            for batch in batches:
                assert all(torch.equal(batch[leaf], batches[0][leaf]) for leaf in batches[0])
                assert batch["total"].tolist() == [totals[step] for step in batch["rewards"].tolist()]
                assert every is None or batch["updates"].min() > updates - every


def make_data(num_learners: int, rank: int, units: Any = UNITS, **options: Any) -> OfflineData:
    pipeline = PipelineSpec.model_validate(options.pop("pipeline", {}))
    sources = options.pop("sources", [Source("data", FakeDataset(units))])
    return OfflineData(
        sources,
        Needs(ALL_COLUMNS),
        batch_size=options.pop("batch_size", 64),
        pipeline=pipeline,
        shard=Shard(rank, num_learners),
        **options,
    )


def test_learners_without_an_item_in_a_batch_are_refused():
    with raises_user_error(
        SpecError, "makes 17 learners, but data is divided into 16 lanes", field="spec.learners"
    ):
        make_data(17, 0)
    with raises_user_error(SpecError, "would have none for some learners", field="spec.learners"):
        make_data(16, 0, batch_size=16)
    make_data(16, 0, batch_size=32)


def test_weighted_sources_share_the_window():
    sources = [Source(name, FakeDataset([[10]] * 900), weight) for name, weight in (("a", 3.0), ("b", 1.0))]
    plans = make_data(1, 0, sources=sources, pipeline={"windowSteps": 6400}).plan()["sources"]
    for plan, share in zip(plans, (4800, 1600), strict=True):
        assert 0.8 * share < plan["windowSteps"] <= share


def test_batch_connectors_see_whole_batches_in_every_learner():
    pipeline = {"connectors": ["user_steps:RunningSum"]}
    single, *ranks = [make_data(n, r, pipeline=pipeline) for n, r in ((1, 0), (3, 0), (3, 1), (3, 2))]
    for _ in range(3):
        batch, shards = single.next(), [data.next() for data in ranks]
        assert all(torch.equal(torch.cat([shard[leaf] for shard in shards]), batch[leaf]) for leaf in batch)
    for data in (single, *ranks):
        data.close()


def test_random_datasets_are_delivered_once_by_all_learners():
    for seed in range(10):
        dataset = random_dataset(seed)
        with ExitStack() as stack:
            recipe = Recipe(Needs(frozenset({"actions"})))
            learners = Learners(stack, "streaming", min(3, dataset.num_steps), dataset, recipe=recipe)
            total = sum(len(block.columns["actions"]) for block in dataset.blocks)
            batches = [feed.take(total) for feed in learners.feeds]
            steps = torch.cat([batch["actions"][:, 0] for batch in batches])
            assert sorted(steps.tolist()) == list(range(total))
