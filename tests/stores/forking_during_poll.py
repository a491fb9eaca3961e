"""A client that forks while a thread of it polls without an answer. Then every process polls. Prints the keys.

Arguments: `schedules` or `queue`, type, url, table, and `warm` (it has polled before) or `cold`. It prints `ready`
before the thread polls, waits for a line, and prints `forked` while the thread still has no answer. Then it prints, as
JSON, the key that each process got, the parent's thread first; null for a process that got none.
"""

from __future__ import annotations

import json
import os
import select
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import psched

FORKS = 3
_PATIENCE = 20.0
"""Seconds after which a process that has not polled counts as hanging."""
_DRIVERS = ("psycopg", "pymysql", "MySQLdb", "redis", "sqlalchemy")


def main(kind: str, type_: str, url: str, table: str, temperature: str) -> None:
    config = {"type": type_, "url": url, "table": table}
    is_queue = kind == "queue"
    collection: Any = psched.open_queue({"queue": config}) if is_queue else psched.open({"schedules": config})
    collection.source.maintain = lambda idle=False: None  # the thread is to be amid acquiring, not before it
    if temperature == "warm":
        collection.store.now()
    print("ready", flush=True)
    sys.stdin.readline()
    polled: list[Any] = []
    thread = threading.Thread(target=lambda: polled.append(key_polled(collection)), daemon=True)
    thread.start()
    wait_until_it_asks(thread)
    children = [fork(collection) for _ in range(FORKS)]
    print("forked" if thread.is_alive() and not polled else "too late", flush=True)
    end = time.monotonic() + _PATIENCE
    thread.join(_PATIENCE)
    print(json.dumps([*(polled or [None]), *(answer_of(pid, pipe, end) for pid, pipe in children)]), flush=True)
    collection.close()


def key_polled(collection: Any) -> str:
    """Poll until there is a task. After transient errors poll again, as workers do.

    SQLite's file is locked for longer than a poll waits. On `rdb_compat` a poll may lose all its rows to other polls.
    """
    while True:
        try:
            task = collection.poll()
        except Exception as error:
            if not collection.store.is_unavailable(error):
                raise
        else:
            if task is not None:
                return str(task.key)


def wait_until_it_asks(thread: threading.Thread) -> None:
    """Wait until the thread is in a driver, within `acquire`."""
    while True:
        frame = sys._current_frames().get(thread.ident or 0)
        places = []
        while frame is not None:
            places.append((frame.f_code.co_name, frame.f_code.co_filename))
            frame = frame.f_back
        acquires = any(name == "acquire" and "psched" in Path(file).parts for name, file in places)
        if acquires and any(driver in Path(file).parts for driver in _DRIVERS for _, file in places):
            return
        if acquires and places[0][0] in ("execute_text", "__init__"):  # sqlite3 is written in C
            return
        time.sleep(0.001)


def fork(collection: Any) -> tuple[int, int]:
    """Fork a process that polls and writes its key to a pipe. Return the pid and the pipe."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writing, key_polled(collection).encode())
        except BaseException:  # noqa: BLE001 – shown for the test's report
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writing)
    return pid, reading


def answer_of(pid: int, pipe: int, end: float) -> str | None:
    """Return the key that a process got before `end`, and kill the process. None: it got no key."""
    ready, _, _ = select.select([pipe], [], [], max(0.0, end - time.monotonic()))
    answer = os.read(pipe, 1000).decode() if ready else None
    os.close(pipe)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    return answer or None


if __name__ == "__main__":
    main(*sys.argv[1:])
