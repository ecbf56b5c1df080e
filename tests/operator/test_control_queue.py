"""The operator's work queue: each key is queued once, for one worker at a time; the earliest timer of a key counts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from hindcast_operator.control.cache import Key
from hindcast_operator.control.work_queue import WorkQueue

Scenario = Callable[[WorkQueue[str]], Awaitable[None]]


def run_scenario(scenario: Scenario) -> None:
    async def main() -> None:
        await asyncio.wait_for(scenario(WorkQueue(jitter=lambda: 1.0)), 20)

    asyncio.run(main())


def test_key_added_repeatedly_is_returned_once() -> None:
    async def scenario(queue: WorkQueue[str]) -> None:
        for key in ("a", "b", "a", "a"):
            queue.add(key)
        assert [await queue.get(), await queue.get()] == ["a", "b"]
        assert len(queue) == 0

    run_scenario(scenario)


def test_storm_of_one_namespace_delays_others_by_one_key() -> None:
    """Regression: 400 new resources of one namespace delayed another's first status by 5.5 s."""

    async def scenario(_: WorkQueue[str]) -> None:
        queue: WorkQueue[Key] = WorkQueue()
        for number in range(5000):
            queue.add(Key("OfflineTraining", "hostile", str(number)))
        for number in range(2):
            queue.add(Key("OfflineTraining", "quiet", str(number)))
        order = [(await queue.get()).namespace for _ in range(6)]
        assert order == ["hostile", "quiet", "hostile", "quiet", "hostile", "hostile"]
        assert len(queue) == 4996

    run_scenario(scenario)


def test_key_in_progress_is_requeued_after_mark_done() -> None:
    async def scenario(queue: WorkQueue[str]) -> None:
        queue.add("a")
        assert await queue.get() == "a"
        queue.add("a")
        queue.add("a")
        assert len(queue) == 0
        queue.mark_done("a")
        assert await queue.get() == "a"
        queue.mark_done("a")
        assert len(queue) == 0

    run_scenario(scenario)


def test_two_workers_never_get_the_same_key() -> None:
    async def scenario(queue: WorkQueue[str]) -> None:
        active_keys: set[str] = set()
        num_processed = 0

        async def work() -> None:
            nonlocal num_processed
            while True:
                key = await queue.get()
                assert key not in active_keys
                active_keys.add(key)
                await asyncio.sleep(0.001)
                active_keys.discard(key)
                num_processed += 1
                queue.mark_done(key)

        workers = [asyncio.create_task(work()) for _ in range(8)]
        for number in range(600):
            queue.add(f"key-{number % 5}")
            if number % 7 == 0:
                await asyncio.sleep(0.001)
        while len(queue) or active_keys:
            await asyncio.sleep(0.005)
        for worker in workers:
            assert not worker.done(), worker.exception()
            worker.cancel()
        assert 5 <= num_processed <= 600

    run_scenario(scenario)


def test_earliest_timer_counts_and_processing_cancels_it() -> None:
    async def scenario(queue: WorkQueue[str]) -> None:
        loop = asyncio.get_running_loop()
        start_time = loop.time()
        queue.add_after("a", 5.0)
        queue.add_after("a", 0.05)
        queue.add_after("a", 3.0)
        assert await queue.get() == "a"
        assert loop.time() - start_time < 3.0
        queue.mark_done("a")
        queue.add_after("b", 0.2)
        queue.add("b")
        assert await queue.get() == "b"
        queue.mark_done("b")
        await asyncio.sleep(0.3)
        assert len(queue) == 0

    run_scenario(scenario)


def test_retry_delay_grows_until_failures_are_forgotten() -> None:
    async def scenario(queue: WorkQueue[str]) -> None:
        waits = [queue.retry("a") for _ in range(12)]
        assert waits[:3] == [0.4, 0.8, 1.6]
        assert waits[-1] == 30.0
        assert queue.retry("a", min_seconds=90.0) == 90.0
        queue.forget_failures("a")
        assert queue.retry("a") == 0.4

    run_scenario(scenario)


def test_age_is_that_of_the_longest_waiting_key() -> None:
    async def scenario(queue: WorkQueue[str]) -> None:
        assert queue.age() == 0.0
        queue.add("a")
        await asyncio.sleep(0.05)
        queue.add("b")
        assert queue.age() >= 0.05
        await queue.get()
        assert queue.age() < 0.05

    run_scenario(scenario)
