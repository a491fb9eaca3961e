"""Each occurrence becomes exactly one task, whatever process dies or statement is lost meanwhile."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from faultlab.laboratory import Lab
from faultlab.proxy import Proxy, Trap
from tests.faults.enqueueing_schedule import FIRST, Feed
from tests.faults.killed_process import is_killed_before
from tests.stores.databases import DATABASES, KINDS, STORES, SharedDatabases
from tests.stores.queue.conftest import open_bench

NEXT = FIRST + 3600

LAYOUTS = [(type_, database, "together") for database in DATABASES for type_ in STORES]
LAYOUTS += [("rdb", "mariadb", "apart"), ("rdb_compat", "postgresql", "apart")]


def make_feed(databases: SharedDatabases, type_: str, database: str, where: str, folder: Path) -> Feed:
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    kind, place = (database, folder) if where == "together" else ("sqlite", elsewhere)
    feed = Feed(databases.bench(type_, database, folder), open_bench(databases, type_, kind, place))
    feed.prepare()
    return feed


@pytest.fixture(params=LAYOUTS, ids="-".join)
def feed(request: pytest.FixtureRequest, databases: SharedDatabases, tmp_path: Path) -> Iterator[Feed]:
    """A schedule that is due, and a queue: in one database of each kind, or in two databases."""
    type_, database, where = request.param
    feed = make_feed(databases, type_, database, where, tmp_path)
    yield feed
    feed.close()


def test_a_worker_that_is_killed_loses_no_occurrence_and_doubles_none(request: Any, feed: Feed) -> None:
    """The worker is killed at each statement by which it settles its run.

    Deaths while it polls are a part of the conformance tests.
    """
    together = request.node.callspec.params["feed"][2] == "together"
    occurrence = FIRST
    for statement in itertools.count():
        killed = is_killed_before(statement, lambda begin: feed.feed(once_polled=begin))
        done, submitted = feed.row.next_time > occurrence, feed.submitted
        assert submitted == list(range(FIRST, occurrence + 3600, 3600))[: len(submitted)]
        assert (occurrence in submitted) == done or not (together or done), "half of it was done"
        before = feed.stored_task(occurrence)
        if not done:
            feed.schedules.make_due("key")  # as if the lease of the dead had ended
            feed.close()
            feed.feed()
        assert before in (None, feed.stored_task(occurrence)), "the task was written twice"
        occurrence += 3600
        assert (feed.row.next_time, feed.submitted[-1]) == (occurrence, occurrence - 3600)
        feed.close()
        if not killed:
            break
    assert statement >= (3 if together else 2), "it was not killed between its statements"


LOSSES: list[Callable[[Proxy, bytes], Trap]] = [Proxy.lose_request, Proxy.lose_answer]


@pytest.mark.parametrize("lose", LOSSES, ids=["request", "answer"])
@pytest.mark.parametrize(("type_", "database"), [(type_, database) for database in KINDS for type_ in STORES])
def test_a_lost_statement_loses_no_occurrence_and_doubles_none(
    type_: str,
    database: str,
    lose: Callable[[Proxy, bytes], Trap],
    lab: Lab,
    databases: SharedDatabases,
    tmp_path: Path,
) -> None:
    feed = make_feed(databases, type_, database, "together", tmp_path)
    server = lab.shared(KINDS[database])
    settling = statements_of(feed)
    assert any(text.startswith(b"INSERT") for text in settling)
    assert settling[-1] == b"COMMIT"
    for occurrence, statement in zip(itertools.count(NEXT, 3600), settling):
        with Proxy(server.port) as proxy:
            url = sa.make_url(feed.schedules.url).set(port=proxy.port).render_as_string(hide_password=False)
            traps: list[Trap] = []
            feed.feed(url, lambda: traps.append(lose(proxy, statement)))  # noqa: B023 – called at once
            assert [trap.sprung for trap in traps] == [True]
        assert feed.row.next_time == occurrence + 3600
        assert feed.submitted == list(range(FIRST, occurrence + 3600, 3600))
    feed.close()


def statements_of(feed: Feed) -> list[bytes]:
    """Submit one task. Return the constant beginning of each statement that settles the run, in order."""
    seen: list[bytes] = []

    def note(conn: Any, cursor: Any, statement: str, *_: Any) -> None:
        seen.append(statement.partition("%")[0].encode())

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    feed.feed(once_polled=seen.clear)
    sa.event.remove(sa.Engine, "before_cursor_execute", note)
    return seen
