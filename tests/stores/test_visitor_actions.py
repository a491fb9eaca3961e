"""Actions of visitors of the web pages are recorded in every store but `rdb_compat`."""

from __future__ import annotations

import pytest

from psched.store import ScheduleStore
from psched.store.visitor_actions import VisitorActions
from tests.stores.bench import Bench
from tests.stores.databases import DATABASES, on_our_tables
from tests.stores.lost_answers import answer_lost
from tests.stores.statements import watched
from tests.stores.test_plans import analyse, stop_analysing

pytestmark = pytest.mark.new_table

DAY = 86400.0


def actions_of(store: ScheduleStore) -> VisitorActions:
    assert store.actions is not None
    return store.actions


@on_our_tables
def test_the_last_actions_are_returned_first(bench: Bench, store: ScheduleStore) -> None:
    before = store.now()
    for number, key in enumerate(("ä'", "b", "ä'")):
        actions_of(store).record(f"user{number}", "pause", key, None, DAY)
        until = store.now()
        while store.now() <= until:  # the clock of the table counts milliseconds
            pass
    actions_of(store).record("zoë", "delete", "", "status=failed\u202e", DAY)
    found = actions_of(bench.open()).last(10)
    assert [(each.user, each.action, each.key, each.detail) for each in found] == [
        ("zoë", "delete", "", "status=failed\u202e"),
        ("user2", "pause", "ä'", None),
        ("user1", "pause", "b", None),
        ("user0", "pause", "ä'", None),
    ]
    assert all(before - 0.001 <= each.at <= store.now() for each in found)
    assert actions_of(store).last(2) == found[:2]
    assert [each.user for each in actions_of(store).last(10, "ä'")] == ["user2", "user0"]


@on_our_tables
def test_an_action_whose_answer_was_lost_is_recorded_once(bench: Bench, store: ScheduleStore) -> None:
    actions_of(store).record("u", "pause", "k", None, DAY)
    with answer_lost(bench.database, 1):
        actions_of(store).record("u", "resume", "k", None, DAY)
    assert sorted(each.action for each in actions_of(store).last(10)) == ["pause", "resume"]


@pytest.mark.parametrize("bare", [("rdb", database) for database in DATABASES], indirect=True, ids="-".join)
def test_old_actions_are_deleted(bench: Bench, store: ScheduleStore) -> None:
    actions_of(store).record("old", "pause", "k", None, DAY)
    bench.execute(f"UPDATE psched_actions SET at = at - 3600000 WHERE table_name = '{bench.table}'")
    actions_of(store).record("new", "pause", "k", None, 3000)
    assert [each.user for each in actions_of(store).last(10)] == ["new"]


@pytest.mark.parametrize("bare", [("rdb_compat", "sqlite")], indirect=True, ids="-".join)
def test_the_originals_tables_have_no_place_for_it(store: ScheduleStore) -> None:
    assert store.actions is None


@pytest.mark.parametrize("bare", [("rdb", database) for database in DATABASES], indirect=True, ids="-".join)
@pytest.mark.parametrize("generic", [False, True], ids=["own plan", "generic plan"])
def test_the_actions_on_one_row_are_found_without_reading_the_others(
    bench: Bench, store: ScheduleStore, generic: bool
) -> None:
    """The statistics say that all actions were on the same row."""
    table = "psched_actions"
    stop_analysing(bench, table)
    bench.execute(f"DELETE FROM {table}")
    values = ", ".join(f"({n}, '{bench.table}', {n}, 'user', 'pause', 'old')" for n in range(2000))
    key = bench.quoted_key
    bench.execute(f"INSERT INTO {table} (number, table_name, at, user_name, action, {key}) VALUES {values}")
    analyse(bench, table)
    bench.execute(f"UPDATE {table} SET {key} = 'new' WHERE number > 0")
    for wanted, count in (("new", 20), ("old", 1), ("none", 0)):
        with watched(bench, table=table, generic=generic) as watch:
            assert len(actions_of(store).last(20, wanted)) == count
        assert sum(watch.reads) <= 100, "\n".join([*watch.statements, *watch.plans, str(watch.reads)])
    bench.execute(f"DELETE FROM {table}")
