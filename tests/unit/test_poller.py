"""What a poller does besides acquiring tasks. The tests set the clock."""

from __future__ import annotations

import itertools
import math
from collections import deque
from types import SimpleNamespace
from typing import Any, cast

import pytest

from psched.acquisition.task_source import TaskSource
from psched.acquisition.types_with_rows import TypesWithRows
from psched.application import Application
from psched.errors import PoolerError
from psched.execution.batch_size import BatchSizer
from psched.execution.poll_timer import PollTimer
from psched.execution.poller import RowPoller, SectionPoller
from psched.store.type_filter import TypeFilter


class Road:
    """A poller with a source whose tasks become due at a constant pace, and take no time."""

    def __init__(self, pace: float, until: float = math.inf, taken: bool = False) -> None:
        """`pace`: seconds between two tasks, up to `until`.

        `taken`: whether others acquire the tasks before this poller.
        """
        self.time = self.due = 1000.0
        self.tidied: list[float] = []
        self.old = 0
        self._pace = pace
        self._until = self.time + until
        self._taken = taken
        store = SimpleNamespace(next_due=self._next_due, is_refused=lambda _: False, is_unavailable=lambda _: False)
        source: Any = SimpleNamespace(
            open_wakeup=lambda _: None, poll_multi=self._take, maintain=self._tidy, store=store
        )
        timer = PollTimer(1.0, lambda: self.time, lambda least, most: (least + most) / 2)
        self.poller = SectionPoller(
            "queue", cast("TaskSource", source), Application(()), BatchSizer(9), timer, None, 3.0
        )

    def drive(self, seconds: float) -> None:
        """Let the poller work for `seconds`."""
        end = self.time + seconds
        while self.time < end:
            self.poller.poll()
            self.time += max(self.poller.pause(), 0.001)

    def _take(self, *_: object, **__: object) -> list[Any]:
        if self._next_due() != 0:
            return []
        self.due += self._pace
        return [] if self._taken else [object()]

    def _next_due(self, *_: object, **__: object) -> float | None:
        return None if self.due > self._until else max(self.due - self.time, 0.0)

    def _tidy(self, idle: bool = False) -> bool:
        self.tidied.append(self.time)
        return len(self.tidied) < self.old


@pytest.mark.parametrize("taken", [False, True])
@pytest.mark.parametrize("pace", [0.0005, 0.1, 0.9, 5.0])
def test_old_rows_are_removed_though_something_is_always_due_soon(pace: float, taken: bool) -> None:
    road = Road(pace, taken=taken)
    road.drive(15)
    times = [1000.0, *road.tidied, road.time]
    assert max(after - before for before, after in itertools.pairwise(times)) < 11


def test_a_burst_is_not_kept_waiting_by_what_is_old() -> None:
    road = Road(0.01, until=0.9)
    road.drive(20)
    assert road.tidied
    assert min(road.tidied) > 1000.9


def test_an_idle_lane_removes_old_rows_until_none_is_left() -> None:
    road = Road(1.0, until=-1.0)
    road.old = 100
    road.drive(6)
    assert len(road.tidied) >= 100
    assert road.tidied[99] < 1006.0
    rests = [after - before for before, after in itertools.pairwise(road.tidied[100:])]
    assert all(rest > 0.5 for rest in rests)


class Refusing:
    """A poller whose database refuses all queries until a time."""

    def __init__(self, until: float = math.inf) -> None:
        self.time = 0.0
        self._until = until
        store = SimpleNamespace(next_due=self._next_due, is_unavailable=lambda _: True, is_refused=lambda _: False)
        source: Any = SimpleNamespace(
            open_wakeup=lambda _: None, poll_multi=self._refuse, maintain=lambda **_: None, store=store
        )
        timer = PollTimer(1.0, lambda: self.time, lambda least, most: (least + most) / 2)
        self.poller = SectionPoller(
            "queue", cast("TaskSource", source), Application(()), BatchSizer(9), timer, None, 3.0
        )

    def _refuse(self, *_: object, **__: object) -> list[Any]:
        if self.time < self._until:
            raise ConnectionError("nobody answers")
        return []

    def _next_due(self, *_: object, **__: object) -> float | None:
        self._refuse()
        return None


def test_a_poll_before_its_time_does_not_count_as_an_answer_of_the_database(caplog: pytest.LogCaptureFixture) -> None:
    refusing = Refusing()
    refusing.poller.expect()
    with caplog.at_level("WARNING"):
        for _ in range(50):
            refusing.poller.poll()
            refusing.time += 0.1
    assert refusing.poller.trouble == "queue: the database does not answer: nobody answers"
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "section=queue the database does not answer"
    ]


def test_a_poll_that_finds_nothing_counts_as_an_answer_of_the_database(caplog: pytest.LogCaptureFixture) -> None:
    refusing = Refusing(until=2.0)
    with caplog.at_level("WARNING"):
        for refusing.time in (1.0, 3.0):
            refusing.poller.expect()
            refusing.poller.poll()
    assert caplog.records[-1].getMessage() == "section=queue the database answers again after 1 failed polls"
    assert refusing.poller.trouble is None


def test_a_database_that_is_asked_but_does_not_let_take_is_reported_of_once(caplog: pytest.LogCaptureFixture) -> None:
    road = Road(1000.0)
    road.drive(3)
    road.due = road.time
    refused = []

    def refuse(*_: object, **__: object) -> list[Any]:
        refused.append(road.time)
        raise ConnectionError("read-only")

    road.poller.source.poll_multi = refuse  # type: ignore[method-assign]
    road.poller.source.store.is_unavailable = lambda _: True  # type: ignore[method-assign]
    with caplog.at_level("WARNING"):
        road.drive(60)
    assert len(caplog.records) == 1
    assert len(refused) < 20, "it comes back less and less often"


def test_a_database_that_refuses_the_user_is_asked_less_and_less_often(
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked: list[float] = []
    lone = Road(1000.0)

    def refuse(*_: object, **__: object) -> list[Any]:
        asked.append(lone.time)
        raise PermissionError("wrong password")

    store = lone.poller.source.store
    lone.poller.source.poll_multi = store.next_due = refuse  # type: ignore[method-assign]
    store.is_refused = lambda error: isinstance(error, PermissionError)  # type: ignore[method-assign]
    with caplog.at_level("WARNING"):
        lone.drive(700)
    pauses = [round(after - before) for before, after in itertools.pairwise(asked)]
    assert pauses[:6] == [1, 2, 4, 8, 16, 32]
    assert set(pauses[6:]) == {60}
    told = [record.getMessage() for record in caplog.records]
    assert told[0] == "section=queue the database refuses this user: wrong password; next attempt in 1 s"
    assert len(told) == 2, "and again ten minutes later"
    assert lone.poller.trouble == "queue: the database refuses this user: wrong password"


def test_a_pooler_that_comes_in_between_is_reported_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    road = Road(1000.0)

    def refuse(*_: object, **__: object) -> list[Any]:
        raise PoolerError("a pooler is in front of this PostgreSQL")

    road.poller.source.poll_multi = refuse  # type: ignore[method-assign]
    road.poller.source.store.is_unavailable = lambda _: False  # type: ignore[method-assign]
    road.drive(30)
    assert [record.getMessage() for record in caplog.records] == [
        "section=queue polling fails: a pooler is in front of this PostgreSQL; retrying"
    ]
    assert caplog.records[0].exc_info is None


class OnceWakeup:
    """A wakeup whose notification ends its listening, like an element that is popped from a list of Redis."""

    proven = True
    covers_all_hosts = True

    def __init__(self) -> None:
        self.is_listening = False
        self._came = False

    def listen(self, seconds: float) -> None:
        self.is_listening = True

    def come(self) -> None:
        self._came, self.is_listening = self.is_listening, False

    def is_notified(self) -> bool:
        came, self._came = self._came, False
        return came

    def stop_listening(self) -> None:
        self.is_listening = False


def test_rows_that_come_one_by_one_are_polled_for_at_each_wake_up() -> None:
    """Without a new `listen` after each wakeup, every second row would wait for the next poll, which is 20 ms later."""
    time, due = [0.0], deque[str]()
    wakeup = OnceWakeup()

    def acquire(*_: object, **__: object) -> list[str]:
        time[0] += 0.001
        rows = list(due)
        due.clear()
        return rows

    store = SimpleNamespace(next_due=lambda *_, **__: None, is_unavailable=lambda _: False, is_refused=lambda _: False)
    source: Any = SimpleNamespace(
        open_wakeup=lambda _: wakeup, poll_multi=acquire, maintain=lambda **_: None, store=store
    )
    timer = PollTimer(1.0, lambda: time[0], lambda least, most: (least + most) / 2)
    types = TypesWithRows(cast("TaskSource", source), TypeFilter())
    poller = RowPoller("queue", source, BatchSizer(9), timer, types)
    poller.poll()
    waits = []
    for number in range(5):
        poller.rest()
        time[0] += 0.004
        due.append(f"row {number}")
        wakeup.come()
        poller.wake()
        waits.append(poller.pause())
        time[0] += waits[-1]
        assert poller.poll() == [f"row {number}"]
    assert waits == [0.0] * 5
