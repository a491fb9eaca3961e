"""A delete whose answer was lost is sent again, but spares a row that was created with the same key meanwhile.

A delete that met a conflict has done nothing: it starts again, with the rows that exist then.
"""

from __future__ import annotations

import pytest

from psched.errors import NotFoundError
from psched.store import ScheduleStore
from tests.stores.bench import Bench
from tests.stores.databases import SQL_PAIRS
from tests.stores.lost_answers import answer_lost, conflict_before_delete, writes_of


@pytest.mark.parametrize("anew", [True, False], ids=["created anew", "gone"])
def test_what_was_created_since_stays(bench: Bench, store: ScheduleStore, other: ScheduleStore, anew: bool) -> None:
    for key in ("rehearsed", "key"):
        bench.add(store, key)
    number = writes_of(lambda: store.delete("rehearsed"))
    with answer_lost(bench.database, number, lambda: bench.add(other, "key", data={"theirs": 1}) if anew else None):
        store.delete("key")
    row = store.get("key")
    assert (row and row.data) == ({"theirs": 1} if anew else None)


def test_what_was_deleted_by_somebody_else_is_not_found(
    bench: Bench, store: ScheduleStore, other: ScheduleStore
) -> None:
    bench.add(store, "key")
    other.delete("key")
    with pytest.raises(NotFoundError):
        store.delete("key")


@pytest.mark.parametrize("bare", SQL_PAIRS, indirect=True, ids="-".join)
def test_what_another_client_deletes_while_a_conflict_is_waited_out_is_not_found(
    bench: Bench, store: ScheduleStore, other: ScheduleStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.add(store, "key")
    with (
        conflict_before_delete(bench.database, store, monkeypatch, lambda: other.delete("key")),
        pytest.raises(NotFoundError),
    ):
        store.delete("key")


@pytest.mark.parametrize("bare", SQL_PAIRS, indirect=True, ids="-".join)
def test_what_is_created_while_a_conflict_is_waited_out_is_what_is_deleted(
    bench: Bench, store: ScheduleStore, other: ScheduleStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def create_anew() -> None:
        other.delete("key")
        bench.add(other, "key", data={"theirs": 1})

    bench.add(store, "key")
    with conflict_before_delete(bench.database, store, monkeypatch, create_anew):
        store.delete("key")
    assert store.get("key") is None
