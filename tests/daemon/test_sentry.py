"""Sentry receives errors of runs, spans of submits and runs, and check-ins, from the children of a real daemon."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from psched.contrib.sentry import monitor_config, monitor_slug
from psched.model import Policy, Rule, ScheduleRow
from psched.queue.queue import open_queue
from psched.store import holder_name
from tests.daemon.harness import Daemon
from tests.unit.http_receiver import Receiver

pytestmark = pytest.mark.usefixtures("forked_off_with_sentry")

APP = """
import sentry_sdk
from psched import App
from psched.contrib.sentry import PschedIntegration

sentry_sdk.init(
    dsn={dsn!r}, traces_sample_rate=1.0, default_integrations=True,
    integrations=[PschedIntegration(exclude_schedules=["private.*"])],
)
app = App()

@app.task("good")
def good(task):
    sentry_sdk.add_breadcrumb(message="of " + task.key)

@app.task("bad")
def bad(task):
    raise ValueError("no luck with " + task.key)
"""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as running:
        yield running


@pytest.fixture
def daemon(make_daemon: Callable[..., Daemon], receiver: Receiver) -> Daemon:
    """A daemon whose application reports to the receiver. It is not started yet."""
    daemon = make_daemon(app="app:app", schedules={}, queue={}, max_attempts=1, processors=2)
    daemon.write_app(APP.format(dsn=receiver.url.replace("http://", "http://public@") + "/1"))
    section = daemon.settings().queue
    assert section is not None
    with open_queue(section, holder_name("test")) as queue:
        queue.store.create_tables()
    return daemon


def items(receiver: Receiver) -> list[tuple[str, dict[str, Any]]]:
    """Return the items of all received envelopes, as pairs of type and content."""
    found = []
    for got in receiver.got:
        assert got.path == "/api/1/envelope/"
        body = gzip.decompress(got.body) if got.headers.get("content-encoding") == "gzip" else got.body
        lines = body.split(b"\n")
        for header, content in zip(lines[1::2], lines[2::2], strict=False):
            if header:
                found.append((json.loads(header)["type"], json.loads(content)))
    return found


def of_type(receiver: Receiver, kind: str) -> list[dict[str, Any]]:
    return [content for found, content in items(receiver) if found == kind]


def test_schedules_check_in_and_errors_tell_of_their_run(daemon: Daemon, receiver: Receiver) -> None:
    with daemon.schedules() as schedules:
        once = {"next_time": 1_600_000_000, "next_run_time": 0, "catch_up": "latest"}
        rule = {"cron": "0 0 1 1 *", "timezone": "Europe/Vienna", "alert_after": 90}
        for key, type_ in (("nightly", "good"), ("Broken report", "bad"), ("private.one", "good")):
            schedules.add(key, type_, **rule, **once)
    daemon.start()
    daemon.wait_for(lambda: len(of_type(receiver, "check_in")) >= 4)
    daemon.stop()
    check_ins: dict[str, list[dict[str, Any]]] = {}
    for check_in in of_type(receiver, "check_in"):
        check_ins.setdefault(check_in["monitor_slug"], []).append(check_in)
    assert check_ins.keys() == {"nightly", monitor_slug("Broken report")}
    for slug, last in (("nightly", "ok"), (monitor_slug("Broken report"), "error")):
        assert [each["status"] for each in check_ins[slug]] == ["in_progress", last]
        assert len({each["check_in_id"] for each in check_ins[slug]}) == 1
        assert check_ins[slug][0]["monitor_config"] == {
            "schedule": {"type": "crontab", "value": "0 0 1 1 *"},
            "timezone": "Europe/Vienna",
            "checkin_margin": 2,
            "max_runtime": 2,
        }
    [error] = [event for event in of_type(receiver, "event") if "exception" in event]  # others are psched's log lines
    [raised] = error["exception"]["values"]
    assert (raised["type"], raised["value"]) == ("ValueError", "no luck with Broken report")
    assert raised["mechanism"]["handled"] is False
    about = error["contexts"]["psched"]
    assert (about["section"], about["key"], about["type"], about["attempt"]) == ("schedules", "Broken report", "bad", 1)
    assert "data" not in about
    assert error["tags"] == {"psched.key": "Broken report", "psched.type": "bad"}
    assert "of nightly" not in json.dumps(error["breadcrumbs"])
    assert error["transaction"] == "bad"


def test_the_span_of_a_run_belongs_to_the_trace_of_its_submit(daemon: Daemon, receiver: Receiver) -> None:
    section = daemon.settings().queue
    assert section is not None
    with open_queue(section, holder_name("test")) as queue:
        trace = "0af7651916cd43dd8448eb211c80319c"
        queue.submit("t1", "good", headers={"sentry-trace": f"{trace}-b7ad6b7169203331-1"})
    daemon.start()
    daemon.wait_for(lambda: of_type(receiver, "transaction"))
    daemon.stop()
    [run] = of_type(receiver, "transaction")
    assert (run["transaction"], run["contexts"]["trace"]["op"]) == ("good", "queue.task.psched")
    assert run["contexts"]["trace"]["trace_id"] == trace
    [span] = [span for span in run["spans"] if span["op"] == "queue.process"]  # beside those of SQLAlchemy
    data = span["data"]
    assert (data["messaging.message.id"], data["messaging.destination.name"]) == ("t1", "good")
    assert (data["messaging.system"], data["messaging.message.retry.count"]) == ("psched", 0)
    assert data["messaging.message.receive.latency"] >= 0
    assert not of_type(receiver, "check_in")


def test_each_submit_has_a_span_and_its_tasks_the_headers(daemon: Daemon, receiver: Receiver) -> None:
    submitted = """
import asyncio

@app.task("submit")
def submit(task):
    good.using(key="one").submit()
    asyncio.run(good.using(key="awaited").asubmit())
    good.queue.get().submit_many([*(good.new_task()._replace(key=key) for key in ("m1", "m2")), bad.new_task()])
"""
    daemon.write_app((daemon.folder / "app.py").read_text() + submitted)
    section = daemon.settings().queue
    assert section is not None
    with open_queue(section, holder_name("test")) as queue:
        queue.submit("first", "submit")
    daemon.start()
    daemon.wait_for(lambda: len(of_type(receiver, "transaction")) == 6)
    daemon.stop()
    runs = {_key_of(run): run for run in of_type(receiver, "transaction")}
    published = [span for span in runs["first"]["spans"] if span["op"] == "queue.publish"]
    about = [(span["description"], span["data"].get("messaging.batch.message_count")) for span in published]
    assert about == [("good", None), ("good", None), ("good", 2), ("bad", None)]
    traces = {key: run["contexts"]["trace"] for key, run in runs.items()}
    assert {trace["trace_id"] for trace in traces.values()} == {traces["first"]["trace_id"]}
    parents = [traces[key]["parent_span_id"] for key in ("one", "awaited", "m1")]
    assert parents == [span["span_id"] for span in published[:3]]
    assert traces["m2"]["parent_span_id"] == parents[2]


def _key_of(run: dict[str, Any]) -> str:
    [span] = [span for span in run["spans"] if span["op"] == "queue.process"]
    return str(span["data"]["messaging.message.id"])


@pytest.mark.parametrize(
    ("cron", "delay", "alert_after", "expected"),
    [
        ("*/5 1-3,7 * jan MON-fri", 0, None, {}),
        ("@daily", 0, 1, {"checkin_margin": 1, "max_runtime": 1}),
        ("0 0 * * *", 30, 100, {"checkin_margin": 3, "max_runtime": 2}),
        ("0 0 * * *", 61, None, {"checkin_margin": 3}),
        ("0 0 * * * *", 0, 60, None),
        ("0 0 L * *", 0, 60, None),
    ],
)
def test_a_monitor_has_the_rule_and_the_bounds_of_its_schedule(
    cron: str, delay: float, alert_after: float | None, expected: dict[str, int] | None
) -> None:
    rule = Rule(cron, "Asia/Tokyo", delay)
    row = ScheduleRow(
        "k", "t", {}, "waiting", rule=rule, next_time=0, next_run_time=0, policy=Policy(alert_after=alert_after)
    )
    config = monitor_config(row)
    if expected is None:
        assert config is None
    else:
        value = "0 0 * * *" if cron.startswith("@") else cron
        assert config == {"schedule": {"type": "crontab", "value": value}, "timezone": "Asia/Tokyo", **expected}


def test_slugs_are_allowed_distinct_and_stable() -> None:
    assert monitor_slug("daily-report_1") == "daily-report_1"
    keys = ("Daily", "daily ", "x" * 60, "x" * 61, "日次")
    slugs = {monitor_slug(key) for key in keys}
    assert len(slugs) == len(keys)
    assert all(len(slug) <= 50 and slug.isascii() and slug == slug.lower() for slug in slugs)
