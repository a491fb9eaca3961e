"""The types that a poll passes to the store, and how often it asks which types have rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import cast

import pytest

from psched.acquisition.task_source import TaskSource
from psched.acquisition.types_with_rows import TypesWithRows
from psched.store.type_filter import TypeFilter


class Table:
    """A fake store with the source that polls it. It records the calls."""

    def __init__(self, keeps_types: bool = True) -> None:
        self.keeps_types = keeps_types
        self.heads: dict[str, float] = {}
        self.looks = 0
        self.asked: list[Collection[str]] = []
        self.named: list[Collection[str] | None] = []
        self.accepts: Callable[[str], bool] | None = None
        self.now = 0.0
        self.store = self

    def of(self, wanted: TypeFilter) -> TypesWithRows:
        return TypesWithRows(cast("TaskSource", self), wanted, lambda: self.now)

    def due_by_type(self) -> dict[str, float]:
        self.looks += 1
        return self.heads

    def next_due(
        self, types: Collection[str] | None = None, accepts: Callable[[str], bool] | None = None
    ) -> float | None:
        self.accepts = accepts
        if types is None:
            return 7.0
        self.asked.append(types)
        return min((self.heads[type_] for type_ in types if type_ in self.heads), default=None)

    def acquire(self, types: TypesWithRows) -> None:
        """Ask which types to acquire, as a poll does."""
        named, self.accepts = types.to_acquire()
        self.named.append(named)


@pytest.fixture
def table() -> Table:
    return Table()


def test_one_that_takes_everything_names_nothing_and_asks_for_no_types(table: Table) -> None:
    types = table.of(TypeFilter())
    table.acquire(types)
    assert types.next_due() == 7.0
    assert (table.named, table.looks, table.accepts) == ([None], 0, None)


def test_where_types_are_no_column_a_test_is_handed_on() -> None:
    table = Table(keeps_types=False)
    types = table.of(TypeFilter(("a",)))
    for ask in (lambda: table.acquire(types), types.next_due):
        table.accepts = None
        ask()
        assert table.accepts is not None
        assert (table.accepts("a"), table.accepts("b")) == (True, False)
    assert (table.named, table.looks) == ([None], 0)


def test_the_wait_is_that_of_the_types_that_are_taken(table: Table) -> None:
    table.heads = {"foreign": 0.0, "a": 4.0, "b": 3.0}
    assert table.of(TypeFilter((re.compile("[ab]"),))).next_due() == 3.0
    assert table.of(TypeFilter(("none",))).next_due() is None


def test_exact_names_are_named_whether_they_have_rows_or_not(table: Table) -> None:
    table.acquire(table.of(TypeFilter(("b", "a", re.compile("c")))))
    assert table.named == [("a", "b")]
    assert table.looks == 0


@pytest.mark.parametrize(
    "wanted",
    [TypeFilter(("b", "a")), TypeFilter(None, ("a", "b")), TypeFilter(("a", "b", "c.d"), ("[ab]",))],
    ids=["routes", "served", "both"],
)
def test_a_worker_that_accepts_exact_names_only_asks_for_these_and_looks_for_no_others(
    table: Table, wanted: TypeFilter
) -> None:
    types = table.of(wanted)
    table.heads = {"foreign": 0.0, "a": 4.0, "b": 3.0}
    for _ in range(5):
        assert types.next_due() == 3.0
        table.acquire(types)
        table.acquire(types)
    assert (table.asked, table.looks) == ([("a", "b")] * 5, 0)
    assert table.named == [("a", "b")] * 10


def test_many_exact_names_are_asked_for_once_there_are_far_more_other_types(table: Table) -> None:
    types = table.of(TypeFilter(tuple(f"type{n:03}" for n in range(500))))
    table.heads = {f"foreign{n}": 0.0 for n in range(900)}
    for _ in range(3):
        assert types.next_due() is None
    assert (table.looks, table.asked) == (3, [])
    table.heads |= {f"further{n}": 0.0 for n in range(900)} | {"type007": 2.0}
    for _ in range(3):
        assert types.next_due() == 2.0
    table.acquire(types)
    assert (table.looks, len(table.asked)) == (4, 2)
    assert {len(names) for names in [*table.asked, *table.named]} == {500}


def test_a_busy_worker_asks_for_its_names_every_two_seconds(table: Table) -> None:
    types = table.of(TypeFilter(("a",)))
    types.next_due()
    for _ in range(30):
        table.acquire(types)
        table.now += 0.1
    assert (len(table.asked), table.looks) == (2, 0)


def test_a_worker_that_accepts_names_and_more_looks_for_types(table: Table) -> None:
    table.heads = {"b1": 3.0}
    for wanted in (TypeFilter(("a", re.compile("^b"))), TypeFilter(None, ("a", "b*"))):
        assert table.of(wanted).next_due() == 3.0
    assert (table.asked, table.looks) == ([], 2)


@pytest.mark.parametrize("more", [(), (re.compile("^b"),)], ids=["exact", "beside an expression"])
def test_many_names_are_named_once_they_have_rows(table: Table, more: tuple[re.Pattern[str], ...]) -> None:
    types = table.of(TypeFilter((*(f"type{n}" for n in range(500)), *more)))
    table.heads = {"type7": 0.0, "foreign": 0.0}
    types.next_due()
    table.acquire(types)
    assert table.named == [("type7",)]


def test_a_busy_worker_looks_for_new_types_every_two_seconds(table: Table) -> None:
    types = table.of(TypeFilter((re.compile("."),)))
    table.heads = {"old": 0.0}
    types.next_due()
    table.heads["new"] = 0.0
    for _ in range(30):
        table.acquire(types)
        table.now += 0.1
    assert table.looks == 2
    assert table.named[0] == ("old",)
    assert table.named[-1] == ("new", "old")


def test_the_first_acquire_after_a_rest_asks_nothing_else(table: Table) -> None:
    types = table.of(TypeFilter((re.compile("."),)))
    types.next_due()
    table.now += 100
    table.acquire(types)
    assert table.looks == 1


def test_looking_takes_a_small_share_of_a_busy_workers_time(table: Table) -> None:
    types = table.of(TypeFilter((re.compile("."),)))
    look = table.due_by_type

    def slow() -> dict[str, float]:
        table.now += 1.0
        return look()

    table.due_by_type = slow  # type: ignore[method-assign]
    types.next_due()
    for _ in range(600):
        table.acquire(types)
        table.now += 0.1
    assert table.looks <= 4
