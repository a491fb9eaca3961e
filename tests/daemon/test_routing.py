"""A worker claims only types that its application routes, and writes to no other row.

Two hosts, new code, new types.
"""

from __future__ import annotations

import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from faultlab.laboratory import Lab
from faultlab.redis import Redis
from psched.model import TaskRow
from psched.queue.queue import Queue, open_queue
from psched.store import holder_name
from tests.daemon.harness import Daemon
from tests.daemon.test_queue import APPLICATION
from tests.stores.databases import KINDS
from tests.trials import in_suite_on

LONG = 300
"""A `retry_wait` in seconds, longer than any test waits."""

_TYPED = """\
import re
from queue_application import Guessing, trace
from psched.application import App

app = App()

@app.task({type!r})
def run(task):
    trace("ran", task)
"""

Host = Callable[..., Daemon]


@pytest.fixture(params=in_suite_on(["postgresql", "redis"], ["sqlite", *KINDS, "redis"]))
def database(request: pytest.FixtureRequest, lab: Lab, tmp_path: Path) -> Iterator[str]:
    """The URL of a new and empty database, of each kind in turn."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'psched.db'}"
        return
    with lab.shared(Redis if request.param == "redis" else KINDS[request.param]).database() as url:
        yield url


@pytest.fixture
def host(tmp_path: Path, database: str) -> Iterator[Host]:
    """A function that prepares a host, with an App that has one route. All hosts share one database."""
    with ExitStack() as stack:

        def make(name: str, type_: str, expression: bool = False, **config: Any) -> Daemon:
            folder = tmp_path / name
            folder.mkdir()
            sections = {"schedules": {"table": "shared_schedules"}, "queue": {"table": "shared_queue"}}
            store = "redis" if database.startswith("redis") else "rdb"
            keys = {"type": store, "url": database, "app": "typed:app", "retry_wait": LONG, **sections, **config}
            daemon = stack.enter_context(Daemon(folder, **keys))
            shutil.copy(APPLICATION, folder)
            source = _TYPED.format(type=type_)
            wanted = f"re.compile({type_!r})" if expression else repr(type_)
            (folder / "typed.py").write_text(source.replace(repr(type_), wanted))
            with queue_of(daemon) as queue:
                queue.store.create_tables()
            return daemon

        yield make


@contextmanager
def queue_of(daemon: Daemon) -> Iterator[Queue]:
    """Open the queue for use in the test process."""
    section = daemon.settings().queue
    assert section is not None
    with open_queue(section, holder_name("test")) as queue:
        yield queue


def untouched(row: TaskRow) -> bool:
    """Return whether no worker has ever changed this row."""
    return (row.attempts, row.node, row.last_error, row.status) == (0, None, None, "waiting")


def test_two_hosts_with_a_type_each_starve_no_schedule(host: Host) -> None:
    hosts = {type_: host(type_, type_) for type_ in ("one", "two")}
    with hosts["one"].schedules() as schedules:
        for number in range(12):
            schedules.add(f"{('one', 'two')[number % 2]}{number}", ("one", "two")[number % 2], cron="*/5 * * * * *")
    for daemon in hosts.values():
        daemon.start()
    for type_, daemon in hosts.items():

        def runs(daemon: Daemon = daemon) -> Counter[str]:
            return Counter(trace["key"] for trace in daemon.traces("ran"))

        daemon.wait_for(lambda runs=runs: len(runs()) == 6 and min(runs().values()) >= 3, within=40)
        assert all(key.startswith(type_) for key in runs())
    for daemon in hosts.values():
        daemon.stop()
        assert "no handler" not in daemon.log


def test_a_type_of_newer_code_waits_untouched_until_the_newer_code_is_there(host: Host) -> None:
    old = host("old", "known").start()
    with queue_of(old) as queue:
        queue.submit("of newer code", "new")
        queue.submit("known", "known")
        old.wait_for_trace("ran", "known")
        queue.submit("known later", "known")
        old.wait_for_trace("ran", "known later")
        assert untouched(queue["of newer code"].metadata())
        new = host("new", "new").start()
        new.wait_for_trace("ran", "of newer code")
        new.wait_for(lambda: queue["of newer code"].metadata().status == "finished")
    old.stop()
    new.stop()


@pytest.mark.parametrize("database", ["sqlite", *KINDS], indirect=True)
def test_in_the_originals_tables_the_rows_of_others_are_left_alone(host: Host) -> None:
    daemon = host("one", "^ours[.]", expression=True, type="rdb_compat").start()
    for key, type_ in (("s theirs", "theirs"), ("s ours", "ours.a")):
        daemon.add(key, type_, cron="0 0 1 1 *")
    with queue_of(daemon) as queue, daemon.schedules() as schedules:
        queue.submit("q theirs", "theirs", run_at=time.time() - 100)
        before = schedules["s theirs"].metadata(), queue["q theirs"].metadata()
        for number in range(3):
            queue.submit(f"q ours{number}", f"ours.{number}")
            daemon.wait_for_trace("ran", f"q ours{number}")
        daemon.wait_for_trace("ran", "s ours")
        assert (schedules["s theirs"].metadata(), queue["q theirs"].metadata()) == before
    daemon.stop()
    assert "no handler" not in daemon.log


def test_an_expression_takes_types_that_are_new_to_the_table(host: Host) -> None:
    daemon = host("one", "^video[.]", expression=True).start()
    with queue_of(daemon) as queue:
        queue.submit("audio", "audio.mix")
        for number in range(3):
            queue.submit(f"video{number}", f"video.format{number}")
            daemon.wait_for_trace("ran", f"video{number}")
        assert untouched(queue["audio"].metadata())
    daemon.stop()


def test_a_busy_worker_finds_a_type_that_is_new_to_the_table(host: Host) -> None:
    daemon = host("one", "^video[.]", expression=True, task_prefetch=0)
    with queue_of(daemon) as queue:
        queue.submit("first", "video.old")
        daemon.start()
        daemon.wait_for_trace("ran", "first")
        number = 0
        queue.submit("new", "video.new", priority=-1)  # after everything else that is due

        def ran_while_busy() -> bool:
            nonlocal number
            for _ in range(20):
                queue.submit(f"more{number}", "video.old", priority=-1)
                number += 1
            return bool(daemon.traces("ran", "new"))

        daemon.wait_for(ran_while_busy)
    daemon.stop()


def test_a_router_that_cannot_list_its_types_claims_all_and_defers_unknown_ones(host: Host) -> None:
    daemon = host("one", "unused", app="typed:Guessing").start()
    with queue_of(daemon) as queue:
        queue.submit("known", "quick")
        queue.submit("unknown", "of nobody")
        daemon.wait_for_trace("ran", "known")
        daemon.wait_for_log("key=unknown type=of nobody no handler for this type")
    daemon.end(signal.SIGTERM)


def test_the_configuration_may_restrict_the_routed_types(host: Host) -> None:
    daemon = host("one", ".*", expression=True, types=["video.*", "mail"]).start()
    with queue_of(daemon) as queue:
        queue.submit("audio", "audio.mix")
        for key, type_ in (("video", "video.cut"), ("mail", "mail")):
            queue.submit(key, type_)
            daemon.wait_for_trace("ran", key)
        assert untouched(queue["audio"].metadata())
    daemon.stop()


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_types_that_the_application_does_not_route_are_named_at_the_start(host: Host) -> None:
    daemon = host("one", "mail", types=["nomatch"], processors=2).start()
    words = "types: nomatch matches no type that the application routes (mail), so this worker runs no task"
    assert daemon.log.count(f"psched.child.polled_sections: {words}") == 1
    assert daemon.log.count("polled_sections: types") == 1, "one child says so for all"
    daemon.end(signal.SIGTERM)


@pytest.mark.parametrize("database", ["postgresql", "redis"], indirect=True)
def test_a_call_reaches_the_host_that_routes_the_type(host: Host) -> None:
    hosts = {name: host(name, name, poll_interval=60).start() for name in ("one", "two")}
    with queue_of(hosts["one"]) as queue:
        for number in range(6):
            for name, daemon in hosts.items():
                before = time.monotonic()
                queue.submit(f"{name}{number}", name)
                ran = daemon.wait_for_trace("ran", f"{name}{number}", within=50)["at"]
                # The first one may come before they listen, and is then found when they look again.
                assert number == 0 or ran < before + 8
    for daemon in hosts.values():
        daemon.end(signal.SIGTERM)
