"""psched import crontab and other importers: a file of schedules that psched can load, and a report of differences."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from psched.schedules_file.reader import DeclaredSchedules, parse_schedules
from tests.cli.commands import Commands

_CRONTAB = """\
HOME=/srv
30 2 * * * /srv/bin/backup
0 0 13 * 5 mail -s Greetings ann%Hello%
@reboot /srv/bin/warm
"""
_CELERY = """\
from celery import Celery

app = Celery(set_as_current=False)
app.conf.beat_schedule = {"tick": {"task": "shop.tick", "schedule": 300}}
"""
_DJANGO = """\
from datetime import datetime, timezone
from zoneinfo import ZoneInfo

import django
from celery import Celery
from django.conf import settings
from django.core.management import call_command

apps = ["django.contrib.contenttypes", "django_celery_beat"]
database = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
settings.configure(INSTALLED_APPS=apps, DATABASES={"default": database}, USE_TZ=True, MIGRATION_MODULES=dict.fromkeys(
    ("contenttypes", "django_celery_beat")))
django.setup()
call_command("migrate", run_syncdb=True, verbosity=0)

from django_celery_beat.models import ClockedSchedule, CrontabSchedule, IntervalSchedule, PeriodicTask

app = Celery(set_as_current=False)
app.conf.beat_schedule = {
    "configured": {"task": "shop.tick", "schedule": 60},
    "crontab": {"task": "shop.tick", "schedule": 60},
}
tokyo = ZoneInfo("Asia/Tokyo")
crontab = CrontabSchedule.objects.create(minute="30", hour="4", day_of_week="1", timezone=tokyo)
interval = IntervalSchedule.objects.create(every=2, period="hours")
clocked = ClockedSchedule.objects.create(clocked_time=datetime(2030, 1, 2, 3, 4, tzinfo=timezone.utc))
create = PeriodicTask.objects.create
start = datetime(2030, 1, 1, tzinfo=timezone.utc)
create(name="crontab", task="shop.a", crontab=crontab, kwargs='{"n": 1}', expire_seconds=90, description="Why")
create(name="interval", task="shop.b", interval=interval, start_time=start)
create(name="clocked", task="shop.c", clocked=clocked, one_off=True)
create(name="disabled", task="shop.d", interval=interval, enabled=False)
"""
_APSCHEDULER = """\
from apscheduler.schedulers.background import BackgroundScheduler

app = BackgroundScheduler(timezone="Asia/Tokyo")
app.add_job(print, "cron", hour=3, id="tick")
"""
_AT = "2026-11-24T00:00Z"


@pytest.fixture
def crontab(fresh: Commands) -> str:
    (fresh.folder / "crontab").write_text(_CRONTAB)
    return "crontab"


def declared(text: str) -> DeclaredSchedules:
    return parse_schedules(text, "schedules.yml")


def test_a_crontab_becomes_a_file_of_schedules_and_a_report(fresh: Commands, crontab: str) -> None:
    report = fresh.ok("import", "crontab", crontab, "--owner", "ann", "-t", "Europe/Berlin", "--at", _AT).out
    assert report.splitlines()[:2] == [
        "cron: 3 entries read, 2 schedules written to schedules.yml; 1 differ, 1 of them not written",
        "crontab:4: NOT WRITTEN (@reboot): runs when the host starts, which psched cannot do; start it with systemd",
    ]
    found = declared((fresh.folder / "schedules.yml").read_text())
    assert found.owner == "ann"
    assert {new.key: (new.type, new.cron, new.timezone) for new in found.schedules} == {
        "backup": ("command", "30 2 * * *", "Europe/Berlin"),
        "mail": ("command", "0 0 13 * 5", "Europe/Berlin"),
    }
    assert {(new.catch_up, new.max_attempts) for new in found.schedules} == {("none", 1)}


def test_a_file_that_exists_is_replaced_by_force_only(fresh: Commands, crontab: str) -> None:
    file = fresh.folder / "mine.yml"
    file.write_text("mine")
    words = ("import", "crontab", crontab, "--owner", "ann", "-o", "mine.yml")
    assert fresh.fault(*words) == "mine.yml exists; choose another file with --output, or replace it with --force"
    assert file.read_text() == "mine"
    fresh.ok(*words, "--force")
    assert len(declared(file.read_text()).schedules) == 2


@pytest.mark.parametrize(
    ("prefix", "owner", "fault"),
    [
        (
            "p" * 300,
            "ann",
            "--prefix: the key of crontab:2 has 306 characters, at most 255 can be stored; shorten it: ",
        ),
        ("a\udcff", "ann", "--prefix: the key of crontab:2 contains a character that cannot be stored"),
        (
            "backfill:",
            "ann",
            "--prefix: the key of crontab:2 begins with 'backfill:', which is reserved for backfills; choose another ",
        ),
        ("", "a" * 300, "owner has 300 characters, at most 255 can be stored; shorten it: "),
        ("", "", "owner must be non-empty text, got ''"),
    ],
)
def test_a_prefix_or_owner_that_psched_cannot_store_is_refused(
    fresh: Commands, crontab: str, prefix: str, owner: str, fault: str
) -> None:
    assert fresh.fault("import", "crontab", crontab, "--owner", owner, "--prefix", prefix).startswith(fault)
    assert not (fresh.folder / "schedules.yml").exists()


def test_the_file_goes_to_stdout_and_the_report_to_stderr(
    fresh: Commands, crontab: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Path(crontab).open() as file:
        monkeypatch.setattr("sys.stdin", file)
        outcome = fresh("import", "crontab", "-", "--owner", "ann", "--prefix", "web1.", "-o", "-")
    assert outcome.code == 0
    assert [new.key for new in declared(outcome.out).schedules] == ["web1.backup", "web1.mail"]
    assert "cron: 3 entries read, 2 schedules written; 1 differ" in outcome.err
    assert declared(outcome.out).schedules[0].timezone == "Asia/Tokyo"  # that of this host


def test_json_prints_each_entry(fresh: Commands, crontab: str) -> None:
    *_, reboot = fresh.ok("import", "crontab", crontab, "--owner", "ann", "--json").json
    assert reboot["origin"] == "crontab:4"
    assert (reboot["keys"], reboot["differs_from"]) == ([], None)


@pytest.mark.parametrize(
    ("scheduler", "source", "expected"),
    [
        (
            "celery",
            _CELERY,
            ("tick", "shop.tick", "@every 5m", "UTC"),
        ),
        (
            "apscheduler",
            _APSCHEDULER,
            ("tick", "builtins.print", "0 3 * * *", "Asia/Tokyo"),
        ),
    ],
)
def test_an_application_is_loaded_and_read(
    fresh: Commands, scheduler: str, source: str, expected: tuple[str, ...]
) -> None:
    module = f"site_of_{scheduler}"
    (fresh.folder / f"{module}.py").write_text(source)
    fresh.ok("import", scheduler, "-I", ".", "--app", f"{module}:app", "--owner", "ann")
    text = (fresh.folder / "schedules.yml").read_text().replace("  overlap: skip\n", "")  # until it is an option
    [new] = declared(text).schedules
    assert (new.key, new.type, new.cron, new.timezone) == expected


def test_the_tables_of_django_celery_beat_are_read(fresh: Commands) -> None:
    (fresh.folder / "site.py").write_text(_DJANGO)
    words = ("import", "celery", "-I", ".", "--app", "site.py:app", "--owner", "ann", "-o", "schedules.yml")
    with fresh.start(*words) as process:  # Django is set up once in a process
        assert process.wait(timeout=60) == 0
    found = {new.key: new for new in declared((fresh.folder / "schedules.yml").read_text()).schedules}
    assert {key: (new.type, new.cron, new.timezone) for key, new in found.items()} == {
        "configured": ("shop.tick", "@every 1m", "UTC"),
        "crontab": ("shop.a", "30 4 * * 1", "Asia/Tokyo"),
        "interval": ("shop.b", "@every 2h", "UTC"),
        "clocked": ("shop.c", "@at 2030-01-02T03:04:00", "UTC"),
    }
    crontab = found["crontab"]
    assert (crontab.data, crontab.max_lateness, crontab.description) == ({"n": 1}, 90, "Why")
    assert found["interval"].start == datetime(2030, 1, 1, tzinfo=UTC).timestamp()
    assert found["clocked"].max_runs == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("missing", "--owner", "ann"), "missing: No such file or directory; name a readable file"),
        (("crontab", "--owner", "ann", "-t", "Berlin"), "timezone 'Berlin' is not a zone of the tz database"),
    ],
)
def test_a_mistake_gets_one_line_and_writes_nothing(
    fresh: Commands, crontab: str, words: tuple[str, ...], message: str
) -> None:
    assert message in fresh.fault("import", "crontab", *words)
    assert "expected MODULE:NAME" in fresh.fault("import", "celery", "--app", "shop", "--owner", "ann")
    assert "expected a scheduler" in fresh.fault("import", "apscheduler", "--app", "os:path", "--owner", "ann")
    assert not (fresh.folder / "schedules.yml").exists()
