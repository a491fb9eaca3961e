"""Healthchecks is told of each run: at its start, and after its end has been committed."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from urllib.parse import parse_qs, urlsplit

import pytest

from psched.config import from_mapping
from psched.config.healthchecks import Healthchecks
from psched.errors import ConfigError
from psched.execution.healthcheck_pings import ping_url
from tests.daemon.harness import Daemon
from tests.unit.http_receiver import Receiver

_SQLITE = {"type": "rdb", "url": "sqlite:///x.db"}


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as running:
        yield running


def test_a_daemon_pings_start_success_and_failure_with_the_id_of_the_run(
    make_daemon: Callable[..., Daemon], receiver: Receiver
) -> None:
    daemon = make_daemon(healthchecks=f"{receiver.url}/ping/{{slug}}?create=1", processors=2)
    with daemon.schedules() as schedules:
        for key, type_ in (("Good one", "quick"), ("bad", "raise")):
            once = {"next_time": 1_600_000_000, "next_run_time": 0, "catch_up": "latest", "max_attempts": 1}
            schedules.add(key, type_, cron="0 0 1 1 *", **once)
    daemon.start()
    receiver.wait_for(4)
    daemon.stop()
    pings: dict[str, list[str]] = {"good-one": [], "bad": []}
    ids: dict[str, set[str]] = {}
    for got in receiver.got:
        parts = urlsplit(got.path)
        name, _, action = parts.path.removeprefix("/ping/").partition("/")
        query = parse_qs(parts.query)
        assert query["create"] == ["1"]
        pings[name].append(action)
        ids.setdefault(name, set()).update(query["rid"])
        if action == "fail":
            assert b"ValueError" in got.body or b"Error" in got.body
    assert pings == {"good-one": ["start", ""], "bad": ["start", "fail"]}
    assert all(len(found) == 1 for found in ids.values())
    assert len({str(uuid.UUID(rid)) for found in ids.values() for rid in found}) == 2


def test_the_pings_of_the_last_runs_are_sent_before_a_stopping_child_ends(
    make_daemon: Callable[..., Daemon], receiver: Receiver
) -> None:
    receiver.hold.clear()
    daemon = make_daemon(healthchecks={"schedules": {"s1": f"{receiver.url}/uuid"}})
    with daemon.schedules() as schedules:
        schedules.add("s1", "quick", cron="0 0 1 1 *", next_time=1_600_000_000, next_run_time=0, catch_up="latest")
        schedules.add("unpinged", "quick", cron="0 0 1 1 *", next_time=1_600_000_000, next_run_time=0)
    daemon.start()
    daemon.wait_for_trace("ran", "s1")  # and a receiver that does not answer kept it from nothing
    receiver.wait_for(1)
    receiver.hold.set()
    daemon.stop()
    assert [urlsplit(got.path).path for got in receiver.got] == ["/uuid/start", "/uuid"]


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ("ftp://hc/{slug}", r"expected a URL \(http:// or https://\), got 'ftp://…'"),
        ("http:///{slug}", "expected a URL with a host"),
        ("http://hc:port/{slug}", "expected a URL with a valid host and port"),
        ("http://hc/{slug} x", "expected a URL of ASCII characters without spaces"),
        ("http://hc/{name}", "url: expected no placeholders except {slug}, {key} and {type}"),
        ("http://hc/{slug", "url: expected '}' before end of string; write {{"),
        ("http://hc/{slug!r}", "url: expected a placeholder without ! or :"),
        ("http://hc/{type}", "url: has neither {slug} nor {key}, so that all schedules would ping one check"),
        ({"urls": {}}, "expected a URL with {slug} or {key}, or a mapping with url or schedules"),
        ({"url": "http://hc/{key}", "retry": 3}, "unknown key 'retry'; expected url, schedules or timeout"),
        ({"schedules": {"a": "hc"}}, r"schedules.a: expected a URL \(http:// or https://\)"),
        ({"schedules": ["a"]}, "schedules: expected a mapping of a schedule's key to its ping URL"),
        ({"url": "http://hc/{key}", "timeout": "1h"}, "timeout: expected seconds or a duration > 0 and ≤ 300"),
        ({"url": "http://hc/{key}", "timeout": True}, "timeout: expected seconds"),
    ],
)
def test_a_wrong_configuration_is_refused(value: object, fault: str) -> None:
    with pytest.raises(ConfigError, match=f"config: healthchecks: {fault}"):
        from_mapping({**_SQLITE, "healthchecks": value})


def test_a_url_of_its_own_comes_before_the_template() -> None:
    urls = Healthchecks("https://hc/{key}/{slug}/{type}", {"own": "https://hc/uuid"})
    assert urls.url_of("own", "t") == "https://hc/uuid"
    assert urls.url_of("Päy/Roll ", "a b") == "https://hc/P%C3%A4y%2FRoll%20/p-y-roll/a%20b"
    assert Healthchecks(None, {}).url_of("other", "t") is None


def test_the_action_comes_before_the_query() -> None:
    assert ping_url("https://hc/k/s/?create=1", "/fail", "R") == "https://hc/k/s/fail?create=1&rid=R"
    assert ping_url("https://hc/uuid", "", "R") == "https://hc/uuid?rid=R"
