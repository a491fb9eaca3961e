"""psched import kubernetes: CronJobs run when robfig/cron's rules say, or the report says from when they do not."""

from __future__ import annotations

import os
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from psched.cron.zones import load_zone
from psched.errors import ConfigError
from psched.handlers.command import command_options
from psched.importers.entries import ImportedEntry
from psched.importers.kubernetes_cronjobs import read_cronjobs
from tests.importers.enumeration import COMPARED, RecordRuns, stretches
from tests.importers.explained import assert_explained, reports

ZONE = "Europe/Berlin"
FULL = {0: range(60), 1: range(24), 2: range(1, 32), 3: range(1, 13), 4: range(7)}
SCHEDULES: dict[str, tuple[Any, ...]] = {
    "* * * * *": (None, None, None, None, None),
    "*/15 * * * *": (range(0, 60, 15), None, None, None, None),
    "5/20 * * * *": (range(5, 60, 20), None, None, None, None),
    "0 * * * *": ({0}, None, None, None, None),
    "30 2 * * *": ({30}, {2}, None, None, None),
    "0 2 * * *": ({0}, {2}, None, None, None),
    "0 3 * * *": ({0}, {3}, None, None, None),
    "0 */2 * * ?": ({0}, range(0, 24, 2), None, None, None),
    "*/10 1-3 * * *": (range(0, 60, 10), {1, 2, 3}, None, None, None),
    "0 0 * * SUN": ({0}, {0}, None, None, {0}),
    "0 9 * * MON-FRI": ({0}, {9}, None, None, range(1, 6)),
    "0 0 13 * 5": ({0}, {0}, {13}, None, {5}),
    "0 0 */2 * 1": ({0}, {0}, range(1, 32, 2), None, {1}),
    "0 0 1 * */2": ({0}, {0}, {1}, None, range(0, 7, 2)),
    "0 0 */1 * 1": ({0}, {0}, None, None, {1}),
    "0 0 1 jan,jul *": ({0}, {0}, {1}, {1, 7}, None),
    "@hourly": ({0}, None, None, None, None),
    "@daily": ({0}, {0}, None, None, None),
    "@weekly": ({0}, {0}, None, None, {0}),
    "@monthly": ({0}, {0}, {1}, None, None),
    "@yearly": ({0}, {0}, {1}, {1}, None),
}
"""The minutes, hours, days, months and weekdays of each rule; None for any. If neither days nor weekdays are None, one
of them must match.
"""


def cronjob(schedule: str, name: str = "it", **spec: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "shop"}
    return {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": metadata, "spec": {"schedule": schedule, **spec}}


def entry(schedule: str, **spec: Any) -> ImportedEntry:
    [found] = read_cronjobs("jobs.yml", yaml.safe_dump(cronjob(schedule, **spec)), ZONE).entries
    return found


def matching(fields: tuple[Any, ...], begin: int, end: int) -> list[int]:
    """Return the times of the minutes that match these fields."""
    minutes, hours, days, months, weekdays = (
        FULL[place] if each is None else each for place, each in enumerate(fields)
    )
    found = []
    for instant in range(begin, end + 1, 60):
        moment = datetime.fromtimestamp(instant, UTC).astimezone(load_zone(ZONE))
        hits = (moment.day in days, moment.isoweekday() % 7 in weekdays)
        is_on = all(hits) if fields[2] is None or fields[4] is None else any(hits)
        if moment.minute in minutes and moment.hour in hours and moment.month in months and is_on:
            found.append(instant)
    return found


def test_cronjobs_run_when_robfigs_cron_says_or_the_report_says_from_when_on_not(record_property: RecordRuns) -> None:
    text = yaml.safe_dump_all(cronjob(schedule, f"job{place}") for place, schedule in enumerate(SCHEDULES))
    imported = read_cronjobs("jobs.yml", text, ZONE)
    reported = reports(imported)
    assert all(each.keys for each in reported.values())
    names = dict(zip(reported, SCHEDULES.values(), strict=True))
    compared = 0
    for begin, end in stretches(ZONE):
        expected = {name: matching(fields, begin, end) for name, fields in names.items()}
        compared += assert_explained(imported, expected, begin, end, reported)
    record_property(COMPARED, compared)
    assert compared > 10_000


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, {}),
        ({"timeZone": "Asia/Tokyo"}, {"timezone": "Asia/Tokyo"}),
        ({"timeZone": ZONE}, {}),
        ({"concurrencyPolicy": "Forbid"}, {"overlap": "skip"}),
        ({"startingDeadlineSeconds": 300}, {"max_lateness": 300}),
    ],
)
def test_fields_of_a_cronjob_become_options(spec: dict[str, Any], expected: dict[str, Any]) -> None:
    [definition] = entry("0 3 * * *", **spec).definitions
    del definition["type"], definition["data"]
    assert definition == {"cron": "0 3 * * *", **expected}


def test_other_policies_are_reported() -> None:
    assert "psched runs one at a time" in entry("0 3 * * *").remarks[0]
    assert "the next run waits" in entry("0 3 * * *", concurrencyPolicy="Replace").remarks[0]
    assert entry("0 3 * * *", concurrencyPolicy="Forbid").remarks == ()
    every = entry("@every 1h30m")
    assert every.definitions[0]["every"] == "90m"
    assert "counts the interval from the last run" in every.remarks[0]


def test_a_zone_in_the_schedule_is_obeyed() -> None:
    assert entry("TZ=Asia/Tokyo 0 3 * * *").definitions[0]["timezone"] == "Asia/Tokyo"


@pytest.mark.parametrize(
    ("schedule", "spec", "problem"),
    [
        ("0 3 * * *", {"suspend": True}, "the CronJob is suspended"),
        ("0 3 * * 7", {}, "'7' is out of range"),
        ("0 3 L * *", {}, "'l': Kubernetes refuses it"),
        ("0 3 * *", {}, "expected five fields"),
        ("@every 0.5s", {}, "whole seconds"),
        (f"@every {'9' * 5000}h", {}, "whole seconds"),
        (f"*/{'9' * 5000} * * * *", {}, "Kubernetes refuses it"),
        (f"{'9' * 5000} * * * *", {}, "Kubernetes refuses it"),
        ("0 3 * * *", {"timeZone": "Mars/Base"}, "'Mars/Base' is not a zone"),
    ],
)
def test_what_has_no_rule_is_not_written(schedule: str, spec: dict[str, Any], problem: str) -> None:
    found = entry(schedule, **spec)
    assert found.definitions == ()
    assert found.problem is not None
    assert problem in found.problem


def test_lists_and_several_documents_are_read() -> None:
    listed = {"kind": "List", "items": [cronjob("0 3 * * *", "a"), {"kind": "Job"}, cronjob("0 4 * * *", "b")]}
    text = yaml.safe_dump_all([listed, None, cronjob("0 5 * * *", "c")])
    assert [each.name for each in read_cronjobs("jobs.yml", text, ZONE).entries] == ["shop.a", "shop.b", "shop.c"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "not valid YAML"),
        ("kind: Job\ngar: [bage", r"^jobs.yml:2: not valid YAML: expected ',' or ']', but got '<stream end>'$"),
        ("kind: Job", "no CronJob in this file"),
        ("kind: List\nitems: 5", "no CronJob in this file"),
        ("kind: CronJob\nmetadata: {name: 2026-13-45}", "jobs.yml: not valid YAML: month must be"),
        ("[" * 100_000, "jobs.yml: nested too deeply"),
        ("&a\nkind: List\nitems: [*a]", "jobs.yml: nested too deeply"),
        ("{{ .Values.x }}: 1", "not valid YAML|no CronJob"),
    ],
)
def test_a_file_without_cronjobs_is_a_mistake(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        read_cronjobs("jobs.yml", text, ZONE)


_KUBECTL = """\
#!/bin/sh
echo "$*" >>calls
case "$*" in
*' create job '*) touch created ;;
*' -o jsonpath='* | *' -o '*) cat condition ;;
*) test -e created ;;
esac
"""


@pytest.mark.parametrize(("condition", "status"), [("SuccessCriteriaMetComplete", 0), ("FailureTargetFailed", 1)])
def test_the_command_creates_the_job_once_and_waits_for_its_end(condition: str, status: int, tmp_path: Path) -> None:
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(_KUBECTL)
    kubectl.chmod(0o755)
    (tmp_path / "condition").write_text(condition)
    options = command_options(entry("0 3 * * *").definitions[0]["data"])
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PSCHED_SCHEDULED_TIME": "1800000000"}
    for _ in range(2):  # the second attempt finds the job
        ended = subprocess.run(options.program, cwd=tmp_path, env=environment, check=False, timeout=10)
        assert ended.returncode == status
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls[1] == "--namespace shop create job it-1800000000 --from=cronjob/it"
    assert sum("create" in call for call in calls) == 1
