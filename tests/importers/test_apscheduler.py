"""psched import apscheduler: jobs run when APScheduler's triggers fire, or the report says from when they do not."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.combining import AndTrigger, OrTrigger
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.date import DateTrigger
from apscheduler.triggers.interval import IntervalTrigger

from psched.errors import ConfigError
from psched.importers.apscheduler_jobs import read_apscheduler
from psched.importers.entries import ImportedEntry
from tests.importers.enumeration import BEGIN, COMPARED, RecordRuns, stretches
from tests.importers.explained import assert_explained, definitions, reports

ZONE = "Europe/Berlin"
CRON: tuple[dict[str, Any], ...] = (
    {"hour": 3},
    {"hour": 2},
    {"hour": 0},
    {"hour": 2, "minute": 30},
    {"minute": "*/10"},
    {"minute": "5/15"},
    {"minute": "0-20,40"},
    {"second": "*/15", "hour": 3},
    {"second": 5, "minute": 0},
    {"hour": "0-23/2"},
    {"hour": "*/6", "minute": 30},
    {"hour": "*/5"},
    {"hour": "0-4", "minute": 30},
    {"day": "*", "hour": "*/2", "minute": 15},
    {"day": "last"},
    {"day": "last fri"},
    {"day": "3rd mon"},
    {"day": "1st mon,3rd mon"},
    {"day": "5th sun", "hour": 12},
    {"day": "1,15,last", "hour": 4},
    {"day": "1,2nd tue", "hour": 4},
    {"day": "*/2"},
    {"day": "5/10"},
    {"day": 13, "day_of_week": "fri"},
    {"day": "1-7", "day_of_week": "mon"},
    {"day": "last", "day_of_week": "fri"},
    {"day": "last fri,1st mon", "day_of_week": "mon"},
    {"day_of_week": "mon-fri", "hour": "9-17"},
    {"day_of_week": 0},
    {"day_of_week": "sun"},
    {"month": "6-8", "day": "3rd fri", "hour": "0-3"},
    {"month": "jan,jul"},
    {"month": "*/3"},
    {"year": 2027, "month": 3},
    {"year": "2026-2028", "hour": 1},
    {"year": "2027,2029"},
    {"week": "1-53/2", "day_of_week": 0},
    {"hour": 3, "start_date": "2027-01-15 00:00:00", "end_date": "2027-02-15 00:00:00"},
)
CRONTABS = ("0 0 * * 1", "0 0 13 * fri", "*/5 0 * * *", "30 0 * * *", "0 12 1,15 * *", "0 0 * * sun")
OTHERS: tuple[Any, ...] = (
    IntervalTrigger(minutes=5, start_date="2026-10-10 09:30:10", timezone=ZONE),
    IntervalTrigger(hours=2, start_date="2026-10-10 09:30:00", timezone=ZONE),
    IntervalTrigger(days=1, start_date="2027-01-01 02:30:00", end_date="2027-06-01", timezone=ZONE),
    IntervalTrigger(weeks=1, start_date="2026-10-05 08:00:00", timezone=ZONE),
    DateTrigger("2027-03-28 02:30:00", ZONE),
    DateTrigger("2027-10-31 02:30:00", ZONE),
    OrTrigger([CronTrigger(hour=2, timezone=ZONE), CronTrigger(day_of_week="sun", hour=5, timezone=ZONE)]),
    AndTrigger([CronTrigger(hour=2, timezone=ZONE), CronTrigger(day_of_week="sun", hour="1-5", timezone=ZONE)]),
)


def work(region: str, kind: str = "full") -> None:
    """Do nothing."""


def all_triggers() -> dict[str, Any]:
    found: dict[str, Any] = {f"cron{form}": CronTrigger(timezone=ZONE, **form) for form in CRON}
    found |= {f"from_crontab({line})": CronTrigger.from_crontab(line, ZONE) for line in CRONTABS}
    return found | {f"{trigger!r}": trigger for trigger in OTHERS}


def scheduler(**options: Any) -> BackgroundScheduler:
    return BackgroundScheduler(timezone=ZONE, **options)


def entry(trigger: Any, **options: Any) -> ImportedEntry:
    site = scheduler()
    site.add_job(work, trigger, id="it", args=("north",), **options)
    [found] = read_apscheduler(site, ZONE, BEGIN).entries
    return found


def fired(trigger: Any, begin: int, end: int) -> Iterator[int]:
    """Yield the times at which the trigger fires. It is asked as a scheduler asks: with the last run and its time."""
    now = datetime.fromtimestamp(begin, UTC)
    found = trigger.get_next_fire_time(None, now)
    while found is not None and found.timestamp() <= end:
        if found.timestamp() >= begin:  # a DateTrigger does not ask
            yield int(found.timestamp())
        last = None if isinstance(trigger, AndTrigger) else found  # which would search for ever
        found = trigger.get_next_fire_time(last, datetime.fromtimestamp(found.timestamp() + (last is None), UTC))


def test_jobs_run_when_their_triggers_fire_or_the_report_says_from_when_on_not(record_property: RecordRuns) -> None:
    triggers = all_triggers()
    site = scheduler()
    for name, trigger in triggers.items():
        site.add_job(work, trigger, id=name, args=("north",))
    imported = read_apscheduler(site, ZONE, BEGIN)
    reported = reports(imported)
    compared = 0
    for begin, end in stretches(ZONE):
        expected = {name: list(fired(trigger, begin, end)) for name, trigger in triggers.items()}
        compared += assert_explained(imported, expected, begin, end, reported)
    record_property(COMPARED, compared)
    assert compared > 2000
    assert {name for name, each in reported.items() if not each.keys} == {
        f"{OTHERS[-1]!r}",
        "cron{'week': '1-53/2', 'day_of_week': 0}",
    }


def test_weekdays_count_from_monday() -> None:
    assert definitions(entry(CronTrigger.from_crontab("0 0 * * 1", ZONE)))[0]["cron"] == "0 0 * * 2"


def test_jobs_in_the_hour_after_midnight_vanish_after_the_clock_was_put_forward() -> None:
    site = scheduler()
    site.add_job(work, CronTrigger.from_crontab("30 0 * * *", ZONE), id="it", args=("north",))
    difference = reports(read_apscheduler(site, ZONE, BEGIN))["it"].difference
    assert difference is not None
    assert datetime.fromtimestamp(difference.instant, UTC) == datetime(2027, 3, 28, 22, 30, tzinfo=UTC)
    assert difference.psched_runs


@pytest.mark.parametrize(
    ("trigger", "problem"),
    [
        (CronTrigger(week=10, timezone=ZONE), "`week` restricts the trigger to weeks of the year"),
        (CronTrigger(year="*/2", timezone=ZONE), "has too many gaps"),
        (IntervalTrigger(seconds=90.5, timezone=ZONE), "an interval of 90.5 s: psched supports whole seconds only"),
        (DateTrigger("2020-01-01", ZONE), "the job has no more runs"),
        (CronTrigger(hour=3, end_date="2020-01-01", timezone=ZONE), "the job has no more runs"),
        (IntervalTrigger(hours=1, start_date="2019-01-01", end_date="2020-01-01", timezone=ZONE), "has no more runs"),
        (OTHERS[-1], "cannot require several triggers at once; replace AndTrigger"),
        (
            AndTrigger([CronTrigger(hour=2), IntervalTrigger(hours=1)]),
            "cannot require several triggers at once; replace AndTrigger",
        ),
    ],
    ids=str,
)
def test_what_has_no_rule_is_not_written(trigger: Any, problem: str) -> None:
    found = entry(trigger)
    assert found.definitions == ()
    assert found.problem is not None
    assert problem in found.problem


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {}),
        ({"misfire_grace_time": None}, {"catch_up": "latest"}),
        ({"misfire_grace_time": None, "coalesce": False}, {"catch_up": "all"}),
        ({"misfire_grace_time": 600}, {"catch_up": "latest", "max_lateness": 600}),
        ({"max_instances": 3}, {"overlap": "wait"}),
    ],
)
def test_the_options_of_a_job_become_its_policy(options: dict[str, Any], expected: dict[str, Any]) -> None:
    data = {"region": "north"}
    assert definitions(entry(CronTrigger(hour=3, timezone=ZONE), **options)) == [
        {"cron": "0 3 * * *", **expected, "data": data}
    ]


def test_a_job_without_options_runs_neither_late_nor_beside_its_previous_run() -> None:
    site = scheduler()
    site.add_job(work, "cron", hour=3, args=("north",))
    found = read_apscheduler(site, ZONE, BEGIN)
    assert found.defaults == {"catch_up": "none", "overlap": "skip", "max_attempts": 1}


def test_jitter_becomes_a_spread() -> None:
    found = entry(CronTrigger(hour=3, jitter=120, timezone=ZONE))
    assert found.definitions[0]["spread"] == 120
    assert "jitter" in found.remarks[0]


def test_a_paused_job_is_not_written() -> None:
    assert entry(CronTrigger(hour=3, timezone=ZONE), next_run_time=None).problem == (
        "the job is paused; resume it before the import"
    )


def test_jobs_of_a_store_are_read_without_starting_the_scheduler(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    writer = scheduler(jobstores={"default": SQLAlchemyJobStore(url)})
    writer.start(paused=True)
    writer.add_job(work, "cron", hour=5, id="stored", kwargs={"region": "south"})
    writer.shutdown()
    reader = scheduler(jobstores={"default": SQLAlchemyJobStore(url)})
    reader.add_job(work, "cron", hour=6, args=("north",))
    found = {each.name: each.definitions[0] for each in read_apscheduler(reader, ZONE, BEGIN).entries}
    assert {name: each["data"] for name, each in found.items()} == {
        "stored": {"region": "south"},
        "work": {"region": "north"},
    }
    assert not reader.running


def test_a_scheduler_of_another_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected a scheduler of APScheduler 3"):
        read_apscheduler(object(), ZONE, BEGIN)
