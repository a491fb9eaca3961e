"""psched backfill starts, lists, pauses, resumes and cancels backfills."""

from __future__ import annotations

import pytest

from tests.cli.commands import Commands

FROM, TO = "2026-01-01", "2026-01-05"


def test_a_backfill_is_shown_started_once_paused_and_cancelled(psched: Commands) -> None:
    psched.ok("add", "key", "t", "0 3 * * *", "{}")
    given = ("backfill", "key", "--from", FROM, "--to", TO)
    assert psched.ok(*given, "--dry-run").out == (
        "4 of 4 occurrences would run\n  2026-01-01 12:00:00 +0900 … 2026-01-04 12:00:00 +0900\n"
    )
    plan = psched.ok(*given, "--dry-run", "--json").json
    assert plan == {"schedule": "key", "spans": [[1767236400, 1767495600]], "count": 4, "total": 4}
    assert psched.ok("backfill", "--json").json == []
    assert psched.ok(*given, "--max-running", "2").out == (
        "key:1: 4 occurrences to run, 2026-01-01 12:00:00 +0900 … 2026-01-04 12:00:00 +0900\n"
    )
    assert psched.ok(*given, "--all").out.startswith("nothing to run: each occurrence")
    [started] = psched.ok("backfill", "key", "--json").json
    assert (started["name"], started["left"], started["max_running"]) == ("key:1", 4, 2)
    assert started["first_local"] == "2026-01-01T12:00:00+09:00"
    assert psched.ok("backfill", "key", "--pause").out == "key:1 paused\n"
    assert psched.ok("backfill", "key", "--pause").out == "nothing to pause\n"
    assert "key:1\tpaused\t0\t0\t4\t2\t" in psched.ok("backfill").out
    [resumed] = psched.ok("backfill", "key", "--resume", "--json").json
    assert resumed["state"] == "waiting"
    assert psched.ok("backfill", "key", "--cancel", "--number", "1").out == "key:1 cancelled\n"
    exported = psched.ok("export", "--type", "t", "--as", "me", "--json").json["schedules"]
    assert [each["key"] for each in exported] == ["key"]
    assert [row.get("backfill") for row in psched.ok("list", "--json").json] == [None, "key", "key"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--from", FROM], "name the schedule: psched backfill KEY --from TIME"),
        (["--pause"], "name the schedule: psched backfill KEY --pause"),
        (["key", "--to", TO], "--to needs --from"),
        (["key", "--failed"], "--failed needs --from"),
        (["key", "--number", "1"], "--number needs --pause, --resume or --cancel"),
        (["key", "--from", FROM, "--cancel"], "--from cannot be combined with --cancel; remove one of them"),
        (["key", "--from", TO, "--to", FROM], "--to is before --from"),
        (["key", "--from", FROM], "no schedule has the key 'key'"),
        (["key", "--cancel", "--number", "3"], "'key' has no backfill 3; its backfills: none"),
        (["key"], "no schedule has the key 'key'"),
        (["key", "--pause"], "no schedule has the key 'key'"),
        (["key", "--from", FROM, "--all", "--failed"], "--failed cannot be combined with --all; remove one of them"),
        (["key", "--pause", "--cancel"], "--pause cannot be combined with --cancel; remove one of them"),
    ],
)
def test_wrong_use_of_backfill_is_told(psched: Commands, arguments: list[str], message: str) -> None:
    outcome = psched("backfill", *arguments)
    assert (outcome.code in (1, 2), outcome.out, outcome.err.count("\n")) == (True, "", 1)
    assert message in outcome.err
