"""Counts the statements that other processes send to a database. Runs in the measuring process.

Each server is asked in a way that counts neither the statements of the measurement, nor the server's own activity.
SQLite has no server, so psched's connections count their statements.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import redis as redis_client

from benchmarks.databases import DefaultMariaDB, DefaultPostgreSQL, DefaultRedis, Place
from benchmarks.shared_counter import STATEMENTS, in_environment, read_tally
from faultlab.servers import USER

Asked = Callable[[], int]
"""Returns the number of statements up to now."""

_STATEMENT = re.compile(rb"LOG:  (?:statement|execute [^:]*): ")


def counting(place: Place) -> AbstractContextManager[Asked]:
    """Yield a function that returns the number of statements. Enter this context before the other processes connect."""
    server = place.server
    if isinstance(server, DefaultPostgreSQL):
        return _logged(server)
    if isinstance(server, DefaultMariaDB):
        return _told(server)
    if isinstance(server, DefaultRedis):
        return _monitored(place.url)
    return _traced(place)


@contextmanager
def _logged(server: DefaultPostgreSQL) -> Iterator[Asked]:
    """Count in the server's log, which has each statement of psched's user, also BEGIN and COMMIT."""
    log = server.folder / "log"
    start = log.stat().st_size

    def asked() -> int:
        with log.open("rb") as file:
            file.seek(start)
            return len(_STATEMENT.findall(file.read()))

    with server.admin() as connection:
        connection.execute(f"ALTER ROLE {USER} SET log_statement = 'all'")
        try:
            yield asked
        finally:
            connection.execute(f"ALTER ROLE {USER} RESET log_statement")


@contextmanager
def _told(server: DefaultMariaDB) -> Iterator[Asked]:
    """Use the server's count of statements, minus those that ask for the count."""
    own = 0
    with server.admin() as cursor:

        def asked() -> int:
            nonlocal own
            own += 1
            cursor.execute("SHOW GLOBAL STATUS LIKE 'Questions'")
            return int(cursor.fetchall()[0][1]) - own

        yield asked


@contextmanager
def _monitored(url: str) -> Iterator[Asked]:
    """Count the commands that the server reports, except those of scripts and of the measuring process."""
    done = 0
    with redis_client.Redis.from_url(url) as marker, redis_client.Redis.from_url(url) as watcher:
        marker.ping()
        with watcher.monitor() as monitor:

            def asked() -> int:
                nonlocal done
                mark = secrets.token_hex(8)
                marker.echo(mark)
                while (seen := monitor.next_command())["command"] != f"ECHO {mark}":
                    done += seen["client_type"] != "lua"
                return done

            yield asked


@contextmanager
def _traced(place: Place) -> Iterator[Asked]:
    """Use the counters of idle workers, in which no handler counts: their connections count statements instead."""
    with in_environment(STATEMENTS):
        yield lambda: read_tally(place.folder / "tally").done
