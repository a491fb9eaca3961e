"""The commands for schedules work on every database, and the layout of `--json` does not change."""

from __future__ import annotations

import shlex
import time

import pytest

from tests.cli.commands import Commands

START = 1356966000
"""Unix seconds: 2013-01-01 00:00 in Tokyo."""

HOURLY = (
    "add",
    "sched-id",
    "type1",
    "0 * * * *",
    '{"key":"wert – 値"}',
    "-d",
    "30",
    "-t",
    "Asia/Tokyo",
    "-s",
    f"{START - 9}",
)


def test_a_schedule_s_whole_life_on_each_database(fresh: Commands, database: str) -> None:
    fresh.use(database)
    assert fresh.ok("init").out == ""
    assert fresh.ok(*HOURLY).out == ""
    assert [row["key"] for row in fresh.ok("--json", "list").json] == ["sched-id"]
    fresh.ok("modify", "sched-id", "--cron", "30 * * * *", "--data", "{}")
    shown = fresh.ok("show", "sched-id", "--json").json
    assert (shown["cron"], shown["data"]) == ("30 * * * *", {})
    assert fresh.ok("delete", "sched-id").out == ""
    assert fresh.ok("list", "--json").json == []


def test_json_shows_every_field_of_a_schedule_with_unix_and_local_times(psched: Commands) -> None:
    psched.ok(*HOURLY)
    before = time.time()
    shown = psched.ok("show", "sched-id", "--json").json
    lateness = shown["lateness"]
    assert before - 0.01 <= START + 30 + lateness <= time.time() + 0.01
    assert shown == {
        "key": "sched-id",
        "type": "type1",
        "cron": "0 * * * *",
        "delay": 30,
        "timezone": "Asia/Tokyo",
        "next_time": START,
        "next_time_local": "2013-01-01T00:00:00+09:00",
        "next_run_time": START + 30,
        "next_run_time_local": "2013-01-01T00:00:30+09:00",
        "data": {"key": "wert – 値"},
        "status": "waiting",
        "state": "overdue",
        "lateness": lateness,
        "overdue": True,
        "attempts": 0,
        "last_error": None,
        "node": None,
        "problem": None,
        "catch_up": "all",
        "max_lateness": None,
        "alert_after": None,
        "max_attempts": None,
        "paused": False,
        "regular_time": None,
        **dict.fromkeys(("owner", "description", "start", "end", "max_runs", "runs")),
        "tags": [],
        "exclude": [],
        "spread": 0,
        "overlap": "wait",
        **dict.fromkeys(("pause_after", "retry_wait", "timeout", "on_failure", "failures")),
    }


def test_list_writes_tab_separated_cells_where_its_output_is_no_terminal(psched: Commands) -> None:
    psched.ok(*HOURLY)
    header, row = (line.split("\t") for line in psched.ok("list").out.splitlines())
    state = row.pop(7)
    assert state.startswith("overdue (")
    assert state.endswith(" late)")
    assert row == [
        "sched-id", "type1", "0 * * * *", "30", "Asia/Tokyo",
        "2013-01-01 00:00:00 +0900", "2013-01-01 00:00:30 +0900", '{"key":"wert – 値"}',
    ]  # fmt: skip
    assert header == ["key", "type", "cron", "delay", "timezone", "next_time", "next_run_time", "state", "data"]


def test_list_prints_what_perfectsched_prints_on_request(psched: Commands) -> None:
    psched.ok(*HOURLY)
    columns = ("%30s", "%15s", "%18s", "%7s", "%11s", "%28s", "%28s", "%s")
    row = (
        "sched-id", "type1", "0 * * * *", "30", "Asia/Tokyo",
        "2013-01-01 00:00:00 +0900", "2013-01-01 00:00:30 +0900", '{"key":"wert – 値"}',
    )  # fmt: skip
    header = ("key", "type", "cron", "delay", "timezone", "next_time", "next_run_time", "data")
    expected = [" ".join(columns) % line for line in (header, row)]
    assert psched.ok("list", "--format", "perfectsched").out.splitlines() == [*expected, "1 entries."]


def test_times_are_shown_in_utc_on_request_for_that_command_only(psched: Commands) -> None:
    psched.ok(*HOURLY)
    assert "2012-12-31 15:00:30 +0000" in psched.ok("list", "--utc").out
    assert "2012-12-31 15:00:30 +0000" in psched.ok("--utc", "show", "sched-id").out
    assert psched.ok("list", "--utc", "--json").json[0]["next_time_local"] == "2012-12-31T15:00:00+00:00"
    assert "2013-01-01 00:00:30 +0900" in psched.ok("list").out


def test_list_is_ordered_by_due_time_and_json_is_one_array(psched: Commands) -> None:
    for key, at in (("later", 2_000_000_002), ("first", 2_000_000_000), ("second", 2_000_000_001)):
        psched.ok("add", key, "t", "* * * * *", "{}", "-a", str(at))
    assert [row["key"] for row in psched.ok("list", "--json").json] == ["first", "second", "later"]


def test_show_tells_a_schedule_in_lines(psched: Commands) -> None:
    psched.ok(*HOURLY)
    lines = dict(line.split(maxsplit=1) for line in psched.ok("show", "sched-id").out.splitlines())
    assert lines["next_time"] == f"{START}  2013-01-01 00:00:00 +0900"
    assert lines["data"] == '{"key":"wert – 値"}'
    assert "last_error" not in lines


def test_add_and_modify_print_the_schedule_with_json(psched: Commands) -> None:
    assert psched.ok(*HOURLY, "--json").json["next_time"] == START
    assert psched.ok("modify", "sched-id", "--type", "type2", "--json").json["type"] == "type2"


def test_negative_and_fractional_delays(psched: Commands) -> None:
    psched.ok("add", "a", "t", "0 * * * *", "{}", "-d", "-5", "-s", str(START))
    psched.ok("add", "b", "t", "0 * * * *", "{}", "--delay=-0.5", "--start", str(START))
    delays = {row["key"]: (row["delay"], row["next_run_time"]) for row in psched.ok("list", "--json").json}
    assert delays == {"a": (-5, START - 5), "b": (-0.5, START - 0.5)}


def test_the_first_run_may_be_at_another_time_than_its_occurrence(psched: Commands) -> None:
    added = psched.ok("add", "a", "t", "0 * * * *", "{}", "-s", str(START), "-a", str(START + 7), "--json").json
    assert (added["next_time"], added["next_run_time"]) == (START, START + 7)


def test_add_takes_the_configured_zone_when_none_is_given(psched: Commands) -> None:
    psched.use("sqlite:///../psched.db", "  timezone: Europe/Berlin\n")
    assert psched.ok("add", "a", "t", "@daily", "{}", "--json").json["timezone"] == "Europe/Berlin"
    assert psched.ok("add", "b", "t", "@daily", "{}", "-t", "UTC", "--json").json["timezone"] == "UTC"


def test_modify_changes_what_is_given_and_nothing_else(psched: Commands) -> None:
    psched.ok(*HOURLY)
    before = psched.ok("show", "sched-id", "--json").json
    psched.ok("modify", "sched-id", "--type", "type2")
    after = psched.ok("show", "sched-id", "--json").json
    assert after == {**before, "type": "type2", "lateness": after["lateness"]}


def test_modify_can_move_the_times(psched: Commands) -> None:
    psched.ok("add", "a", "t", "0 * * * *", "{}")
    psched.ok("modify", "a", "-s", "2000000000", "-d", "0", "-t", "UTC")
    moved = psched.ok("show", "a", "--json").json
    assert (moved["next_time"], moved["delay"], moved["timezone"]) == (2_000_001_600, 0, "UTC")


def test_modify_without_any_change_is_wrong_usage(psched: Commands) -> None:
    outcome = psched("modify", "sched-id")
    assert (outcome.code, outcome.out) == (2, "")
    assert "nothing to change" in outcome.err


def test_init_may_be_repeated_and_keeps_what_is_there(psched: Commands) -> None:
    psched.ok(*HOURLY)
    psched.ok("init")
    assert len(psched.ok("list", "--json").json) == 1


@pytest.mark.parametrize("key", ["値 \N{GRINNING FACE}", "a b", "--looks-like-an-option"])
def test_any_text_may_be_a_key(psched: Commands, key: str) -> None:
    psched.ok("add", "--", key, "t", "@daily", "{}")
    assert psched.ok("show", "--json", "--", key).json["key"] == key


def keys_of(psched: Commands, *options: str) -> list[str]:
    return [row["key"] for row in psched.ok("list", "--json", *options).json]


def test_list_is_limited_to_a_type_a_state_and_a_prefix(psched: Commands) -> None:
    for number, key in enumerate(("mail.a", "mail.b", "report.a", "report.b")):
        psched.ok("add", key, key.split(".", maxsplit=1)[0], "* * * * *", "{}", "-a", str(2_000_000_000 + number))
    psched.ok("add", "old", "mail", "0 * * * *", "{}", "-s", str(START))
    psched.ok("pause", "mail.b")
    assert keys_of(psched, "--type", "mail") == ["old", "mail.a", "mail.b"]
    assert keys_of(psched, "--prefix", "report.") == ["report.a", "report.b"]
    assert keys_of(psched, "--prefix", "report.", "--type", "mail") == []
    assert keys_of(psched, "--state", "waiting") == ["mail.a", "report.a", "report.b"]
    assert keys_of(psched, "--state", "paused") == ["mail.b"]
    assert keys_of(psched, "--state", "overdue") == keys_of(psched, "--late") == ["old"]
    assert keys_of(psched, "--state", "due") == keys_of(psched, "--state", "running") == []
    assert keys_of(psched, "--late", "--type", "report") == []
    psched.ok("modify", "old", "--cron", "0 0 1 1 *", "-s", "2000000000")
    assert keys_of(psched, "--late") == []


def test_list_names_the_place_where_the_next_page_begins(psched: Commands) -> None:
    for number in range(5):
        psched.ok("add", f"key {number}:", "t", "* * * * *", "{}", "-a", f"{2_000_000_000 + number // 2}.5")
    seen, place = [], list[str]()
    for _ in range(3):
        outcome = psched("list", "--limit", "2", "--json", *place)
        seen += [row["key"] for row in outcome.json]
        place = shlex.split(outcome.err.removeprefix("there are more; list them with: "))
    assert seen == [f"key {number}:" for number in range(5)]
    assert place == []
    assert psched("list", "--limit", "2").err == "there are more; list them with: --after '2000000000.5:key 1:'\n"
    assert psched.ok("list", "--limit", "5").err == ""


def test_a_schedule_that_has_ended_is_shown_as_such(psched: Commands) -> None:
    psched.ok("add", "key", "t", "@at 2020-01-01T00:00", "{}")
    assert "\tended\tended\tended\t" in psched.ok("list", "--state", "ended").out
    shown = psched.ok("show", "key").out
    assert "next_run_time  ended\n" in shown
    assert psched.ok("show", "key", "--json").json["state"] == "ended"
    assert psched.ok("explain", "--key", "key").out == "@at 2020-01-01T00:00  UTC: once, at 2020-01-01 00:00\n"
