"""A process with a scheduler, as an application would have one: it stops when its standard input is closed.

Its argument is JSON: the URL, the options of `create_scheduler`, and registrations (keyword arguments of `register`).
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from typing import Any

import psched
from tests.promises.recorded import append


def main(url: str, options: dict[str, Any], registrations: list[dict[str, Any]]) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(process)d %(threadName)s %(name)s %(message)s")
    scheduler = psched.create_scheduler(url, **options)

    def note(event: str) -> None:
        task = scheduler.current
        assert task is not None
        append(event=event, key=task.key, occurrence=task.scheduled_time, attempts=task.attempts, pid=os.getpid())

    @scheduler.bind("work")
    def work(data: Any) -> None:
        note("begin")
        time.sleep(data["seconds"] if data else 0)
        note("end")

    @scheduler.bind("first attempt hangs")
    def first_attempt_hangs(data: Any) -> None:
        note("begin")
        if scheduler.current is not None and scheduler.current.attempts == 1:
            time.sleep(60)
        note("end")

    for registration in registrations:
        scheduler.register(**registration)
    with scheduler:
        append(event="up", pid=os.getpid())
        sys.stdin.read()
    append(event="down", pid=os.getpid())


if __name__ == "__main__":
    main(*json.loads(sys.argv[1]))
