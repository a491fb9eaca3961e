"""Methods of the collection of schedules: add, get, list, modify, delete."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from psched.errors import AlreadyExistsError, NotFoundError, NotSupportedError, ScheduleError
from psched.model import LeaseTimes, Policy, Rule, ScheduleRow
from psched.schedules.collection import Defaults, ScheduleCollection
from psched.store import ScheduleStore
from tests.stores.bench import FAR_OFF, HOURLY, LONG_AGO, Bench, new_row, soon
from tests.stores.databases import on_sql
from tests.stores.sent_statements import before_each


def test_what_was_added_can_be_read(store: ScheduleStore) -> None:
    rule = Rule("*/10 * * * *", "America/New_York", -30)
    store.add("key", "type1", rule, FAR_OFF, FAR_OFF - 30, {"a": {"b": [1, 2.5, None, True, "ä"]}})
    row = read(store, "key")
    assert (row.key, row.type, row.rule) == ("key", "type1", rule)
    assert (row.next_time, row.next_run_time) == (FAR_OFF, FAR_OFF - 30)
    assert row.data == {"a": {"b": [1, 2.5, None, True, "ä"]}}
    assert (row.attempts, row.last_error, row.node, row.problem) == (0, None, None, None)
    assert row.settled


def test_a_key_that_is_not_there_is_none(store: ScheduleStore) -> None:
    assert store.get("key") is None


def test_a_key_can_be_added_once(bench: Bench, store: ScheduleStore, other: ScheduleStore) -> None:
    bench.add(store, "key")
    before = bench.raw("key")
    for holder in (store, other):
        with pytest.raises(AlreadyExistsError, match="key"):
            bench.add(holder, "key", due=FAR_OFF, data={"other": 2})
    bench.take(store, "key")
    with pytest.raises(AlreadyExistsError, match="key"):
        bench.add(other, "key", due=FAR_OFF)
    assert before is not None
    assert read(store, "key").data == {"n": 1}


def test_adding_the_very_same_schedule_twice_is_reported_too(bench: Bench, store: ScheduleStore) -> None:
    bench.add(store, "key")
    with pytest.raises(AlreadyExistsError):
        bench.add(store, "key")


def test_many_are_added_as_they_were_given_and_those_that_exist_are_reported(
    bench: Bench, store: ScheduleStore
) -> None:
    bench.add(store, "key07")
    before = bench.raw("key07")
    news = [new_row(f"key{n:02}", {"n": n, "text": '"ä😀\\'}, FAR_OFF + n) for n in range(20)]
    zone = Rule("*/10 * * * *", "Asia/Tokyo", -30)
    policy = Policy() if store.ledger is None else Policy("latest", 60, 90)
    news[3] = new_row("key03", {}, FAR_OFF, rule=zone, next_run_time=FAR_OFF - 30, policy=policy)
    assert store.add_many(news) == ["key07"]
    assert bench.raw("key07") == before
    told = [(row.key, row.type, row.data, row.rule, row.next_time, row.next_run_time, row.policy) for row in news]
    found = [read(store, row.key) for row in news]
    rows = [(row.key, row.type, row.data, row.rule, row.next_time, row.next_run_time, row.policy) for row in found]
    assert [row for row in rows if row[0] != "key07"] == [row for row in told if row[0] != "key07"]
    assert all(row.settled and row.problem is None for row in found)
    assert store.add_many(news[:2]) == ["key00", "key01"]
    if store.ledger is not None:
        changes = {row.key: store.ledger.changes(row.key) for row in news}
        assert {(len(entered), entered[0].action) for entered in changes.values()} == {(1, "add")}
        [change] = changes["key03"]
        assert (change.rule, change.policy, change.first, change.due) == (zone, policy, FAR_OFF, FAR_OFF - 30)


def test_of_many_who_add_one_key_at_once_one_succeeds(bench: Bench) -> None:
    outcomes: list[str] = []
    barrier = threading.Barrier(4)

    def add(n: int) -> None:
        store = bench.open()
        barrier.wait(10)
        try:
            bench.add(store, "key", data={"n": n})
            outcomes.append("added")
        except AlreadyExistsError:
            outcomes.append("exists")

    threads = [threading.Thread(target=add, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(outcomes) == ["added", "exists", "exists", "exists"]


FORBID = {
    "sqlite": "CREATE TRIGGER forbid BEFORE INSERT ON {table} WHEN NEW.cron = '9 9 9 9 5' "
    "BEGIN SELECT RAISE(ABORT, 'forbidden'); END",
    "mysql": "ALTER TABLE {table} ADD CHECK (cron <> '9 9 9 9 5')",
    "postgresql": "ALTER TABLE {table} ADD CHECK (cron <> '9 9 9 9 5')",
}


@on_sql
def test_a_violated_constraint_of_another_kind_is_not_called_already_exists(bench: Bench, store: ScheduleStore) -> None:
    bench.execute(FORBID[bench.database])
    with pytest.raises(sa.exc.DBAPIError):
        bench.add(store, "key", rule=Rule("9 9 9 9 5", "UTC"))


def test_a_table_that_is_gone_is_a_database_error(bench: Bench, store: ScheduleStore) -> None:
    bench.rows.drop()
    with pytest.raises(Exception, match=bench.table) as caught:
        bench.add(store, "key")
    assert not isinstance(caught.value, ScheduleError)


def test_schedules_are_listed_by_due_time_and_key(bench: Bench, store: ScheduleStore) -> None:
    for key, due in (("d", 5), ("b", 9), ("a", 9), ("c", 0)):
        bench.add(store, key, due=LONG_AGO + due)
    assert [row.key for row in store.list()] == ["c", "d", "a", "b"]


def test_an_empty_list_is_empty(store: ScheduleStore) -> None:
    assert list(store.list()) == []


def test_the_list_goes_on_beyond_one_page(bench: Bench, store: ScheduleStore) -> None:
    keys = [f"key{n:04}" for n in range(2500)]
    bench.fill(store, keys, lambda i: LONG_AGO + i // 900)
    assert [row.key for row in store.list()] == keys


def test_rows_that_go_or_move_while_the_list_is_read_hide_no_other(bench: Bench, store: ScheduleStore) -> None:
    keys = [f"key{n:04}" for n in range(1500)]
    bench.fill(store, keys, lambda i: LONG_AGO + i // 400)
    seen = []
    for n, row in enumerate(store.list()):
        seen.append(row.key)
        if n % 100 == 50:
            store.delete(row.key)
    assert seen == keys


def test_modify_writes_what_differs(bench: Bench, store: ScheduleStore) -> None:
    bench.add(store, "key")
    seen = read(store, "key")
    rule = Rule("5 4 * * *", "Europe/Berlin", 7)
    wanted = replace(seen, type="type2", data={"new": ["ü"]}, rule=rule, next_time=FAR_OFF, next_run_time=FAR_OFF + 7)
    assert store.modify(seen, wanted) is True
    row = read(store, "key")
    assert (row.type, row.data, row.rule) == ("type2", {"new": ["ü"]}, rule)
    assert (row.next_time, row.next_run_time, row.settled) == (FAR_OFF, FAR_OFF + 7, True)


def test_modify_to_what_is_there_already_succeeds(bench: Bench, store: ScheduleStore) -> None:
    bench.add(store, "key")
    seen = read(store, "key")
    assert store.modify(seen, seen) is True
    before = bench.raw("key")
    assert store.modify(seen, replace(seen, type="type1")) is True
    assert read(store, "key") == seen
    assert before is not None


def rule_changed(bench: Bench, store: ScheduleStore, seen: ScheduleRow) -> None:
    store.modify(seen, replace(seen, rule=replace(HOURLY, cron="7 * * * *")))


def times_changed(bench: Bench, store: ScheduleStore, seen: ScheduleRow) -> None:
    store.modify(seen, replace(seen, next_time=LONG_AGO + 60, next_run_time=LONG_AGO + 60))


def data_changed(bench: Bench, store: ScheduleStore, seen: ScheduleRow) -> None:
    store.modify(seen, replace(seen, data={"theirs": 1}))


def type_changed(bench: Bench, store: ScheduleStore, seen: ScheduleRow) -> None:
    store.modify(seen, replace(seen, type="theirs"))


def policy_changed(bench: Bench, store: ScheduleStore, seen: ScheduleRow) -> None:
    if store.keeps_policies:
        store.modify(seen, replace(seen, policy=Policy("latest", 60, 90)))
    else:
        data_changed(bench, store, seen)


def leased(bench: Bench, store: ScheduleStore, seen: ScheduleRow) -> None:
    bench.take(store, "key")


def finished(bench: Bench, store: ScheduleStore, seen: ScheduleRow) -> None:
    store.advance(bench.take(store, "key"), FAR_OFF, FAR_OFF, soon())


def retried(bench: Bench, store: ScheduleStore, seen: ScheduleRow) -> None:
    store.retry(bench.take(store, "key").lease, 500, "error", soon())


def deleted(bench: Bench, store: ScheduleStore, seen: ScheduleRow) -> None:
    store.delete("key")


@pytest.mark.parametrize(
    "change",
    [rule_changed, times_changed, data_changed, type_changed, policy_changed, leased, finished, retried, deleted],
)
def test_modify_writes_nothing_to_a_row_that_is_not_as_it_was_seen(
    bench: Bench, store: ScheduleStore, other: ScheduleStore, change: Any
) -> None:
    bench.add(store, "key")
    seen = read(store, "key")
    change(bench, other, seen)
    before = bench.raw("key")
    wanted = replace(seen, rule=replace(HOURLY, cron="9 * * * *"), next_time=FAR_OFF - 60, next_run_time=FAR_OFF - 60)
    assert store.modify(seen, wanted) is False
    assert store.modify(seen, replace(seen, data={"lost": True})) is False
    assert bench.raw("key") == before


def test_of_two_clients_that_modify_different_things_the_second_looks_again(
    bench: Bench, store: ScheduleStore, other: ScheduleStore
) -> None:
    bench.add(store, "key")
    mine, theirs = (ScheduleCollection(each, LeaseTimes(300, 300, 300), Defaults()) for each in (store, other))
    looked: list[ScheduleRow] = []
    get = store.get

    def get_then_be_overtaken(key: str) -> ScheduleRow | None:
        row = get(key)
        if not looked:
            theirs["key"].modify(data={"theirs": 1}, delay=5)
        if row is not None:
            looked.append(row)
        return row

    store.get = get_then_be_overtaken  # type: ignore[method-assign]
    mine["key"].modify(type="type2", cron="7 * * * *")
    row = read(other, "key")
    assert (row.type, row.data, row.rule) == ("type2", {"theirs": 1}, Rule("7 * * * *", "UTC", 5))
    assert len(looked) == 2


def test_a_change_for_a_version_that_is_gone_changes_nothing(bench: Bench, store: ScheduleStore) -> None:
    bench.add(store, "key")
    schedule = ScheduleCollection(store, LeaseTimes(300, 300, 300), Defaults())["key"]
    version = schedule.metadata().version
    if not store.keeps_policies:
        with pytest.raises(NotSupportedError, match="keeps no versions"):
            schedule.modify(delay=7, if_version=version)
        return
    schedule.modify(delay=5, if_version=version)
    with pytest.raises(ScheduleError, match="another client changed the schedule"):
        schedule.modify(delay=7, if_version=version)
    assert read(store, "key").rule.delay == 5


def test_each_change_of_a_definition_makes_another_version(bench: Bench, store: ScheduleStore) -> None:
    bench.add(store, "key")
    changes: list[dict[str, Any]] = [
        {"type": "type2"},
        {"data": {"new": 1}},
        {"rule": replace(HOURLY, delay=3)},
        {"next_time": FAR_OFF, "next_run_time": FAR_OFF},
    ]
    if store.keeps_policies:
        changes += [{"policy": Policy("none")}, {"paused_from": 5.0}, {"paused_until": 6.0}]
    for change in changes:
        seen = read(store, "key")
        assert store.modify(seen, replace(seen, **change))
        assert read(store, "key").version == (seen.version + 1 if store.keeps_policies else 0)


def test_a_new_rule_for_a_leased_row_leaves_its_lease_alone(
    bench: Bench, store: ScheduleStore, other: ScheduleStore
) -> None:
    bench.add(store, "key")
    claim = bench.take(store, "key")
    seen = read(other, "key")
    assert other.modify(seen, replace(seen, rule=replace(HOURLY, cron="7 * * * *"), data={"new": 1})) is True
    assert other.acquire(1, 100) == []
    (lease,) = store.extend([claim.lease], 200)
    assert lease is not None
    store.release(lease, soon())
    assert bench.take(other, "key").row.data == {"new": 1}


def test_a_deleted_schedule_is_gone(bench: Bench, store: ScheduleStore, other: ScheduleStore) -> None:
    bench.add(store, "key")
    bench.add(store, "neighbour", due=FAR_OFF)
    bench.take(store, "key")
    other.delete("key")
    assert store.get("key") is None
    with pytest.raises(NotFoundError, match="key"):
        store.delete("key")
    assert [row.key for row in store.list()] == ["neighbour"]
    bench.add(store, "key")


def read(store: ScheduleStore, key: str) -> ScheduleRow:
    row = store.get(key)
    assert row is not None
    return row


@pytest.mark.parametrize("bare", [("rdb", "postgresql")], indirect=True, ids="-".join)
def test_one_statement_adds_a_schedule_and_enters_it_where_the_database_can_do_that(
    bench: Bench, store: ScheduleStore
) -> None:
    statements: list[str] = []
    with before_each(statements.append):
        bench.add(store, "key")
    assert len(statements) == 1
    assert store.ledger is not None
    assert len(store.ledger.changes("key")) == 1
