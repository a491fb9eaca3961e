"""Files that psched import writes can be loaded and added, for each form of rule of each scheduler."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from celery.schedules import crontab

from psched.config import from_mapping
from psched.importers.apscheduler_jobs import read_apscheduler
from psched.importers.celery_beat import read_celery
from psched.importers.crontab import read_crontab
from psched.importers.difference_report import unknown_options
from psched.importers.entries import Imported, distinct_keys
from psched.importers.kubernetes_cronjobs import read_cronjobs
from psched.importers.schedules_yaml import schedules_yaml
from psched.importers.systemd_timers import read_timers
from psched.schedules.collection import open_schedules
from psched.schedules_file.reader import parse_schedules
from tests.importers import test_apscheduler, test_celery, test_kubernetes, test_systemd
from tests.importers.enumeration import BEGIN

_ZONE = "Europe/Berlin"
_CRONTABS = Path(__file__).with_name("crontabs")


def of_crontab(folder: Path) -> Imported:
    return read_crontab("user", (_CRONTABS / "user.crontab").read_text(), False, _ZONE)


def of_system_crontab(folder: Path) -> Imported:
    return read_crontab("system", (_CRONTABS / "system.crontab").read_text(), True, _ZONE)


def of_systemd(folder: Path) -> Imported:
    for number, event in enumerate(test_systemd.EVENTS):
        (folder / f"{number}.timer").write_text(f"[Timer]\nOnCalendar={event}\nRandomizedDelaySec=5min\n")
    return read_timers([folder], _ZONE, BEGIN)


def of_celery(folder: Path) -> Imported:
    forms = {str(form): {"task": "site.mail", "schedule": crontab(**form)} for form in test_celery.FORMS}
    return read_celery(test_celery.application(forms | {"every": {"task": "site.mail", "schedule": 90}}))


def of_apscheduler(folder: Path) -> Imported:
    site = test_apscheduler.scheduler()
    for name, trigger in test_apscheduler.all_triggers().items():
        site.add_job(test_apscheduler.work, trigger, id=name, args=("north",), misfire_grace_time=600)
    return read_apscheduler(site, _ZONE, BEGIN)


def of_kubernetes(folder: Path) -> Imported:
    jobs = (test_kubernetes.cronjob(each, f"job{place}") for place, each in enumerate(test_kubernetes.SCHEDULES))
    return read_cronjobs("jobs.yml", yaml.safe_dump_all(jobs), _ZONE)


@pytest.mark.parametrize("read", [of_crontab, of_system_crontab, of_systemd, of_celery, of_apscheduler, of_kubernetes])
def test_a_file_is_read_and_its_schedules_are_added(read: Any, tmp_path: Path) -> None:
    imported = read(tmp_path)
    keyed = distinct_keys(imported.entries, "web1.")
    unknown = unknown_options(
        [*imported.defaults, *(name for each in keyed for definition in each.values() for name in definition)]
    )
    assert set(unknown) <= {"overlap"}
    text = "".join(
        f"{line}\n" for line in schedules_yaml(imported, keyed, "site").splitlines() if "overlap:" not in line
    )
    section = from_mapping({"type": "rdb", "url": f"sqlite:///{tmp_path / 'site.db'}", "schedules": {}}).schedules
    assert section is not None
    with open_schedules(section, "test") as schedules:
        schedules.store.create_tables()
        for name, days in imported.calendars.items():
            schedules.calendars.set(name, days)
        declared = parse_schedules(text, "schedules.yml", schedules.check)
        assert [new.key for new in declared.schedules] == [key for each in keyed for key in each]
        assert schedules.add_many(declared.schedules) == []
