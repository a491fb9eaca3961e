"""Editing a schedule: the page first shows the effects of a change, and makes only changes that it has shown."""

from __future__ import annotations

import html
import re

import pytest

from psched.schedules.collection import ScheduleCollection
from psched.web import ACTIONS, Access
from tests.web.conftest import OWN, Visit
from tests.web.test_pages import HOSTILE


def hidden(text: str) -> dict[str, str]:
    """Return the hidden fields of the form that confirms a change."""
    form = text[text.index('<form method="post"') :]
    found = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', form[: form.index("</form>")])
    return {name: html.unescape(value) for name, value in found}


def test_a_change_is_shown_before_it_is_made(visit: Visit, schedules: ScheduleCollection) -> None:
    schedules.calendars.set("holidays", ["2030-12-25"])
    schedules.add(HOSTILE, "a", cron="0 3 * * *", description="at night", tags=["x, y"])
    client = visit(lambda _: Access("alice", ACTIONS), actions=True)
    given = {"cron": "0 */4 * * *", "owner": "ops", "exclude": "holidays", "start": "2026-01-01T00:00", "spread": "5m"}
    preview = client.get("/schedule/edit", params={"key": HOSTILE, **given}).text
    assert "The schedule would not run at once" in preview
    assert re.search(r"Gained: \d+</h3>.*Lost: \d+</h3>", preview, re.DOTALL)
    assert schedules[HOSTILE].metadata().rule.cron == "0 3 * * *", "a preview writes nothing"
    answer = client.post("/schedule/edit", data=hidden(preview), headers=OWN)
    row = schedules[HOSTILE].metadata()
    assert (row.rule.cron, row.policy.owner, row.rule.spread) == ("0 */4 * * *", "ops", 300)
    assert [each.name for each in row.rule.exclude] == ["holidays"]
    assert row.policy.tags == ("x, y",), "what was not edited stays, though the form cannot say it"
    page = client.get(answer.headers["location"]).text
    assert "The schedule is changed." in page
    assert "cron: 0 3 * * * → 0 */4 * * *" in page
    assert schedules.store.actions is not None
    [recorded] = schedules.store.actions.last(10)
    assert (recorded.user, recorded.action, recorded.key) == ("alice", "modify", HOSTILE)


def test_bounds_are_removed_by_empty_fields(visit: Visit, schedules: ScheduleCollection) -> None:
    bounds = {"start": 1_700_000_000, "max_runs": 9, "spread": 60, "max_lateness": 5, "owner": "o", "tags": ["t"]}
    schedules.add("k", "a", cron="0 3 * * *", delay=5, catch_up="latest", **bounds)  # type: ignore[arg-type]
    client = visit(actions=True)
    assert "Nothing would change" not in client.get("/schedule/edit?key=k").text
    preview = client.get("/schedule/edit", params={"key": "k", "delay": "", **dict.fromkeys(bounds, "")}).text
    client.post("/schedule/edit", data=hidden(preview), headers=OWN)
    row = schedules["k"].metadata()
    assert (row.rule.start, row.rule.max_runs, row.rule.spread, row.rule.delay) == (None, None, 0, 0)
    assert (row.policy.max_lateness, row.policy.owner, row.policy.tags) == (None, None, ())
    assert row.policy.catch_up == "latest"


def test_a_schedule_that_was_changed_meanwhile_is_not_changed(visit: Visit, schedules: ScheduleCollection) -> None:
    schedules.add("k", "a", cron="0 3 * * *")
    client = visit(actions=True)
    form = hidden(client.get("/schedule/edit?key=k&cron=0 4 * * *").text)
    schedules["k"].modify(cron="0 5 * * *")
    answer = client.post("/schedule/edit", data=form, headers=OWN)
    assert answer.status_code == 409
    assert "another client changed the schedule" in answer.text
    assert schedules["k"].metadata().rule.cron == "0 5 * * *"


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("cron", "61 * * * *", "61"),
        ("cron", "", "cron"),
        ("timezone", "Mars/Phobos", "Mars/Phobos"),
        ("delay", "soon", "Delay: expected seconds, or a span such as 5m or 2h, got"),
        ("start", "yesterday", "Not before: expected a time"),
        ("max_runs", "0.5", "Most runs: expected a whole number"),
        ("exclude", "easter", "there is no calendar"),
        ("catch_up", "some", "catch_up must be"),
    ],
)
def test_wrong_values_are_named(
    name: str, text: str, problem: str, visit: Visit, schedules: ScheduleCollection
) -> None:
    schedules.add("k", "a", cron="0 3 * * *")
    client = visit(actions=True)
    answer = client.get("/schedule/edit", params={"key": "k", name: text})
    assert answer.status_code == 400
    assert problem in html.unescape(answer.text)
    assert 'method="post"' not in answer.text
    form = {"key": "k", "version": str(schedules["k"].metadata().version), name: text}
    assert client.post("/schedule/edit", data=form, headers=OWN).status_code == 409


def test_only_those_who_may_modify_can_edit(visit: Visit, schedules: ScheduleCollection) -> None:
    schedules.add("k", "a", cron="0 3 * * *")
    for client in (visit(), visit(lambda _: Access("bob", {"pause"}), actions=True)):
        assert client.get("/schedule/edit?key=k").status_code == 403
        assert "/schedule/edit" not in client.get("/schedule?key=k").text
        form = {"key": "k", "version": "1", "cron": "* * * * *"}
        assert client.post("/schedule/edit", data=form, headers=OWN).status_code == 403
    assert schedules["k"].metadata().rule.cron == "0 3 * * *"
