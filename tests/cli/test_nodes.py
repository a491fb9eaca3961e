"""`psched nodes` lists workers and their runs. `doctor` fails when the workers' tz databases differ."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from psched.config import load
from psched.cron import tz_database
from psched.insight import open_insight
from psched.queue.queue import open_queue
from psched.schedules.collection import open_schedules
from psched.store import holder_name
from psched.store.node_registry import NodeProcess, NodeRun, encode_processes
from psched.store.type_filter import TypeFilter
from tests.announcements import announce as announce_node
from tests.cli.commands import Commands

BOTH = "development: {type: rdb, url: '%s', schedules: {}, queue: {}}"
PROCESSES = [
    NodeProcess("one", 11, (NodeRun("schedules", "report", "mail", 40.0), NodeRun("queue", "t1", "video", 70.0))),
    NodeProcess("two", 12),
]


@pytest.fixture
def both(fresh: Commands) -> Commands:
    """A command line with a SQLite database for schedules and a queue."""
    fresh.configure(BOTH % "sqlite:///../psched.db")
    fresh.ok("init")
    return fresh


def announce(psched: Commands, name: str, **told: object) -> None:
    """Register a node for both sections, like a live worker. `told`: further fields of the announcement."""
    settings = load(psched.folder / "etc" / "psched.yml", "development")
    assert settings.schedules is not None and settings.queue is not None
    with (
        open_schedules(settings.schedules, holder_name("test")) as schedules,
        open_queue(settings.queue, holder_name("test")) as queue,
    ):
        for section, store in (("schedules", schedules.store), ("queue", queue.store)):
            processes = encode_processes(PROCESSES, section, 100.0)
            announce_node(store.nodes, name, section, TypeFilter((section,)), processes=processes, **told)


def test_a_node_is_listed_once_with_its_sections_and_what_runs_since_when(both: Commands) -> None:
    announce(both, "host/1", pid=7)
    [node] = both.ok("nodes", "--json").json
    assert (node["name"], node["pid"], node["vanished"]) == ("host/1", 7, False)
    assert node["sections"] == {"schedules": "schedules", "queue": "queue"}
    one, two = node["processes"]
    assert [(run["section"], run["key"], run["type"]) for run in one["runs"]] == [
        ("schedules", "report", "mail"),
        ("queue", "t1", "video"),
    ]
    assert one["runs"][1]["since"] - one["runs"][0]["since"] == pytest.approx(30, abs=5)
    assert (two["name"], two["pid"], two["runs"]) == ("two", 12, [])
    header, line = (line.split("\t") for line in both.ok("nodes").out.splitlines())
    listed = dict(zip(header, line, strict=True))
    assert (listed["node"], listed["state"], listed["running"]) == ("host/1", "alive", "2 in 2 processes")
    assert listed["routes"] == "queue: queue; schedules: schedules"
    lines = [line.split("\t") for line in both.ok("nodes", "--running").out.splitlines()]
    assert [line[:6] for line in lines[1:]] == [
        ["host/1", "one", "11", "schedules", "report", "mail"],
        ["host/1", "one", "11", "queue", "t1", "video"],
    ]


def test_one_that_gives_no_sign_is_listed_last_as_vanished(both: Commands) -> None:
    announce(both, "a/1")
    with closing(sqlite3.connect(both.folder / "psched.db")) as connection, connection:
        connection.execute("UPDATE psched_nodes SET seen = seen - 61000")
    announce(both, "b/1")
    assert [(node["name"], node["vanished"]) for node in both.ok("nodes", "--json").json] == [
        ("b/1", False),
        ("a/1", True),
    ]
    with open_insight(load(both.folder / "etc" / "psched.yml", "development")) as insight:
        assert [node.name for node in insight.nodes()] == ["b/1", "a/1"]
        assert {node.name for node in insight.overview().nodes} == {"b/1"}


def test_different_tz_databases_and_versions_are_reported(both: Commands) -> None:
    announce(both, "a/1")
    both.ok("doctor")
    announce(both, "b/1", tz_database="1999z", version="0.0.1")
    told = both("doctor")
    assert told.code == 1
    assert f"1999z on b/1; {tz_database()} on a/1, this host" in told.out
    assert "warning nodes          nodes run different versions of psched: 0.0.1 on b/1; 1.0 on a/1" in told.out
    warned = both("nodes").err
    assert "1999z on b/1" in warned
    assert "0.0.1 on b/1" in warned


def test_a_clock_that_agrees_with_the_database_is_not_minus_zero_ahead(both: Commands) -> None:
    announce(both, "a/1")
    with closing(sqlite3.connect(both.folder / "psched.db")) as connection, connection:
        connection.execute("UPDATE psched_nodes SET clock_offset = -20")
    header, line = (line.split("\t") for line in both.ok("nodes").out.splitlines())
    assert dict(zip(header, line, strict=True))["clock"] == "+0.0 s"


def test_the_column_clock_and_the_offset_of_json_have_the_same_sign(both: Commands) -> None:
    announce(both, "a/1")
    with closing(sqlite3.connect(both.folder / "psched.db")) as connection, connection:
        connection.execute("UPDATE psched_nodes SET clock_offset = 2500")
    header, line = (line.split("\t") for line in both.ok("nodes").out.splitlines())
    assert dict(zip(header, line, strict=True))["clock"] == "+2.5 s"
    assert both.ok("nodes", "--json").json[0]["clock_offset"] == 2.5


def test_tables_of_the_originals_record_none(fresh: Commands) -> None:
    fresh.configure("development: {type: rdb_compat, url: 'sqlite:///../psched.db', schedules: {}}")
    fresh.ok("init")
    told = fresh("nodes", "--json")
    assert (told.code, told.json, told.err) == (0, [], "schedules: rdb_compat records no nodes\n")
