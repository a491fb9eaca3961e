"""psched import celery: entries of beat_schedule run when Celery's beat sends them, or a report tells from when not."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery
from celery.beat import Scheduler
from celery.schedules import crontab, schedule, solar

from psched.errors import ConfigError
from psched.importers.celery_beat import read_celery
from tests.importers.enumeration import BEGIN, COMPARED, IS_WHOLE, RecordRuns, stretches
from tests.importers.explained import assert_explained, definitions, reports

FORMS: tuple[dict[str, Any], ...] = (
    {},
    {"minute": 0},
    {"minute": "*/15"},
    {"minute": "*/7"},
    {"minute": "1,13,30-45,50-59/2"},
    {"minute": [5, 6, 50]},
    {"minute": {1, 2}},
    {"minute": "55-5"},
    {"minute": 0, "hour": 0},
    {"minute": 30, "hour": 0},
    {"minute": 0, "hour": "*/3"},
    {"minute": 0, "hour": "0,8-17/2"},
    {"minute": 30, "hour": 2},
    {"minute": 0, "hour": 2},
    {"minute": 0, "hour": 3},
    {"minute": "0,30", "hour": "1-3"},
    {"minute": 30, "hour": "22-2"},
    {"minute": "*/10", "hour": 2},
    {"minute": "*", "hour": "1-2"},
    {"minute": 30, "hour": "*/2"},
    {"minute": 0, "hour": "*/3,8-17"},
    {"minute": 0, "hour": 7, "day_of_week": 1},
    {"minute": 0, "hour": 7, "day_of_week": "mon-fri"},
    {"minute": 0, "hour": 7, "day_of_week": "fri-mon"},
    {"minute": 0, "hour": 7, "day_of_week": "*/2"},
    {"minute": 0, "hour": 7, "day_of_week": "sunday"},
    {"minute": 0, "hour": 7, "day_of_week": "thu,fri"},
    {"minute": 30, "hour": 2, "day_of_week": "sun"},
    {"minute": 0, "hour": 0, "day_of_month": 2},
    {"minute": 0, "hour": 0, "day_of_month": "2-30/2"},
    {"minute": 0, "hour": 0, "day_of_month": "1-7,15-21"},
    {"minute": 0, "hour": 0, "day_of_month": "31"},
    {"minute": 0, "hour": 0, "day_of_month": "11", "month_of_year": "5"},
    {"minute": 0, "hour": 0, "day_of_month": 29, "month_of_year": 2},
    {"minute": 0, "hour": 0, "month_of_year": "*/3"},
    {"minute": 0, "hour": 0, "month_of_year": "2-12/2"},
    {"minute": 0, "hour": 0, "month_of_year": "jan,jul"},
    {"minute": 0, "hour": 0, "day_of_month": 13, "day_of_week": 5},
    {"minute": 0, "hour": 0, "day_of_month": "1-7", "day_of_week": 1},
    {"minute": 0, "hour": 0, "day_of_month": "1-7,15-21", "day_of_week": "mon"},
    {"minute": 0, "hour": 0, "day_of_month": "*/7", "day_of_week": 0},
    {"minute": 15, "hour": 10, "day_of_month": "10-20", "day_of_week": "mon-fri"},
    {"minute": 0, "hour": 0, "day_of_month": "13", "day_of_week": "fri", "month_of_year": "1-6"},
)


def application(beat_schedule: dict[str, Any], timezone: str = "Europe/Berlin") -> Celery:
    app = Celery("site", broker="memory://", set_as_current=False)
    app.conf.timezone = timezone
    app.conf.beat_schedule = beat_schedule

    @app.task(name="site.mail", shared=False)
    def mail(to: str, subject: str = "") -> None:
        """Send nothing."""

    return app


def entry(given: Any, timezone: str = "Europe/Berlin", **fields: Any) -> Any:
    app = application({"it": {"task": "site.mail", "schedule": given, **fields}}, timezone)
    [found] = read_celery(app).entries
    return found


class RecordingBeat(Scheduler):
    """Celery's beat, with a clock that the test sets."""

    def __init__(self, app: Celery, begin: int) -> None:
        self.instant = float(begin)
        self.sent: dict[str, list[int]] = {}
        app.now = lambda: datetime.fromtimestamp(self.instant, UTC).astimezone(app.timezone)  # type: ignore[method-assign]
        super().__init__(app=app)

    def schedules_equal(self, *schedules: Any) -> bool:
        return True  # none is changed; to compare them takes beat half of its time

    def apply_entry(self, entry: Any, producer: Any = None) -> None:
        self.sent.setdefault(entry.name, []).append(round(self.instant))

    def run_until(self, end: int) -> dict[str, list[int]]:
        while self.instant <= end:
            self.instant += max(0.01, self.tick())
        return self.sent


def sent_by_beat(schedule_: dict[str, Any], begin: int, end: int) -> Iterator[tuple[str, list[int]]]:
    app = application(schedule_)
    beat = RecordingBeat(app, begin - 3600)
    for name, times in beat.run_until(end + 1).items():
        yield name, [time for time in times if begin <= time <= end]


def test_tasks_run_when_beat_sends_them_or_the_report_says_from_when_on_not(record_property: RecordRuns) -> None:
    forms = {str(form): {"task": "site.mail", "schedule": crontab(**form)} for form in FORMS}
    imported = read_celery(application(forms))
    reported = reports(imported)
    assert all(each.keys for each in reported.values())
    compared = 0
    for first, end in stretches("Europe/Berlin"):
        begin = first if IS_WHOLE else end - 27 * 3600  # from three hours before a clock change on
        expected = dict(sent_by_beat(forms, begin, end))
        compared += assert_explained(imported, expected, begin, end, reported)
    record_property(COMPARED, compared)
    assert compared > 5000


def test_a_day_and_a_weekday_must_both_match() -> None:
    friday_the_13th = entry(crontab(minute=0, hour=0, day_of_month=13, day_of_week=5))
    assert definitions(friday_the_13th) == [{"cron": "0 0 13 * *", "exclude": ["sun-mon-tue-wed-thu-sat"]}]
    assert friday_the_13th.following(BEGIN) == datetime(2027, 8, 12, 22, tzinfo=UTC).timestamp()
    assert definitions(entry(crontab(minute=0, hour=0, day_of_month="1-7", day_of_week=1))) == [
        {"cron": "0 0 * * mon#1"}
    ]


@pytest.mark.parametrize("given", [300, 300.0, timedelta(minutes=5), schedule(300), schedule(timedelta(minutes=5))])
def test_an_interval_counts_from_another_instant(given: Any) -> None:
    found = entry(given)
    assert definitions(found) == [{"every": "5m"}]
    assert "beat counts the interval from its start" in found.remarks[0]


def test_a_relative_interval_runs_at_the_same_times() -> None:
    daily = entry(timedelta(days=1), relative=True)
    assert definitions(daily) == [{"cron": "0 0 * * *"}]
    assert daily.following(BEGIN) == BEGIN + 23 * 3600
    assert definitions(entry(timedelta(hours=2), relative=True)) == [{"every": "2h"}]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (solar("sunset", -37.81753, 144.96715), "runs by the position of the sun"),
        (timedelta(seconds=0.5), "an interval of 0.5 s: psched supports whole seconds only"),
    ],
)
def test_what_has_no_rule_is_not_written(given: Any, problem: str) -> None:
    found = entry(given)
    assert found.definitions == ()
    assert problem in found.problem


def test_arguments_and_options_are_kept() -> None:
    options = {"queue": "slow", "expires": 90, "countdown": 5, "link": "x"}
    found = entry(crontab(), args=("ann",), kwargs={"subject": "Hi"}, options=options)
    assert found.definitions[0] == {
        "type": "site.mail",
        "cron": "* * * * *",
        "max_lateness": 90,
        "delay": 5,
        "data": {"to": "ann", "subject": "Hi"},
    }
    assert [remark.partition("=")[0] for remark in found.remarks] == ["queue", "the option link"]
    late = entry(crontab(), options={"expires": datetime(2027, 1, 1, tzinfo=UTC)})
    assert late.definitions[0]["end"] == "2027-01-01T00:00:00+00:00"
    unknown = read_celery(application({"it": {"task": "other", "schedule": crontab(), "args": (1,)}})).entries[0]
    assert unknown.definitions[0]["data"] == {"args": [1]}
    assert "positional arguments" in unknown.remarks[0]


def test_a_clock_of_its_own_is_reported() -> None:
    found = entry(crontab(nowfun=lambda: datetime.now(UTC)))
    assert "`nowfun` is ignored" in found.remarks[0]


def test_an_application_of_another_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected an application of Celery"):
        read_celery(object())
