"""The fetcher gives rows to children that are free, and finds the rows of dead children and fetchers.

Sections are fakes and connections are real. The fetcher does one turn at a time, with a clock that the test sets.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import astuple
from types import SimpleNamespace
from typing import Any, cast

import pytest

from psched.acquisition.task_source import TaskSource
from psched.acquisition.types_with_rows import TypesWithRows
from psched.execution.fetcher import Fetcher
from psched.execution.opened_stores import OpenSection
from psched.execution.stop_event import StopEvent
from psched.model import Claim, Lease, TaskRow
from psched.process.dead_child import DeadChild
from psched.process.dispatch_socket import Connection, DispatchSocket, decode_claims, encode_claims
from psched.store.type_filter import TypeFilter

HOLDER = "host/node/1"
FETCHER = "w0.2"
"""The name of the fetching child."""
CLAIM = 7
"""The acquire number of all claims."""
QUICK, STEADY, SLOW = 0.0001, 0.03, 2.0
SOON, LATER = 0.2, 0.3
"""Seconds: less and more than the time after which a row is released if no child is free for it."""
MOMENT = 0.02
"""Seconds of work that a child gets at a time."""
MESSAGE = 1 << 20
"""The maximum size of a batch of large rows, in bytes."""
LARGE = 1 << 17
"""The size of a large row in bytes: more than a socket holds."""
SWEPT = 5.1
"""Seconds: more than the time between two sweeps."""
LEASE = 30.0
POLL_INTERVAL = 1.0
CALLED = 11.5
"""Seconds: more than the longest pause between polls while wakeups come."""


class FakeWakeup:
    """A wakeup that is never notified."""

    proven = True
    covers_all_hosts = True
    is_listening = False

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()

    def listen(self, seconds: float) -> None:
        self.is_listening = True

    def stop_listening(self) -> None:
        self.is_listening = False

    def fileno(self) -> int:
        return self._reader.fileno()

    def is_notified(self) -> bool:
        return False

    def close(self) -> None:
        self._reader.close()
        self._writer.close()


class FakeSection:
    """A section's rows that are due, are held, or were released, as a database would store them."""

    def __init__(self, bench: Bench, name: str) -> None:
        self.name = name
        self._bench = bench
        self.due: deque[Claim] = deque()
        self.held: dict[str, Claim] = {}
        self.released: list[str] = []
        self.suspects: list[str] = []
        """The keys of rows that were released as runs of a dead child."""
        self.given_back: list[tuple[str, set[str] | None]] = []
        """The names of dead children (their holders, if they have no name), and the keys that were released."""
        self.limits: list[int] = []
        """The limit of each acquire that found rows."""
        self.fails = False
        self.wakeup: FakeWakeup | None = None
        store: Any = SimpleNamespace(
            next_due=self._next_due,
            held_claims=lambda holder: dict.fromkeys(self.held, CLAIM) if holder == HOLDER else {},
            is_refused=lambda _: False,
            is_unavailable=lambda _: True,
            keeps_types=True,
        )
        self.source: Any = SimpleNamespace(
            store=store,
            open_wakeup=lambda _: self.wakeup,
            maintain=lambda **_: False,
            fetch_multi=self._fetch_multi,
            release=self._release,
            give_back=self._give_back,
        )
        section: Any = SimpleNamespace(poll_interval=POLL_INTERVAL, task_prefetch="auto")
        self.opened = OpenSection(name, section, self.source)

    def add(self, count: int, type_: str = "quick", prefix: str = "", data: str = "") -> list[str]:
        """Make `count` rows due. Return their keys."""
        first = len(self.due) + len(self.held) + len(self.released)
        keys = [f"{prefix or type_}{first + number}" for number in range(count)]
        self.due += [
            Claim(TaskRow(key, type_, {"data": data}, "running", 0.0, 0.0), Lease(key, 1, 0.0, claim=CLAIM))
            for key in keys
        ]
        return keys

    def settle(self, keys: Collection[str]) -> None:
        for key in keys:
            del self.held[key]

    def _next_due(self, *_: object, **__: object) -> float | None:
        return 0.0 if self.due else None

    def _fetch_multi(self, limit: int, *_: object, **__: object) -> tuple[list[Claim], float]:
        self._answer()
        claims = [self.due.popleft() for _ in range(min(limit, len(self.due)))]
        self.held.update({claim.row.key: claim for claim in claims})
        if claims:
            self.limits.append(limit)
        return claims, self._bench.time + LEASE

    def _release(self, claims: Sequence[Claim], deadline: float) -> None:
        self._answer()
        keys = [claim.row.key for claim in claims]
        self.settle(keys)
        self.released += keys

    def _give_back(self, holder: str, suspects: Collection[str], error: str, claims: Mapping[str, int] | None) -> int:
        self._answer()
        released = {*self.held} if claims is None else {*self.held} & {*claims}
        self.settle(released)
        self.suspects += released & {*suspects}
        self.given_back.append((holder, None if claims is None else set(claims)))
        return len(released)

    def _answer(self) -> None:
        if self.fails:
            raise ConnectionError("nobody answers")


class Turns(StopEvent):
    """Ends a wait of the fetcher when the test requests the next turn."""

    def __init__(self) -> None:
        super().__init__()
        self._turn = threading.Semaphore(0)
        self._is_over = threading.Semaphore(0)
        self.pause = 0.0
        """The seconds that the fetcher would wait now."""
        self.descriptors: Collection[int] = ()
        """The descriptors that would end this wait."""

    def wait_for(self, descriptors: Collection[int], seconds: float) -> Collection[int]:
        self.descriptors, self.pause = descriptors, seconds
        self._is_over.release()
        self._turn.acquire()
        return super().wait_for(descriptors, 0.0)

    def next(self) -> None:
        """Let the fetcher do a turn, and wait until the turn has ended."""
        self._turn.release()
        self._is_over.acquire()

    def first(self) -> None:
        self._is_over.acquire()

    def end(self) -> None:
        self.set()
        self._turn.release()


class FakeChild:
    """A fake handler child, at its end of the connection."""

    def __init__(
        self,
        bench: Bench,
        name: str,
        held: dict[str, list[str]],
        dead: Sequence[DeadChild],
        runs: int,
        siblings: Sequence[str],
    ) -> None:
        self.connection: Connection = bench.dispatch.connect(name)
        claims = {section: [(key, CLAIM) for key in keys] for section, keys in held.items()}
        self.connection.send(("hello", claims, runs, [astuple(each) for each in dead], 1, siblings))
        self.batches: list[list[str]] = []
        """The keys of the rows of each message."""
        self.messages: list[Any] = []
        """The messages that contain no rows."""
        self.claims: dict[str, Claim] = {}
        self.deadline = 0.0
        self.sections: dict[str, str] = {}

    def receive(self) -> list[str]:
        """Return the keys of the rows that have arrived since the last call."""
        came = []
        for message in self.connection.receive():
            if message[0] == "run":
                _, section, encoded, self.deadline = message
                claims = decode_claims(encoded)
                keys = [claim.row.key for claim in claims]
                self.claims.update({claim.row.key: claim for claim in claims})
                self.sections.update(dict.fromkeys(keys, section))
                self.batches.append(keys)
                came += keys
            else:
                self.messages.append(message)
        return came

    def run(self, keys: Sequence[str], seconds: float = QUICK) -> None:
        """Report that these rows have run, each for `seconds`."""
        for section, own in self._by_section(keys):
            types = Counter(self.claims[key].row.type for key in own)
            durations = {type_: (count, count * seconds) for type_, count in types.items() if seconds}
            self.connection.send(("ended", section, len(own), durations))

    def settle(self, keys: Sequence[str], may_be_due: bool = False) -> None:
        for section, own in self._by_section(keys):
            self.connection.send(("settled", section, [(key, CLAIM) for key in own], may_be_due))

    def return_(self, keys: Sequence[str]) -> None:
        for section, own in self._by_section(keys):
            claims = encode_claims([self.claims[key] for key in own])
            self.connection.send(("returned", section, claims, [self.deadline] * len(own)))

    def _by_section(self, keys: Sequence[str]) -> Iterator[tuple[str, Sequence[str]]]:
        for section in dict.fromkeys(self.sections[key] for key in keys):
            yield section, [key for key in keys if self.sections[key] == section]


class Bench:
    """A fetcher in a thread, with its sections, children and clock."""

    def __init__(self, dispatch: DispatchSocket) -> None:
        self.time = 1000.0
        self.dispatch = dispatch
        self.queue = FakeSection(self, "queue")
        self.schedules = FakeSection(self, "schedules")
        self.recovered = 0
        self.turns = Turns()
        self.fetcher: Fetcher | None = None
        self._children: list[FakeChild] = []
        self._thread: threading.Thread | None = None

    def start(self, dead: Sequence[DeadChild] = (), siblings: Collection[str] = ()) -> None:
        opened = [self.schedules.opened, self.queue.opened]
        types = {each.name: TypesWithRows(cast("TaskSource", each.source), TypeFilter()) for each in opened}
        self.fetcher = Fetcher(
            opened, types, self.dispatch, self.turns, dead, siblings, FETCHER, self._count_recovered, lambda: self.time
        )
        self._thread = threading.Thread(target=self.fetcher.run)
        self._thread.start()
        self.turns.first()

    def child(
        self,
        name: str,
        held: dict[str, list[str]] | None = None,
        dead: Sequence[DeadChild] = (),
        runs: int = 0,
        siblings: Sequence[str] = (),
    ) -> FakeChild:
        """Connect a child.

        `start` or the next turn accepts its connection. `siblings`: the children that lived at its fork.
        """
        child = FakeChild(self, name, {} if held is None else held, dead, runs, siblings)
        self._children.append(child)
        return child

    def turn(self, seconds: float = POLL_INTERVAL * 1.2) -> None:
        """Let `seconds` pass, and let the fetcher do one turn. By default it then polls the sections again."""
        self.time += seconds
        self.turns.next()

    def stop(self) -> None:
        """Stop the fetcher, and wait until its thread has ended."""
        if self._thread is not None:
            self.turns.end()
            self._thread.join()
            self._thread = None

    def close(self) -> None:
        self.stop()
        self.turns.close()
        for child in self._children:
            child.connection.close()

    def _count_recovered(self) -> None:
        self.recovered += 1


@pytest.fixture
def bench() -> Iterator[Bench]:
    dispatch = DispatchSocket(HOLDER)
    with closing(dispatch), closing(Bench(dispatch)) as bench:
        yield bench


def teach(bench: Bench, child: FakeChild, type_: str = "quick", seconds: float = QUICK, times: int = 100) -> None:
    """Let a child run rows of a type until the fetcher has learned that they take `seconds`."""
    for _ in range(times):
        keys = bench.queue.add(1, type_)
        bench.turn()
        assert child.receive() == keys
        child.run(keys, seconds)
        child.settle(keys)
        bench.queue.settle(keys)
    bench.turn()
    child.batches.clear()


def test_without_children_nothing_is_acquired(bench: Bench) -> None:
    bench.queue.add(1)
    bench.start()
    bench.turn()
    assert bench.queue.limits == []


def test_rows_go_to_free_children_only(bench: Bench) -> None:
    first, second = bench.child("w1"), bench.child("w2")
    keys = bench.queue.add(5, "slow")
    bench.start()
    bench.turn()
    came = [first.receive(), second.receive()]
    assert sorted(came) == [[keys[0]], [keys[1]]]
    for _ in range(5):
        bench.turn()
    assert first.receive() == second.receive() == []
    assert len(bench.queue.due) + len(bench.queue.released) == 3, "another host can have the rest"
    second.run(came[1], SLOW)
    bench.turn()
    assert first.receive() == []
    assert len(second.receive()) == 1


def test_a_child_is_free_though_its_runs_are_not_settled_yet(bench: Bench) -> None:
    child = bench.child("w1")
    keys = bench.queue.add(2)
    bench.start()
    assert child.receive() == keys[:1]
    child.run(keys[:1])
    bench.turn()
    assert child.receive() == keys[1:]


def test_a_child_that_has_ended_only_some_of_its_rows_is_not_free(bench: Bench) -> None:
    child = bench.child("w1")
    bench.start()
    teach(bench, child)
    keys = bench.queue.add(2)
    bench.turn()
    assert child.receive() == keys
    child.run(keys[:1])
    more = bench.queue.add(1)
    bench.turn(0.0)
    bench.turn()
    assert child.receive() == []
    child.run(keys[1:])
    bench.turn()
    bench.turn()
    assert child.receive() == more or more[0] in bench.queue.released


def test_unknown_types_come_one_at_a_time(bench: Bench) -> None:
    child = bench.child("w1")
    bench.start()
    teach(bench, child)
    keys = bench.queue.add(10, "new")
    for number in range(10):
        bench.turn(0.0 if number else POLL_INTERVAL * 1.2)
        assert child.receive() == [keys[number]]
        child.run([keys[number]], SLOW)


def test_quick_types_come_in_batches_of_a_moment_at_the_most(bench: Bench) -> None:
    child = bench.child("w1")
    bench.start()
    teach(bench, child)
    bench.queue.add(2000)
    done: list[str] = []
    for _ in range(60):
        keys = child.receive()
        child.run(keys)
        done += keys
        bench.turn(0.02)
    sizes = [len(batch) for batch in child.batches]
    assert len(done) > 1000
    assert max(sizes) > 50
    assert max(sizes) <= MOMENT / QUICK * 1.01


def test_large_rows_come_in_smaller_batches(bench: Bench) -> None:
    """If the first run of a batch takes long, another child must soon get the other rows."""
    child = bench.child("w1")
    bench.start()
    teach(bench, child)
    keys = bench.queue.add(600, data="x" * LARGE)
    done: list[str] = []
    while len(done) < len(keys):
        came = child.receive()
        child.run(came)
        done += came
        bench.turn(QUICK)
    assert done == keys
    assert 1 < len(child.batches[0]) <= MESSAGE / LARGE
    assert 1 < len(child.batches[-2]) <= MESSAGE / LARGE
    assert bench.queue.limits[-1] < max(bench.queue.limits) / 4, "no more than the child soon gets"


def test_a_slow_type_among_quick_ones_ends_the_batch(bench: Bench) -> None:
    child = bench.child("w1")
    bench.start()
    teach(bench, child)
    before = bench.queue.add(3)
    (slow,) = bench.queue.add(1, "slow")
    bench.queue.add(3)
    bench.turn()
    assert child.receive() == before
    child.run(before)
    bench.turn(0.0)
    assert child.receive() == [slow]


def test_a_batch_is_shared_by_the_free_children(bench: Bench) -> None:
    child = bench.child("w1")
    bench.start()
    teach(bench, child)
    others = [bench.child(f"w{number}") for number in (2, 3, 4)]
    bench.queue.add(40)
    bench.turn()
    sizes = [len(each.receive()) for each in (child, *others)]
    assert sum(sizes) == 40
    assert max(sizes) - min(sizes) <= 1


def test_a_child_gets_a_row_ahead_when_its_run_ends_soon(bench: Bench) -> None:
    child = bench.child("w1")
    bench.start()
    teach(bench, child, "steady", STEADY)
    keys = bench.queue.add(3, "steady")
    bench.turn()
    assert child.receive() == keys[:1]
    bench.turn(STEADY - 0.02)
    assert child.receive() == [], "another child may be free before"
    bench.turn(0.015)
    assert child.receive() == keys[1:2]
    bench.turn(0.004)
    assert child.receive() == [], "one row ahead is enough"
    child.run(keys[:1], STEADY)
    bench.turn(0.001)
    bench.turn(STEADY - 0.005)
    assert child.receive() == keys[2:]


def test_a_busy_child_gets_no_row_ahead_while_rows_are_large(bench: Bench) -> None:
    """The child reads such a row in pieces. If the present run takes longer than expected, the row is late."""
    child = bench.child("w1")
    bench.start()
    teach(bench, child, "steady", STEADY)
    for _ in range(60):
        keys = bench.queue.add(1, "steady", data="x" * LARGE)
        while not (came := child.receive()):
            bench.turn(POLL_INTERVAL * 1.2)
        assert came == keys
        child.run(keys, STEADY)
        bench.turn(0.0)
    keys = bench.queue.add(2, "steady", data="x" * LARGE)
    while not (came := child.receive()):
        bench.turn(POLL_INTERVAL * 1.2)
    assert came == keys[:1]
    for _ in range(6):
        bench.turn(STEADY / 6)
        assert child.receive() == []


def test_a_child_whose_run_takes_longer_than_expected_gets_no_row_ahead(bench: Bench) -> None:
    child = bench.child("w1")
    bench.start()
    teach(bench, child, "steady", STEADY)
    keys = bench.queue.add(2, "steady")
    bench.turn()
    assert child.receive() == keys[:1]
    bench.turn(STEADY + 0.01)
    assert child.receive() == []


def test_a_child_whose_run_may_take_longer_gets_no_row_ahead(bench: Bench) -> None:
    child = bench.child("w1")
    bench.start()
    for seconds in (STEADY / 2, STEADY * 1.5) * 20:
        teach(bench, child, "steady", seconds, 1)
    keys = bench.queue.add(2, "steady")
    bench.turn()
    assert child.receive() == keys[:1]
    bench.turn(STEADY - 0.005)
    assert child.receive() == []


def test_a_child_that_has_returned_a_row_gets_none_ahead(bench: Bench) -> None:
    child = bench.child("w1")
    bench.start()
    teach(bench, child, "steady", STEADY)
    keys = bench.queue.add(2, "steady")
    bench.turn()
    bench.turn(STEADY - 0.005)
    assert child.receive() == keys
    child.return_(keys[1:])
    child.run(keys[1:], 0)
    bench.turn(0.001)
    bench.turn(STEADY - 0.005)
    assert child.receive() == []
    child.run(keys[:1], SLOW)
    bench.turn(0.001)
    assert child.receive() == keys[1:]


def test_rows_keep_their_sections(bench: Bench) -> None:
    first, second = bench.child("w1"), bench.child("w2")
    bench.queue.add(1)
    bench.schedules.add(1, "cron")
    bench.start()
    bench.turn()
    came = [*first.receive(), *second.receive()]
    assert {**first.sections, **second.sections} == {"quick0": "queue", "cron0": "schedules"}
    assert len(came) == 2


def test_sections_with_more_due_rows_than_free_children_take_turns(bench: Bench) -> None:
    child = bench.child("w1")
    bench.schedules.add(50, "cron")
    bench.queue.add(50, "slow")
    bench.start()
    for _ in range(20):
        bench.turn()
        child.run(child.receive(), SLOW)
    assert min(Counter(child.sections.values())[name] for name in ("schedules", "queue")) >= 5


def test_returned_rows_go_before_all_others_in_their_order_and_to_another_child(bench: Bench) -> None:
    first = bench.child("w1")
    bench.start()
    teach(bench, first)
    keys = bench.queue.add(3)
    bench.turn()
    assert first.receive() == keys
    newer = bench.queue.add(2)
    bench.turn()
    first.return_(keys[1:])
    second = bench.child("w2")
    bench.turn(0.0)
    came = second.receive()
    assert came[:2] == keys[1:]
    assert came[2:] == newer[: len(came) - 2]
    assert first.receive() == []


def test_a_returned_row_that_nobody_is_free_for_is_released(bench: Bench) -> None:
    child = bench.child("w1")
    bench.start()
    teach(bench, child)
    keys = bench.queue.add(3)
    bench.turn()
    assert child.receive() == keys
    child.return_(keys[1:])
    bench.turn(0.0)
    assert bench.queue.released == []
    bench.turn(LATER)
    assert sorted(bench.queue.released) == keys[1:]


def add_for_busy_child(bench: Bench, count: int) -> list[str]:
    """Make rows of a new type due. The first of them occupies the only child. Return their keys."""
    child = bench.child("w1")
    bench.start()
    teach(bench, child)
    keys = bench.queue.add(count, "new")
    bench.turn()
    assert child.receive() == keys[:1]
    return keys


def test_rows_that_nobody_is_free_for_are_released_after_a_while(bench: Bench) -> None:
    keys = add_for_busy_child(bench, 10)
    waiting = [key for key in bench.queue.held if key != keys[0]]
    assert waiting
    assert bench.turns.pause <= SOON, "the fetcher is awake in time"
    bench.turn(SOON)
    assert bench.queue.released == []
    bench.turn(LATER - SOON)
    assert bench.queue.released == waiting
    bench.turn(LATER)
    assert bench.queue.released == waiting, "once"
    assert keys[0] in bench.queue.held


def test_newer_rows_are_released_with_an_older_one_and_do_not_overtake_it(bench: Bench) -> None:
    keys = add_for_busy_child(bench, 1)
    older = bench.queue.add(1, "new")
    bench.turn(CALLED)
    newer = bench.queue.add(1, "new")
    bench.turn(SOON)
    assert [key for key in bench.queue.held if key != keys[0]] == [*older, *newer]
    bench.turn(LATER - SOON)
    assert bench.queue.released == [*older, *newer]


def test_when_it_stops_the_fetcher_releases_what_it_has_not_handed_out(bench: Bench) -> None:
    keys = add_for_busy_child(bench, 10)
    bench.stop()
    assert set(bench.queue.held) == set(keys[:1])
    assert bench.queue.released


def test_rows_that_were_returned_to_a_fetcher_that_stops_are_released(bench: Bench) -> None:
    child = bench.child("w1")
    bench.start()
    teach(bench, child)
    keys = bench.queue.add(3)
    bench.turn()
    assert child.receive() == keys
    child.return_(keys[1:])
    bench.stop()
    assert bench.queue.released == keys[1:]


def test_rows_that_a_child_returned_before_it_connected_again_are_not_lost(bench: Bench) -> None:
    child = bench.child("w1")
    bench.start()
    teach(bench, child)
    keys = bench.queue.add(3)
    bench.turn()
    assert child.receive() == keys
    child.return_(keys[1:])
    bench.child("w1", {"queue": keys[:1]}, runs=1)
    bench.turn(0.0)
    bench.stop()
    assert bench.queue.released == keys[1:]


def test_while_no_child_is_free_wake_ups_are_left_to_other_hosts(bench: Bench) -> None:
    child = bench.child("w1")
    wakeup = bench.queue.wakeup = FakeWakeup()
    bench.start()
    bench.turn()
    assert wakeup.is_listening
    assert wakeup.fileno() in bench.turns.descriptors
    keys = bench.queue.add(1, "slow")
    bench.turn(CALLED)
    assert child.receive() == keys
    bench.turn()
    assert not wakeup.is_listening
    assert wakeup.fileno() not in bench.turns.descriptors
    child.run(keys, SLOW)
    bench.turn()
    bench.turn()
    assert wakeup.is_listening


def test_a_large_row_is_sent_on_while_the_fetcher_has_nothing_else_to_do(bench: Bench) -> None:
    child = bench.child("w1")
    row = TaskRow("large", "quick", {"x": "y" * 3_000_000}, "running", 0.0, 0.0)
    bench.queue.due.append(Claim(row, Lease("large", 1, 0.0, claim=CLAIM)))
    bench.start()
    came = child.receive()
    while not came:
        assert bench.turns.pause < 0.1
        bench.turn(bench.turns.pause)
        came = child.receive()
    assert came == ["large"]
    bench.turn()
    assert bench.turns.pause > 1.0


def test_the_fetcher_waits_for_new_children_and_for_messages(bench: Bench) -> None:
    child = bench.child("w1")
    bench.start()
    assert bench.dispatch.fileno() in bench.turns.descriptors
    assert len(bench.turns.descriptors) == 2
    child.connection.close()
    bench.turn()
    assert list(bench.turns.descriptors) == [bench.dispatch.fileno()], "no descriptor that is closed, or ready for ever"


@pytest.mark.parametrize("may_be_due", [False, True])
def test_a_section_is_polled_soon_after_a_settled_run_that_may_have_made_a_row_due(
    bench: Bench, may_be_due: bool
) -> None:
    children = bench.child("w1"), bench.child("w2")
    keys = bench.queue.add(1)
    bench.start()
    (child,) = (each for each in children if each.receive() == keys)
    bench.turn(60.0)
    assert bench.turns.pause > POLL_INTERVAL / 2
    child.settle(keys, may_be_due)
    bench.turn(0.0)
    assert (bench.turns.pause < POLL_INTERVAL / 2) == may_be_due


def test_the_rows_of_a_dead_child_are_given_back_when_its_successor_reports_it(bench: Bench) -> None:
    first = bench.child("w1")
    bench.start()
    teach(bench, first)
    keys = bench.queue.add(3)
    bench.turn()
    assert first.receive() == keys
    first.settle(keys[:1])
    bench.queue.settle(keys[:1])
    first.connection.close()
    bench.turn()
    assert bench.queue.given_back == []
    again = bench.child("w2", dead=[DeadChild(HOLDER, (f"queue:{keys[1]}",), "killed", "w1")])
    bench.turn()
    assert bench.queue.given_back == [(HOLDER, set(keys[1:]))]
    assert keys[1] not in bench.queue.held
    bench.turn()
    again.receive()
    assert again.messages == [["recovered"]]
    assert bench.recovered == 0, "the successor reports it itself"


def test_rows_are_not_given_to_a_child_that_is_gone(bench: Bench) -> None:
    child = bench.child("w1")
    bench.start()
    child.connection.close()
    bench.queue.add(1)
    bench.turn()
    bench.turn()
    assert bench.queue.held == {}


def test_the_leases_of_a_dead_single_child_are_all_given_back(bench: Bench) -> None:
    bench.start(dead=[DeadChild("host/w1/7", ("queue:a",), "killed")])
    assert bench.queue.given_back == [("host/w1/7", None)]
    assert bench.recovered == 1


def test_of_a_child_of_an_earlier_configuration_only_the_runs_are_given_back(bench: Bench) -> None:
    bench.start(dead=[DeadChild("host/node/0", ("queue:a",), "killed", "w1", (CLAIM,))])
    assert bench.queue.given_back == [("host/node/0", {"a"})]
    assert bench.schedules.given_back == []


def test_a_sweep_waits_until_each_living_sibling_has_reported_its_rows(bench: Bench) -> None:
    bench.queue.held = {key: cast("Claim", None) for key in ("of1", "of2", "lost")}
    bench.child("w1", {"queue": ["of1"]})
    bench.start(dead=[DeadChild(HOLDER, (), "killed", "w0")], siblings=["w1", "w2"])
    for _ in range(3):
        bench.turn(SWEPT)
    assert bench.queue.given_back == []
    assert bench.recovered == 0
    bench.child("w2", {"queue": ["of2"]})
    bench.turn()
    assert set(bench.queue.held) == {"of1", "of2"}
    assert bench.recovered == 1


def test_a_sweep_does_not_wait_for_a_sibling_that_has_died(bench: Bench) -> None:
    bench.queue.held = {"lost": cast("Claim", None)}
    bench.start(dead=[DeadChild(HOLDER, (), "killed", "w0")], siblings=["w1"])
    bench.turn()
    assert bench.queue.given_back == []
    bench.child("w2", dead=[DeadChild(HOLDER, (), "killed", "w1")])
    for _ in range(3):
        bench.turn()
    assert bench.queue.held == {}


def test_a_sweep_does_not_wait_for_a_sibling_that_ended_without_a_report(bench: Bench) -> None:
    """The sibling was leaving when the earlier fetcher died, or it never started."""
    bench.queue.held = {key: cast("Claim", None) for key in ("of2", "lost")}
    bench.start(dead=[DeadChild(HOLDER, (), "killed", "w0")], siblings=["w1", "w2"])
    bench.child("w3", siblings=[FETCHER, "w2"])
    bench.turn()
    assert set(bench.queue.held) == {"of2", "lost"}
    bench.child("w2", {"queue": ["of2"]})
    bench.turn()
    assert set(bench.queue.held) == {"of2"}


def test_a_child_that_ended_before_the_fetcher_began_knows_nothing_of_later_siblings(bench: Bench) -> None:
    bench.queue.held = {key: cast("Claim", None) for key in ("of2", "lost")}
    bench.child("w1", siblings=["w0"]).connection.close()
    bench.start(dead=[DeadChild(HOLDER, (), "killed", "w0")], siblings=["w2"])
    bench.turn()
    assert set(bench.queue.held) == {"of2", "lost"}


def test_a_sweep_waits_for_the_report_of_a_child_that_has_just_connected_again(bench: Bench) -> None:
    bench.queue.held = {"mine": cast("Claim", None)}
    bench.child("w1", {"queue": ["mine"]})
    bench.start(dead=[DeadChild(HOLDER, (), "killed", "w0", is_fetcher=True)], siblings=["w1"])
    bench.turn()
    again = bench.dispatch.connect("w1")
    bench.turn(SWEPT)
    assert set(bench.queue.held) == {"mine"}
    again.send(("hello", {"queue": [("mine", CLAIM)]}, 1, (), 1, ()))
    bench.queue.held["late"] = cast("Claim", None)
    bench.turn()
    assert set(bench.queue.held) == {"mine"}
    again.close()


def test_the_rows_of_a_dead_child_do_not_wait_for_a_sweep(bench: Bench) -> None:
    bench.queue.held = {key: cast("Claim", None) for key in ("of1", "of2")}
    bench.child("w1", {"queue": ["of1"]})
    bench.start(dead=[DeadChild(HOLDER, (), "killed", "w0")], siblings=["w1", "w2"])
    bench.child("w3", dead=[DeadChild(HOLDER, ("queue:of1",), "killed", "w1", (CLAIM,))])
    bench.turn()
    assert set(bench.queue.held) == {"of2"}


def test_a_run_that_killed_its_worker_is_released_as_such_before_a_sweep(bench: Bench) -> None:
    bench.queue.held = {"killer": cast("Claim", None)}
    bench.start(dead=[DeadChild(HOLDER, (), "killed", "w0", is_fetcher=True)], siblings=["w1"])
    bench.child("w2", dead=[DeadChild(HOLDER, ("queue:killer",), "killed", "w1", (CLAIM,))])
    bench.turn()
    assert bench.queue.suspects == ["killer"]


def test_a_sweep_leaves_the_rows_that_the_fetcher_has_acquired_itself(bench: Bench) -> None:
    child = bench.child("w1")
    bench.start(dead=[DeadChild(HOLDER, (), "killed", "w0")], siblings=["w1", "w2"])
    teach(bench, child)
    keys = bench.queue.add(10, "new")
    bench.turn()
    assert child.receive() == keys[:1]
    own = set(bench.queue.held)
    assert len(own) > 1
    bench.queue.held["lost"] = cast("Claim", None)
    bench.child("w2", {"queue": []})
    bench.turn(0.0)
    assert "lost" not in bench.queue.held
    assert own <= set(bench.queue.held)


def test_a_second_sweep_finds_what_a_late_statement_of_the_dead_fetcher_has_acquired(bench: Bench) -> None:
    bench.queue.held = {"mine": cast("Claim", None)}
    bench.child("w1", {"queue": ["mine"]})
    bench.start(dead=[DeadChild(HOLDER, (), "killed", "w0")], siblings=["w1"])
    bench.turn()
    bench.queue.held["late"] = cast("Claim", None)
    bench.turn()
    assert set(bench.queue.held) == {"mine", "late"}
    bench.turn(SWEPT)
    assert set(bench.queue.held) == {"mine"}
    bench.queue.held["later"] = cast("Claim", None)
    bench.turn(SWEPT)
    bench.turn(SWEPT)
    assert set(bench.queue.held) == {"mine", "later"}, "there is no third"
    assert bench.recovered == 1


def test_a_returned_row_that_an_earlier_fetcher_gave_is_handed_out_again(bench: Bench) -> None:
    (key,) = bench.queue.add(1)
    child = bench.child("w1", {"queue": [key]})
    bench.queue.held[key] = child.claims[key] = bench.queue.due.pop()
    child.sections[key] = "queue"
    bench.start(siblings=["w1"])
    child.return_([key])
    bench.turn()
    assert child.receive() == [key]


def test_a_returned_row_that_its_child_did_not_report_is_left_to_the_sweep(bench: Bench) -> None:
    child = bench.child("w1")
    (key,) = bench.queue.add(1)
    bench.queue.held[key] = child.claims[key] = bench.queue.due.pop()
    child.sections[key] = "queue"
    bench.start(dead=[DeadChild(HOLDER, (), "killed", "w0")], siblings=["w1"])
    bench.turn()
    assert bench.queue.held == {}, "the sweep has released it: another host may run it"
    child.return_([key])
    bench.turn()
    assert child.receive() == []


def test_a_recovery_that_fails_is_logged_and_tried_again(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.queue.held = {"lost": cast("Claim", None)}
    bench.queue.fails = True
    with caplog.at_level(logging.WARNING):
        bench.start(dead=[DeadChild(HOLDER, (), "killed", "w0")])
        bench.turn()
    assert "releasing the leases of dead children failed: nobody answers; retrying" in caplog.text
    assert bench.recovered == 0
    assert bench.turns.pause < 0.5
    bench.queue.fails = False
    bench.turn()
    assert bench.queue.held == {}
    assert bench.recovered == 1


def test_a_child_that_connects_again_keeps_its_rows(bench: Bench) -> None:
    child = bench.child("w1")
    keys = bench.queue.add(1)
    bench.start()
    assert child.receive() == keys
    child.connection.close()
    bench.child("w1", {"queue": keys})
    bench.turn()
    successor = bench.child("w2", dead=[DeadChild(HOLDER, (), "killed", "w1")])
    bench.turn()
    assert bench.queue.given_back == [(HOLDER, set(keys))]
    successor.receive()


def test_what_is_no_message_of_a_child_is_a_bug(bench: Bench) -> None:
    bench.start()
    fetcher = bench.fetcher
    assert fetcher is not None
    with pytest.raises(ValueError, match="not a message of a handler child"):
        fetcher._obey("w1", cast("Any", None), ("nonsense",))


def test_rows_that_a_leaving_child_does_not_take_go_to_another(bench: Bench) -> None:
    leaving = bench.child("w1")
    bench.start()
    assert list(leaving.connection.receive_last()) == []
    keys = bench.queue.add(1)
    bench.turn()
    other = bench.child("w2")
    bench.turn(0.0)
    assert other.receive() == keys


@pytest.mark.parametrize("leaves", [True, False], ids=["left", "connected again"])
def test_a_row_of_which_a_child_received_only_a_part_goes_to_another(bench: Bench, leaves: bool) -> None:
    child = bench.child("w1")
    bench.start()
    keys = bench.queue.add(1, data="x" * 3_000_000)
    bench.turn()
    if leaves:
        child.connection.send(("left",))
    assert list(child.connection.receive_last()) == []
    if not leaves:
        bench.child("w1", runs=1)
    other = bench.child("w2")
    came: list[str] = []
    for _ in range(100):
        bench.turn(0.0)
        came += other.receive()
    assert came == keys
    assert bench.queue.released == []


@pytest.mark.parametrize("leaves", [True, False], ids=["left", "died"])
def test_the_last_messages_of_a_child_arrive_though_a_row_could_not_be_sent_to_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, leaves: bool
) -> None:
    child = bench.child("w1")
    bench.start()
    teach(bench, child)
    keys = bench.queue.add(3)
    bench.turn()
    assert child.receive() == keys
    child.run(keys)
    bench.turn(0.0)
    fetch = bench.queue.source.fetch_multi

    def leave_meanwhile(*args: object, **kwargs: object) -> object:
        child.return_(keys)
        if leaves:
            child.connection.send(("left",))
        assert list(child.connection.receive_last()) == []
        return fetch(*args, **kwargs)

    newer = bench.queue.add(1)
    with monkeypatch.context() as patch:
        patch.setattr(bench.queue.source, "fetch_multi", leave_meanwhile)
        bench.turn()
    other = bench.child("w2")
    bench.turn(0.0)
    came = other.receive()
    assert came == [*keys, *newer]
    bench.turn(0.0)
    assert bench.fetcher is not None
    assert [each.pid for each in bench.fetcher.processes()] == [1] * (1 if leaves else 2)


def test_a_child_that_has_left_is_forgotten(bench: Bench) -> None:
    child = bench.child("w1")
    bench.start()
    child.connection.send(("left",))
    bench.turn()
    assert bench.fetcher is not None
    assert not bench.fetcher._children


def test_a_child_that_reports_a_run_in_progress_is_free_when_that_has_ended(bench: Bench) -> None:
    child = bench.child("w1", {"queue": ["old"]}, runs=1)
    keys = bench.queue.add(1)
    bench.start(siblings=["w1"])
    bench.turn()
    assert child.receive() == []
    child.connection.send(("ended", "queue", 1, {"quick": (1, QUICK)}))
    bench.turn()
    assert child.receive() == keys


def test_a_row_that_was_returned_and_did_not_begin_does_not_count_as_a_quick_run(bench: Bench) -> None:
    child = bench.child("w1")
    bench.start()
    bench.queue.add(30, "new")
    for _ in range(30):
        keys = child.receive()
        child.run(keys, 0.0)
        bench.turn(0.0 if keys else POLL_INTERVAL * 1.2)
    assert {len(batch) for batch in child.batches} == {1}
    assert len(child.batches) > 10


def test_a_child_gets_nothing_before_it_has_reported(bench: Bench) -> None:
    connection = bench.dispatch.connect("w1")
    bench.queue.add(1)
    bench.start()
    bench.turn()
    assert list(connection.receive()) == []
    connection.send(("hello", {}, 0, (), 1, ()))
    bench.turn()
    assert len(list(connection.receive())) == 1
    connection.close()
