"""A user's program: type checkers accept each line of it. Checked in a virtualenv with the wheel; never run."""

from __future__ import annotations

import re
from typing import Any

import psched
from psched import CatchUp, Policy, ScheduleRow, Task, TaskRow, TaskStatus, cron
from psched.application import Base, DefaultDecider, Dispatch
from psched.handlers.command import Command
from psched.handlers.enqueue import Enqueue
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


if __name__ == "__main__":
    print(cron.next_time("0 7 * * *", 0, "Europe/Berlin", "vixie"), Command, Enqueue)
    Worker.run("users_program:app", load)
