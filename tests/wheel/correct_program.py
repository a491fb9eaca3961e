"""A program of a user, of which type checkers must accept each line.

Not run: checked in a virtualenv with the wheel.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

import psched
import psched.testing
from psched import CatchUp, Policy, ScheduleRow, Task, TaskRow, TaskStatus, cron
from psched.application import Base, DefaultDecider, Dispatch
from psched.handlers.command import Command
from psched.handlers.enqueue import Enqueue
from psched.testing import DatabaseClock, Drain, Effects, Run, assert_not_submitted, assert_submitted
from psched.worker import Worker

app = psched.App()


@app.task("report", retry_wait={"first": 1, "limit": 60}, max_attempts=5)
def report(task: Task) -> str:
    task.update_data({"progress": 40})
    fence: int | None = task.fence
    return f"{task.key} {task.type} {task.data['region']} {task.scheduled_time} {fence}"


@app.task(re.compile(r"video\..*"), finish=False)
async def video(task: Task) -> None:
    task.finish()


@dataclass
class Order:
    number: int
    due: date


@app.task(retry_wait=psched.backoff(10, maximum=600), max_attempts=5, priority=1, timeout=60)
def sales(region: str, *, day: date | None = None) -> int:
    return len(region) + (0 if day is None else day.day)


@app.task
async def ship(task: Task, order: Order, *notes: str) -> list[Order]:
    task.update_data({"_notes": len(notes)})
    return [order]


@app.task()
def anything(payload: Any, region: str) -> None:
    print(payload, region)


@app.task()
def tick() -> None:
    tick.using(delay="5m").submit()


async def submit(session: object) -> None:
    total: int = sales("north", day=date(2026, 11, 23))
    queued = sales.submit(region="north")
    key: str = queued.key
    sales.using(key=key, user="alice", run_at=datetime.now(UTC), priority=5, connection=session).submit("north")
    sales.using(delay=timedelta(minutes=5)).new_task(region="north", day=None)
    sales.submit_many([{"region": "north"}, sales.new_task("south")])
    await sales.asubmit(region="north")
    await ship.using(user="alice").asubmit(Order(total, date(2026, 11, 23)), "fragile")
    anything.submit(payload={"any": "value"}, region="north")
    declared: psched.TaskFunction[[], None] = tick
    declared.submit()


async def run_here(task: Task) -> list[Order]:
    return await ship(task, Order(1, date(2026, 11, 23)))


class Decider(DefaultDecider):
    def unexpected_error_raised(self, error: Exception) -> None:
        self.task.retry(60)


class Handler(Base):
    decider = Decider

    def perform(self) -> None:
        self.task.heartbeat()
        self.task.finish()

    def kill(self, reason: Exception) -> None:
        print(reason)


class Handlers(Dispatch):
    routes = {"mail": Handler, re.compile(r"^regexp-.*$"): "Handler"}  # noqa: RUF012 – as users write it


def schedules(config: dict[str, Any], catch_up: CatchUp) -> list[ScheduleRow]:
    with psched.open(config) as collection:
        schedule = collection.add("key", "report", cron="0 7 * * *", data={"region": "north"}, catch_up=catch_up)
        schedule.modify(cron="0 8 * * *", max_lateness=None)
        collection.add_many([psched.NewSchedule("another", "report", "@hourly", catch_up="latest")])
        task = collection.poll()
        if task is not None:
            task.finish()
        for entry in collection.history("key"):
            outcome: str = entry.outcome
            print(outcome, entry.scheduled_time)
        return [row for row in collection.list() if row.policy == Policy("none") and row.status == "waiting"]


def tasks(status: TaskStatus) -> list[TaskRow]:
    with psched.open_queue("etc/psched.yml", "production") as queue:
        try:
            queue.submit("key", "report", {"region": "north"}, user="north", max_running=2, compression="gzip")
        except psched.AlreadyExistsError as error:
            print(error)
        queue.submit_many([psched.NewTask("another", "report")])
        queue["key"].cancel_request()
        return [*queue.list(status), *queue.list("failed")]


async def in_an_event_loop(config: dict[str, Any]) -> tuple[list[str], bool]:
    async with psched.open(config) as collection:
        schedule: psched.Schedule = await collection.aadd("key", "report", cron="@daily", catch_up="latest")
        await schedule.amodify(cron="0 8 * * *", max_lateness=None)
        was_running: bool = await schedule.apause()
        row: ScheduleRow = await collection["key"].ametadata()
        print(row.key)
        async with psched.open_queue(config) as queue:
            task: psched.QueuedTask = await queue.asubmit("key", "report", {"n": 1}, user="u", connection=object())
            existed: list[str] = await queue.asubmit_many([psched.NewTask("another", "report")])
            sql, parameters = queue.submit_sql(psched.NewTask("third", "report"), "qmark")
            print((await task.ametadata()).status, existed, sql, parameters)
        return [row.key async for row in collection.alist(state="paused")], was_running


def scheduler() -> psched.Scheduler:
    made = psched.create_scheduler("redis://127.0.0.1:6379/0", prefix="jobs:")

    @made.bind("sweep")
    def sweep(data: Any) -> bool:
        return bool(data)

    made.register("sweep", cron="*/10 * * * * *", retry=True, retry_timeout=10)
    made.push("sweep", data="now", delay=5)
    made.start()
    return made


def load() -> dict[str, Any]:
    return {"type": "rdb", "url": "sqlite:///psched.db"}


def effects(psched_effects: Effects) -> list[Any]:
    return list(psched_effects)


def forget(psched_effects: Effects) -> None:
    psched_effects.clear()


@psched.testing.faults(state=effects, reset=forget, seeds=5)
def test_sales(psched_queue: psched.Queue, psched_effects: Effects) -> None:
    psched_effects.append({"region": "north"})
    sales.submit("north")


def test_clock(psched_clock: DatabaseClock, psched_drain: Drain, psched_inline: psched.Queue) -> None:
    psched_clock.travel_to("2027-03-28 01:59", "Europe/Berlin")
    psched_clock.shift(timedelta(minutes=1))
    runs: list[Run] = psched_drain(until=psched_clock.now() + timedelta(hours=1), raises=False)
    row: TaskRow = assert_submitted(sales.using(user="alice"), "north")
    assert_not_submitted(report)
    print(runs[0].outcome, runs[0].error, row.status, psched_inline[row.key].exists())


if __name__ == "__main__":
    print(cron.next_time("0 7 * * *", 0, "Europe/Berlin", "vixie"), Command, Enqueue)
    Worker.run("users_program:app", load)
