"""The page Week ahead."""

from __future__ import annotations

import re
import threading

import pytest

from psched.errors import ScheduleError
from psched.insight import ScheduleInsight, WeekAhead
from psched.model import NewSchedule
from psched.schedules.collection import ScheduleCollection
from tests.daemon.harness import wait_for
from tests.web.conftest import Visit

EVIL = "<b>\u202e"


def test_the_week_has_its_starts_and_crowded_minutes(visit: Visit, schedules: ScheduleCollection) -> None:
    schedules.add_many(NewSchedule(f"{EVIL}{number}", EVIL, "0 3 * * *") for number in range(40))
    text = visit(timezone="UTC").get("/week").text
    assert "40 schedules. Paused" in text
    row = text[text.index('<th scope="row">03</th>') : text.index('<th scope="row">04</th>')]
    assert re.findall(r'class="h(\d)" title="[^"]*: 40 starts">40<', row) == ["6"] * 7
    assert "<b>03:00</b>" in text
    assert re.search(r"over 10 min: about <b>\d+</b>", text)
    assert "&lt;b&gt;\\u202e" in text
    assert "No time zone in use has a clock change" in text


def test_without_schedules_it_says_how_to_begin(visit: Visit) -> None:
    assert "psched add KEY TYPE CRON DATA" in visit().get("/week").text


def test_an_answer_that_takes_long_is_waited_for_by_the_browser(
    visit: Visit, schedules: ScheduleCollection, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedules.add("k", "a", cron="0 3 * * *")
    client, may_answer = visit(), threading.Event()
    real = ScheduleInsight.week_ahead

    def slow(table: ScheduleInsight) -> WeekAhead:
        may_answer.wait()
        return real(table)

    monkeypatch.setattr(ScheduleInsight, "week_ahead", slow)
    monkeypatch.setattr("psched.web.shared_state._PATIENCE", 0.1)
    try:
        answer = client.get("/week")
        assert ("being computed" in answer.text, answer.headers["refresh"]) == (True, "1")
    finally:
        may_answer.set()
    wait_for(lambda: "1 schedule. Paused" in client.get("/week").text)


def test_an_answer_that_fails_late_is_an_error_and_not_waited_for_again(
    visit: Visit, schedules: ScheduleCollection, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, may_answer = visit(), threading.Event()

    def fail(_: ScheduleInsight) -> WeekAhead:
        may_answer.wait()
        raise ScheduleError("it cannot be said")

    monkeypatch.setattr(ScheduleInsight, "week_ahead", fail)
    monkeypatch.setattr("psched.web.shared_state._PATIENCE", 0.1)
    try:
        assert "being computed" in client.get("/week").text
    finally:
        may_answer.set()
    wait_for(lambda: "it cannot be said" in client.get("/week").text)
    monkeypatch.undo()
    assert "There are no schedules, or all are paused." in client.get("/week").text
