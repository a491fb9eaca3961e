"""The floor of `pick-up`: how soon a bare driver is notified of a row that another process has written.

The measuring process writes; another process listens. Neither process searches for due rows. PostgreSQL and Redis only.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import psycopg
import redis

from tests.programs import ROOT

Listen = Callable[[str], Iterator[str]]
"""Takes a URL. Yields an empty text when listening has begun, and then each text of which the listener is notified."""
Write = Callable[[str], None]
"""Writes a text, of which the listener is then notified."""

_CREATE = "CREATE TABLE floor (key VARCHAR(255) PRIMARY KEY, data TEXT NOT NULL)"
_INSERT = """
WITH written AS (INSERT INTO floor (key, data) VALUES (%s, '{}') RETURNING key)
SELECT pg_notify('floor', key) FROM written
"""


def _listen_postgresql(url: str) -> Iterator[str]:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("LISTEN floor")
        yield ""
        yield from (note.payload for note in connection.notifies())


@contextmanager
def _write_postgresql(url: str) -> Iterator[Write]:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(_CREATE)

        def write(text: str) -> None:
            connection.execute(_INSERT, [text])

        yield write


def _listen_redis(url: str) -> Iterator[str]:
    with redis.Redis.from_url(url, decode_responses=True) as connection:
        connection.ping()
        yield ""
        while True:
            yield connection.blpop(["floor"])[1]


@contextmanager
def _write_redis(url: str) -> Iterator[Write]:
    with redis.Redis.from_url(url) as connection:

        def write(text: str) -> None:
            connection.lpush("floor", text)

        yield write


_WAYS: dict[str, tuple[Listen, Callable[[str], AbstractContextManager[Write]]]] = {
    "postgresql": (_listen_postgresql, _write_postgresql),
    "redis": (_listen_redis, _write_redis),
}


def called_after(store: str, url: str, pauses: list[float]) -> list[float]:
    """Write once after each of the `pauses` (seconds).

    Return how many seconds after each write the listener was notified.
    """
    command = [sys.executable, "-m", __name__, store, url]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as listener:
        assert listener.stdout is not None
        try:
            listener.stdout.readline()
            with _WAYS[store][1](url) as write:
                found = []
                for pause in pauses:
                    time.sleep(pause)
                    write(repr(time.monotonic()))
                    found.append(float(listener.stdout.readline()))
                return found
        finally:
            listener.kill()


def _hear(store: str, url: str) -> None:
    for text in _WAYS[store][0](url):
        print(time.monotonic() - float(text) if text else "", flush=True)


if __name__ == "__main__":
    _hear(*sys.argv[1:])
