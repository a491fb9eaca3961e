"""A stop keeps to its timeout while the store is away. Registrations are stored again in a store that was emptied."""

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


def test_a_store_that_does_not_answer_does_not_delay_a_stop(lab: Lab, site: Site) -> None:
    with lab.private(Redis) as server:
        assert isinstance(server, Redis)
        scheduler = site.scheduler(url=server.url(server.create_database()), poll_interval=30)
        done = threading.Event()
        scheduler.bind("task", lambda data: done.set())
        scheduler.start()
        scheduler.push("task")
        assert done.wait(20)
        assert not threading.Event().wait(0.5), "its threads are idle by then"
        with frozen(server):
            begun = monotonic()
            scheduler.stop(timeout=0.5)
            assert monotonic() - begun < 5, "deleting the heartbeat row would take four times as long"
        site.wait_for(lambda: not own_threads())


def test_a_second_stop_waits_for_handlers_that_the_first_left_running(site: Site) -> None:
    scheduler = site.scheduler()
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
    site.wait_for(lambda: not own_threads())


def test_registrations_are_stored_again_in_a_store_that_was_emptied(sqlite_and_redis: Site) -> None:
    site = sqlite_and_redis
    scheduler = site.scheduler()
    fired: list[object] = []
    scheduler.bind("tick", fired.append)
    scheduler.register("tick", cron="* * * * * *", data="again")
    with scheduler:
        site.wait_for(lambda: fired)
        empty(site.url)
        before = len(fired)
        site.wait_for(lambda: len(fired) > before + 2)
        scheduler.push("tick", data="pushed")
        site.wait_for(lambda: "pushed" in fired)
    site.wait_for(lambda: not own_threads())


def empty(url: str) -> None:
    """Delete all tables of a SQL database, or all keys of a Redis database."""
    if url.startswith("redis"):
        with Client.from_url(url) as client:
            client.flushdb()
        return
    engine = sa.create_engine(url)
    metadata = sa.MetaData()
    metadata.reflect(engine)
    metadata.drop_all(engine)
    engine.dispose()
