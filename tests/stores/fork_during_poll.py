"""Runs forking_during_poll.py with a database that does not answer until all processes are forked."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import sqlalchemy as sa

from faultlab import forkserver_client
from faultlab.proxy import Proxy
from tests.stores.bench import Bench

_PROGRAM = Path(__file__).with_name("forking_during_poll.py")
FORKS = 3
"""The number of processes that forking_during_poll.py forks."""


def keys_got(bench: Bench, kind: str, temperature: str) -> list[str | None]:
    """Return the key that each process polled: first the thread that polled during the forks, then each child."""
    environ = {**os.environ, "PYTHONPATH": str(_PROGRAM.parents[2])}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with _silenced(bench) as (url, silence, answer):
        argv = [str(_PROGRAM), kind, bench.type, url, bench.table, temperature]
        with forkserver_client.start(argv, Path.cwd(), environ, **pipes) as program:
            assert program.stdout is not None
            assert program.stdin is not None
            assert program.stdout.readline() == b"ready\n"
            silence()
            program.stdin.write(b"\n")
            program.stdin.flush()
            assert program.stdout.readline() == b"forked\n"
            answer()
            got: list[str | None] = json.loads(program.stdout.readline())
            program.wait(30)
    return got


@contextlib.contextmanager
def _silenced(bench: Bench) -> Iterator[tuple[str, Callable[[], object], Callable[[], object]]]:
    """Yield a URL of the bench's database, a function that stops its answers, and a function that resumes them."""
    url = sa.make_url(bench.url)
    if bench.database == "sqlite":
        with contextlib.closing(sqlite3.connect(str(url.database), isolation_level=None)) as writer:
            yield f"{bench.url}?read_timeout=0.5", lambda: writer.execute("BEGIN IMMEDIATE"), writer.rollback
        return
    assert url.port is not None
    with Proxy(url.port) as proxy:
        through = url.set(port=proxy.port).render_as_string(hide_password=False)
        yield through, proxy.black_hole, proxy.pass_on
