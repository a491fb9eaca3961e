"""psched import json adds what `list --json` prints.

It checks all rows first, can be repeated, and never adds rows that are paused or finished.
"""

from __future__ import annotations

import json

import pytest

from tests.cli.commands import Commands

START = 2_000_000_000
FIELDS = ("key", "type", "cron", "timezone", "delay", "data", "next_time", "catch_up", "max_lateness", "max_attempts")


@pytest.fixture
def both(fresh: Commands) -> Commands:
    """A command line with both sections: schedules and a queue."""
    fresh.configure("development: {type: rdb, url: 'sqlite:///../source.db', schedules: {}, queue: {}}")
    fresh.ok("init")
    return fresh


def write(commands: Commands, text: str) -> str:
    (commands.folder / "rows.json").write_text(text)
    return "rows.json"


def test_exported_schedules_are_added_again_as_they_were(both: Commands, database: str) -> None:
    options = ("-d", "90s", "-t", "Asia/Tokyo", "-s", str(START), "--catch-up", "latest", "--max-attempts", "3")
    both.ok("add", "a", "mail", "*/10 * * * *", '{"n": "値"}', *options)
    both.ok("add", "b", "mail", "0 7 * * *", "{}")
    both.ok("run-now", "b")
    exported = both.ok("list", "--json").out
    both.use(database)
    both.ok("init")
    assert both.ok("import", "json", write(both, exported)).out == "2 schedules added\n"
    before, after = (
        {row["key"]: {name: row[name] for name in FIELDS} for row in rows}
        for rows in (json.loads(exported), both.ok("list", "--json").json)
    )
    before["b"]["next_time"] = next(row for row in json.loads(exported) if row["key"] == "b")["regular_time"]
    assert after == before
    both.ok("modify", "a", "--data", "{}")
    assert both.ok("import", "json", "rows.json").out == "0 schedules added; 2 exist already: b, a\n"
    assert both.ok("show", "a", "--json").json["data"] == {}


def test_objects_may_stand_one_on_each_line(both: Commands) -> None:
    lines = (
        '{"key": "a", "type": "t", "cron": "@daily"}',
        "",
        '{"key": "b", "type": "t", "cron": "@hourly", "delay": 5}',
    )
    assert both.ok("import", "json", write(both, "\n".join(lines)), "--json").json == {"added": 2, "present": []}
    assert both.ok("show", "b", "--json").json["delay"] == 5


def test_many_are_added(both: Commands) -> None:
    rows = [{"key": f"key{n:04}", "type": "t"} for n in range(1201)]
    write(both, "\n".join(map(json.dumps, rows)))
    both.ok("queue", "submit", "key0700", "t", "{}")
    assert both.ok("queue", "import", "rows.json").out == "1200 tasks added; 1 exist already: key0700\n"
    assert [row["key"] for row in both.ok("queue", "list", "--json").json] == [row["key"] for row in rows]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "rows.json: no schedule in this file; expected a JSON array, or one JSON object per line"),
        ("[]", "rows.json: no schedule in this file"),
        ("[7]", "rows.json: element 1 must be a JSON object, got 7"),
        ("[{]", "rows.json: data is not valid JSON: Expecting property name enclosed in double quotes at character 3"),
        ('{"key": "a"', "rows.json: line 1: data is not valid JSON: Expecting ',' delimiter at character 12 (the end)"),
        ('{"key": "a", "type": "t"}', "rows.json: schedule 2 ('a'): cron is missing; give key, type and cron"),
        ('{"key": "a", "type": "t", "cron": "61 * * * *"}', "rows.json: schedule 2 ('a'): cron '61 * * * *': minute"),
        ('{"key": "", "type": "t", "cron": "@daily"}', "rows.json: schedule 2 (''): key must be non-empty text"),
        ('{"key": 7, "type": "t", "cron": "@daily"}', "rows.json: schedule 2 (7): key must be"),
        ('{"key": "a", "type": "t", "cron": 7}', "rows.json: schedule 2 ('a'): cron must be text"),
        ('{"key": "a", "type": "t", "cron": "@daily", "data": []}', "schedule 2 ('a'): data must be a JSON object"),
        ('{"key": "a", "type": "t", "cron": "@daily", "dely": 5}', "unknown field 'dely'; did you mean 'delay'?"),
        ('{"key": "a", "type": "t", "cron": "@daily", "delay": "5m"}', "schedule 2 ('a'): delay must be a number of"),
        ('{"key": "a", "type": "t", "cron": "@daily", "next_time": 1e99}', "schedule 2 ('a'): next_time"),
        (
            '{"key": "a", "type": "t", "cron": "@daily", "paused": true}',
            "schedule 2 ('a'): the schedule is paused, but would run after the import;",
        ),
        ('{"key": "good", "type": "t", "cron": "@daily"}', "the key 'good' is given twice"),
    ],
)
def test_a_mistake_is_named_and_nothing_is_added(both: Commands, text: str, expected: str) -> None:
    good = '{"key": "good", "type": "t", "cron": "@daily"}\n' if "schedule 2" in expected or "key" in text[:9] else ""
    good = "" if "line 1" in expected else good
    assert expected in both.fault("import", "json", write(both, good + text))
    assert both.ok("list", "--json").json == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            '{"key": "a", "type": "t", "status": "finished"}',
            "task 1 ('a'): the task is finished; export waiting tasks only",
        ),
        (
            '{"key": "a", "type": "t", "priority": 101}',
            "task 1 ('a'): priority must be a whole number from -100 to 100",
        ),
        ('{"key": "a"}', "task 1 ('a'): type is missing; give key, type"),
    ],
)
def test_a_mistake_in_a_task_is_named_and_nothing_is_submitted(both: Commands, text: str, expected: str) -> None:
    assert expected in both.fault("queue", "import", write(both, text))
    assert both.ok("queue", "list", "--json").json == []


def test_exported_tasks_are_submitted_again_as_they_were(both: Commands) -> None:
    options = ("-u", "ann", "--max-running", "2", "-t", str(START), "--priority", "5", "--compression", "gzip")
    both.ok("queue", "submit", "a", "mail", '{"n": 1}', *options)
    exported = both.ok("queue", "list", "--json").json
    both.ok("queue", "delete", "a")
    assert both.ok("queue", "import", write(both, json.dumps(exported))).out == "1 tasks added\n"
    fields = ("key", "type", "data", "user", "max_running", "run_at", "priority", "compression", "status")
    [again] = both.ok("queue", "list", "--json").json
    assert {name: again[name] for name in fields} == {name: exported[0][name] for name in fields}
