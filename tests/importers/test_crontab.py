"""psched import crontab: jobs run at the same times, and with the same input and variables, as by Debian's cron."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from psched.cron.zones import load_zone
from psched.handlers.command import command_options
from psched.importers.crontab import has_user_column, read_crontab
from psched.importers.entries import ImportedEntry, distinct_keys
from psched.importers.run_time_comparison import following_of
from tests.importers import reference_cron
from tests.importers.enumeration import COMPARED, RecordRuns, runs, stretches

_CRONTABS = Path(__file__).with_name("crontabs")
_ZONES = ("Europe/Berlin", "America/Havana", "Australia/Lord_Howe")


def entries(text: str, user_column: bool = False, timezone: str = "Europe/Berlin") -> list[ImportedEntry]:
    return read_crontab("crontab", text, user_column, timezone).entries


def real_lines(timezone: str) -> list[ImportedEntry]:
    system, user = ((_CRONTABS / f"{name}.crontab").read_text() for name in ("system", "user"))
    return entries(system, True, timezone) + entries(user, False, timezone)


def test_all_jobs_of_real_crontabs_are_written_but_those_at_a_start() -> None:
    found = real_lines("Europe/Berlin")
    assert len(found) > 200
    assert {entry.rule for entry in found if not entry.definitions} == {"@reboot"}
    keys = [key for keys in distinct_keys(found, "") for key in keys]
    assert len(keys) == len(set(keys)) == len(found) - 3
    assert {"run-parts-cron.daily", "sessionclean", "cron.php", "fstrim", "minutely", "minutely-2"} <= set(keys)


@pytest.mark.parametrize("timezone", _ZONES)
def test_the_schedules_run_when_crons_daemon_runs_the_jobs(timezone: str, record_property: RecordRuns) -> None:
    rules = {entry.rule: entry.definitions for entry in real_lines(timezone) if entry.definitions}
    compared = 0
    for begin, end in stretches(timezone):
        expected = reference_cron.runs(rules, load_zone(timezone), begin, end)
        for rule, definitions in rules.items():
            assert runs(following_of(definitions, timezone), begin, end) == expected[rule], rule
            compared += len(expected[rule])
    record_property(COMPARED, compared)
    assert compared > 10_000


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("@reboot a", "runs when the host starts, which psched cannot do"),
        ("@fortnightly a", "expected one of @reboot @yearly"),
        ("5/15 * * * * a", "'5/15': Debian's cron refuses a step without a range"),
        ("0 0 ? * * a", "'?': cron refuses it"),
        ("0 0 L * * a", "'L': cron refuses it"),
        ("60 * * * * a", "minute '60' is out of range"),
        ("0 22-2 * * * a", "runs backwards"),
        ("0 0 30 2 * a", "never runs"),
        ("0 0 * *", "expected five fields and a command"),
        ("CRON_TZ=Mars/Base\n0 0 * * * a", "'Mars/Base' is not a zone"),
    ],
)
def test_a_job_that_has_no_times_is_not_written_and_says_why(line: str, reason: str) -> None:
    [entry] = entries(line)
    assert entry.definitions == ()
    assert entry.problem is not None
    assert reason in entry.problem


def test_variables_hold_for_the_jobs_below_them() -> None:
    first, second = entries("@daily a\nFOO = 'b c'\nSHELL=/bin/bash\nMAILTO=x@example.org\nHOME=/srv\n@daily b\n")
    assert first.definitions[0]["data"]["shell"] is True
    assert "FOO" not in first.definitions[0]["data"]["env"]
    data = second.definitions[0]["data"]
    assert data["argv"] == ["/bin/bash", "-c", "b"]
    assert data["cwd"] == "/srv"
    assert data["env"] == {
        "SHELL": "/bin/bash",
        "PATH": "/usr/bin:/bin",
        "HOME": "/srv",
        "FOO": "b c",
        "LOGNAME": first.definitions[0]["data"]["env"]["LOGNAME"],
    }


def test_the_user_of_a_job_is_in_its_type() -> None:
    [entry] = entries("0 3 * * * nobody /bin/true", user_column=True)
    assert entry.definitions[0]["type"] == "command.nobody"
    assert entry.definitions[0]["data"]["env"]["LOGNAME"] == "nobody"
    [unknown] = entries("0 3 * * * nobody-here /bin/true", user_column=True)
    assert "cwd" not in unknown.definitions[0]["data"]
    assert "nobody-here is not a user of this host" in unknown.remarks[0]
    [spooled] = read_crontab("/var/spool/cron/crontabs/daemon", "@daily a", False, "UTC").entries
    assert spooled.definitions[0]["type"] == "command.daemon"


@pytest.mark.parametrize(
    ("name", "expected"),
    [("/etc/crontab", True), ("/etc/cron.d/php", True), ("copy/cron.d/php", True), ("-", False), ("my.crontab", False)],
)
def test_system_crontabs_have_a_column_of_users(name: str, expected: bool) -> None:
    assert has_user_column(name) is expected


@pytest.mark.parametrize("shell", ["/bin/sh", "/bin/bash"])
def test_a_command_gets_the_input_that_follows_a_percent_sign(shell: str) -> None:
    [entry] = entries(f"SHELL={shell}\n" + r"@daily printf 'a\%\%b\n'; exec cat # rest%1 $HOME%%3\% END_OF_INPUT")
    options = command_options(entry.definitions[0]["data"])
    ended = subprocess.run(options.program, env=options.env, stdout=subprocess.PIPE, check=True, timeout=10)
    assert ended.stdout == b"a%b\n1 $HOME\n\n3% END_OF_INPUT\n"


def test_crons_random_minutes_become_a_spread() -> None:
    random, delayed = entries("0~29 4 * * * a\nRANDOM_DELAY=45\n0 5 * * * b\n")
    assert (random.definitions[0]["cron"], random.definitions[0]["spread"]) == ("0 4 * * *", "30m")
    assert (delayed.definitions[0]["cron"], delayed.definitions[0]["spread"]) == ("0 5 * * *", "45m")
    assert random.remarks
    assert delayed.remarks


def test_a_zone_of_the_crontab_is_a_zone_of_its_schedules() -> None:
    [entry] = entries("CRON_TZ=Asia/Tokyo\n0 9 * * * a")
    assert entry.definitions[0]["timezone"] == "Asia/Tokyo"
    assert "Debian's cron ignores it" in entry.remarks[0]
