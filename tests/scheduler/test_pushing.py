"""Pushing while others start and stop the same scheduler."""

from __future__ import annotations

import threading
from typing import Any

from tests.scheduler.site import Site


def test_what_is_pushed_while_another_thread_starts_and_stops_is_accepted_and_run(file_and_server: Site) -> None:
    scheduler = file_and_server.scheduler()
    run: set[str] = set()
    pushed: list[str] = []
    errors: list[Exception] = []
    enough = threading.Event()

    @scheduler.bind("task")
    def task(data: Any) -> None:
        assert scheduler.current is not None
        run.add(scheduler.current.key)

    def push() -> None:
        while not enough.is_set():
            try:
                pushed.append(scheduler.push("task"))
            except Exception as error:  # noqa: BLE001 – whatever it is, there must be none
                errors.append(error)
            enough.wait(0.002)

    pushers = [threading.Thread(target=push) for _ in range(3)]
    for pusher in pushers:
        pusher.start()
    for _ in range(5):
        scheduler.start()
        scheduler.stop()
    enough.set()
    for pusher in pushers:
        pusher.join()
    assert not errors
    with scheduler:
        file_and_server.wait_for(lambda: run >= set(pushed))


def test_stores_that_are_in_use_are_closed_by_who_ends_last(redis_site: Site) -> None:
    opened = redis_site.scheduler()._place.open()
    opened.make_tables()
    opened.borrow()
    opened.borrow()
    opened.close()
    opened.give_back()
    assert opened.queue.now() > 0, "it still works"
    assert opened.loans.call_in() is False, "somebody uses it"
    opened.give_back()
    assert opened.loans.call_in() is True
