"""Forks processes, each with a scheduler, from a process that has already imported everything.

Each line of the input is JSON: the file for records, the URL, the options of `create_scheduler`, and registrations
(keyword arguments of `register`). For each line this starts a process that works until SIGTERM, and prints the pid. At
the end of the input it kills all these processes.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

import redis  # noqa: F401 – imported once here, and not in each process

import psched
from psched.clock import boottime


def work(file: str, url: str, options: dict[str, Any], registrations: list[dict[str, Any]]) -> None:
    scheduler = psched.create_scheduler(url, **options)

    def append(event: str, **line: object) -> None:
        descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)
        os.write(
            descriptor, json.dumps({"event": event, **line, "pid": os.getpid(), "at": boottime()}).encode() + b"\n"
        )
        os.close(descriptor)

    def note(event: str) -> None:
        task = scheduler.current
        assert task is not None
        append(event, key=task.key, occurrence=task.scheduled_time, attempts=task.attempts)

    @scheduler.bind("work once")
    @scheduler.bind("work")
    def take_time(data: Any) -> None:
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
        append("up")
        signal.sigwait({signal.SIGTERM})
    append("down")


def run_instance(arguments: list[Any]) -> None:
    """Run an instance until it ends. Errors go to a file beside the records."""
    errors = Path(arguments[0]).with_name(f"{os.getpid()}.err").open("w")
    os.dup2(errors.fileno(), 2)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(threadName)s %(name)s %(message)s")
    try:
        work(*arguments)
    except BaseException:  # noqa: BLE001 – whatever it is, the test reads it
        traceback.print_exc()
    finally:
        errors.flush()
        os._exit(0)


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no zombies: the children are not waited for
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    children = []
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            run_instance(json.loads(line))
        children.append(pid)
        print(pid, flush=True)
    for pid in children:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
