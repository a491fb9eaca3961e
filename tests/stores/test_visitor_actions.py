"""Actions of visitors of the web pages are recorded in every store but `rdb_compat`."""

from __future__ import annotations

import pytest

from psched.store import ScheduleStore
from psched.store.visitor_actions import VisitorActions
from tests.stores.bench import Bench
from tests.stores.databases import DATABASES, on_our_tables
from tests.stores.lost_answers import answer_lost

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
