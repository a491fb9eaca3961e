"""Acquires without an answer are remembered for as long as they may hold rows, an outage as one span."""

from __future__ import annotations

from psched.backends.redis.numbers import Numbers


def test_an_outage_is_one_span_however_often_it_was_tried() -> None:
    numbers = Numbers()
    first = numbers.next()
    numbers.unanswered(first, end=10)
    for end in range(11, 1000):
        numbers.unanswered(numbers.next(), end)
    assert numbers.to_be_undone(now=500) == [first, first + 989]


def test_what_was_answered_in_between_is_not_undone() -> None:
    numbers = Numbers()
    lost, answered, lost_again = numbers.next(), numbers.next(), numbers.next()
    numbers.unanswered(lost, end=10)
    numbers.unanswered(lost_again, end=20)
    assert numbers.to_be_undone(now=5) == [lost, lost, lost_again, lost_again]
    assert answered not in (lost, lost_again)


def test_what_holds_nothing_any_more_is_forgotten() -> None:
    numbers = Numbers()
    numbers.unanswered(numbers.next(), end=10)
    assert numbers.to_be_undone(now=10) == []
    assert numbers.next() < 2**53, "Lua would not tell them apart"
