"""A stop keeps its time, whatever the store does; and a store that is emptied under a scheduler is filled again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa
from redis import Redis as Client

from faultlab.laboratory import Lab
from faultlab.redis import Redis
from psched.clock import monotonic
from tests.scheduler.site import Site


@contextmanager
def frozen(server: Redis) -> Iterator[None]:
    server.pause()
    try:
        yield
    finally:
        server.resume()


def own_threads() -> list[threading.Thread]:
    names = ("psched", "running lease renewer", "prefetched lease renewer", "run watchdog")
    return [thread for thread in threading.enumerate() if thread.name.startswith(names)]


def test_a_store_that_does_not_answer_holds_no_stop_up(lab: Lab, open_section: Site) -> None:
    with lab.private(Redis) as server:
        assert isinstance(server, Redis)
        scheduler = open_section.scheduler(url=server.url(server.create_database()), poll_interval=30)
        done = threading.Event()
        scheduler.bind("task", lambda data: done.set())
        scheduler.start()
        scheduler.push("task")
        assert done.wait(20)
        assert not threading.Event().wait(0.5), "its threads rest by then"
        with frozen(server):
            begun = monotonic()
            scheduler.stop(timeout=0.5)
            assert monotonic() - begun < 5, "telling the store that this instance leaves takes four times as long"
        open_section.wait_for(lambda: not own_threads())


def test_a_second_stop_waits_for_what_the_first_has_left_running(open_section: Site) -> None:
    scheduler = open_section.scheduler()
    begun, release, done = threading.Event(), threading.Event(), threading.Event()

    @scheduler.bind("slow")
    def slow(data: object) -> None:
        begun.set()
        assert release.wait(20)
        done.set()

    scheduler.start()
    scheduler.push("slow")
    assert begun.wait(20)
    assert not scheduler.stop(timeout=0.05)
    assert not scheduler.stop(timeout=0.05)
    threading.Timer(0.1, release.set).start()
    assert scheduler.stop()
    assert done.is_set()
    open_section.wait_for(lambda: not own_threads())


def test_a_store_that_is_emptied_meanwhile_gets_the_registrations_back(file_and_server: Site) -> None:
    open_section = file_and_server
    scheduler = open_section.scheduler()
    fired: list[object] = []
    scheduler.bind("tick", fired.append)
    scheduler.register("tick", cron="* * * * * *", data="again")
    with scheduler:
        open_section.wait_for(lambda: fired)
        empty(open_section.url)
        before = len(fired)
        open_section.wait_for(lambda: len(fired) > before + 2)
        scheduler.push("tick", data="pushed")
        open_section.wait_for(lambda: "pushed" in fired)


def empty(url: str) -> None:
    """Remove all there is."""
    if url.startswith("redis"):
        with Client.from_url(url) as client:
            client.flushdb()
        return
    engine = sa.create_engine(url)
    metadata = sa.MetaData()
    metadata.reflect(engine)
    metadata.drop_all(engine)
    engine.dispose()
