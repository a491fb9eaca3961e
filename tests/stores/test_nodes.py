"""Every store that can record nodes says which workers are alive, what they route and what they run."""

from __future__ import annotations

import json
import re
import time

import pytest

from psched.store import ScheduleStore
from psched.store.node_registry import (
    ALIVE,
    Node,
    NodeProcess,
    NodeRun,
    encode_processes,
    tz_difference,
    version_difference,
)
from psched.store.type_filter import TypeFilter
from tests.announcements import announce
from tests.stores.bench import Bench
from tests.stores.databases import DATABASES, on_our_tables
from tests.stores.sent_statements import after_each

pytestmark = pytest.mark.new_table

WANTED = TypeFilter(("a", re.compile("^b")), ("[ab]*",))


def silence(bench: Bench, seconds: int) -> None:
    """Make the last heartbeat of all nodes `seconds` older."""
    if bench.database == "redis":
        client, key = getattr(bench.rows, "client"), f"{getattr(bench.rows, 'prefix')}nodes"  # noqa: B009
        for node, stored in client.hgetall(key).items():
            told, seen, *times = json.loads(stored)
            client.hset(key, node, json.dumps([told, str(int(seen) - seconds * 1000), *times]))
    else:
        bench.execute(f"UPDATE psched_nodes SET seen = seen - {seconds * 1000}")


@pytest.mark.parametrize("bare", [("rdb_compat", "sqlite")], indirect=True, ids="-".join)
def test_the_originals_tables_have_no_place_for_it(store: ScheduleStore) -> None:
    assert store.nodes is None


@on_our_tables
def test_a_node_is_alive_from_its_sign_until_it_withdraws(bench: Bench, store: ScheduleStore) -> None:
    other = bench.open().nodes
    assert store.nodes is not None and other is not None
    assert other.alive() == []
    announce(store.nodes, "host/1", "schedules", WANTED)
    announce(store.nodes, "host/2", "schedules", TypeFilter())
    first, second = other.alive()
    assert (first.name, first.section, first.types) == ("host/1", "schedules", WANTED)
    assert 0 <= first.age < ALIVE
    assert second.types.is_everything
    announce(store.nodes, "host/1", "schedules", TypeFilter(("c",)))
    assert [node.types.describe() for node in other.alive()] == ["c", "any type"]
    store.nodes.withdraw("host/1")
    store.nodes.withdraw("host/1")
    assert [node.name for node in other.known()] == ["host/2"]


@on_our_tables
def test_a_node_tells_where_it_is_and_what_runs_since_when_by_the_databases_clock(store: ScheduleStore) -> None:
    assert store.nodes is not None
    run = NodeRun("schedules", "schlüssel \N{CLOCK FACE ONE OCLOCK} \\ '", "type1", 1000.0)
    processes = [NodeProcess("one", 7, (run, NodeRun("queue", "other", "type1", 1.0))), NodeProcess("two", 8)]
    told = {"host": "host", "pid": 6, "version": "1.2", "tz_database": "2026a", "uptime": 500.0}
    for _ in range(2):  # the first sign is an INSERT, the second an UPDATE
        begun = store.now()
        text = encode_processes(processes, "schedules", 1090.0)
        announce(store.nodes, "host/6", "schedules", WANTED, processes=text, **told)
        [node] = store.nodes.alive()
        assert (node.host, node.pid, node.version, node.tz_database) == ("host", 6, "1.2", "2026a")
        assert begun - 501 <= node.started <= store.now() - 499
        one, two = node.processes
        assert (one.name, one.pid, two) == ("one", 7, NodeProcess("two", 8))
        [shown] = one.runs
        assert shown[:3] == run[:3]
        assert begun - 91 <= shown.since <= store.now() - 89


@on_our_tables
def test_a_node_with_a_wrong_clock_is_seen_all_the_same(store: ScheduleStore, monkeypatch: pytest.MonkeyPatch) -> None:
    assert store.nodes is not None
    right = store.now() - time.time()
    monkeypatch.setattr(time, "time", lambda wall=time.time: wall() - 3600)
    announce(store.nodes, "host/1", "schedules", WANTED)
    announce(store.nodes, "host/1", "schedules", WANTED)
    [node] = store.nodes.alive()
    assert abs(node.clock_offset + 3600 + right) < 60
    assert node.age < ALIVE


@on_our_tables
def test_one_that_gives_no_sign_has_vanished_and_is_forgotten_after_a_day(bench: Bench, store: ScheduleStore) -> None:
    nodes = store.nodes
    assert nodes is not None
    announce(nodes, "silent", "schedules", WANTED)
    silence(bench, 61)
    assert nodes.alive() == []
    [node] = nodes.known()
    assert node.has_vanished
    announce(nodes, "silent", "schedules", WANTED)
    assert [node.has_vanished for node in nodes.alive()] == [False]
    silence(bench, 86_401)
    assert nodes.known() == []


@on_our_tables
def test_a_node_that_cannot_be_read_does_not_count(store: ScheduleStore) -> None:
    nodes = store.nodes
    assert nodes is not None
    announce(nodes, "strange", "schedules", WANTED, processes='[["one"]]')
    announce(nodes, "good", "schedules", WANTED)
    assert [node.name for node in nodes.known()] == ["good"]


@pytest.mark.parametrize("bare", [("rdb", database) for database in DATABASES], indirect=True, ids="-".join)
def test_a_sign_is_one_statement(bench: Bench, store: ScheduleStore) -> None:
    announce(store.nodes, "host/1", "schedules", WANTED)
    seen: list[str] = []
    with after_each(seen.append):
        announce(store.nodes, "host/1", "schedules", WANTED)
    assert [statement.split()[:2] for statement in seen if "psched_nodes" in statement] == [["UPDATE", "psched_nodes"]]


def test_different_tz_databases_and_versions_are_reported_with_the_names_of_the_nodes() -> None:
    def node(name: str, version: str, tz: str) -> Node:
        return Node(name, "queue", TypeFilter(), 0.0, "host", 1, version, tz, 0.0, 0.0, ())

    same = [node("a", "1.0", "2026a"), node("b", "1.0", "2026a")]
    assert tz_difference(same) is None
    assert version_difference(same) is None
    other = [*same, node("c", "1.1", "2025b")]
    assert "2025b on c; 2026a on a, b; install the same tzdata" in str(tz_difference(other))
    assert version_difference(other) == "nodes run different versions of psched: 1.0 on a, b; 1.1 on c"
