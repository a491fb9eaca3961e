"""The content of the pages, and that no data in them acts as code in the browser."""

from __future__ import annotations

import re
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from faultlab.laboratory import Lab
from faultlab.redis import Redis
from psched.clock import boottime
from psched.config import Settings, from_mapping
from psched.insight import NodeState, TaskInsight
from psched.model import NewTask
from psched.queue.queue import Queue, open_queue
from psched.schedules.collection import ScheduleCollection
from psched.store.counts import Counted
from psched.store.run_stats import MINUTE, RunKind, RunSums
from psched.store.type_filter import TypeFilter
from psched.web import ACTIONS, Access, app
from psched.web.access import Gate
from psched.web.pages import PAGES
from psched.web.pages.now import verdict
from psched.web.rendering import ago, moment
from psched.web.shared_state import SharedState
from psched.web.status_poller import Snapshot
from tests.announcements import announce
from tests.daemon.harness import wait_for
from tests.web.conftest import OWN, Visit, settings_of

HOSTILE = "<script>alert(1)</script>\"'\u202e\x07\x1b[31m\u0085\n/../é"
"""A hostile key. Everyone who may add schedules or tasks can choose such a key."""


def test_every_answer_has_the_policy(visit: Visit) -> None:
    client = visit()
    answers = [client.get(path) for path in (*PAGES, "/static/psched.css", "/nothing", "/schedule?key=nothing")]
    answers += [client.post("/schedule/action"), visit(peer="192.0.2.7").get("/")]
    policy = (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    )
    assert {answer.headers["content-security-policy"] for answer in answers} == {policy}
    assert [answer.status_code for answer in answers[len(PAGES) :]] == [200, 404, 404, 403, 403]
    for answer in answers[: len(PAGES)]:
        assert answer.headers["cache-control"] == "no-store"
        assert not re.search(r"<script(?! src=\"/static/)|\son\w+=|\sstyle=|https?://", answer.text), "forbidden inline"


def test_the_waits_of_the_last_hour_are_those_of_half_and_of_the_worst_minute(
    visit: Visit, schedules: ScheduleCollection
) -> None:
    stats = schedules.store.stats
    assert stats is not None
    minute = int(schedules.store.now()) // MINUTE * MINUTE
    for minutes, lateness in enumerate((0.25, 0.25, 199.0), 2):
        sums = RunSums()
        sums.add_run(1.0, lateness)
        stats.add("host", [(RunKind(minute - minutes * MINUTE, "a", "finished"), sums)], 86400)
    half, worst = r"<b>\d+ ms</b>", r"<b>\d min( \d+ s)?</b>"
    expected = f"Lateness: half at most {half}; in the worst minute, 99 % at most {worst}</figcaption>"
    assert re.search(expected, visit().get("/").text)


def test_pages_without_rows_say_how_to_begin(visit: Visit) -> None:
    client = visit()
    assert "psched add KEY TYPE CRON DATA" in client.get("/schedules").text
    assert "psched queue submit KEY TYPE DATA" in client.get("/tasks").text
    assert "No node is running" in client.get("/").text


def test_now_says_that_tasks_have_failed() -> None:
    node = NodeState("a/1", "a", 1, "1.0", "", 0.0, 0.0, 0.0, False, {}, ())
    well = Snapshot(0.0, "", {"total": Counted(3)}, {"failed": Counted(0)}, [node], ())
    assert verdict(well) == ("good", "All is well")
    assert verdict(replace(well, tasks={"failed": Counted(1)})) == ("warn", "1 task has failed")
    assert verdict(replace(well, tasks={"failed": Counted(1000, True)})) == ("warn", "1,000+ tasks have failed")


def test_now_does_not_count_the_first_overdue_schedules_as_all(visit: Visit, schedules: ScheduleCollection) -> None:
    for number in range(51):
        schedules.add(f"k{number}", "a", cron="* * * * *", next_time=int(time.time()) - 86400)
        if number == 49:
            assert "50 schedules are overdue" in visit().get("/").text
    text = visit().get("/").text
    assert "50+ schedules are overdue" in text
    assert "<b>50+</b> overdue" in text


def test_no_text_of_rows_acts_on_the_page(visit: Visit, schedules: ScheduleCollection, queue: Queue) -> None:
    schedules.add(HOSTILE, HOSTILE, cron="* * * * *", data={HOSTILE: HOSTILE})
    queue.submit(HOSTILE, HOSTILE, {HOSTILE: HOSTILE}, user=HOSTILE, headers={"h": HOSTILE})
    client = visit(show_data=True, actions=True)
    keyed = {"key": HOSTILE, "prefix": HOSTILE, "type": HOSTILE, "user": HOSTILE, "done": HOSTILE, "after": HOSTILE}
    for path in PAGES:
        for query in ({}, {"key": HOSTILE}, {"done": HOSTILE}, keyed):
            text = client.get(path, params=query).text
            assert "<script>alert" not in text
            assert not re.search("[\u202a-\u202e\u2066-\u2069\x00-\x08\x0b-\x1f\x7f-\x9f]", text), path
    for path in ("/schedule", "/task"):
        text = client.get(path, params={"key": HOSTILE}).text
        assert "&lt;script&gt;alert(1)&lt;/script&gt;&#34;&#39;\\u202e\\x07\\x1b[31m\\x85\\x0a/../é" in text


def test_a_key_comes_back_from_a_form_as_it_is(visit: Visit, schedules: ScheduleCollection, queue: Queue) -> None:
    schedules.add(HOSTILE, "a", cron="* * * * *")
    queue.submit(HOSTILE, "a")
    client = visit(actions=True)
    for page, action, path in (("/schedules", "pause", "/schedule/action"), ("/tasks", "cancel", "/task/action")):
        [key] = re.findall(r'name="key" value="([^"]*)"', client.get(page).text)
        answer = client.post(path, data={"key": key, "action": action}, headers=OWN)
        assert answer.status_code == 303
        assert client.get(answer.headers["location"]).status_code == 200
    assert schedules[HOSTILE].metadata().paused
    assert queue[HOSTILE].metadata().status == "cancelled"


def test_data_is_shown_on_request_only_and_secrets_never(
    visit: Visit, queue: Queue, schedules: ScheduleCollection
) -> None:
    data = {"shown": "this", "password": "hunter2", "deep": [{"apiKey": "hunter3", "Auth_Token": "hunter4"}]}
    queue.submit("k", "a", data, headers={"authorization": "hunter5", "trace": "this"})
    schedules.add("k", "a", cron="* * * * *", data=data)
    for path in ("/task?key=k", "/schedule?key=k"):
        assert "shown" not in re.sub("not shown|shows them|shows it", "", visit().get(path).text)
        text = visit(show_data=True).get(path).text
        assert "this" in text
        assert "hunter" not in text
        assert "••••••" in text


def test_actions_on_tasks(visit: Visit, queue: Queue) -> None:
    client = visit(actions=True)
    queue.submit("k", "a")

    def act(action: str) -> int:
        return client.post("/task/action", data={"key": "k", "action": action}, headers=OWN).status_code

    assert act("retry") == 400
    assert act("cancel") == 303
    assert act("retry") == 303
    assert queue["k"].metadata().status == "waiting"
    assert act("format-disk") == 403
    assert act("delete") == 303
    assert not queue["k"].exists()
    assert act("delete") == 404


def test_users_are_listed_in_the_order_of_their_turns(visit: Visit, queue: Queue) -> None:
    client = visit()
    queue.submit("k", "a")
    assert "their turns" not in client.get("/queue").text
    queue.submit("b", "a", user="bob", max_running=1)
    queue.submit("d", "a", user="dan", max_running=3)
    text = visit().get("/queue").text
    listed = re.findall(r"(bob|dan|tasks without a user)</", text)
    assert listed == ["dan", "tasks without a user", "bob"]
    assert "Other users may also have due tasks" not in text
    queue.submit_many(NewTask(f"u{number}", "a", user=f"user{number}") for number in range(20))
    assert "Other users may also have due tasks" in visit().get("/queue").text


def test_several_visitors_with_one_question_ask_the_database_once(settings: Settings) -> None:
    shared, asked, begun = SharedState(settings, Gate(settings.web, None)), [], threading.Barrier(4)

    def ask() -> int:
        asked.append(1)
        time.sleep(0.05)
        return 7

    def answer(_: int) -> int:
        begun.wait()
        return shared.answer("question", 60, ask)

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(answer, range(4))) == [7] * 4
    assert len(asked) == 1
    shared.forget_answers()
    shared.answer("question", 60, ask)
    assert len(asked) == 2
    shared.close()


def test_a_time_that_no_date_has_is_shown_as_a_number() -> None:
    assert (str(ago(-1e11, 0.0)), str(moment(-1e11))) == ("-100000000000.0", "-100000000000.0")


def test_an_answer_that_is_too_old_leaves_the_memory(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    shared, now = SharedState(settings, Gate(settings.web, None)), [0.0]
    monkeypatch.setattr("psched.web.shared_state.monotonic", lambda: now[0])
    shared.answer("short", 2, lambda: 1)
    assert shared.slow_answer("slow", 10, lambda: 2, patience=30) == 2
    for passed, kept in ((1, {"short", "slow"}), (15, {"slow"}), (5, set())):
        now[0] += passed
        shared.answer("other", 0, lambda: 3)
        assert shared._answers.keys() - {"other"} == kept
    shared.close()


def test_slow_questions_do_not_pile_up(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psched.web.shared_state._MOST_ASKED", 3)
    shared, go_on = SharedState(settings, Gate(settings.web, None)), threading.Event()
    for number in range(5):
        assert shared.slow_answer(number, 60, lambda: go_on.wait(30), patience=0) is None
    waiting = dict(shared._asked)
    assert waiting.keys() == {0, 1, 2}
    go_on.set()
    wait(waiting.values())
    assert shared.slow_answer(4, 60, lambda: 7, patience=30) == 7
    shared.close()


def test_a_failure_of_a_slow_question_that_no_browser_has_fetched_is_forgotten(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, go_on = SharedState(settings, Gate(settings.web, None)), threading.Event()

    def fail() -> int:
        go_on.wait(30)
        raise OSError("away")

    assert shared.slow_answer("question", 60, fail, patience=0) is None
    go_on.set()
    with pytest.raises(OSError, match="away"):  # the failure is kept for the browser, which asks again
        shared.slow_answer("question", 60, lambda: 7, patience=30)
    go_on.clear()
    assert shared.slow_answer("question", 60, fail, patience=0) is None
    [asked] = shared._asked.values()
    go_on.set()
    wait([asked])
    monkeypatch.setattr("psched.web.shared_state._FAILURE_KEPT", 0.0)
    assert shared.slow_answer("question", 60, lambda: 7, patience=30) == 7
    shared.close()


def test_all_tasks_that_pass_a_filter_are_treated_after_their_number_was_shown(visit: Visit, queue: Queue) -> None:
    client = visit(lambda _: Access("alice", ACTIONS), actions=True)
    queue.submit_many(NewTask(f"t{number:03}", "a" if number % 3 else HOSTILE) for number in range(450))
    wanted = {"action": "cancel", "status": "waiting", "type": HOSTILE}
    link = re.findall(r'href="(/tasks/bulk[^"]*cancel[^"]*)"', client.get("/tasks", params=wanted).text)[0]
    asked = client.get(link.replace("&amp;", "&"))
    assert "Cancel 150 tasks?" in asked.text
    form = dict(re.findall(r'name="(\w+)" value="([^"]*)"', asked.text))
    answer = client.post("/tasks/bulk", data=form, headers=OWN)
    assert "150 tasks are cancelled" in client.get(answer.headers["location"]).text
    assert {row.type for row in queue.list("cancelled")} == {HOSTILE}
    assert len(list(queue.list("waiting"))) == 300
    for wrong in ({"action": "cancel"}, {"action": "retry", "status": "waiting"}):
        assert client.post("/tasks/bulk", data=wrong, headers=OWN).status_code == 400
    assert queue.store.actions is not None
    [recorded] = queue.store.actions.last(10)
    assert (recorded.user, recorded.action, recorded.key) == ("alice", "cancel", "")
    assert (recorded.detail or "").startswith("all tasks with status waiting, type <script>")


@pytest.mark.parametrize("action", ["cancel", "delete", "retry"])
def test_a_task_that_passes_the_filter_no_longer_is_left_alone(
    action: str, visit: Visit, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, whole = visit(actions=True), TaskInsight.page
    status = "cancelled" if action == "retry" else "waiting"
    queue.submit_many(NewTask(key, "a") for key in ("changes", "stays"))
    changed = queue["changes"]
    if action == "retry":
        for key in ("changes", "stays"):
            queue[key].cancel_request()

    def page_before_it_changes(*given: Any, **wanted: Any) -> Any:
        found = whole(*given, **wanted)
        if action == "retry":  # another visitor retries it, and it fails for good
            changed.retry()
            queue.store.retire(queue.store.preempt("changes", 60), "failed", "error", 60, boottime() + 60)
        else:
            changed.preempt()
        return found

    monkeypatch.setattr(TaskInsight, "page", page_before_it_changes)
    answer = client.post("/tasks/bulk", data={"action": action, "status": status}, headers=OWN)
    assert "count=1&" in answer.headers["location"]
    row = changed.metadata()
    assert (row.status, row.cancel_requested) == ("failed" if action == "retry" else "running", False)


@pytest.mark.parametrize("path", ["/tasks", "/what-if?begin=2026-01-01T00:00"])
def test_a_mistake_of_psched_is_an_error_with_a_traceback_in_the_log(
    path: str, visit: Visit, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ValueError("max() arg is an empty sequence")

    monkeypatch.setattr(TaskInsight, "page", fail)
    monkeypatch.setattr("psched.web.pages.simulated_outage._read", fail)
    answer = visit().get(path)
    assert (answer.status_code, "empty sequence" in answer.text) == (500, False)
    [record] = [each for each in caplog.records if each.exc_info]
    assert record.getMessage() == f"page failed: {path.partition('?')[0]}"


@pytest.mark.parametrize(
    "path",
    [
        "/schedule?key=",
        f"/schedule?key=k&until={'9' * 5000}",
        "/schedules?after=soon:k",
        "/schedules?after=inf:k",
        f"/tasks?done=all-delete&count={'9' * 5000}",
        f"/yesterday?hours={'9' * 5000}",
        f"/yesterday?page={'9' * 5000}",
        "/proof?from=2026-01-01T00:00&to=2026-01-02T00:00&late=nan",
        "/what-if?begin=0001-01-01T00:00",
        "/what-if?handler_time=inf&begin=2026-01-01T00:00",
    ],
)
def test_wrong_input_of_a_visitor_is_no_mistake_of_psched(
    path: str, visit: Visit, caplog: pytest.LogCaptureFixture
) -> None:
    assert visit(timezone="Pacific/Kiritimati").get(path).status_code == 400
    assert not [each for each in caplog.records if each.levelname == "ERROR"]


def test_each_action_is_recorded_with_its_user_before_it_is_done(visit: Visit, schedules: ScheduleCollection) -> None:
    client = visit(lambda _: Access(HOSTILE, ACTIONS), actions=True)
    schedules.add("k", "a", cron="0 0 1 1 *")
    for action in ("pause", "resume"):
        client.post("/schedule/action", data={"key": "k", "action": action}, headers=OWN)
    client.post("/schedule/action", data={"key": "gone", "action": "pause"}, headers=OWN)
    assert schedules.store.actions is not None
    found = schedules.store.actions.last(10)
    assert sorted((each.action, each.key) for each in found) == [("pause", "gone"), ("pause", "k"), ("resume", "k")]
    assert {each.user for each in found} == {HOSTILE}
    assert "Done on these pages" in visit().get("/schedule?key=k").text


def test_actions_on_schedules(visit: Visit, schedules: ScheduleCollection) -> None:
    client = visit(actions=True)
    schedules.add("k", "a", cron="0 0 1 1 *")

    def act(action: str) -> int:
        return client.post("/schedule/action", data={"key": "k", "action": action}, headers=OWN).status_code

    assert [act("pause"), act("run-now")] == [303, 303]
    row = schedules["k"].metadata()
    assert (row.paused, row.is_asked_for) == (True, True)
    assert act("resume") == 303
    assert not schedules["k"].metadata().paused


def test_the_page_of_a_schedule_shows_the_progress_of_its_backfills(
    visit: Visit, schedules: ScheduleCollection
) -> None:
    schedules.add("key", "t", cron="@daily")
    schedules.backfills.start("key", 1_600_000_000, 1_600_400_000, max_running=2)
    task = schedules.poll()
    assert task is not None
    task.finish()
    client = visit()
    text = " ".join(client.get("/schedule?key=key").text.split())
    assert "key:1" in text
    assert "1 done, 4 left" in text
    for path in ("/schedules", "/schedule?key=backfill:key:1.1", "/yesterday"):
        assert "backfill:key:1.1" in client.get(path).text


def test_lists_are_filtered_and_paged(visit: Visit, schedules: ScheduleCollection, queue: Queue) -> None:
    for number in range(30):
        schedules.add(f"s{number:02}", "a" if number % 2 else "b", cron="0 0 * * *", delay=number)
    for number in range(60):
        queue.submit(f"t{number:02}", "a", user="u" if number % 2 else None)
    client = visit()

    def listed(path: str, name: str) -> list[str]:
        found: list[str] = []
        while path:
            text = client.get(path).text
            found += re.findall(rf'href="/{name}\?key=(\w+)"', text)
            following = re.search(r'<a class="button" href="([^"]*after=[^"]*)"', text)
            path = following[1].replace("&amp;", "&") if following else ""
        return found

    assert listed("/schedules", "schedule") == [f"s{number:02}" for number in range(30)]
    assert listed("/schedules?type=a&prefix=s1", "schedule") == [f"s{number}" for number in range(11, 20, 2)]
    assert listed("/schedules?state=paused", "schedule") == []
    assert listed("/tasks?user=u", "task") == [f"t{number:02}" for number in range(1, 60, 2)]
    assert client.get("/schedules?state=tired").status_code == 400
    assert client.get("/tasks?status=tired").status_code == 400


def test_a_value_that_the_database_cannot_store_is_no_error_of_the_page(
    visit: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("as PostgreSQL refuses texts with NUL")

    monkeypatch.setattr(TaskInsight, "page", fail)
    client = visit()
    answer = client.get("/tasks?prefix=a%00b")
    assert (answer.status_code, "the character NUL" in answer.text) == (400, True)
    assert client.get("/tasks?prefix=ab").status_code == 500


def test_it_can_be_mounted(settings: object, url: str) -> None:
    mounted = app(settings_of(url))
    client = TestClient(Starlette(routes=[Mount("/cron", mounted)]), "http://localhost", client=("::1", 1))
    try:
        text = client.get("/cron/schedules").text
        assert set(re.findall(r'(?:href|src|action|hx-get)="(/[^/"?]*)', text)) == {"/cron"}
        assert client.get("/cron/static/psched.css").status_code == 200
        assert 'aria-current="page">Schedules' in text
    finally:
        mounted.state.shared.close()


def test_pages_of_a_missing_section_are_not_linked(url: str) -> None:
    for section, missing in (("schedules", "queue"), ("queue", "schedules")):
        made = app(from_mapping({"type": "rdb", "url": url, section: {}}))
        text = TestClient(made, "http://localhost", client=("::1", 1)).get("/").text
        made.state.shared.close()
        assert f'href="/{section}"' in text
        assert f'href="/{missing}"' not in text


def test_a_clock_that_agrees_with_the_database_is_not_minus_zero_ahead(
    visit: Visit, schedules: ScheduleCollection, tmp_path: Path
) -> None:
    announce(schedules.store.nodes, "host/1", "schedules", TypeFilter(("mail",)))
    with closing(sqlite3.connect(tmp_path / "psched.db")) as connection, connection:
        connection.execute("UPDATE psched_nodes SET clock_offset = -20")
    assert "<dd>+0.0 s " in visit().get("/nodes").text


@pytest.mark.parametrize(("offset", "shown"), [(2500, "+2.5 s "), (-2500, "-2.5 s ")])
def test_a_clock_that_is_ahead_is_shown_with_a_plus(
    visit: Visit, schedules: ScheduleCollection, tmp_path: Path, offset: int, shown: str
) -> None:
    announce(schedules.store.nodes, "host/1", "schedules", TypeFilter(("mail",)))
    with closing(sqlite3.connect(tmp_path / "psched.db")) as connection, connection:
        connection.execute("UPDATE psched_nodes SET clock_offset = ?", (offset,))
    assert f"<dd>{shown}" in visit().get("/nodes").text


def test_a_missing_table_is_named_with_its_remedy(url: str) -> None:
    with TestClient(app(settings_of(url)), "http://localhost", client=("127.0.0.1", 1)) as client:
        answer = client.get("/")
    assert answer.status_code == 503
    assert "psched init" in answer.text


@pytest.mark.slow
def test_a_database_that_is_away_is_said_so_with_the_time_until_it_is_back(lab: Lab) -> None:
    with lab.private(Redis) as server:
        url = server.url(server.create_database())
        settings = from_mapping({"type": "redis", "url": url, "queue": {}})
        assert settings.queue is not None
        with open_queue(settings.queue, "test") as queue:
            queue.store.create_tables()
        with TestClient(app(settings), "http://localhost", client=("127.0.0.1", 1)) as client:
            assert client.get("/").status_code == 200
            before = time.time()
            server.stop()
            wait_for(lambda: client.get("/queue").status_code == 503)
            answers = [client.get("/"), client.get("/queue")]
            since = {re.findall(r'since <time datetime="([^"]*)"', answer.text)[0] for answer in answers}
            assert len(since) == 1, "the time does not move on"
            begun = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(before - 1))
            assert since.pop() >= begun
            assert answers[0].headers["retry-after"] == "5"
            server.start()
            wait_for(lambda: client.get("/queue").status_code == 200)
