"""Types that no worker routes: `doctor` and `list` name them, and so does a command that adds a row of such a type."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from psched.config import load
from psched.queue.queue import open_queue
from psched.schedules.collection import open_schedules
from psched.store import holder_name
from psched.store.node_registry import Nodes
from psched.store.type_filter import TypeFilter
from tests.announcements import announce as announce_node
from tests.cli.commands import Commands

APPLICATION = """\
import psched
app = psched.App()
app.task("known")(print)
"""
WARNING = "warning: neither the configured application nor a live node routes the type 'other'\n"


def announce(psched: Commands, section: str, *types: str) -> None:
    """Register a node that routes these types, like a live worker."""
    settings = load(psched.folder / "etc" / "psched.yml", "development")
    if section == "queue":
        assert settings.queue is not None
        with open_queue(settings.queue, holder_name("test")) as queue:
            _announce(queue.store.nodes, section, types)
    else:
        assert settings.schedules is not None
        with open_schedules(settings.schedules, holder_name("test")) as schedules:
            _announce(schedules.store.nodes, section, types)


def _announce(nodes: Nodes | None, section: str, types: tuple[str, ...]) -> None:
    announce_node(nodes, "host/1", section, TypeFilter(types))


@pytest.fixture
def both(psched: Commands) -> Commands:
    """A command line with schedules, a queue, and an application that routes one type."""
    (psched.folder / "myapp.py").write_text(APPLICATION)
    serve(psched)
    psched.ok("init")
    return psched


def serve(psched: Commands, types: str = "'*'") -> None:
    """Write a configuration with both sections. `types`: the types of the queue."""
    more = f"  app: myapp:app\n  include: {psched.folder}\n  schedules: {{}}\n  queue: {{types: {types}}}\n"
    psched.use("sqlite:///../psched.db", more)


def warned(psched: Commands, *arguments: str) -> str:
    """Run a command that must succeed. Return what it writes to standard error."""
    outcome = psched(*arguments)
    assert outcome.code == 0, outcome
    return outcome.err


def test_adding_what_the_application_does_not_route_is_reported_and_done(both: Commands) -> None:
    both.ok("add", "s1", "known", "@daily", "{}")
    assert warned(both, "add", "s2", "other", "@daily", "{}") == WARNING
    both.ok("queue", "submit", "q1", "known", "{}")
    assert warned(both, "queue", "submit", "q2", "other", "{}") == WARNING
    assert "s2" in both.ok("list").out
    assert "q2" in both.ok("queue", "list").out


def test_nothing_is_reported_where_a_live_node_routes_it(both: Commands) -> None:
    announce(both, "schedules", "other")
    both.ok("add", "s1", "other", "@daily", "{}")
    assert warned(both, "queue", "submit", "q1", "other", "{}") == WARNING


def test_nothing_is_reported_by_an_application_that_does_not_load(both: Commands) -> None:
    (both.folder / "myapp.py").write_text("1 / 0")
    both.ok("add", "s1", "other", "@daily", "{}")


def test_the_types_of_the_configuration_count(both: Commands) -> None:
    serve(both, "video.*")
    both.ok("add", "s1", "known", "@daily", "{}")
    assert "'known'" in warned(both, "queue", "submit", "q1", "known", "{}")


def test_list_and_doctor_name_types_that_no_live_node_routes(both: Commands) -> None:
    warned(both, "add", "s1", "other", "@daily", "{}")
    both.ok("add", "s2", "known", "@daily", "{}")
    both.ok("list")
    assert "no node is running; rows of these types wait: known, other" in both.ok("doctor").out
    announce(both, "schedules", "known")
    assert warned(both, "list") == "types that no live node routes: other\n"
    both.ok("queue", "list")
    told = both("doctor").out
    assert "FAILED  routing" in told
    assert "no live node routes other" in told
    announce(both, "schedules", "known", "other")
    both.ok("list")
    assert "host/1 routes known, other" in both.ok("doctor").out


@pytest.fixture
def shared(psched: Commands) -> Commands:
    """A command line with tables that Ruby workers may share, and with an application that routes one type."""
    (psched.folder / "myapp.py").write_text(APPLICATION)
    table = "type: rdb_compat, url: 'sqlite:///../psched.db'"
    config = psched.folder / "etc" / "psched.yml"
    config.write_text(
        f"development:\n  app: myapp:app\n  include: {psched.folder}\n"
        f"  schedules: {{{table}, table: schedules}}\n  queue: {{{table}, table: tasks}}\n"
    )
    psched.ok("init")
    psched.ok("add", "ours", "known", "@daily", "{}")
    psched.ok("queue", "submit", "ours", "known", "{}")
    return psched


def test_on_rdb_compat_list_and_doctor_tell_how_many_schedules_are_left_to_ruby_and_why(shared: Commands) -> None:
    shared.ok("list")
    for key, type_ in (("zone", "known"), ("type1", "theirs"), ("type2", "theirs")):
        warned(shared, "add", key, type_, "@daily", "{}")
    with closing(sqlite3.connect(shared.folder / "psched.db")) as connection, connection:
        connection.execute("UPDATE schedules SET timezone = 'Tokyo' WHERE id = 'zone'")
    for told in (warned(shared, "list"), warned(shared, "list", "--json"), shared("doctor").out):
        assert "psched cannot run 3 of 4 rows and leaves them to Ruby workers ('zone': " in told
        assert "Tokyo" in told
        assert "2 not routed by the configured application: theirs" in told


def test_on_rdb_compat_list_and_doctor_tell_how_many_tasks_are_left_to_ruby_and_why(shared: Commands) -> None:
    shared.ok("queue", "list")
    assert "psched can run all rows, and leaves none to Ruby workers" in shared("doctor").out
    warned(shared, "queue", "submit", "type", "theirs", "{}")
    warned(shared, "queue", "submit", "done", "theirs", "{}")
    shared.ok("queue", "force-finish", "done")
    why = "(1 not routed by the configured application: theirs)"
    sentence = f"psched cannot run 1 of 2 rows and leaves them to Ruby workers {why}"
    assert warned(shared, "queue", "list") == f"{sentence}\n"
    assert sentence in shared("doctor").out


def test_the_list_and_show_say_why_psched_cannot_run_a_rule(shared: Commands) -> None:
    with closing(sqlite3.connect(shared.folder / "psched.db")) as connection, connection:
        connection.execute("UPDATE schedules SET timezone = 'Tokyo' WHERE id = 'ours'")
    [listed] = shared("--json", "list").json
    assert "Tokyo" in listed["problem"]
    assert listed["state"] == "broken"
    assert shared.ok("show", "ours", "--json").json["problem"] == listed["problem"]
    assert "Tokyo" in shared("list").out
