"""A schedule that was late or failing is reported once, when it runs well again. Webhooks are signed and repeated."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from psched.backends import open_stores
from psched.config import from_mapping
from psched.config.alert_hooks import Hook
from psched.errors import ConfigError
from psched.execution import webhooks
from psched.execution.alerts import FailureReporter, OverdueAlerter, RecoveryReporter
from psched.keys import backfill_key
from psched.model import Backfill, Claim, Policy, Rule
from psched.store import ScheduleStore, StoreSettings
from psched.store.ledger import FAILED, Entry
from tests.daemon.harness import Daemon
from tests.unit.http_receiver import Receiver

HOURLY = Rule("0 * * * *", "UTC")
TIME = 1_600_002_000
SECRET = b"0123456789abcdef"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as running:
        yield running


@pytest.fixture
def store() -> Iterator[ScheduleStore]:
    store = open_stores("rdb", StoreSettings("sqlite://", "h/1/1", schedules="s", keeps_failures=True)).schedules
    assert store is not None
    store.create_tables()
    yield store
    store.close()


def take(store: ScheduleStore) -> Claim:
    [claim] = store.acquire(1, 60)
    return claim


def settle(store: ScheduleStore, entry: Entry | None = None) -> None:
    """Settle the run that is due. The following run is then due immediately."""
    claim = take(store)
    following = claim.row.scheduled_time + 3600
    assert (
        store.advance(claim, following, 0, 1e12, entry=Entry(started=claim.started) if entry is None else entry) is None
    )


def reporters(store: ScheduleStore, receiver: Receiver) -> list[RecoveryReporter]:
    hook = Hook(f"{receiver.url}/ok", secret=SECRET)
    return [RecoveryReporter(store, hook, 10, f"h/{number}") for number in range(2)]


def bodies(receiver: Receiver) -> list[dict[str, object]]:
    return [json.loads(got.body) for got in receiver.got]


def test_a_late_schedule_recovers_once_when_its_occurrence_has_finished(
    store: ScheduleStore, receiver: Receiver
) -> None:
    store.add("k", "t", HOURLY, TIME, 0, {}, Policy(alert_after=5))
    assert store.alerts is not None
    OverdueAlerter(store.alerts, Hook(), 10, store.watermarks).check()
    one, two = reporters(store, receiver)
    assert not one.check()
    assert receiver.got == []
    settle(store)
    for reporter in (one, two, one):
        reporter.check()
    [facts] = bodies(receiver)
    assert (facts["event"], facts["key"], facts["type"], facts["trouble"]) == ("recovered", "k", "t", "late")
    assert (facts["scheduled_time"], facts["trouble_time"]) == (TIME, TIME)
    settle(store)
    one.check()
    assert len(receiver.got) == 1


def test_a_failed_schedule_recovers_with_the_next_good_run_and_no_skipped_one(
    store: ScheduleStore, receiver: Receiver
) -> None:
    store.add("k", "t", HOURLY, TIME, 0, {})
    settle(store, Entry(FAILED))
    assert store.failures is not None
    assert FailureReporter("schedules", store.failures, Hook(), 10, store.now, store.watermarks).check()
    one, two = reporters(store, receiver)
    one.check()
    assert receiver.got == []
    settle(store, Entry("skipped", "superseded"))
    one.check()
    assert receiver.got == []
    settle(store)
    two.check()
    one.check()
    [facts] = bodies(receiver)
    assert (facts["trouble"], facts["trouble_time"], facts["scheduled_time"]) == ("failed", TIME, TIME + 7200)


def test_two_nodes_that_look_at_once_report_a_recovery_once(store: ScheduleStore, receiver: Receiver) -> None:
    store.add("k", "t", HOURLY, TIME, 0, {})
    assert store.watermarks is not None
    store.watermarks.raise_to("trouble", "k", TIME, "late t")
    settle(store)
    receiver.hold.clear()
    one, two = reporters(store, receiver)
    first = threading.Thread(target=one.check)
    first.start()
    receiver.wait_for(1)  # its hook is being run
    second = threading.Thread(target=two.check)
    second.start()
    second.join(1)
    receiver.hold.set()
    first.join(20)
    second.join(20)
    assert len(receiver.got) == 1


def test_an_extra_run_ends_a_failure(store: ScheduleStore, receiver: Receiver) -> None:
    store.add("k", "t", HOURLY, TIME, 0, {})
    assert store.watermarks is not None
    store.watermarks.raise_to("trouble", "k", TIME, "failed t")
    settle(store, Entry(extra=True))
    one, _ = reporters(store, receiver)
    one.check()
    assert len(receiver.got) == 1


def test_an_extra_run_does_not_end_lateness(store: ScheduleStore, receiver: Receiver) -> None:
    store.add("k", "t", HOURLY, TIME, 0, {})
    assert store.watermarks is not None
    store.watermarks.raise_to("trouble", "k", TIME, "late t")
    settle(store, Entry(extra=True))
    one, _ = reporters(store, receiver)
    one.check()
    assert receiver.got == []


def test_a_deleted_schedule_does_not_recover(store: ScheduleStore, receiver: Receiver) -> None:
    assert store.watermarks is not None
    store.watermarks.raise_to("trouble", "gone", TIME, "late t")
    one, _ = reporters(store, receiver)
    one.check()
    assert store.watermarks.page("trouble", "", 10) == []


def test_a_recovery_that_no_hook_accepted_is_reported_later_with_the_same_id(
    store: ScheduleStore, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "PAUSES", (0.0, 0.0))
    monkeypatch.setattr("psched.execution.alerts._PAUSES", (0.0, 0.0))
    store.add("k", "t", HOURLY, TIME, 0, {})
    assert store.watermarks is not None
    store.watermarks.raise_to("trouble", "k", TIME, "late t")
    settle(store)
    receiver.statuses += [500, 500, 500]
    one, _ = reporters(store, receiver)
    one.check()
    one.check()
    assert len(receiver.got) == 4
    assert len({got.headers["webhook-id"] for got in receiver.got}) == 1
    assert store.watermarks.page("trouble", "", 10) == []


def test_a_failed_hook_pauses_its_node(store: ScheduleStore, receiver: Receiver) -> None:
    for key in ("a", "b"):
        store.add(key, "t", HOURLY, TIME, 0, {})
    for claim in store.acquire(2, 60):
        store.advance(claim, TIME + 3600, 1e10, 1e12, entry=Entry(FAILED))
    assert store.failures is not None
    receiver.statuses += [404]
    reporter = FailureReporter("schedules", store.failures, Hook(receiver.url), 10, store.now)
    assert [reporter.check(), reporter.check()] == [False, False]
    assert len(receiver.got) == 1
    other = FailureReporter("schedules", store.failures, Hook(receiver.url), 10, store.now)
    assert [other.check(), other.check()] == [True, False]  # the other failure is claimed by the first node


def test_a_failure_that_is_a_week_old_is_dropped(
    store: ScheduleStore, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    store.add("k", "t", HOURLY, TIME, 0, {})
    settle(store, Entry(FAILED))
    assert store.failures is not None
    with caplog.at_level(logging.ERROR):
        assert FailureReporter("schedules", store.failures, Hook(receiver.url), 10, lambda: 1e11).check()
    assert "which no on_failure hook has accepted in 7 days" in caplog.text
    assert store.failures.claim(60) is None
    assert receiver.got == []


@pytest.mark.parametrize("is_dropped", [False, True])
def test_a_failure_of_a_backfill_leads_to_no_recovery(store: ScheduleStore, is_dropped: bool) -> None:
    backfill = replace(HOURLY, backfill=Backfill("k", ((TIME, TIME),)))
    store.add(backfill_key("k", 1, 1), "t", backfill, TIME, 0, {})
    settle(store, Entry(FAILED))
    assert store.failures is not None and store.watermarks is not None
    now = (lambda: 1e11) if is_dropped else store.now
    assert FailureReporter("schedules", store.failures, Hook(), 10, now, store.watermarks, schedules=store).check()
    assert store.watermarks.page("trouble", "", 10) == []


def test_a_webhook_is_signed_over_its_id_its_time_and_its_body(receiver: Receiver) -> None:
    webhooks.deliver(receiver.url, "id1", {"key": "k"}, threading.Event(), SECRET)
    [got] = receiver.got
    at = got.headers["webhook-timestamp"]
    assert abs(int(at) - time.time()) < 600
    digest = hmac.new(SECRET, b"id1." + at.encode() + b"." + got.body, hashlib.sha256).digest()
    assert got.headers["webhook-signature"] == f"v1,{base64.b64encode(digest).decode()}"
    assert got.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ({"url": "http://h/", "command": ["x"]}, r"expected a URL .*, or a mapping with either url or command"),
        ({"url": "ftp://h/"}, r"expected a URL \(http:// or https://\), or a command as a list of arguments"),
        ({"url": "http://h/", "retries": 3}, "unknown key 'retries'; expected url, secret, timeout"),
        ({"command": ["x"], "secret": "y" * 20}, "unknown key 'secret'; expected command, timeout"),
        ({"url": "http://h/", "secret": "short"}, "secret: too short, or not text; write whsec_ and base64"),
        ({"url": "http://h/", "secret": "whsec_#"}, "secret: the text after whsec_ is not base64"),
        ({"url": "http://h/", "timeout": 0}, "timeout: expected seconds or a duration > 0 and ≤ 300"),
        ({"command": "page me"}, r"expected a URL \(http"),
    ],
)
def test_a_wrong_hook_is_refused_without_its_secret(value: object, fault: str) -> None:
    with pytest.raises(ConfigError, match=f"config: on_recovered: {fault}"):
        from_mapping({"type": "rdb", "url": "sqlite:///x.db", "on_recovered": value})


def test_rdb_compat_has_no_recoveries() -> None:
    with pytest.raises(ConfigError, match="on_recovered: type rdb_compat .* has no alerts; use type: rdb"):
        from_mapping({"type": "rdb_compat", "url": "sqlite:///x.db", "on_recovered": ["x"]})


def test_a_secret_in_base64_is_decoded() -> None:
    secret = "whsec_" + base64.b64encode(SECRET).decode()
    settings = from_mapping(
        {"type": "rdb", "url": "sqlite:///x.db", "on_late": {"url": "http://h/", "secret": secret, "timeout": "5s"}}
    )
    assert settings.schedules is not None
    assert settings.schedules.on_late == Hook("http://h/", (), SECRET, 5.0)
    assert "http://h/" not in repr(settings) and "0123" not in repr(settings)


def test_a_daemon_says_that_a_schedule_has_failed_and_recovered(
    make_daemon: Callable[..., Daemon], tmp_path: Path, receiver: Receiver
) -> None:
    hooks = {"on_failure": f"{receiver.url}/failure", "on_recovered": f"{receiver.url}/recovered"}
    daemon = make_daemon(**hooks, alert_interval=0.1, retry_wait=0.1)
    with daemon.schedules() as schedules:
        once = {"next_time": TIME, "next_run_time": 0, "max_attempts": 1, "catch_up": "latest"}
        schedules.add("s1", "raise", cron="0 0 1 1 *", **once)
        daemon.start()
        receiver.wait_for(1)
        schedules["s1"].modify(type="quick")
        schedules["s1"].run_now()
        receiver.wait_for(2)
    daemon.stop()
    assert [got.path for got in receiver.got] == ["/failure", "/recovered"]
    assert [facts["event"] for facts in bodies(receiver)] == ["failed", "recovered"]


def test_a_schedule_names_the_hook_that_is_told_of_its_failures(
    store: ScheduleStore, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    store.add("own", "t", HOURLY, TIME, 0, {}, Policy(on_failure="billing", pause_after=1))
    store.add("unknown", "t", HOURLY, TIME, 0, {}, Policy(on_failure="sales"))
    for claim in store.acquire(2, 60):
        store.advance(claim, TIME + 3600, 1e10, 1e12, entry=Entry(FAILED))
    assert store.failures is not None
    hooks = {"billing": Hook(f"{receiver.url}/billing")}
    reporter = FailureReporter(
        "schedules", store.failures, Hook(f"{receiver.url}/usual"), 10, store.now, schedules=store, hooks=hooks
    )
    assert [reporter.check(), reporter.check()] == [True, True]
    told = {got.path.rpartition("/")[2]: json.loads(got.body) for got in receiver.got}
    assert {path: (facts["key"], facts["paused"]) for path, facts in told.items()} == {
        "billing": ("own", True),
        "usual": ("unknown", False),
    }
    assert "on_failure names the hook 'sales', which `hooks:` does not define" in caplog.text
