"""The floor of picking up in three processes, as psched does: one writes, one is woken and acquires, one begins.

A bare driver does what must be done before a handler may begin: a durable row that wakes the second process, a durable
lease of this row, and a message to the third process.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import psycopg
import redis

from tests.programs import ROOT

Acquire = Callable[[str], Iterator[list[str]]]
"""URL → the keys that were acquired after each wake-up, after an empty list when listening has begun."""
Submit = Callable[[str], None]
"""Writes a row with this key, so that the process that acquires is woken."""

_NOW = "CAST(floor(extract(epoch FROM statement_timestamp()) * 1000) AS BIGINT)"
_CREATE = (
    "CREATE TABLE floor (key VARCHAR(255) PRIMARY KEY, data TEXT NOT NULL, due BIGINT NOT NULL, holder TEXT)",
    "CREATE INDEX floor_due ON floor (due, key)",
)
_INSERT = f"""
WITH written AS (INSERT INTO floor (key, data, due) VALUES (%s, '{{}}', {_NOW}) RETURNING key)
SELECT pg_notify('floor', '') FROM written
"""
_UPDATE = f"""
UPDATE floor SET due = due + 300000, holder = %s WHERE key = ANY(ARRAY(
SELECT key FROM floor WHERE due <= {_NOW} ORDER BY due, key LIMIT 2 FOR UPDATE SKIP LOCKED
)) RETURNING key, data
"""
_INDEXED = "SET enable_seqscan = off; SET enable_sort = off; SET enable_bitmapscan = off; SET jit = off"
_PUSH = """
redis.call('HSET', 'row:' .. ARGV[1], 'data', '{}', 'status', 'waiting')
redis.call('ZADD', 'due', 0, ARGV[1])
redis.call('LPUSH', 'wake', '1')
"""
_LEASE = """
local found = {}
for _, key in ipairs(redis.call('ZRANGE', 'due', 0, 1)) do
  redis.call('ZREM', 'due', key)
  redis.call('ZADD', 'leases', 1, key)
  redis.call('HSET', 'row:' .. key, 'status', 'running', 'holder', ARGV[1])
  found[#found + 1] = {key, redis.call('HGETALL', 'row:' .. key)}
end
return found
"""


def _acquire_postgresql(url: str) -> Iterator[list[str]]:
    with psycopg.connect(url, autocommit=True) as listening, psycopg.connect(url, autocommit=True) as acquiring:
        listening.execute("LISTEN floor")
        acquiring.execute(_INDEXED)
        cursor = acquiring.cursor()
        yield []
        for _ in listening.notifies():
            yield [key for key, _ in cursor.execute(_UPDATE, ["holder"]).fetchall()]


@contextmanager
def _submit_postgresql(url: str) -> Iterator[Submit]:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in _CREATE:
            connection.execute(statement)
        cursor = connection.cursor()
        yield lambda key: cursor.execute(_INSERT, [key]) and None


def _acquire_redis(url: str) -> Iterator[list[str]]:
    with redis.Redis.from_url(url, decode_responses=True) as connection:
        lease = connection.script_load(_LEASE)
        yield []
        while True:
            connection.blpop(["wake"])
            yield [key for key, _ in connection.evalsha(lease, 0, "holder")]


@contextmanager
def _submit_redis(url: str) -> Iterator[Submit]:
    with redis.Redis.from_url(url) as connection:
        push = connection.script_load(_PUSH)
        yield lambda key: connection.evalsha(push, 0, key) and None


_WAYS: dict[str, tuple[Acquire, Callable[[str], AbstractContextManager[Submit]]]] = {
    "postgresql": (_acquire_postgresql, _submit_postgresql),
    "redis": (_acquire_redis, _submit_redis),
}


def begun_after(store: str, url: str, pauses: list[float]) -> list[float]:
    """Return how many seconds after each write the third process began; before each there is a pause, in seconds."""
    command = [sys.executable, "-m", __name__, store, url]
    with _WAYS[store][1](url) as submit, subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as both:
        assert both.stdout is not None
        try:
            both.stdout.readline()
            found = []
            for pause in pauses:
                time.sleep(pause)
                submit(repr(time.monotonic()))
                found.append(float(both.stdout.readline()))
            return found
        finally:
            both.kill()


def _work(store: str, url: str) -> None:
    """Acquire in this process, and begin in another."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        ours.close()
        while sent := theirs.recv(100):
            print(time.monotonic() - float(sent) if sent != b"-" else "", flush=True)
        os._exit(0)
    theirs.close()
    for keys in _WAYS[store][0](url):
        for key in keys or ["-"]:
            ours.send(key.encode())


if __name__ == "__main__":
    _work(*sys.argv[1:])
