"""Processes that are forked while another thread of their parent polls."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa

import psched
from faultlab.laboratory import Lab
from psched import fork_safety as forks
from psched.backends.sql import open_database
from psched.config import from_mapping
from psched.queue.queue import open_queue
from psched.schedules.collection import open_schedules
from psched.store import ScheduleStore
from tests.stores.bench import LONG_AGO, Bench
from tests.stores.databases import KINDS, STORES
from tests.stores.fork_during_poll import FORKS, keys_got

LOCKS = (type(threading.Lock()), type(threading.RLock()), threading.Condition, threading.Event)


@pytest.mark.in_suite_on("rdb", "redis")
@pytest.mark.parametrize("temperature", ["warm", "cold"])
def test_a_process_forked_off_amid_a_poll_of_another_thread_polls(
    bench: Bench, store: ScheduleStore, temperature: str
) -> None:
    """Cold: the poll has not connected yet when the process is forked."""
    keys = [f"key{number}" for number in range(FORKS + 1)]
    bench.fill(store, keys, lambda number: LONG_AGO + number)
    assert sorted(str(key) for key in keys_got(bench, "schedules", temperature)) == keys


@pytest.mark.parametrize("type_", STORES)
def test_no_connection_to_sqlite_crosses_a_fork_and_no_task_is_the_childs(type_: str, tmp_path: Path) -> None:
    """With a connection from before the fork, SQLite would believe that this process holds locks on the file."""
    bench = Bench(type_, f"sqlite:///{tmp_path}/psched.db")
    bench.make()
    bench.add(bench.open(), "key")
    bench.close()
    with psched.open({"schedules": {"type": bench.type, "url": bench.url, "table": bench.table}}) as schedules:
        task = schedules.poll()
        assert task is not None
        assert has_open(tmp_path)
        child = os.fork()
        if child == 0:
            os._exit(has_open(tmp_path) or bool(schedules.source.held) or not schedules["key"].exists())
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert schedules.source.held == [task]
        task.finish()


def test_a_fork_closes_all_connections_while_another_thread_opens_more(monkeypatch: pytest.MonkeyPatch) -> None:
    refused: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda told: refused.append(told.exc_value))
    interval = sys.getswitchinterval()
    over = threading.Event()
    kept = [Connections() for _ in range(400)]
    for each in kept:
        forks.close_before_fork(each)

    def open_more() -> None:
        while not over.is_set():
            kept.append(Connections())
            forks.close_before_fork(kept[-1])

    opening = threading.Thread(target=open_more)
    first = kept[:400]
    sys.setswitchinterval(1e-5)
    opening.start()
    try:
        for _ in range(5):
            child = os.fork()
            if child == 0:
                os._exit(0)
            os.waitpid(child, 0)
    finally:
        over.set()
        opening.join()
        sys.setswitchinterval(interval)
    assert refused == []
    assert {each.closed for each in first} == {5}


class Connections:
    """Connections that are closed before each fork. They count how often."""

    fork_patience = 0.0

    def __init__(self) -> None:
        self.closed = 0

    def close_before_fork(self) -> None:
        self.closed += 1


def test_a_lock_that_another_thread_has_taken_alone_is_not_given_back() -> None:
    lock = forks.WorkLock()
    with ThreadPoolExecutor(1) as other:
        other.submit(lock.take_alone, 0).result()
        lock.give_back()
        assert lock._entry.locked()
        other.submit(lock.give_back).result()
    assert not lock._entry.locked()


def has_open(folder: Path) -> bool:
    """Return whether this process has a file in this folder open."""
    opened = [path.readlink() for path in Path("/dev/fd").iterdir() if path.is_symlink()]
    return any(path.is_relative_to(folder) for path in opened)


def test_no_lock_of_an_open_collection_is_the_same_in_a_process_forked_off(bare: Bench) -> None:
    """This covers all locks that a thread may hold at the fork, even those that no poll of these tests holds."""
    settings = from_mapping({"type": bare.type, "url": bare.url, "schedules": {}, "queue": {}})
    assert settings.schedules is not None
    assert settings.queue is not None
    with open_schedules(settings.schedules, "host/1/x") as schedules, open_queue(settings.queue, "host/1/x") as queue:
        before = {path: lock for each in (schedules, queue) for path, lock in locks_of(each)}
        assert before
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            after = {path: lock for each in (schedules, queue) for path, lock in locks_of(each)}
            os.write(writing, repr([path for path in before if after.get(path) is before[path]]).encode())
            os._exit(0)
        os.close(writing)
        os.waitpid(child, 0)
        answer = os.read(reading, 10_000).decode()
        os.close(reading)
        assert answer == "[]"


def locks_of(root: object) -> list[tuple[str, object]]:
    """Return every lock, condition and event that can be reached from an object by attributes of psched's classes."""
    found: list[tuple[str, object]] = []
    seen: set[int] = set()
    left = [(type(root).__name__, root)]
    while left:
        path, each = left.pop()
        if isinstance(each, LOCKS):
            found.append((path, each))
        elif type(each).__module__.startswith("psched") and id(each) not in seen:
            seen.add(id(each))
            names = [*getattr(each, "__dict__", ()), *getattr(type(each), "__slots__", ())]
            left += [(f"{path}.{name}", getattr(each, name, None)) for name in names if name != "_parents"]
    return found


_SESSIONS = {"postgresql": sa.text("SELECT pg_backend_pid()"), "mariadb": sa.text("SELECT connection_id()")}


@pytest.mark.parametrize("kind", sorted(_SESSIONS))
def test_a_forked_process_that_frees_its_parents_connections_does_not_end_their_sessions(lab: Lab, kind: str) -> None:
    server = lab.shared(KINDS[kind])
    with contextlib.closing(open_database(server.url(server.create_database()), {})) as database:
        session = database.scalar(_SESSIONS[kind], {})
        child = os.fork()
        if child == 0:
            database._parents.clear()
            gc.collect()
            os._exit(database.scalar(_SESSIONS[kind], {}) == session)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert database.scalar(_SESSIONS[kind], {}) == session
