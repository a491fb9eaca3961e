"""The async variants of the methods of schedules and queue, on every store."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

import psched
from psched.errors import NotFoundError
from psched.model import LeaseTimes
from psched.schedules.collection import Defaults, ScheduleCollection
from psched.store import ScheduleStore
from tests.stores.bench import FAR_OFF, Bench


@pytest.fixture
def schedules(store: ScheduleStore) -> ScheduleCollection:
    return ScheduleCollection(store, LeaseTimes(100, 1, 100), Defaults())


def test_the_verbs_of_schedules_can_be_awaited(bench: Bench, schedules: ScheduleCollection) -> None:
    async def main() -> None:
        schedule = await schedules.aadd("key", "type1", cron="@hourly", next_time=FAR_OFF, data={"n": 1})
        assert await schedule.aexists()
        await schedule.amodify(data={"n": 2})
        assert (await schedule.ametadata()).data == {"n": 2}
        assert await schedules.aadd_many([psched.NewSchedule("key", "type1", "@hourly")]) == ["key"]
        if not bench.compat:
            assert (await schedule.apause(), await schedule.apause()) == (True, False)
            assert await schedule.aresume()
            await schedule.arun_now()
            assert [row.key async for row in schedules.alist(state="due")] == ["key"]
        await schedule.adelete()
        with pytest.raises(NotFoundError, match="key"):
            await schedules["key"].ametadata()

    asyncio.run(main())


def test_an_async_list_has_every_row_in_its_order(schedules: ScheduleCollection) -> None:
    keys = [f"key{n:03}" for n in range(230)]
    schedules.add_many([psched.NewSchedule(key, "type1", "@hourly", next_time=FAR_OFF) for key in keys])

    async def main() -> list[str]:
        return [row.key async for row in schedules.alist(prefix="key")]

    assert asyncio.run(main()) == keys


class SlowCollection(ScheduleCollection):
    """A collection whose method `failing` returns only after the event loop has run something else."""

    loop_went_on: threading.Event

    def failing(self, key: str | None = None) -> Iterator[psched.ScheduleRow]:
        assert self.loop_went_on.wait(10), "the event loop waits for the method"
        assert threading.current_thread() is not threading.main_thread()
        return iter(())


def test_an_event_loop_goes_on_while_a_twin_waits_for_the_database(store: ScheduleStore) -> None:
    schedules = SlowCollection(store, LeaseTimes(100, 1, 100), Defaults())
    schedules.loop_went_on = threading.Event()

    async def read() -> list[psched.ScheduleRow]:
        return [row async for row in schedules.afailing()]

    async def main() -> list[psched.ScheduleRow]:
        reading = asyncio.create_task(read())
        await asyncio.sleep(0.01)
        schedules.loop_went_on.set()
        return await reading

    assert asyncio.run(main()) == []


def test_a_collection_is_closed_at_the_end_of_async_with(schedules: ScheduleCollection) -> None:
    closed: list[threading.Thread] = []

    def close() -> None:
        closed.append(threading.current_thread())
        ScheduleCollection.close(schedules)

    schedules.close = close  # type: ignore[method-assign]

    async def main() -> None:
        async with schedules as entered:
            assert entered is schedules

    asyncio.run(main())
    assert len(closed) == 1
    assert closed[0] is not threading.main_thread()
