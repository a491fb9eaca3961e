"""The commands for the queue's tasks work on every database, and the layout of `--json` does not change."""

from __future__ import annotations

import sqlite3

import pytest

from psched.config import load
from psched.queue.queue import open_queue
from tests.cli.commands import Commands

AT = 4_000_000_000
SUBMIT = ("submit", "task-id", "type1", '{"uid":1,"name":"値"}')
BOTH = "development: {type: rdb, url: 'sqlite:///../psched.db', schedules: {}, queue: {}}"
QUEUE_TABLES = {
    *("psched_meta", "psched_nodes", "psched_stats", "psched_actions"),
    *(f"psched_queue{part}" for part in ("", "_users", "_failures", "_watermarks", "_outbox")),
}


@pytest.fixture
def queue(fresh: Commands) -> Commands:
    """A command line whose commands begin with `queue`, with a database that has the tables."""
    tasks = fresh.below("queue")
    tasks.use("sqlite:///../psched.db")
    tasks.ok("init")
    return tasks


def test_a_task_s_whole_life_on_each_database(fresh: Commands, database: str) -> None:
    queue = fresh.below("queue")
    queue.use(database)
    assert queue.ok("init").out == ""
    assert queue.ok(*SUBMIT).out == ""
    assert "'task-id'" in queue.fault(*SUBMIT)
    assert [row["key"] for row in queue.ok("list", "--json").json] == ["task-id"]
    assert queue.ok("cancel-request", "task-id").out == ""
    assert queue.ok("show", "task-id", "--json").json["status"] == "cancelled"
    assert queue.ok("retry", "task-id").out == ""
    assert queue.ok("show", "task-id", "--json").json["status"] == "waiting"
    assert queue.ok("force-finish", "task-id").out == ""
    assert queue.ok("show", "task-id", "--json").json["status"] == "finished"
    assert queue.ok("delete", "task-id").out == ""
    assert queue.ok("list", "--json").json == []


def test_json_shows_every_field_of_a_task_with_unix_and_local_times(queue: Commands) -> None:
    options = ("-u", "bob", "-t", str(AT), "--max-running", "3", "--priority", "-4", "--max-attempts", "5")
    headers = ("--headers", '{"trace": "値"}')
    submitted = queue.ok(*SUBMIT, *options, *headers, "--compression", "gzip", "--json").json
    assert submitted == queue.ok("show", "task-id", "--json").json
    assert submitted.pop("created_at") > 0
    assert submitted.pop("created_at_local").endswith("+09:00")
    assert submitted == {
        "key": "task-id",
        "type": "type1",
        "user": "bob",
        "status": "waiting",
        "cancel_requested": False,
        "run_at": AT,
        "run_at_local": "2096-10-02T16:06:40+09:00",
        "timeout": AT,
        "timeout_local": "2096-10-02T16:06:40+09:00",
        "finished_at": None,
        "finished_at_local": None,
        "data": {"uid": 1, "name": "値"},
        "headers": {"trace": "値"},
        "max_running": 3,
        "priority": -4,
        "attempts": 0,
        "max_attempts": 5,
        "compression": "gzip",
        "last_error": None,
        "node": None,
        "progress": None,
        "result": None,
        "has_result": False,
        "problem": None,
    }


def test_headers_that_are_no_json_object_are_refused_by_the_option(queue: Commands) -> None:
    for text, fault in (("[1]", "data must be a JSON object"), ("{x", "data is not valid JSON")):
        assert f"--headers: {fault}" in queue.fault(*SUBMIT, "--headers", text)
    assert queue.ok("list", "--json").json == []


def test_a_finished_task_shows_its_progress_and_result(queue: Commands) -> None:
    queue.ok(*SUBMIT)
    section = load(queue.folder / "etc" / "psched.yml", reader="queue").queue
    assert section is not None
    with open_queue(section, "test") as tasks:
        task = tasks.poll()
        assert task is not None
        task.progress(3, 4.5, "resizing")
        task.finish({"rows": [1, None]})
    shown = queue.ok("show", "task-id", "--json").json
    assert (shown["result"], shown["has_result"]) == ({"rows": [1, None]}, True)
    assert shown["progress"] == {"done": 3, "total": 4.5, "message": "resizing", "attempt": 1}
    assert queue.ok("list", "--json").json == [shown]
    lines = queue.ok("show", "task-id").out.splitlines()
    assert "progress       3 of 4.5: resizing (attempt 1)" in lines
    assert 'result         {"rows": [1, null]}' in lines


def test_list_prints_what_perfectqueue_prints_on_request(queue: Commands) -> None:
    queue.ok(*SUBMIT, "-u", "bob", "-t", str(AT))
    header, row, last = queue.ok("list", "--format", "perfectqueue").out.splitlines()
    *named, created_at, timeout, data = cells(row)
    assert named == ["task-id", "type1", "bob", "waiting"]
    assert created_at.endswith("+0900")
    assert (timeout, data) == ("2096-10-02 16:06:40 +0900", '{"uid":1,"name":"値"}')
    assert header.split() == ["key", "type", "user", "status", "created_at", "timeout", "data"]
    assert last == "1 entries."


def cells(line: str) -> list[str]:
    """Split a line of `list` at the columns of the original's output."""
    found = []
    for width in (30, 15, 18, 18, 28, 28):
        found.append(line[:width].strip())
        line = line[width + 1 :]
    return [*found, line]


def test_list_shows_a_finished_task_without_timeout_and_a_cancel_request_that_is_pending(queue: Commands) -> None:
    for key in ("done", "running"):
        queue.ok("submit", key, "t", "{}")
    queue.ok("force-finish", "done")
    section = load(queue.folder / "etc" / "psched.yml", reader="queue").queue
    assert section is not None
    with open_queue(section, "test") as tasks:
        assert [task.key for task in tasks.poll_multi(2)] == ["running"]
    queue.ok("cancel-request", "running")
    done, running = (line.split("\t") for line in queue.ok("list").out.splitlines()[1:3])
    assert (done[3], done[5]) == ("finished", "")
    assert running[3] == "cancel_requested"
    assert running[5] != ""
    shown = queue.ok("show", "running", "--json").json
    assert (shown["status"], shown["cancel_requested"]) == ("running", True)


def test_list_can_be_limited_to_a_status_a_type_and_a_user(queue: Commands) -> None:
    queue.ok("submit", "a", "t", "{}", "-u", "ann")
    queue.ok("submit", "b", "t", "{}", "--user", "bob")
    queue.ok("submit", "c", "u", "{}", "--user", "bob")
    queue.ok("force-finish", "b")

    def keys(*options: str) -> list[str]:
        return [row["key"] for row in queue.ok("list", "--json", *options).json]

    assert keys() == ["a", "b", "c"]
    assert keys("--status", "waiting") == ["a", "c"]
    assert keys("--user", "bob") == ["b", "c"]
    assert keys("-u", "bob", "--status", "finished") == ["b"]
    assert keys("--type", "u") == ["c"]
    assert keys("--state", "finished", "--prefix", "b") == ["b"]
    assert keys("--late", "0s") == ["a", "c"]
    assert keys("--late", "1h") == keys("--late") == []


def test_list_names_the_key_behind_which_the_next_page_begins(queue: Commands) -> None:
    for key in ("a b", "c", "d"):
        queue.ok("submit", key, "t", "{}")
    outcome = queue("list", "--limit", "1", "--json")
    assert [row["key"] for row in outcome.json] == ["a b"]
    assert outcome.err == "there are more; list them with: --after 'a b'\n"
    assert [row["key"] for row in queue.ok("list", "--after", "a b", "--json").json] == ["c", "d"]


def test_the_place_of_the_next_page_has_no_control_character(queue: Commands) -> None:
    for key in ("a\x1b\x9b\u202e'\\b", "c"):
        queue.ok("submit", key, "t", "{}")
    err = queue("list", "--limit", "1").err
    assert err == "there are more; list them with: --after $'a\\U0000001b\\U0000009b\\U0000202e\\'\\\\b'\n"


def test_show_tells_a_task_in_lines(queue: Commands) -> None:
    queue.ok(*SUBMIT, "-t", str(AT), "--max-attempts", "3")
    lines = dict(line.split(maxsplit=1) for line in queue.ok("show", "task-id").out.splitlines())
    assert lines["timeout"] == f"{AT}  2096-10-02 16:06:40 +0900"
    assert lines["attempts"] == "0 of 3"
    assert lines["data"] == '{"uid":1,"name":"値"}'
    assert not {"user", "cancel", "finished_at", "last_error"} & lines.keys()


def test_the_originals_spellings_with_underscores_are_understood(queue: Commands) -> None:
    queue.ok("submit", "a", "t", "{}", "--user", "bob", "--max_running", "1")
    queue.ok("cancel_request", "a")
    queue.ok("submit", "b", "t", "{}")
    queue.ok("force_finish", "b")
    assert [row["status"] for row in queue.ok("list", "--json").json] == ["cancelled", "finished"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("submit", "k", "t", '{"a":1'), "data is not valid JSON"),
        (("submit", "k", "t", "[1]"), "data must be a JSON object"),
        (("submit", "", "t", "{}"), "key must be non-empty text"),
        (("submit", "k", "", "{}"), "type must be non-empty text"),
        (("submit", "k", "t", "{}", "-u", ""), "user must be non-empty text"),
        (("submit", "k", "t", "{}", "--max-running", "2"), "needs a user, whose running tasks it limits; give"),
        (("show", "absent"), "no task has the key 'absent'"),
        (("cancel-request", "absent"), "'absent'"),
        (("force-finish", "absent"), "'absent'"),
        (("retry", "absent"), "'absent'"),
        (("delete", "absent"), "no task has the key 'absent'"),
    ],
)
def test_a_wrong_argument_is_named_in_one_line(queue: Commands, arguments: tuple[str, ...], expected: str) -> None:
    assert expected in queue.fault(*arguments)
    assert queue.ok("list", "--json").json == []


@pytest.mark.parametrize("command", ["cancel-request", "force-finish", "retry"])
def test_what_is_finished_already_is_reported(queue: Commands, command: str) -> None:
    queue.ok(*SUBMIT)
    queue.ok("force-finish", "task-id")
    assert "finished" in queue.fault(command, "task-id")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("cancel",), "Did you mean"),
        (("submit", "key"), "Missing argument 'TYPE'"),
        (("list", "--status", "done"), "'done' is not one of 'waiting', 'running', 'finished', 'failed', 'cancelled'"),
        (
            ("submit", "k", "t", "{}", "-t", "soon"),
            "'soon' is not a time; give unix seconds, or a date with a time zone",
        ),
        (("submit", "k", "t", "{}", "-t", "nan"), "'nan' is not a time"),
        (("submit", "k", "t", "{}", "-t", "-1"), "'-1' is before 1973"),
        (
            ("submit", "k", "t", "{}", "-u", "bob", "--max-running", "0"),
            "'--max-running': expected a whole number from 1 to 2147483647, got '0'",
        ),
        (
            ("submit", "k", "t", "{}", "-u", "bob", "--max-running", "3000000000"),
            "'--max-running': expected a whole number from 1 to 2147483647, got '3000000000'",
        ),
        (
            ("submit", "k", "t", "{}", "--max-attempts", "9" * 5000),
            "'--max-attempts': expected a whole number from 1 to 2147483647, got '9",
        ),
        (
            ("submit", "k", "t", "{}", "--priority", "101"),
            "'--priority': expected a whole number from -100 to 100, got '101'",
        ),
        (("submit", "k", "t", "{}", "--compression", "zip"), "'zip'"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(queue: Commands, arguments: tuple[str, ...], expected: str) -> None:
    outcome = queue(*arguments)
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
    assert expected in outcome.err


def test_common_options_stand_anywhere(queue: Commands) -> None:
    queue.configure("test: {type: rdb, url: 'sqlite:///../psched.db'}")
    queue.ok(*SUBMIT, "-e", "test")
    root = queue.below()
    assert (
        root.ok("-e", "test", "--json", "queue", "list").json == root.ok("queue", "-e", "test", "list", "--json").json
    )


def test_a_configuration_without_sections_is_the_queue_s(queue: Commands) -> None:
    queue.ok(*SUBMIT)
    assert "the table psched_schedules does not exist" in queue.below().fault("list")


def test_a_missing_table_names_the_command_that_makes_it(fresh: Commands, database: str) -> None:
    queue = fresh.below("queue")
    queue.use(database)
    for command in (("list",), SUBMIT, ("show", "k"), ("delete", "k")):
        assert "psched queue init" in queue.fault(*command)


def test_init_makes_the_tables_of_every_section_and_keeps_what_is_there(fresh: Commands) -> None:
    fresh.configure(BOTH)
    fresh.ok("init")
    schedules = {
        f"psched_schedules{part}"
        for part in ("", "_ledger", "_changes", "_failures", "_output", "_watermarks", "_outbox", "_calendars")
    }
    assert tables(fresh) == QUEUE_TABLES | schedules
    fresh.ok("queue", *SUBMIT)
    for again in (("init",), ("queue", "init")):
        fresh.ok(*again)
    assert len(fresh.ok("queue", "list", "--json").json) == 1


def test_queue_init_makes_the_queue_s_tables_only(fresh: Commands) -> None:
    fresh.configure(BOTH)
    fresh.ok("queue", "init")
    assert tables(fresh) == QUEUE_TABLES


def tables(psched: Commands) -> set[str]:
    connection = sqlite3.connect(psched.folder / "psched.db")
    try:
        return {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    finally:
        connection.close()


def test_a_configuration_without_queue_is_reported(fresh: Commands) -> None:
    fresh.configure("development: {schedules: {type: rdb, url: 'sqlite:///schedules.db'}}")
    for command in ("list", "init", "run"):
        assert "the section `queue:` is missing" in fresh.below("queue").fault(command)


def test_doctor_looks_at_both_sections(fresh: Commands) -> None:
    fresh.configure(BOTH)
    fresh.ok("init")
    found = {finding["subject"]: finding["ok"] for finding in fresh.ok("doctor", "--json").json}
    both = {
        f"{section}{subject}" for section in ("", "queue ") for subject in ("database", "table", "indexes", "clocks")
    }
    assert both <= found.keys()
    assert all(found.values())


def test_doctor_tells_that_the_queue_s_table_alone_is_missing(fresh: Commands) -> None:
    fresh.use("sqlite:///../psched.db")
    fresh.ok("init")
    fresh.configure(BOTH)
    outcome = fresh("doctor", "--json")
    assert outcome.code == 1
    assert {finding["subject"] for finding in outcome.json if not finding["ok"]} == {"queue table"}
