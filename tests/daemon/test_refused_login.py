"""A daemon whose database refuses its password waits, and works again when the database accepts the password."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from faultlab.laboratory import Lab
from faultlab.login import made_login
from faultlab.mariadb import MariaDB
from faultlab.postgresql import PostgreSQL
from faultlab.redis import Redis
from faultlab.servers import Server
from psched.backends import open_stores
from psched.model import Rule
from psched.store import StoreSettings
from tests.daemon.harness import Daemon
from tests.daemon.pschedd import installed

TOLD = "section=schedules the database refuses this user: "
Make = Callable[..., Daemon]
KINDS: dict[str, type[Server]] = {"mariadb": MariaDB, "postgresql": PostgreSQL, "redis": Redis}
LONG_AGO = 1_600_000_000


@pytest.mark.parametrize("kind", KINDS)
def test_a_refused_password_is_logged_once_and_retried_at_the_start_and_later(
    kind: str, make_daemon: Make, lab: Lab
) -> None:
    server = lab.shared(KINDS[kind])
    database = server.create_database()
    type_ = "redis" if kind == "redis" else "rdb"
    store = open_stores(type_, StoreSettings(server.url(database), "host/1/x", schedules="psched_schedules")).schedules
    assert store is not None
    store.create_tables()
    daemon = make_daemon(processors=4)
    with made_login(server, database) as login:
        daemon.configure(type=type_, url=login.url)
        daemon.start()
        daemon.wait_for_log(TOLD)
        for number in range(2):
            login.accept()
            store.add(f"key{number}", "quick", Rule("0 * * * *", "UTC"), LONG_AGO, LONG_AGO, {})
            daemon.wait_for_trace("ran", f"key{number}")
            if number == 0:
                assert daemon.log.count(TOLD) == 1
                login.refuse()
                daemon.wait_for_log(TOLD, 2)
        daemon.stop()
    assert "Traceback" not in daemon.log
    store.close()
    server.drop_database(database)


_TWO_DATABASES = """\
  schedules: {{type: {type}, url: '{url}'}}
  queue: {{type: {type}, url: '{url}'}}
"""


@pytest.mark.parametrize("kind", KINDS)
def test_start_and_status_name_each_database_that_refuses_the_login(kind: str, tmp_path: Path, lab: Lab) -> None:
    server = lab.shared(KINDS[kind])
    database = server.create_database()
    type_ = "redis" if kind == "redis" else "rdb"
    settings = StoreSettings(server.url(database), "host/1/x", schedules="psched_schedules", queue="psched_queue")
    stores = open_stores(type_, settings)
    with made_login(server, database) as login, installed(tmp_path) as pschedd:
        pschedd.configure("  type: rdb\n  url: sqlite:///psched.db\n", _TWO_DATABASES.format(type=type_, url=login.url))
        done = pschedd("start")
        assert done.returncode == 0
        told = pschedd("status").stdout
        for section in ("schedules", "queue"):
            assert f"{section}: the database refuses this user: " in done.stderr
            assert f"{section}: the database refuses this user: " in told
        assert "pschedd: warning: the workers are running, but cannot work yet: " in done.stderr
        assert "worker 1 waiting for the database (pid " in told
        for store in (stores.schedules, stores.queue):
            assert store is not None
            store.create_tables()
            store.close()
        login.accept()
        pschedd.wait_until(
            lambda: "worker 1 idle (pid " in (told := pschedd("status").stdout) and "trouble" not in told
        )
        assert pschedd("stop").returncode == 0
    server.drop_database(database)
