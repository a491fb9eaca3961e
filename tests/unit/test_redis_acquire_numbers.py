"""Acquires without an answer are remembered for as long as they may hold rows. An outage is remembered as one range."""

from __future__ import annotations

import os

from psched.backends.redis.lease_store import AcquireNumbers


def test_an_outage_is_one_span_however_often_it_was_tried() -> None:
    numbers = AcquireNumbers()
    first = numbers.next()
    numbers.unanswered(first, end=10)
    for end in range(11, 1000):
        numbers.unanswered(numbers.next(), end)
    assert numbers.to_be_undone(now=500) == [first, first + 989]


def test_what_was_answered_in_between_is_not_undone() -> None:
    numbers = AcquireNumbers()
    lost, answered, lost_again = numbers.next(), numbers.next(), numbers.next()
    numbers.unanswered(lost, end=10)
    numbers.unanswered(lost_again, end=20)
    assert numbers.to_be_undone(now=5) == [lost, lost, lost_again, lost_again]
    assert answered not in (lost, lost_again)


def test_what_holds_nothing_any_more_is_forgotten() -> None:
    numbers = AcquireNumbers()
    numbers.unanswered(numbers.next(), end=10)
    assert numbers.to_be_undone(now=10) == []
    assert numbers.next() < 2**53, "Lua would not tell them apart"


def test_a_process_that_was_forked_off_has_numbers_of_its_own_and_undoes_none_of_its_parents() -> None:
    numbers = AcquireNumbers()
    numbers.unanswered(numbers.next(), end=10)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, f"{numbers.next()} {numbers.to_be_undone(now=5)}".encode())
        os._exit(0)
    number, _, undone = os.read(reading, 100).decode().partition(" ")
    os.waitpid(child, 0)
    os.close(reading)
    os.close(writing)
    assert int(number) != numbers.next()
    assert undone == "[]"
