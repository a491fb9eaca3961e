"""A watermark never moves back, and only one node at a time may report by it."""

from __future__ import annotations

from typing import Any

import pytest

from psched.backends.sql.dialect import Dialect
from psched.keys import MAX_KEY_LENGTH
from psched.store import ScheduleStore
from psched.store.delivery_watermarks import Watermark, Watermarks
from tests.stores.bench import Bench, eventually
from tests.stores.databases import KINDS


@pytest.fixture
def marks(store: ScheduleStore) -> Watermarks:
    assert store.watermarks is not None
    return store.watermarks


def found(marks: Watermarks) -> list[tuple[str, float, str]]:
    return [(mark.name, mark.position, mark.detail) for mark in marks.page("trouble", "", 10)]


def test_a_mark_is_made_once_and_only_moves_up(store: ScheduleStore, marks: Watermarks) -> None:
    before = store.now()
    marks.raise_to("trouble", "kéy:1", 1_600_000_000.5, 'late "t"')
    [first] = marks.page("trouble", "", 10)
    assert before - 0.01 <= first.since <= store.now() + 0.01
    marks.raise_to("trouble", "kéy:1", 1_500_000_000, "other")
    assert found(marks) == [("kéy:1", 1_600_000_000.5, 'late "t"')]
    marks.raise_to("trouble", "kéy:1", 1_700_000_000, 'failed "t"')
    assert found(marks) == [("kéy:1", 1_700_000_000.0, 'failed "t"')]
    assert marks.page("trouble", "", 10)[0].since == first.since


def test_a_mark_has_room_for_the_longest_type(marks: Watermarks) -> None:
    detail = "failed " + MAX_KEY_LENGTH * "é"
    marks.raise_to("trouble", "key", 1, detail)
    assert found(marks) == [("key", 1, detail)]


@pytest.mark.parametrize("bare", KINDS, indirect=True)  # on Redis this is one script
def test_a_mark_that_another_node_makes_at_the_same_time_is_raised(
    store: ScheduleStore, other: ScheduleStore, marks: Watermarks, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert = Dialect.insert_one

    def insert_after_the_other(*given: Any) -> bool:
        monkeypatch.setattr(Dialect, "insert_one", insert)
        assert other.watermarks is not None
        other.watermarks.raise_to("trouble", "key", 1, "late t")
        return insert(*given)

    monkeypatch.setattr(Dialect, "insert_one", insert_after_the_other)
    marks.raise_to("trouble", "key", 2, "failed t")
    assert found(marks) == [("key", 2, "failed t")]


def test_marks_are_paged_by_name_and_kind(marks: Watermarks) -> None:
    for name in ("b", "a", "c"):
        marks.raise_to("trouble", name, 1)
    marks.raise_to("events", "a", 2)
    assert [mark.name for mark in marks.page("trouble", "", 2)] == ["a", "b"]
    assert [mark.name for mark in marks.page("trouble", "b", 2)] == ["c"]
    assert [mark.position for mark in marks.page("events", "", 2)] == [2]


def test_one_claimer_alone_reports_until_its_claim_ends(bench: Bench, store: ScheduleStore, marks: Watermarks) -> None:
    other = bench.open().watermarks
    assert other is not None
    marks.raise_to("trouble", "key", 1)
    [mark] = marks.page("trouble", "", 10)
    assert [marks.claim(mark, "one", 100), other.claim(mark, "two", 100), marks.claim(mark, "one", 0.1)] == [
        True,
        False,
        True,
    ]
    assert eventually(lambda: other.claim(mark, "two", 100))
    assert not marks.claim(mark, "one", 100)


def test_a_mark_that_moved_is_neither_claimed_nor_removed(marks: Watermarks) -> None:
    marks.raise_to("trouble", "key", 1)
    [mark] = marks.page("trouble", "", 10)
    marks.raise_to("trouble", "key", 2)
    assert not marks.claim(mark, "one", 100)
    marks.remove(mark)
    assert found(marks) == [("key", 2, "")]
    marks.remove(marks.page("trouble", "", 10)[0])
    assert found(marks) == []
    assert not marks.claim(Watermark("trouble", "gone", 1, "", 1), "one", 100)
