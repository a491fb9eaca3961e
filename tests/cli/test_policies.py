"""Options of schedules, pauses and extra runs on the command line."""

from __future__ import annotations

import psched as library
from tests.cli.commands import Commands

ADD = ("add", "key", "t", "0 0 1 1 *", "{}")


def test_a_policy_is_given_and_changed(psched: Commands) -> None:
    psched.ok(*ADD, "--catch-up", "latest", "--max-lateness", "30", "--alert-after", "90")
    shown = psched.ok("show", "key", "--json").json
    assert (shown["catch_up"], shown["max_lateness"], shown["alert_after"]) == ("latest", 30, 90)
    psched.ok("modify", "key", "--max-lateness", "none")
    shown = psched.ok("show", "key", "--json").json
    assert (shown["catch_up"], shown["max_lateness"], shown["alert_after"]) == ("latest", None, 90)
    assert "alert_after    90\n" in psched.ok("show", "key").out
    psched.ok("modify", "key", "--max-attempts", "3")
    assert psched.ok("show", "key", "--json").json["max_attempts"] == 3
    assert "max_attempts   3\n" in psched.ok("show", "key").out
    psched.ok("modify", "key", "--max-attempts", "none")
    assert [row["max_attempts"] for row in psched.ok("list", "--json").json] == [None]
    outcome = psched("modify", "key", "--max-attempts", "0")
    assert outcome.code == 2
    assert "expected a whole number from 1 to 2147483647, or none, got '0'" in outcome.err
    outcome = psched("modify", "key", "--max-lateness", "soon")
    assert outcome.code == 2
    assert "expected seconds or a duration (90s, 5m, 2h) from 0 to 1000000000, or none, got 'soon'" in outcome.err


def test_schedules_are_listed_by_owner_and_tag(psched: Commands) -> None:
    psched.ok(*ADD, "--owner", "billing", "--tag", "mail", "--tag", "nightly", "--description", "Sends it.")
    psched.ok("add", "other", "t", "0 0 1 1 *", "{}", "--owner", "shop")
    assert "tags           mail, nightly\n" in psched.ok("show", "key").out
    assert [row["key"] for row in psched.ok("list", "--owner", "shop", "--json").json] == ["other"]
    [row] = psched.ok("list", "--tag", "mail", "--json").json
    assert (row["owner"], row["description"], row["tags"]) == ("billing", "Sends it.", ["mail", "nightly"])
    copy = psched.folder / "copy.json"
    copy.write_text(psched.ok("list", "--owner", "billing", "--json").out)
    psched.ok("modify", "key", "--owner", "", "--tag", "", "--description", "")
    shown = psched.ok("show", "key", "--json").json
    assert (shown["owner"], shown["description"], shown["tags"]) == (None, None, [])
    psched.ok("delete", "key")
    psched.ok("import", "json", str(copy))
    assert psched.ok("show", "key", "--json").json["tags"] == ["mail", "nightly"]


def test_a_schedule_is_paused_and_resumed(psched: Commands) -> None:
    psched.ok(*ADD)
    assert psched.ok("resume", "key").out == "key was not paused\n"
    assert psched.ok("pause", "key").out == ""
    assert psched.ok("pause", "key").out == "key was already paused\n"
    assert psched.ok("show", "key", "--json").json["paused"] is True
    assert "\tpaused\tpaused\t" in psched.ok("list").out
    psched.ok("resume", "key")
    assert psched.ok("show", "key", "--json").json["paused"] is False
    assert psched.fault("pause", "nobody") == "no schedule has the key 'nobody'"


def test_an_extra_run_is_asked_for(psched: Commands) -> None:
    psched.ok(*ADD)
    regular = psched.ok("show", "key", "--json").json["next_time"]
    psched.ok("run-now", "key")
    assert psched.ok("show", "key", "--json").json["regular_time"] == regular
    with library.open(psched.folder / "etc" / "psched.yml", "development") as schedules:
        task = schedules.poll()
        assert task is not None
        task.finish()
    assert psched.ok("show", "key", "--json").json["next_time"] == regular
    [entry] = psched.ok("history", "key", "--json").json
    assert (entry["detail"], entry["extra"]) == ("run-now", True)


def test_the_options_of_a_rule_are_given_and_removed(psched: Commands) -> None:
    psched.ok(
        "add", "key", "t", "@daily", "{}", "--not-before", "2027-01-01T00:00Z", "--not-after", "2028-01-01T00:00Z"
    )
    psched.ok("modify", "key", "--spread", "10m", "--max-runs", "5")
    shown = psched.ok("show", "key", "--json").json
    assert (shown["start"], shown["end"], shown["spread"]) == (1798761600, 1830297600, 600)
    assert "\nend            1830297600  2028-01-01 " in psched.ok("show", "key").out
    bounds = "not before 2027-01-01 00:00:00 UTC, not after 2028-01-01 00:00:00 UTC, 5 times at the most"
    assert psched.ok("explain", "--key", "key").out == f"@daily  UTC: at 00:00 every day, {bounds}, spread over 600 s\n"
    out = psched("explain", "--key", "key", "--at", "2026-12-31").out
    assert "Thu 2026-12-31: not due\n  because the schedule starts 2027-01-01 00:00:00 UTC\n" in out
    assert psched("modify", "key", "--not-after", "2026-01-01T00:00Z").err.strip().endswith("give a later end")
    psched.ok("modify", "key", "--not-before", "none", "--not-after", "none", "--spread", "none")
    psched.ok("modify", "key", "--max-runs", "none")
    shown = psched.ok("show", "key", "--json").json
    assert [shown[name] for name in ("start", "end", "spread", "max_runs", "runs")] == [None, None, 0, None, None]


def test_a_schedule_has_its_own_wait_time_limit_and_hook(psched: Commands) -> None:
    options = ("--overlap", "skip", "--pause-after", "3", "--retry-wait", "10s..5m", "--timeout", "1h")
    outcome = psched(*ADD, *options, "--on-failure", "pager")
    assert (outcome.code, outcome.err) == (0, "warning: the configuration has no hook 'pager'; `hooks:` has none\n")
    shown = psched.ok("show", "key", "--json").json
    assert (shown["overlap"], shown["pause_after"], shown["timeout"]) == ("skip", 3, 3600)
    assert shown["retry_wait"] == {"first": 10, "factor": 2, "limit": 300, "jitter": 0.2}
    assert (shown["on_failure"], shown["failures"]) == ("pager", None)
    psched.ok("modify", "key", "--retry-wait", "90s", "--on-failure", "", "--pause-after", "none", "--timeout", "none")
    shown = psched.ok("show", "key", "--json").json
    assert (shown["retry_wait"], shown["on_failure"], shown["pause_after"], shown["timeout"]) == (90, None, None, None)
    assert "timeout must be more than 0 seconds" in psched.fault("modify", "key", "--timeout", "0")
    assert psched("modify", "key", "--retry-wait", "5m..soon").code == 2
