"""psched next: when an expression is due, in its zone and in UTC, and how clock changes affect it."""

from __future__ import annotations

from tests.cli.commands import Commands

BEFORE_SUMMER = "1743200000"
"""Unix seconds: 2025-03-28 in Berlin, two nights before the clocks go forward."""


def test_it_needs_no_configuration(fresh: Commands) -> None:
    lines = fresh.ok("next", "30 2 * * *", "-n", "2", "-s", BEFORE_SUMMER).out.splitlines()
    assert [line.split() for line in lines] == [
        ["UTC", "UTC", "note"],
        ["Sat", "2025-03-29", "02:30:00", "UTC", "2025-03-29", "02:30:00"],
        ["Sun", "2025-03-30", "02:30:00", "UTC", "2025-03-30", "02:30:00"],
    ]


def test_it_takes_zone_and_dialect_from_the_configuration(fresh: Commands) -> None:
    fresh.use("mysql://nowhere/psched", "  timezone: Europe/Berlin\n  cron_dialect: perfectsched\n")
    rows = fresh.ok("next", "30 2 * * *", "-n", "2", "-s", BEFORE_SUMMER, "--json").json
    assert [row["local"] for row in rows] == ["2025-03-29T02:30:00+01:00", "2025-03-31T02:30:00+02:00"]


def test_surprises_of_clock_changes_are_marked(fresh: Commands) -> None:
    rows = fresh.ok("next", "30 2 * * *", "-t", "Europe/Berlin", "-n", "2", "-s", BEFORE_SUMMER, "--json").json
    assert rows == [
        {
            "time": 1743211800,
            "local": "2025-03-29T02:30:00+01:00",
            "utc": "2025-03-29T01:30:00+00:00",
            "note": "",
        },
        {
            "time": 1743296400,
            "local": "2025-03-30T03:00:00+02:00",
            "utc": "2025-03-30T01:00:00+00:00",
            "note": "runs late: 02:30 does not exist",
        },
    ]
    assert "runs late" in fresh.ok("next", "30 2 * * *", "-t", "Europe/Berlin", "-s", BEFORE_SUMMER).out


def test_it_shows_ten_from_now_on(fresh: Commands) -> None:
    assert len(fresh.ok("next", "* * * * * *").out.splitlines()) == 1 + 10


def test_a_configuration_that_was_named_must_be_there(fresh: Commands) -> None:
    assert "/none.yml" in fresh.fault("next", "@daily", "-c", "/none.yml")


def test_next_needs_no_section_of_schedules(fresh: Commands) -> None:
    fresh.configure("development: {queue: {type: rdb, url: 'sqlite:///queue.db'}}")
    assert [row["note"] for row in fresh.ok("next", "@daily", "-n", "1", "--json").json] == [""]


def test_it_ends_with_the_last_occurrence(fresh: Commands) -> None:
    outcome = fresh("next", "@at 2027-03-01T09:00", "-t", "Europe/Berlin", "-s", BEFORE_SUMMER)
    assert outcome.out.splitlines()[1].split() == ["Mon", "2027-03-01", "09:00:00", "CET", "2027-03-01", "08:00:00"]
    assert (outcome.code, outcome.err) == (0, "no further occurrence\n")


def test_the_occurrences_of_a_schedule_are_those_that_its_options_leave(psched: Commands) -> None:
    psched.ok("calendar", "set", "free", "2030-01-03")
    zone = ("-t", "Europe/Berlin")
    psched.ok("add", "key", "t", "0 9 * * *", "{}", *zone, "--exclude", "free", "--max-runs", "3", "-d", "90")
    outcome = psched("next", "--key", "key", "-s", "2030-01-02T00:00+01:00")
    assert outcome.out.splitlines()[1:] == [
        f"{day} 09:00:00 CET {day[4:]} 08:00:00 runs 90 s later"
        for day in ("Wed 2030-01-02", "Fri 2030-01-04", "Sat 2030-01-05")
    ]
    assert (outcome.code, outcome.err) == (0, "no further occurrence\n")
    [row] = psched.ok("next", "-k", "key", "-n", "1", "-s", "2030-01-02T00:00Z", "--json").json
    assert (row["time"], row["run_time"], row["local"]) == (1893571200, 1893571290, "2030-01-02T09:00:00+01:00")
    assert "no schedule has the key" in psched.fault("next", "-k", "none")
    psched.ok("modify", "key", "--overlap", "skip")
    assert "an occurrence is skipped if it comes due during the previous run" in psched("next", "-k", "key").err
    for wrong in (("next",), ("next", "@daily", "-k", "key"), ("next", "-k", "key", "-t", "UTC")):
        assert psched(*wrong).code == 2
