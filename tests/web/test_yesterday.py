"""The page Yesterday."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from psched.schedules.collection import ScheduleCollection
from tests.web.conftest import Visit

EVIL = "<b>\u202e"


def run(schedules: ScheduleCollection, count: int) -> None:
    for _ in range(count):
        task = schedules.poll()
        assert task is not None
        task.finish()


def test_each_schedule_has_a_row_with_its_runs(visit: Visit, schedules: ScheduleCollection) -> None:
    minute = int(time.time()) // 60 * 60
    schedules.add(EVIL, "a", cron="* * * * *", next_time=minute - 300)
    run(schedules, 4)
    schedules.add("late", "a", cron="0 0 1 1 *", next_run_time=time.time() - 4000)
    text = visit(timezone="UTC").get("/yesterday?hours=1").text
    assert "&lt;b&gt;\\u202e</a>" in text
    assert "4 runs<" in text.replace("\n", "")
    assert re.search(r"0 runs, 1 open", text)
    assert re.search(r'<rect class="g-ran" x="[\d.]+%" width="[\d.]+%"', text)
    assert "By node" in text
    assert "No run was in progress for" in text
    assert "left out" not in text
    before = {"until": f"{datetime.now(UTC) - timedelta(minutes=1):%Y-%m-%dT%H:%M}"}
    assert " open" not in visit(timezone="UTC").get("/yesterday", params=before).text
    assert "Nothing ran in this time." in visit().get("/yesterday?prefix=none").text
    assert "Nothing ran in this time." in visit().get("/yesterday?until=2020-01-01T00:00").text


def test_labels_of_the_time_axis_do_not_overlap_on_a_phone(visit: Visit, schedules: ScheduleCollection) -> None:
    """On a phone the style sheet hides labels with the class `even`. In one of the zones, eight hours have a label."""
    schedules.add("k", "a", cron="0 0 1 1 *", next_run_time=time.time() - 1)
    run(schedules, 1)
    for zone in ("Etc/GMT", "Etc/GMT+1", "Etc/GMT+2"):
        text = visit(timezone=zone).get("/yesterday").text
        labels = re.findall(r'<text x="([\d.]+)%" y="13" class="([a-z ]+)">', text)
        shown = [float(x) for x, classes in labels if "even" not in classes.split()]
        assert len(shown) >= 8
        assert all(right - left > 20 or right < left for left, right in pairwise(shown))


def test_what_is_left_out_is_said(visit: Visit, schedules: ScheduleCollection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psched.insight.timeline.MOST_RUNS", 3)
    schedules.add("k", "a", cron="* * * * *", next_time=int(time.time()) - 3600)
    run(schedules, 5)
    text = visit().get("/yesterday").text
    assert "There are too many runs to show all of them" in text
    assert "5 runs of 1 schedule" in text, "four of the ledger, and what is due"


def test_schedules_are_paged(visit: Visit, schedules: ScheduleCollection) -> None:
    for number in range(45):
        schedules.add(f"s{number:02}", "a", cron="0 0 1 1 *", next_run_time=time.time() - 1)
    run(schedules, 45)
    client = visit()
    first = client.get("/yesterday").text
    assert "1 to 40 of 45 schedules" in first
    [more] = re.findall(r'href="([^"]*page=2)"', first)
    second = client.get(more.replace("&amp;", "&")).text
    keys = [set(re.findall(r"schedule\?key=(s\d\d)", text)) for text in (first, second)]
    assert [len(each) for each in keys] == [40, 5]
    assert len(keys[0] | keys[1]) == 45


def test_a_wrong_span_or_time_is_named(visit: Visit) -> None:
    for query, problem in (("hours=7", "hours must be one of 1, 3"), ("until=noon", "until must be a time")):
        answer = visit().get(f"/yesterday?{query}")
        assert (answer.status_code, problem in answer.text) == (400, True)


def test_all_bars_have_their_times_in_the_zone_of_the_pages(visit: Visit, schedules: ScheduleCollection) -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    schedules.add("k", "a", cron="0 0 1 1 *", next_time=int(at.timestamp()))
    run(schedules, 1)
    text = visit(timezone="Asia/Tokyo").get("/yesterday").text
    titles = re.findall(r"<title>([^<]* ran [^<]*)</title>", text)
    assert len(titles) == 3, "the wait and the run of the schedule, and the run of the node"
    assert all("2026-01-01 09:00:00" in title for title in titles)
