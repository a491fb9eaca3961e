"""psched import systemd: timers run when systemd-analyze says so, or the report says from when they do not."""

from __future__ import annotations

import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from psched.errors import ConfigError
from psched.handlers.command import command_options
from psched.importers.entries import Imported, ImportedEntry
from psched.importers.systemd_calendar_event import NotACalendarEventError, parse
from psched.importers.systemd_timers import read_timers
from tests.importers.enumeration import BEGIN, COMPARED, DAY, IS_WHOLE, RecordRuns, runs, stretches
from tests.importers.explained import assert_explained, definitions, reports

ZONE = "Europe/Berlin"
EVENTS = Path(__file__).with_name("calendar_events.txt").read_text().splitlines()


def elapses(event: str, begin: int, number: int) -> list[int]:
    """Return the first `number` times, at or after `begin`, at which systemd says that a calendar event elapses."""
    command = ["systemd-analyze", "calendar", f"--iterations={number}", f"--base-time=@{begin - 1}", event]
    ended = subprocess.run(
        command, check=False, env={"TZ": ZONE, "PATH": "/usr/bin:/bin"}, capture_output=True, text=True, timeout=60
    )
    assert "Normalized form" in ended.stdout, ended.stderr
    shown = re.findall(
        r"(?:Next elapse|Iter\. #\d+|\(in UTC\)): \w{3} (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) UTC", ended.stdout
    )
    return [int(datetime.fromisoformat(each).replace(tzinfo=UTC).timestamp()) for each in shown]


@pytest.mark.needs("systemd-analyze")
@pytest.mark.parametrize("event", EVENTS)
def test_events_elapse_when_systemd_says(event: str) -> None:
    following = parse(event).following(ZONE)
    last = BEGIN + 400 * DAY
    whole = min(len(runs(following, BEGIN, last)) + 1, 500_000) if IS_WHOLE else 0  # systemd takes long for millennia
    beginnings = [(BEGIN, whole or 15), *((begin + DAY - 7200, 25) for begin, _ in stretches(ZONE))]
    for begin, number in beginnings[: 1 if whole else None]:
        expected = elapses(event, begin, number)
        end = last if len(expected) < number else expected[-1]
        assert runs(following, begin, end) == [time for time in expected if time <= end]


def timers(folder: Path, timer: str, service: str | None = "ExecStart=/bin/true") -> Imported:
    (folder / "job.timer").write_text(
        f"[Unit]\nDescription=A job\n\n[Timer]\n{timer}\n\n[Install]\nWantedBy=timers.target\n"
    )
    if service is not None:
        (folder / "job.service").write_text(f"[Service]\nType=oneshot\n{service}\n")
    return read_timers([folder], ZONE, BEGIN)


def entry(folder: Path, timer: str, service: str | None = "ExecStart=/bin/true") -> ImportedEntry:
    [found] = timers(folder, timer, service).entries
    return found


def data(folder: Path, service: str) -> dict[str, Any]:
    found: dict[str, Any] = entry(folder, "OnCalendar=daily", service).definitions[0]["data"]
    return found


def test_timers_run_when_their_events_elapse_or_the_report_says_from_when_on_not(
    tmp_path: Path, record_property: RecordRuns
) -> None:
    for number, event in enumerate(EVENTS):
        (tmp_path / f"{number}.timer").write_text(f"[Timer]\nOnCalendar={event}\n")
    imported = read_timers([tmp_path], ZONE, BEGIN)
    events = {each.name: parse(each.rule.removeprefix("OnCalendar=")) for each in imported.entries}
    reported = reports(imported)
    compared = 0
    for name, event in events.items():
        for begin, end in stretches(ZONE):
            expected = {name: runs(event.following(ZONE), begin, end)}
            compared += assert_explained(imported, expected, begin, end, {name: reported[name]})
    record_property(COMPARED, compared)
    assert compared > 10_000
    unwritten = {events_of(each.entry) for each in reported.values() if not each.keys}
    past = {
        "2003-03-05",
        "2003-03-05 05:40",
        "2003-02..04-05",
        "Thu,Fri 2012-*-1,5 11:12:13",
        "Wed..Sat,Tue 12-10-15 1:2:3",
    }
    assert unwritten == past | {"2026/2-01-01"}


def events_of(found: ImportedEntry) -> str:
    return found.rule.removeprefix("OnCalendar=")


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        ("*-*~01", [{"cron": "0 0 L * *"}]),
        ("Mon *-05~07/1", [{"cron": "0 0 * 5 monL"}]),
        ("*-02~03", [{"cron": "0 0 26 2 *"}]),
        ("Mon *-*-1..7", [{"cron": "0 0 * * mon#1"}]),
        ("Fri *-*-13", [{"cron": "0 0 13 * *", "exclude": ["sun-mon-tue-wed-thu-sat"]}]),
        (
            "2027,2029-01-01",
            [
                {
                    "cron": "0 0 1 1 *",
                    "start": f"{year}-01-01T00:00:00+01:00",
                    "end": f"{year}-12-31T23:59:59+01:00",
                }
                for year in (2027, 2029)
            ],
        ),
        ("*-*-* 6,18:00 America/New_York", [{"cron": "0 6,18 * * *", "timezone": "America/New_York"}]),
    ],
)
def test_events_become_expressions(event: str, expected: list[dict[str, Any]], tmp_path: Path) -> None:
    found = definitions(entry(tmp_path, f"OnCalendar={event}", None))
    assert [{name: value for name, value in each.items() if name != "data"} for each in found] == expected


@pytest.mark.parametrize(
    "event",
    [
        "*-*-* 12:00:00.5",
        f"*-*-* {'9' * 5000}:00",
        f"@{'9' * 5000}",
        "someday",
        "Mon..Noday",
        "Fri..Mon",
        "*/2-06-01",
        "*-*~05..02",
        "*-13-01",
        "25:00",
        "",
        "05",
        "*-*-* 1:2:3:4",
    ],
)
def test_an_event_that_is_not_understood_is_refused(event: str) -> None:
    with pytest.raises(NotACalendarEventError):
        parse(event)


def test_the_options_of_a_timer_become_options(tmp_path: Path) -> None:
    options = "OnCalendar=daily\nPersistent=true\nRandomizedDelaySec=1h 30min"
    found = entry(tmp_path, options).definitions[0]
    assert (found["catch_up"], found["spread"]) == ("latest", "90m")
    assert "draws a random delay" in entry(tmp_path, options).remarks[0]
    assert entry(tmp_path, f"{options}\nFixedRandomDelay=yes").remarks == ()


def test_what_counts_from_a_start_is_not_written(tmp_path: Path) -> None:
    boot, again = timers(tmp_path, "OnBootSec=15min\nOnUnitActiveSec=1d").entries
    assert (boot.definitions, again.definitions) == ((), ())
    assert (boot.rule, again.rule) == ("OnBootSec=15min", "OnUnitActiveSec=1d")
    assert boot.problem is not None
    assert "psched cannot do" in boot.problem


def test_several_events_and_overriding_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "job.timer.d").mkdir()
    (tmp_path / "job.timer.d" / "override.conf").write_text(
        "[Timer]\nOnCalendar=\nOnCalendar=Sat 5:00\nOnCalendar=Sun 6:00\n"
    )
    found = timers(tmp_path, "OnCalendar=daily").entries
    assert [each.definitions[0]["cron"] for each in found] == ["0 5 * * 6", "0 6 * * 0"]


def test_the_commands_of_a_service_run_as_systemd_runs_them(tmp_path: Path) -> None:
    service = (
        'Environment="NAME=a b" PLACE=/tmp\nEnvironment=KIND=full\nUser=nobody\nWorkingDirectory=/tmp\n'
        "TimeoutStartSec=2min\nSuccessExitStatus=75\nExecStartPre=-/bin/false\n"
        "ExecStart=/bin/echo $NAME ${NAME} '%%x y' \\\n  %N ${KIND}$$\n"
    )
    found = data(tmp_path, service)
    options = command_options(found)
    assert (options.cwd, options.timeout, options.ok_exit_codes) == ("/tmp", 120, [0, 75])
    ended = subprocess.run(options.program, env=options.env, capture_output=True, text=True, check=True, timeout=10)
    assert ended.stdout == "a b a b %x y job full$\n"
    [nobody] = timers(tmp_path, "OnCalendar=daily", service).entries
    assert nobody.definitions[0]["type"] == "command.nobody"


def test_one_command_needs_no_shell(tmp_path: Path) -> None:
    assert data(tmp_path, "ExecStart=/usr/bin/backup --all 'two words'")["argv"] == [
        "/usr/bin/backup",
        "--all",
        "two words",
    ]


def test_a_service_that_is_not_there_is_started_by_systemctl(tmp_path: Path) -> None:
    found = entry(tmp_path, "OnCalendar=daily\nUnit=other.service")
    assert found.definitions[0]["data"] == {"argv": ["systemctl", "start", "other.service"]}
    assert "other.service is not among the unit files" in found.remarks[0]


def test_no_timer_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no unit named \*\.timer"):
        read_timers([tmp_path], ZONE, BEGIN)


def test_a_line_of_a_service_that_cannot_be_read_is_the_problem_of_its_timer(tmp_path: Path) -> None:
    for line in ("ExecStart=/bin/echo 'half", 'Environment="half'):
        found = entry(tmp_path, "OnCalendar=daily", line)
        assert found.definitions == ()
        assert "a line that cannot be read: No closing quotation" in (found.problem or "")


def test_a_span_that_is_too_long_is_none(tmp_path: Path) -> None:
    assert "spread" not in entry(tmp_path, f"OnCalendar=daily\nRandomizedDelaySec={'9' * 5000}").definitions[0]
