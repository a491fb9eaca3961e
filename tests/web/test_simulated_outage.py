"""The page What if shows the simulation of an outage, and writes nothing to the database."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest
from starlette.testclient import TestClient

from psched.schedules.collection import ScheduleCollection
from tests.daemon.harness import wait_for
from tests.web.conftest import Visit

OUTAGE = {"workers": "2", "handler_time": "30", "followed": "6 hours"}


def text_of(client: TestClient, query: Mapping[str, str]) -> str:
    """Return the text of the page when its answer has been computed."""
    found = wait_for(
        lambda: (text := client.get("/what-if", params=query).text) and "being computed" not in text and text
    )
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", found))


def test_an_outage_is_simulated(visit: Visit, schedules: ScheduleCollection) -> None:
    for number in range(3):
        schedules.add(f"hourly-{number}", "report", cron="0 * * * *")
    schedules.add("in-time", "report", cron="30 * * * *", max_lateness=60)
    schedules.add("paused", "report", cron="* * * * *")
    schedules["paused"].pause()
    client = visit(timezone="UTC")
    form = client.get("/what-if").text
    begin, end = re.findall(r'type="datetime-local" name="\w+" value="([^"]*)"', form)
    before = [row.version for row in schedules.list()]
    text = text_of(client, {"begin": begin, "end": end, **OUTAGE})
    assert re.search(r"Caught up [\d.]+ \w+( \d+ s)? after the outage", text)
    assert "8 wait at the end of the outage" in text
    assert "2 skipped" in text
    assert "1 paused schedule is left out" in text
    assert re.search(r"hourly-0 report", text)
    assert [row.version for row in schedules.list()] == before


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"workers": "many"}, "Workers: expected a whole number, got"),
        ({"workers": "0"}, "Workers: expected 1 to 10,000, got 0"),
        ({"begin": "soon"}, "Outage from: expected a time such as"),
        ({"end": "2026-01-01T00:00"}, "Outage to: expected a time after the start of the outage"),
        ({"begin": "2100-01-01T00:00"}, "Outage from: expected a time within a year from now"),
        ({"handler_time": "long"}, "Duration of a run: expected seconds"),
        ({"followed": "a year"}, "Continue for: expected one of 6 hours"),
    ],
)
def test_a_wrong_question_is_answered_with_the_field(wrong: Mapping[str, str], said: str, visit: Visit) -> None:
    client = visit()
    begin, end = re.findall(r'type="datetime-local" name="\w+" value="([^"]*)"', client.get("/what-if").text)
    answer = client.get("/what-if", params={"begin": begin, "end": end, **OUTAGE, **wrong})
    assert answer.status_code == 400
    assert said in answer.text
