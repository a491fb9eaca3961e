"""Rows that another program wrote: they are reported as unreadable, and never stop other rows."""

from __future__ import annotations

from typing import Any

import pytest

from psched.model import ScheduleRow
from psched.store import ScheduleStore
from tests.stores.bench import LONG_AGO, Bench, soon

UNREADABLE = ["{broken", "[1, 2]", '"text"', "", '{"a": NaN}', "null"]
"""Values that each database stores, but that no handler may get. PerfectSched reads what it cannot parse as `{}`."""

FORGIVEN: list[bytes] = [b"{broken", b"[1, 2]", b"", b"null", b"\xff\xfe", b"--- yaml", b'{"a": ']

SQLITE_STORES_ANYTHING: dict[str, list[dict[str, Any]]] = {
    "rdb": [
        {"next_time": "soon"},
        {"delay_ms": "later"},
        {"next_time": 10**18},
        {"data": b"\xff\xfe"},
        {"cron": b"\xff"},
        {"timezone": b"\xff"},
    ],
    "rdb_compat": [
        {"next_time": "soon"},
        {"delay": "later"},
        {"next_time": 10**18},
        {"cron": b"\xff"},
        {"timezone": b"\xff"},
    ],
}


def test_data_that_is_no_object_is_a_problem_of_its_row_alone(bench: Bench, store: ScheduleStore) -> None:
    if bench.compat:
        return  # it reads such data as {}, see below
    for data in UNREADABLE:
        bench.fill(store, ["bad", "good"], lambda i: LONG_AGO + i)
        bench.write("bad", data=data)
        see_that_the_neighbour_runs(bench, store)
        store.delete("good")


def test_the_originals_table_reads_unparsable_data_as_empty(bench: Bench, store: ScheduleStore) -> None:
    if not bench.compat:
        return  # a problem there, see above
    bench.add(store, "kind.of.key")
    for data in FORGIVEN:
        bench.write("kind.of.key", data=data)
        row = next(iter(store.list()))
        assert (row.data, row.type, row.problem) == ({}, "kind", None), data
    row_claimed = bench.take(store, "kind.of.key").row
    assert (row_claimed.data, row_claimed.type, row_claimed.problem) == ({}, "kind", None)


@pytest.mark.parametrize("number", range(6))
def test_columns_of_a_wrong_kind_are_a_problem_of_their_row_alone(tmp_path: Any, number: int) -> None:
    """Only SQLite stores such rows."""
    for type_, writes in SQLITE_STORES_ANYTHING.items():
        if number >= len(writes):
            continue
        bench = Bench(type_, f"sqlite:///{tmp_path}/{type_}.db")
        try:
            store = bench.open()
            store.create_tables()
            bench.fill(store, ["bad", "good"], lambda i: LONG_AGO + i)
            ((column, value),) = writes[number].items()
            bench.execute(f"UPDATE {{table}} SET {column} = :value WHERE {bench.columns.key} = 'bad'", value=value)
            see_that_the_neighbour_runs(bench, store)
        finally:
            bench.close()


def see_that_the_neighbour_runs(bench: Bench, store: ScheduleStore) -> None:
    """Check that the good row runs, and that the bad row has a problem, is listed, and can be retried (or is left)."""
    before = bench.raw("bad")
    claims = {claim.row.key: claim for claim in store.acquire(10, 100)}
    assert claims["good"].row.problem is None
    if bench.compat:
        assert bench.raw("bad") == before, "it may be somebody else's who can run it"
    else:
        assert claims["bad"].row.problem, "a row that cannot be run says why"
        store.retry(claims["bad"].lease, 100, claims["bad"].row.problem, soon())
    assert [problem_of(row) for row in sorted(store.list(), key=lambda row: row.key)] == [True, False]
    row = store.get("bad")
    assert row is not None
    assert problem_of(row)
    assert store.extend([claims["good"].lease], 100) != [None]
    store.delete("bad")


def problem_of(row: ScheduleRow) -> bool:
    return row.problem is not None
