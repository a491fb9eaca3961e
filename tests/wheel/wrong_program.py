"""Mistakes that type checkers must find: one in each line that ends with `wrong`. Never run."""

from __future__ import annotations

import psched
from psched import cron

app = psched.App()


@app.task(42)  # wrong
def report(task: psched.Task) -> None:
    task.finish("now")  # wrong
    print(task.outcome == "done")  # wrong
    task.settle()  # wrong


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
