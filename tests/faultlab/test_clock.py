"""A shifted wall clock, as Python processes and database servers read it."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from faultlab.clock import WallClock
from faultlab.laboratory import Lab
from faultlab.mariadb import MariaDB
from faultlab.postgresql import PostgreSQL

_CHILD = """
import datetime, os, selectors, sys, threading, time
if len(sys.argv) > 1 and os.fork():
    os.wait()
    sys.exit()
for line in sys.stdin:
    print(time.time(), datetime.datetime.now().timestamp(), time.clock_gettime(time.CLOCK_REALTIME), time.monotonic(),
          flush=True)
"""

_WAITS = """
import selectors, threading, time
start = time.monotonic()
assert not threading.Event().wait(0.05)
lock = threading.Lock()
lock.acquire()
assert not lock.acquire(timeout=0.05)
condition = threading.Condition()
with condition:
    assert not condition.wait(0.05)
assert selectors.DefaultSelector().select(0.05) == []
time.sleep(0.05)
print(time.monotonic() - start)
"""


class _Child:
    """A Python process that reports the times of its clocks."""

    def __init__(self, clock: WallClock, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _CHILD, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=clock.environment,
        )

    def __enter__(self) -> _Child:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.communicate()

    def clocks(self) -> list[float]:
        """Return the wall clock's time, read in three ways, and then the monotonic clock's time."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return [float(word) for word in self.process.stdout.readline().split()]


@pytest.mark.parametrize("arguments", [[], ["fork"]], ids=["started", "forked"])
@pytest.mark.parametrize("offset", [600, -600])
def test_a_process_sees_the_wall_clock_jump_and_the_monotonic_one_stand(
    wall_clock: WallClock, offset: float, arguments: list[str]
) -> None:
    with _Child(wall_clock, *arguments) as child:
        assert child.clocks()[:3] == pytest.approx([time.time()] * 3, abs=5)
        wall_clock.set(offset)
        assert child.clocks()[:3] == pytest.approx([time.time() + offset] * 3, abs=5)
        assert wall_clock.time() == pytest.approx(time.time() + offset, abs=5)
        assert child.clocks()[3] == pytest.approx(time.monotonic(), abs=5)


def test_a_clock_with_a_rate_of_600_makes_ten_minutes_of_a_second(wall_clock: WallClock) -> None:
    with _Child(wall_clock) as child:
        wall_clock.set(rate=600)
        before_first, first, after_first = time.time(), child.clocks()[0], time.time()
        time.sleep(0.2)
        before_second, second, after_second = time.time(), child.clocks()[0], time.time()
    assert before_second - after_first <= (second - first) / 600 <= after_second - before_first
    assert wall_clock.time() > second


@pytest.mark.parametrize("offset", [600, -600])
def test_waits_last_as_long_as_ever(wall_clock: WallClock, offset: float) -> None:
    wall_clock.set(offset)
    done = subprocess.run(
        [sys.executable, "-c", _WAITS],
        env=wall_clock.environment,
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    assert 0.2 <= float(done.stdout) < 10


def test_a_mariadb_has_a_clock_of_its_own(lab: Lab, wall_clock: WallClock) -> None:
    server = lab.private(MariaDB)
    assert isinstance(server, MariaDB)
    server.environment = wall_clock.environment
    with server:
        wall_clock.set(86_400)
        with server.admin() as cursor:
            cursor.execute("SELECT UNIX_TIMESTAMP(NOW(3))")
            [seconds] = cursor.fetchone() or []
            assert float(seconds) == pytest.approx(time.time() + 86_400, abs=5)


def test_a_postgresql_has_a_clock_of_its_own(lab: Lab, wall_clock: WallClock) -> None:
    server = lab.private(PostgreSQL)
    assert isinstance(server, PostgreSQL)
    server.environment = wall_clock.environment
    with server:
        wall_clock.set(-86_400)
        with server.admin() as connection:
            [seconds] = connection.execute("SELECT extract(epoch FROM statement_timestamp())").fetchone() or []
            assert float(seconds) == pytest.approx(time.time() - 86_400, abs=5)
