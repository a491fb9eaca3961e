"""Names are quoted as a session of MariaDB or MySQL needs: with `ANSI_QUOTES` "key" is a name, otherwise a string."""

from __future__ import annotations

from contextlib import closing

import pytest
import sqlalchemy as sa

from faultlab.servers import Server
from psched.backends import open_stores
from psched.model import NewTask, Rule
from psched.store import StoreSettings, TaskStore
from tests.stores.bench import LONG_AGO, keys_of
from tests.stores.queue.bench import keys_in

IN_QUOTES = {"init_command": "SET sql_mode = 'ANSI_QUOTES'"}


def open_queue(url: str, table: str) -> TaskStore:
    tasks = open_stores("rdb", StoreSettings(url, "host/test/1", queue=table)).queue
    assert tasks is not None
    tasks.create_tables()
    return tasks


def test_a_server_may_quote_names_as_the_standard_does(mariadb: Server) -> None:
    with mariadb.database() as url:
        quoting = sa.make_url(url).update_query_dict(IN_QUOTES).render_as_string(hide_password=False)
        with closing(open_queue(quoting, "quoted")) as queue:
            assert queue.submit([NewTask("one", "type1")]) == []
            assert keys_of(queue.acquire(1, 100)) == ["one"]
        schedules = open_stores("rdb", StoreSettings(quoting, "host/test/1", schedules="quoted_too")).schedules
        assert schedules is not None
        with closing(schedules):
            schedules.create_tables()
            schedules.add("one", "type1", Rule("0 * * * *", "UTC"), LONG_AGO, LONG_AGO, {})
            assert keys_of(schedules.acquire(1, 100)) == ["one"]


@pytest.mark.parametrize("first", ["caller", "own"])
def test_a_caller_may_quote_names_in_another_way(mariadb: Server, first: str) -> None:
    with mariadb.database() as url, closing(open_queue(url, f"{first}_first")) as queue:
        engine = sa.create_engine(sa.make_url(url).set(drivername="mysql+pymysql"), connect_args=IN_QUOTES)
        for who in ("caller", "own") if first == "caller" else ("own", "caller"):
            with engine.begin() as connection:
                assert queue.submit([NewTask(who, "type1")], connection if who == "caller" else None) == []
        engine.dispose()
        assert keys_in(queue) == ["caller", "own"]
