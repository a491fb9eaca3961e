"""The page Proof, and its export."""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

import pytest

from psched.insight import ScheduleInsight
from psched.schedules.audit_result import Verdict
from psched.schedules.collection import ScheduleCollection
from tests.daemon.harness import wait_for
from tests.web.conftest import Visit
from tests.web.test_pages import HOSTILE

HOUR = 3600


def run(schedules: ScheduleCollection, count: int) -> None:
    for _ in range(count):
        task = schedules.poll()
        assert task is not None
        task.finish()


def proof_of(**query: str) -> str:
    """Return the path of the page Proof with a range around now. `query`: further parameters."""
    now = time.time()
    times = {"from": at(now - HOUR), "to": at(now + 60)}
    return f"/proof?{urlencode(times | query)}"


def at(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M}"


def test_what_ran_is_proved_and_a_gap_is_not(visit: Visit, schedules: ScheduleCollection) -> None:
    minute = int(time.time()) // 60 * 60
    schedules.add(HOSTILE, "a", cron="* * * * *", next_time=minute - 240)
    run(schedules, 5)
    schedules.add("stuck", "a", cron="*/10 * * * *", next_time=minute - 1200)
    client = visit(timezone="UTC")
    good = client.get(proof_of(prefix=HOSTILE)).text
    assert ">Proved</h1>" in good
    assert re.search(r'<rect class="g-proved" x="[\d.]+%" width="[\d.]+%"', good)
    bad = client.get(proof_of(prefix="stuck")).text
    assert "Not proved: 1 of 1 schedules" in bad
    assert re.search(r"<b>missing</b> \(\d\)", bad)
    assert re.search(r'<rect class="g-missing"', bad)


def test_an_export_has_the_hash_of_the_records_that_it_used(visit: Visit, schedules: ScheduleCollection) -> None:
    schedules.add(HOSTILE, "a", cron="* * * * *", next_time=int(time.time()) - 300)
    run(schedules, 4)
    client = visit(timezone="UTC")
    answer = client.get(proof_of(format="json", records="1"))
    assert answer.headers["content-type"] == "application/json"
    assert "attachment" in answer.headers["content-disposition"]
    assert answer.text.isascii()
    assert "<" not in answer.text
    found = answer.json()
    [of_key] = found["schedules"]
    assert (of_key["key"], of_key["ran"], of_key["changes"], of_key["entries"]) == (HOSTILE, 4, 1, 4)
    lines = [json.dumps(each, sort_keys=True, separators=(",", ":")) + "\n" for each in of_key["records"]]
    assert hashlib.sha256("".join(lines).encode()).hexdigest() == of_key["sha256"]
    assert hashlib.sha256(f"{of_key['sha256']}\n".encode()).hexdigest() == found["sha256"]
    brief = client.get(proof_of(format="json")).json()
    assert (brief["sha256"], brief["schedules"][0]["records"]) == (found["sha256"], [])
    assert found["sha256"] in client.get(proof_of()).text


def test_schedules_are_paged_by_their_keys(
    visit: Visit, schedules: ScheduleCollection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("psched.web.pages.proof._PAGE", 3)
    for key in ("a", "b", "b1", "b2", "b3", "c"):
        schedules.add(key, "a", cron="0 0 1 1 *")
    schedules["b2"].delete()
    client = visit(timezone="UTC")

    def listed(address: str) -> list[str]:
        found: list[str] = []
        while address:
            text = client.get(address).text
            found += re.findall(r'<td><a class="key" href="/schedule\?key=(\w+)"', text)
            following = re.search(r'<a class="button" href="([^"]*after=[^"]*)">Next page', text)
            address = following[1].replace("&amp;", "&") if following else ""
        return found

    assert listed(proof_of()) == ["a", "b", "b1", "b2", "b3", "c"]
    assert listed(proof_of(prefix="b")) == ["b", "b1", "b2", "b3"]
    assert listed(proof_of(prefix="d")) == []


def test_the_address_has_the_range(visit: Visit) -> None:
    client = visit(timezone="UTC")
    answer = client.get("/proof?prefix=a")
    assert answer.status_code == 303
    assert re.fullmatch(r"/proof\?from=[^&]+&to=[^&]+&prefix=a", answer.headers["location"])
    assert "Nothing is proved" in client.get(answer.headers["location"]).text


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("from=2026-01-02T00:00&to=2026-01-01T00:00", "must be after"),
        ("from=2020-01-01T00:00&to=2026-01-01T00:00", "by at most 400 days"),
        ("from=monday&to=2026-01-01T00:00", "from must be a time"),
        ("from=2026-01-01T00:00&to=2026-01-02T00:00&late=soon", "late must be seconds, or a span such as 5m, got "),
    ],
)
def test_a_wrong_range_is_named(query: str, problem: str, visit: Visit) -> None:
    answer = visit().get(f"/proof?{query}")
    assert (answer.status_code, problem in answer.text) == (400, True)


def test_an_audit_that_takes_too_long_proves_nothing(
    visit: Visit, schedules: ScheduleCollection, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedules.add("k", "a", cron="* * * * *", next_time=int(time.time()) - 300)
    run(schedules, 4)
    monkeypatch.setattr("psched.insight.proof.LONGEST_AUDIT", -1.0)
    client = visit(timezone="UTC")
    text = client.get(proof_of()).text
    assert "Not proved: 1 of 1 schedules" in text
    assert "its audit was stopped after 20 s" in text
    [exported] = client.get(proof_of(format="json", records="1")).json()["schedules"]
    assert (exported["proved"], exported["entries"], exported["records"]) == (False, 0, [])
    shown = client.get("/schedule?key=k").text
    assert "not proved" in shown
    assert re.search(r"occurrences ran.*\(until <time", shown), "the verdict may be a minute old"


def test_the_page_of_a_schedule_does_not_wait_for_its_audit(
    visit: Visit, schedules: ScheduleCollection, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedules.add("k", "a", cron="* * * * *")
    may_end = threading.Event()
    real = ScheduleInsight.verdict

    def slow(*given: Any) -> Verdict:
        may_end.wait()
        return real(*given)

    monkeypatch.setattr(ScheduleInsight, "verdict", slow)
    monkeypatch.setattr("psched.web.shared_state._PATIENCE", 0.01)
    client = visit()
    try:
        assert "The audit is not ready yet." in client.get("/schedule?key=k").text
    finally:
        may_end.set()
    wait_for(lambda: "no occurrence was expected" in client.get("/schedule?key=k").text)


def test_an_export_that_takes_too_long_is_no_page(
    visit: Visit, schedules: ScheduleCollection, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end = threading.Event()
    monkeypatch.setattr(ScheduleInsight, "proof", lambda *given, **more: may_end.wait())
    monkeypatch.setattr("psched.web.pages.proof.EXPORT_PATIENCE", 0.01)
    try:
        answer = visit().get("/proof?from=2026-01-01T00:00&to=2026-01-02T00:00&format=json")
    finally:
        may_end.set()
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "60")
    assert answer.text == "The proof is still being computed. Fetch it again in a minute.\n"


def test_an_export_may_take_longer_than_a_page(
    visit: Visit, schedules: ScheduleCollection, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedules.add("k", "a", cron="* * * * *")
    monkeypatch.setattr("psched.web.application._LONGEST_ANSWER", 0.0)
    client = visit()
    assert client.get("/schedule?key=k").status_code == 503
    assert client.get(proof_of(format="json")).status_code == 200


def test_the_history_of_a_schedule_goes_back_page_by_page(visit: Visit, schedules: ScheduleCollection) -> None:
    begin = int(time.time()) // 60 * 60 - 45 * 60
    schedules.add("k", "a", cron="* * * * *", next_time=begin)
    run(schedules, 45)
    client, path, found = visit(timezone="UTC"), "/schedule?key=k", list[int]()
    while path:
        text = client.get(path).text
        part = text[text.index('id="history"') : text.index("<h2>Versions")]
        times = re.findall(r'<tr><td class="nowrap"><time datetime="([^"]*)"', part)
        found += [int(datetime.fromisoformat(each).timestamp()) for each in times]
        older = re.search(r'<a class="button" href="([^"]*until=[^"]*)#history">Older', part)
        path = older[1].replace("&amp;", "&") if older else ""
    assert found == [begin + number * 60 for number in reversed(range(45))]
    assert "no entry up to this time" in client.get(f"/schedule?key=k&until={begin - 60}").text
    assert client.get("/schedule?key=k&until=9" + "9" * 30).status_code == 400
