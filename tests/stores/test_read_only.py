"""Insight's sessions refuse writes, end long statements, and have none of the workers' planner settings."""

from __future__ import annotations

from typing import Any

import pytest
import redis
import sqlalchemy as sa

from psched.backends import is_driver_error
from psched.insight import ScheduleInsight
from psched.model import LeaseTimes
from psched.schedules.collection import Defaults, ScheduleCollection
from psched.store import ScheduleStore
from psched.store.type_filter import TypeFilter
from tests.announcements import announce
from tests.stores.bench import Bench
from tests.stores.databases import PGBOUNCER, SQL_PAIRS

SESSIONS = [*SQL_PAIRS, ("rdb", PGBOUNCER)]
on_sessions = pytest.mark.parametrize("bare", SESSIONS, indirect=True, ids="-".join)


def database_of(store: ScheduleStore) -> Any:
    return getattr(store, "_database")  # noqa: B009


@on_sessions
def test_a_session_refuses_to_write(bench: Bench, store: ScheduleStore) -> None:
    reader = bench.open(read_only=True)
    bench.add(store, "key")
    with pytest.raises(sa.exc.DBAPIError):
        reader.delete("key")
    with pytest.raises(sa.exc.DBAPIError):
        bench.add(reader, "other")
    assert store.get("other") is None
    assert reader.get("key") is not None
    bench.add(store, "third")  # the writer's own session still writes


SLOW = {
    "sqlite": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n WHERE i < 0",
    "mysql": "SELECT SLEEP(20) FROM {table}, {table} AS other",
    "postgresql": "SELECT pg_sleep(20)",
}


@on_sessions
def test_a_statement_ends_after_two_seconds_and_is_not_repeated(bench: Bench, store: ScheduleStore) -> None:
    bench.add(store, "key")
    reader = bench.open(read_only=True)
    begun: list[str] = []

    def work(connection: sa.Connection, _: bool) -> None:
        begun.append("attempt")
        connection.exec_driver_sql(SLOW[bench.database].format(table=bench.table)).all()

    with pytest.raises(sa.exc.DBAPIError) as raised:
        database_of(reader).run(work)
    assert is_driver_error(raised.value)
    assert reader.is_unavailable(raised.value)
    assert begun == ["attempt"]
    assert database_of(reader).dialect.timeouts.statement == 2
    assert reader.get("key") is not None  # the next statement has two seconds of its own


@pytest.mark.parametrize("bare", [("rdb", "postgresql"), ("rdb", PGBOUNCER)], indirect=True, ids="-".join)
def test_only_long_reads_may_read_a_table_without_an_index(bench: Bench, store: ScheduleStore) -> None:
    def setting(one: ScheduleStore, name: str) -> Any:
        return database_of(one).scalar(sa.text(f"SELECT current_setting('{name}')"))

    reader, long_reader = (bench.open(read_only=True, long_reads=long) for long in (False, True))
    for name in ("enable_seqscan", "enable_bitmapscan", "enable_sort"):
        assert [setting(each, name) for each in (store, reader, long_reader)] == ["off", "off", "on"]
    assert setting(reader, "transaction_read_only") == "on"
    assert setting(store, "transaction_read_only") == "off"


@pytest.mark.parametrize("bare", [("redis", "redis")], indirect=True, ids="-".join)
def test_on_redis_a_user_who_may_only_read_gets_every_answer(bench: Bench, store: ScheduleStore) -> None:
    bench.add(store, "key")
    announce(store.nodes, "host/1", "schedules", TypeFilter())
    rules = ("on", ">secret", "~*", "+@read", "+@connection", "+evalsha", "+eval", "+time", "+info")
    url = sa.make_url(bench.url)
    with redis.Redis.from_url(bench.url) as client:
        client.execute_command("ACL", "SETUSER", "reader", *rules)
    reader = bench.open(url=url.set(username="reader", password="secret").render_as_string(hide_password=False))
    insight = ScheduleInsight(ScheduleCollection(reader, LeaseTimes(300, 5), Defaults()))
    assert insight.counts()["total"].count == 1
    assert [each.type for each in insight.types()] == ["type1"]
    assert [row.key for row, _ in insight.page().rows] == ["key"]
    assert insight.details("key").row is not None
    assert [row.key for row in insight.overdue()] == ["key"]
    assert insight.forecast(2).schedules == 1
    assert [node.name for node in insight.nodes() or ()] == ["host/1"]
    with pytest.raises(redis.exceptions.RedisError):
        bench.add(reader, "other")
