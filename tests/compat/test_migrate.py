"""psched migrate, on each database: the originals' rows are copied to psched's tables once, and run there."""

from __future__ import annotations

import gzip
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import psched
from psched.errors import AlreadyExistsError
from psched.store.type_filter import TypeFilter
from tests.announcements import announce
from tests.cli.commands import Commands, Outcome
from tests.compat.original_queue import OriginalQueue
from tests.compat.original_schedules import Original
from tests.stores.bench import FAR_OFF, LONG_AGO
from tests.stores.databases import DATABASES, SharedDatabases
from tests.stores.queue.bench import QueueBench

ARGUMENTS = ("migrate", "--from", "rdb_compat", "--to", "rdb", "--workers-stopped")


@dataclass
class Site:
    """Tables of both originals in one database, and psched's command line."""

    schedules: Original
    queue: OriginalQueue
    commands: Commands
    new: dict[str, Any]
    """The configuration of psched's own tables."""

    def migrate(self, *options: str) -> Outcome:
        return self.commands(*ARGUMENTS, *options)

    def rows(self, section: str) -> dict[str, Any]:
        """Return the rows in psched's own table of this section, by key."""
        open_: Callable[..., Any] = {"schedules": psched.open, "queue": psched.open_queue}[section]
        with open_(self.new) as collection:
            return {row.key: row for row in collection.list()}


@pytest.fixture(params=DATABASES)
def site(
    request: pytest.FixtureRequest, databases: SharedDatabases, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Iterator[Site]:
    bench = databases.bench("rdb_compat", request.param, tmp_path)
    tasks = QueueBench(bench.type, bench.url, f"{bench.table}_tasks")
    new = {"type": "rdb", "url": bench.url}
    new |= {"schedules": {"table": f"{bench.table}_new"}, "queue": {"table": f"{bench.table}_new_tasks"}}
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        for opened in (bench, tasks):
            stack.callback(opened.close)
        patch.chdir(tmp_path)
        patch.setenv("PSCHED_ENV", "development")
        commands = Commands(tmp_path, capsys)
        site = Site(Original(bench), OriginalQueue(tasks), commands, new)
        site.schedules.make_table()
        site.queue.make_table()
        configure(site, "rdb_compat", bench.table, tasks.table)
        yield site


def configure(site: Site, type_: str, schedules: str, queue: str) -> None:
    url = site.new["url"]
    site.commands.configure(
        f"development:\n  type: {type_}\n  url: '{url}'\n"
        f"  schedules: {{table: {schedules}}}\n  queue: {{table: {queue}}}\n"
    )


def new_tables(site: Site) -> tuple[str, ...]:
    return ("--schedules-table", site.new["schedules"]["table"], "--queue-table", site.new["queue"]["table"])


def test_schedules_and_waiting_tasks_come_over_as_they_are(site: Site) -> None:
    site.schedules.add(
        "waiting", cron="5 4 * * *", timezone="Asia/Tokyo", delay=7, next_time=FAR_OFF, timeout=FAR_OFF + 7
    )
    site.schedules.add("due", data='{"n":"ä","type":"kind"}'.encode(), timezone=None)
    site.queue.submit("plain", timeout=LONG_AGO + 5, data='{"n":"ä","type":"kind"}'.encode())
    site.queue.submit("limited", resource="user", max_running=3)
    site.queue.submit("nobody's", max_running=3)
    site.queue.submit("packed", data=gzip.compress(b'{"type":"kind"}'))
    done = site.migrate(*new_tables(site))
    assert (done.code, done.err) == (0, ""), done
    schedules, tasks = site.rows("schedules"), site.rows("queue")
    waiting = schedules["waiting"]
    assert (waiting.rule.cron, waiting.rule.timezone, waiting.rule.delay) == ("5 4 * * *", "Asia/Tokyo", 7)
    assert (waiting.next_time, waiting.next_run_time, waiting.data) == (FAR_OFF, FAR_OFF + 7, {"key": "value"})
    due = schedules["due"]
    assert (due.type, due.data, due.rule.timezone, due.next_time) == ("kind", {"n": "ä"}, "UTC", LONG_AGO)
    assert (tasks["plain"].type, tasks["plain"].data, tasks["plain"].run_at) == ("kind", {"n": "ä"}, LONG_AGO + 5)
    assert (tasks["limited"].user, tasks["limited"].max_running) == ("user", 3)
    assert (tasks["nobody's"].user, tasks["nobody's"].max_running) == (None, None)
    assert (tasks["packed"].type, tasks["packed"].compression) == ("kind", "gzip")
    with psched.open(site.new) as collection, psched.open_queue(site.new) as queue:
        for polled in (collection.poll(), *(queue.poll() for _ in range(4))):
            assert polled is not None
            polled.finish()


def test_a_row_that_may_be_leased_is_listed_and_copied_on_request_only(site: Site) -> None:
    later = int(time.time()) + 3000
    site.schedules.add("leased", timeout=later)
    site.schedules.add("lease ended", timeout=LONG_AGO + 9)
    site.queue.submit("later", timeout=later)
    done = site.migrate(*new_tables(site))
    assert done.code == 1
    for line in ("schedules: leased: not copied: it may be leased until", "queue: later: not copied: it may be leased"):
        assert line in done.out
    assert site.rows("schedules").keys() == {"lease ended"}
    assert site.migrate(*new_tables(site), "--include-delayed").code == 0
    assert site.rows("schedules")["leased"].next_run_time == later
    assert site.rows("queue")["later"].run_at == later


def test_repeating_copies_what_is_new_and_leaves_what_is_there(site: Site) -> None:
    site.schedules.add("first")
    site.queue.submit("first")
    site.migrate(*new_tables(site))
    with psched.open(site.new) as collection:
        collection["first"].modify(cron="@daily")
    site.schedules.add("second")
    site.queue.submit("second")
    done = site.migrate(*new_tables(site), "--json")
    assert [(each["copied"], each["present"]) for each in done.json] == [(1, 1), (1, 1)]
    assert {key: row.rule.cron for key, row in site.rows("schedules").items()} == {
        "first": "@daily",
        "second": "0 * * * *",
    }
    assert site.rows("queue").keys() == {"first", "second"}


def test_what_cannot_come_over_stays_and_says_why(site: Site) -> None:
    site.schedules.add("zone", timezone="Tokyo")
    site.schedules.add("long kind", data=b'{"type":"%s"}' % (b"t" * 300))
    site.schedules.add("fine")
    site.queue.submit("long type", data=b'{"type":"%s"}' % (b"t" * 300))
    site.queue.submit("never", timeout=1_000_000)
    site.queue.submit("finished", created_at=None, timeout=LONG_AGO - 1_000_000_000)
    site.queue.submit("cancelled", created_at=0)
    site.queue.submit("fine")
    done = site.migrate(*new_tables(site), "--json")
    schedules, tasks = done.json
    assert (done.code, schedules["copied"], tasks["copied"], tasks["ended"]) == (1, 1, 1, 2)
    left = {each["key"]: each["problem"] for each in (*schedules["left"], *tasks["left"])}
    assert "Tokyo" in left["zone"]
    assert "at most 255" in left["long type"]
    assert "before March 2011" in left["never"]
    assert "at most 255" in left["long kind"]
    assert left.keys() == {"zone", "long kind", "long type", "never"}


def test_schedules_that_the_new_dialect_runs_at_other_times_are_named(site: Site) -> None:
    site.schedules.add("either day", cron="0 0 1 * */2")
    site.schedules.add("skipped in spring", cron="30 2 * * *", timezone="Europe/Berlin")
    site.schedules.add("same", cron="30 5 * * 1-5", timezone="Europe/Berlin")
    [schedules, _] = site.migrate(*new_tables(site), "--json").json
    assert {each["key"] for each in schedules["notes"]} == {"either day", "skipped in spring"}
    assert "configure perfectsched" in schedules["notes"][0]["note"]


def test_the_configuration_may_be_that_of_the_new_tables(site: Site) -> None:
    site.schedules.add("key")
    site.queue.submit("key")
    configure(site, "rdb", site.new["schedules"]["table"], site.new["queue"]["table"])
    old = ("--schedules-table", site.schedules.bench.table, "--queue-table", site.queue.bench.table)
    assert site.migrate(*old).code == 0
    assert (site.rows("schedules").keys(), site.rows("queue").keys()) == ({"key"}, {"key"})


def test_nothing_is_copied_while_new_workers_run_or_old_ones_may(site: Site) -> None:
    site.schedules.add("key")
    unsure = site.commands(*ARGUMENTS[:-1], *new_tables(site))
    assert unsure.code == 2
    assert "stop all workers" in unsure.err
    site.migrate(*new_tables(site))
    site.schedules.add("second")
    with psched.open(site.new) as collection:
        announce(collection.store.nodes, "host/1", "schedules", TypeFilter())
    assert "nodes of the new tables are running: host/1" in site.commands.fault(*ARGUMENTS, *new_tables(site))
    assert site.rows("schedules").keys() == {"key"}


def test_a_key_that_is_copied_cannot_be_submitted_again(site: Site) -> None:
    site.queue.submit("key")
    site.migrate(*new_tables(site))
    with psched.open_queue(site.new) as queue, pytest.raises(AlreadyExistsError):
        queue.submit("key", "type1")
