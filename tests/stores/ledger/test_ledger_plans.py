"""The cost of a ledger with many entries: each statement uses an index and reads few rows (Redis: few commands)."""

from __future__ import annotations

from itertools import islice

import pytest

from psched.store import ScheduleStore
from psched.store.ledger import Definition, Ledger, LedgerFilter
from tests.stores.bench import FAR_OFF, LONG_AGO, Bench, soon
from tests.stores.databases import DATABASES
from tests.stores.statements import watched
from tests.stores.test_plans import analyse, see_that_few_rows_were_read, stop_analysing

pytestmark = pytest.mark.new_table

KEYS, EACH = 30, 200


@pytest.fixture
def full(bench: Bench, store: ScheduleStore, ledger: Ledger) -> Ledger:
    """A ledger with 200 entries for each of 30 keys, of which a few have failed, and with the changes of 3,000 keys."""
    stop_analysing(bench)
    bench.add(store, "key")
    store.advance(bench.take(store, "key"), FAR_OFF, FAR_OFF, soon())
    bench.rows.copy_entry(entry(k, n) for k in range(KEYS) for n in range(EACH))
    bench.rows.copy_change({"key": f"key{k:04}"} for k in range(3000))
    return ledger


def entry(k: int, n: int) -> dict[str, object]:
    time = (LONG_AGO + n) * 1000
    return {"key": f"key{k:04}", "scheduled_time": time, "ended": time + k, "trouble": int(n % 50 == 0)}


def of_a_key(ledger: Ledger) -> None:
    assert len(list(ledger.rows(LedgerFilter(key="key0007")))) == EACH


def of_a_key_in_a_span(ledger: Ledger) -> None:
    wanted = LedgerFilter(key="key0007", since=LONG_AGO + 10, until=LONG_AGO + 19)
    assert len(list(ledger.rows(wanted))) == 10


def before(ledger: Ledger) -> None:
    [entry] = ledger.rows(LedgerFilter(key="key0007", since=LONG_AGO, until=LONG_AGO))
    wanted = {Definition(f"key{n:04}", entry.version) for n in range(5, 10)}
    assert ledger.rows_before(LONG_AGO + 100, wanted).keys() == wanted
    assert ledger.rows_before(LONG_AGO + 20, {each._replace(version=entry.version + 1) for each in wanted}) == {}


def failures(ledger: Ledger) -> None:
    assert len(list(ledger.rows(LedgerFilter(failed=True, since=LONG_AGO)))) == KEYS * EACH // 50


def recent(ledger: Ledger) -> None:
    assert len(list(ledger.rows(LedgerFilter(since=LONG_AGO + 199, until=LONG_AGO + 200)))) == KEYS


def last(ledger: Ledger) -> None:
    assert len(list(ledger.rows(LedgerFilter(last=10)))) == 10


def last_failures(ledger: Ledger) -> None:
    assert len(list(ledger.rows(LedgerFilter(failed=True, last=10)))) == 10


def last_of_a_key(ledger: Ledger) -> None:
    assert len(list(ledger.rows(LedgerFilter(key="key0007", last=10)))) == 10


def last_of_some_keys(ledger: Ledger) -> None:
    found = ledger.last_rows([f"key{n:04}" for n in range(5)], 10)
    assert [len(rows) for rows in found.values()] == [10] * 5


def first_of_some_keys(ledger: Ledger) -> None:
    found = ledger.first_rows([f"key{n:04}" for n in range(5)], 10, LONG_AGO + 50, LONG_AGO + 150)
    assert [len(rows) for rows in found.values()] == [10] * 5


def changes(ledger: Ledger) -> None:
    found = ledger.changes_of([f"key{n:04}" for n in range(5)])
    assert [len(rows) for rows in found.values()] == [1] * 5


def next_keys(ledger: Ledger) -> None:
    assert ledger.next_keys(["key0007", "key0100"]) == {"key0007": "key0008", "key0100": "key0101"}


def run_times(ledger: Ledger) -> None:
    wanted = {Definition(f"key{n:04}", ledger.changes(f"key{n:04}")[0].version) for n in range(10)}
    assert ledger.run_times(wanted | {Definition("key0001", 1)}).keys() == wanted


def keys(ledger: Ledger) -> None:
    assert len(list(islice(ledger.keys(), 20))) == 20


def trim_nothing(ledger: Ledger) -> None:
    assert not ledger.trim(1e9, 10_000, 100, "key0007")


def trim_old(ledger: Ledger) -> None:
    assert ledger.trim(1000, 10_000, 50, None)


def trim_many(ledger: Ledger) -> None:
    assert ledger.trim(1e9, 50, 60, "key0007")


READS = (
    of_a_key,
    of_a_key_in_a_span,
    before,
    failures,
    recent,
    last,
    last_failures,
    last_of_a_key,
    last_of_some_keys,
    first_of_some_keys,
    changes,
    keys,
    next_keys,
    run_times,
)
VERBS = (*READS, trim_nothing, trim_old, trim_many)


@pytest.mark.parametrize("bare", DATABASES, indirect=True)
def test_the_next_keys_are_found_even_if_the_statistics_know_one_key(bench: Bench, store: ScheduleStore) -> None:
    """With min() PostgreSQL would read all keys that follow."""
    assert store.ledger is not None
    stop_analysing(bench, "{table}_changes")
    bench.add(store, "key")
    bench.rows.copy_change({"version": n} for n in range(100, 3000))
    analyse(bench, "{table}_changes")
    bench.execute("DELETE FROM {table}_changes WHERE version BETWEEN 100 AND 2999")
    bench.rows.copy_change({"key": f"key{k:04}"} for k in range(3000))
    with watched(bench) as watch:
        next_keys(store.ledger)
    see_that_few_rows_were_read(watch)


def test_no_statement_reads_the_whole_ledger(bench: Bench, full: Ledger) -> None:
    for verb in VERBS:
        with watched(bench) as watch:
            verb(full)
        see_that_few_rows_were_read(watch)
        assert not any("TEMP B-TREE" in plan or "filesort" in plan for plan in watch.plans), watch.plans
