"""Mistakes that type checkers must find, one in each line that ends with `wrong`. Not run."""

from __future__ import annotations

from datetime import date

import psched
import psched.asgi
import psched.testing
from psched import cron
from psched.contrib.flask import Psched

app = psched.App()


@app.task(42)  # wrong
def report(task: psched.Task) -> None:
    task.finish(at="now")  # wrong
    print(task.outcome == "done")  # wrong
    task.settle()  # wrong


@app.task(priority="high")  # wrong
def urgent() -> None:
    print("a decorator with a mistake leaves its function without a type")


@app.task
def sales(region: str, *, day: date | None = None) -> int:
    return len(region)


@app.task(store_result=True)
def mail(task: psched.Task, address: str) -> None:
    print(task.key, address)


sales.submit()  # wrong
sales.submit(17)  # wrong
sales.submit("north", date(2026, 11, 23))  # wrong
sales.submit(region="north", day="2026-11-23")  # wrong
sales.submit(region="north", dya=None)  # wrong
sales.submit("north").keys()  # wrong
sales.using(keys="north")  # wrong
sales.using(key="north").submit(region=None)  # wrong
sales.new_task()  # wrong
sales.submit_many(["north"])  # wrong
print(sales("north").upper())  # wrong
mail.submit()  # wrong
mail.submit(17)  # wrong
mail("somebody@example.com")  # wrong
declared: psched.TaskFunction[[int], int] = sales  # wrong


async def submit() -> None:
    await sales.asubmit(region=17)  # wrong
    await sales.submit(region="north")  # wrong


with psched.open("etc/psched.yml") as schedules:
    schedules.add("key", "report", cron="@daily", catch_up="last")  # wrong
    schedules.add("key", "report", cron="@daily", max_latness=60)  # wrong
    schedules["key"].modify(delay="5m")  # wrong
    for row in schedules.list():
        print(row.status == "waiting", row.policy.catch_up.upper(), row.satus)  # wrong

with psched.open_queue("etc/psched.yml") as queue:
    queue.submit("key", "report", compression="zip")  # wrong
    queue.list("done")  # wrong
    psched.NewTask("key", "report", priority="high")  # wrong

print(cron.next_time("@daily", 0, "UTC", "debian"))  # wrong


async def in_an_event_loop() -> None:
    await schedules.aadd("key", "report", cron="@daily", catch_up="last")  # wrong
    await schedules["key"].amodify(delay="5m")  # wrong
    await queue.asubmit("key", "report", compression="zip")  # wrong
    await queue.asubmit("key")  # wrong
    async for row in queue.alist("done"):  # wrong
        print(row.satus)  # wrong


jobs = psched.asgi.lifespan(stop_timeout="20")  # wrong
psched.asgi.lifespan("etc/psched.yml")  # wrong


Psched("application")  # wrong


async def in_a_web_application() -> None:
    (await jobs.queue()).submit("key", "mail", {}, priority="high")  # wrong
    await psched.create_scheduler("redis://127.0.0.1:6379/0").apush("mail", retry_timeot=5)  # wrong


psched.testing.faults(seeds=5)  # wrong
psched.testing.faults(state=len, seeds="all")  # wrong


def test_clock(psched_clock: psched.testing.DatabaseClock, psched_drain: psched.testing.Drain) -> None:
    psched_clock.travel_to(None)  # wrong
    psched_drain(raise_errors=False)  # wrong
    psched.testing.assert_submitted(3)  # wrong
