"""Schedules that PerfectSched and psched share: each reads rows that the other wrote, and each occurrence runs once."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from psched.errors import PreemptedError
from psched.model import Rule
from psched.store import ScheduleStore
from tests.compat.original_schedules import COLUMNS, Original
from tests.stores.bench import FAR_OFF, HOURLY, LONG_AGO, Bench, eventually, keys_of, soon

READ: list[tuple[bytes, str, dict[str, Any]]] = [
    (b'{"key":"value","type":"type1"}', "type1", {"key": "value"}),
    (b'{"type":"type1","key":"value"}', "type1", {"key": "value"}),
    (b'{"type":"a.b"}', "a.b", {}),
    ('{"名":"値/<ä>😀","type":"型"}'.encode(), "型", {"名": "値/<ä>😀"}),
    (b'{"u":"\\u00e4\\ud83d\\ude00","type":"t"}', "t", {"u": "ä😀"}),
    (b' { "n" : 1.0 , "type" : "t" } \n', "t", {"n": 1.0}),
    (b'{"key":"value"}', "kind", {"key": "value"}),
    (b'{"type":""}', "kind", {}),
    (b'{"type":null,"a":1}', "kind", {"a": 1}),
    (b"{}", "kind", {}),
    (b"", "kind", {}),
    (b"no json", "kind", {}),
    (b"\xff\xfe", "kind", {}),
]


def test_the_originals_rows_are_read(bench: Bench, original: Original, store: ScheduleStore) -> None:
    for n, (data, type_, content) in enumerate(READ):
        key = f"kind.of.key{n}"
        original.add(key, data=data, cron="*/5 * * * *", delay=-30, timezone="Asia/Tokyo")
        seen = store.get(key)
        assert seen is not None
        assert (seen.type, seen.data, seen.problem) == (type_, content, None), data
        assert (seen.rule, seen.next_time) == (Rule("*/5 * * * *", "Asia/Tokyo", -30), LONG_AGO)
        row = bench.take(store, key).row
        assert (row.type, row.data, row.problem) == (type_, content, None), data


WRITTEN: list[tuple[str, dict[str, Any], bytes]] = [
    ("type1", {"key": "value"}, b'{"key":"value","type":"type1"}'),
    ("type1", {}, b'{"type":"type1"}'),
    ("new", {"a": 1, "type": "old", "z": 2}, b'{"a":1,"type":"new","z":2}'),
    ("t", {"path": "/a/b<c>&'"}, b'{"path":"/a/b<c>&\'","type":"t"}'),
    ("型", {"名": "ä€😀"}, '{"名":"ä€😀","type":"型"}'.encode()),
    (
        "t",
        {"a": [1, None, True, {"b": []}], "s": '"\\\n\t'},
        b'{"a":[1,null,true,{"b":[]}],"s":"\\"\\\\\\n\\t","type":"t"}',
    ),
]


def test_what_psched_adds_is_byte_for_byte_the_originals_row(bench: Bench, store: ScheduleStore) -> None:
    for n, (type_, data, stored) in enumerate(WRITTEN):
        key = f"key{n}"
        store.add(key, type_, Rule("0 0 * * *", "Asia/Tokyo", 60), FAR_OFF, FAR_OFF + 60, data)
        row = (key, FAR_OFF + 60, FAR_OFF, "0 0 * * *", 60, stored, "Asia/Tokyo")
        assert stored_row(bench, key) == row


def test_a_first_run_time_moves_the_first_run_alone(bench: Bench, store: ScheduleStore) -> None:
    store.add("key", "t", replace(HOURLY, delay=5), LONG_AGO, LONG_AGO + 1234, {})
    assert stored_row(bench)[1:3] == (LONG_AGO + 1234, LONG_AGO)
    store.advance(bench.take(store, "key"), FAR_OFF, FAR_OFF + 5, soon())
    assert stored_row(bench)[1:3] == (FAR_OFF + 5, FAR_OFF)


def test_each_verb_writes_the_columns_the_original_would_and_no_other(
    bench: Bench, original: Original, store: ScheduleStore
) -> None:
    since = time.time()
    original.add("key", data=b'{ "spaced" : 1 }', timezone=None, delay=7)
    untouched = ("0 * * * *", 7, b'{ "spaced" : 1 }', None)
    claim = bench.take(store, "key", 100)
    assert_between(since, stored_row(bench)[1] - 100)
    assert stored_row(bench)[2:] == (LONG_AGO, *untouched)
    (lease,) = store.extend([claim.lease], 200)
    assert lease is not None
    assert_between(since, stored_row(bench)[1] - 200)
    assert stored_row(bench)[2:] == (LONG_AGO, *untouched)
    store.retry(lease, 50, "not kept", soon())
    assert_between(since, stored_row(bench)[1] - 50)
    assert stored_row(bench)[2:] == (LONG_AGO, *untouched)
    bench.make_due("key")
    store.release(bench.take(store, "key").lease, soon())
    assert_between(since, stored_row(bench)[1])
    assert stored_row(bench)[2:] == (LONG_AGO, *untouched)
    assert store.advance(bench.take(store, "key"), FAR_OFF, FAR_OFF + 7, soon()) is None
    assert stored_row(bench) == ("key", FAR_OFF + 7, FAR_OFF, *untouched)


def test_a_row_without_a_time_zone_is_utc_and_stays_so(bench: Bench, original: Original, store: ScheduleStore) -> None:
    original.add("key", timezone=None)
    claim = bench.take(store, "key")
    seen = store.get("key")
    assert seen is not None
    assert seen.rule == HOURLY
    assert store.modify(seen, replace(seen, data={"new": 1}))
    assert store.advance(claim, FAR_OFF, FAR_OFF, soon()) is None, "NULL was taken for a changed rule"
    assert stored_row(bench)[5:] == (b'{"new":1,"type":"type1"}', None)


def test_modifying_the_rule_leaves_the_data_as_it_was_written(
    bench: Bench, original: Original, store: ScheduleStore
) -> None:
    original.add("key", data=b'{ "type" : "x" , "a" : 1.50 }')
    seen = store.get("key")
    assert seen is not None
    assert store.modify(seen, replace(seen, rule=Rule("5 * * * *", "Asia/Tokyo", 3)))
    assert stored_row(bench)[3:] == ("5 * * * *", 3, b'{ "type" : "x" , "a" : 1.50 }', "Asia/Tokyo")


def test_each_respects_the_others_lease(bench: Bench, original: Original, store: ScheduleStore) -> None:
    for n in range(2):
        original.add(f"key{n}", timeout=LONG_AGO + n)
    theirs = original.poll()
    assert theirs is not None
    assert theirs["id"] == "key0"
    assert keys_of(store.acquire(10, 100)) == ["key1"]
    assert original.poll() is None
    assert store.acquire(10, 100) == []


def test_each_sees_what_the_other_finished(bench: Bench, original: Original, store: ScheduleStore) -> None:
    original.add("key")
    for n in range(3):
        theirs = original.poll()
        assert theirs is not None
        assert theirs["next_time"] == LONG_AGO + n * 7200
        assert original.finish(theirs, LONG_AGO + n * 7200 + 3600) == 1
        claim = bench.take(store, "key")
        assert claim.row.scheduled_time == LONG_AGO + n * 7200 + 3600
        following = LONG_AGO + (n + 1) * 7200
        assert store.advance(claim, following, following, soon()) is None


def test_what_the_original_took_after_our_lease_ended_is_no_longer_ours(
    bench: Bench, original: Original, store: ScheduleStore
) -> None:
    original.add("key")
    claim = bench.take(store, "key", bench.lease)
    theirs = eventually(lambda: original.poll(200))
    with pytest.raises(PreemptedError):
        store.release(claim.lease, soon())
    with pytest.raises(PreemptedError):
        store.retry(claim.lease, 5, None, soon())
    with pytest.raises(PreemptedError):
        store.advance(claim, FAR_OFF, FAR_OFF, soon())
    assert store.extend([claim.lease], 100) == [None]
    assert bench.raw("key") == theirs


def test_a_schedule_the_original_moved_on_is_not_moved_on_again(
    bench: Bench, original: Original, store: ScheduleStore
) -> None:
    original.add("key")
    claim = bench.take(store, "key")
    row = bench.raw("key")
    assert row is not None
    original.finish(row, FAR_OFF)
    before = bench.raw("key")
    with pytest.raises(PreemptedError):
        store.advance(claim, FAR_OFF - 60, FAR_OFF - 60, soon())
    assert bench.raw("key") == before


def test_workers_of_both_share_no_row_and_lose_none(bench: Bench, original: Original, store: ScheduleStore) -> None:
    keys = [f"key{n:03}" for n in range(120)]
    bench.fill(store, keys, lambda i: LONG_AGO + i % 5)
    taken: list[str] = []

    def theirs() -> None:
        while row := original.poll():
            taken.append(row["id"])

    def ours() -> None:
        while claims := store.acquire(5, 100):
            taken.extend(keys_of(claims))

    threads = [threading.Thread(target=work) for work in (theirs, ours, theirs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(taken) == keys


def test_init_on_the_originals_table_adds_an_index_and_nothing_else(
    bench: Bench, original: Original, store: ScheduleStore
) -> None:
    original.add("key")
    before, columns = bench.raw("key"), columns_of(bench)
    assert any(not finding.ok and "index" in f"{finding.subject} {finding.message}" for finding in store.diagnose())
    store.create_tables()
    store.check_tables()
    assert (bench.raw("key"), columns_of(bench)) == (before, columns)
    with bench.connect() as connection:
        assert ["timeout"] in [index["column_names"][:1] for index in sa.inspect(connection).get_indexes(bench.table)]


def test_the_remedy_that_doctor_names_for_the_originals_collation_works(
    bench: Bench, original: Original, store: ScheduleStore
) -> None:
    original.add("key")
    store.create_tables()
    [keys] = [finding for finding in store.diagnose() if finding.subject == "keys"]
    assert keys.ok
    if bench.database != "mysql":
        assert not keys.warning
        return
    assert keys.warning, "keys that differ in case only are one key here"
    bench.execute(keys.message[keys.message.index("ALTER TABLE") :])
    assert all(finding.ok and not finding.warning for finding in store.diagnose())
    original.add("KEY")
    assert [store.get(key) is not None for key in ("key", "KEY", "Key")] == [True, True, False]


def test_the_table_psched_makes_has_the_originals_columns_and_takes_its_rows(
    bench: Bench, original: Original, store: ScheduleStore
) -> None:
    theirs = columns_of(bench)
    bench.execute("DROP TABLE {table}")
    store.create_tables()
    assert columns_of(bench) == theirs
    original.make_table()
    original.add("key")
    row = bench.take(store, "key").row
    assert (row.type, row.data) == ("type1", {"key": "value"})


def columns_of(bench: Bench) -> list[tuple[str, str, bool]]:
    with bench.connect() as connection:
        columns = sa.inspect(connection).get_columns(bench.table)
    return [(column["name"], kind(column["type"]), bool(column["nullable"])) for column in columns]


def kind(type_: Any) -> str:
    """Return a column's type without its collation, which the original leaves to the database."""
    return f"{type(type_).__name__.replace('INTEGER', 'INT')}({getattr(type_, 'length', '')})"


def stored_row(bench: Bench, key: str = "key") -> tuple[Any, ...]:
    row = bench.raw(key)
    assert row is not None
    return tuple(bytes(row[name]) if name == "data" else row[name] for name in COLUMNS)


def assert_between(since: float, value: int) -> None:
    """Check that `value` is a whole number of seconds between `since` and now. The database's clock is this host's."""
    assert isinstance(value, int)
    assert since - 1 <= value <= time.time() + 1


def test_rules_are_counted_once_where_keys_are_compared_without_case(
    bench: Bench, store: ScheduleStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("psched.backends.rdb_compat.counts._PAGE", 2)
    for key, minute in (("a", 1), ("B", 2), ("c", 1)):
        bench.add(store, key, rule=Rule(f"{minute} * * * *", "UTC"))
    assert sum(use.count for use in store.reads.rules()) == 3
