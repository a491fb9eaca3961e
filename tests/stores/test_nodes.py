"""Which workers are alive, and what they route, is on record in every store that has a place for it."""

from __future__ import annotations

import re

import pytest

from psched.store import ScheduleStore
from psched.store.node_registry import ALIVE
from psched.store.type_filter import TypeFilter
from tests.stores.bench import Bench
from tests.stores.databases import DATABASES, on_our_tables
from tests.stores.sent_statements import after_each

pytestmark = pytest.mark.new_table

WANTED = TypeFilter(("a", re.compile("^b")), ("[ab]*",))


@pytest.mark.parametrize("bare", [("rdb_compat", "sqlite")], indirect=True, ids="-".join)
def test_the_originals_tables_have_no_place_for_it(store: ScheduleStore) -> None:
    assert store.nodes is None


@on_our_tables
def test_a_node_is_alive_from_its_sign_until_it_withdraws(bench: Bench, store: ScheduleStore) -> None:
    other = bench.open().nodes
    assert store.nodes is not None and other is not None
    assert other.alive() == []
    store.nodes.announce("host/1", "schedules", WANTED.encode())
    store.nodes.announce("host/2", "schedules", TypeFilter().encode())
    first, second = other.alive()
    assert (first.name, first.section, first.types) == ("host/1", "schedules", WANTED)
    assert 0 <= first.age < ALIVE
    assert second.types.is_everything
    store.nodes.announce("host/1", "schedules", TypeFilter(("c",)).encode())
    assert [node.types.describe() for node in other.alive()] == ["c", "any type"]
    store.nodes.withdraw("host/1")
    store.nodes.withdraw("host/1")
    assert [node.name for node in other.alive()] == ["host/2"]


@on_our_tables
def test_one_that_gives_no_sign_or_one_that_cannot_be_read_does_not_count(bench: Bench, store: ScheduleStore) -> None:
    nodes = store.nodes
    assert nodes is not None
    nodes.announce("strange", "schedules", "[]")
    nodes.announce("silent", "schedules", WANTED.encode())
    if bench.database == "redis":
        client, key = getattr(bench.rows, "client"), f"{getattr(bench.rows, 'prefix')}nodes"  # noqa: B009
        client.hset(key, "silent", '["schedules","{}","1"]')
    else:
        bench.execute("UPDATE psched_nodes SET seen = seen - 61000 WHERE node = 'silent'")
    assert nodes.alive() == []
    nodes.announce("silent", "schedules", WANTED.encode())
    assert [node.name for node in nodes.alive()] == ["silent"]


@pytest.mark.parametrize("bare", [("rdb", database) for database in DATABASES], indirect=True, ids="-".join)
def test_a_sign_is_one_statement(bench: Bench, store: ScheduleStore) -> None:
    assert store.nodes is not None
    store.nodes.announce("host/1", "schedules", WANTED.encode())
    seen: list[str] = []
    with after_each(seen.append):
        store.nodes.announce("host/1", "schedules", WANTED.encode())
    assert [statement.split()[:2] for statement in seen if "psched_nodes" in statement] == [["UPDATE", "psched_nodes"]]
