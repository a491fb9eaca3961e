"""The ends of runs reach a webhook and a Redis stream from a real daemon; a wrong configuration is refused."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from typing import Any

import pytest

from psched.config import from_mapping
from psched.errors import ConfigError
from psched.queue.queue import open_queue
from tests.daemon.harness import Daemon
from tests.unit.http_receiver import Receiver


def test_a_daemon_posts_the_end_of_each_run(make_daemon: Callable[..., Daemon]) -> None:
    with Receiver() as receiver:
        daemon = make_daemon(events={"url": f"{receiver.url}/events", "secret": "0123456789abcdef"})
        daemon.start()
        with daemon.schedules() as schedules:
            marks = schedules.store.watermarks
            assert marks is not None
            daemon.wait_for(lambda: marks.page("events", "", 1))
            once = {"next_time": 1_600_000_000, "next_run_time": 0, "catch_up": "latest"}
            schedules.add("s1", "quick", cron="0 0 1 1 *", **once)
        receiver.wait_for(2)
        daemon.stop()
    events = [json.loads(got.body) for got in receiver.got]
    assert [(event["key"], event["outcome"]) for event in events] == [("s1", "skipped"), ("s1", "finished")]
    assert all("webhook-signature" in got.headers for got in receiver.got)


def test_a_daemon_posts_alarms_and_the_ends_of_tasks(make_daemon: Callable[..., Daemon]) -> None:
    with Receiver() as receiver:
        wanted = ["late", "failed", "recovered", "task"]
        daemon = make_daemon(
            events={"url": f"{receiver.url}/events", "only": wanted}, schedules={}, queue={}, alert_interval=0.1
        )
        section = daemon.settings().queue
        assert section is not None
        with daemon.schedules() as schedules, open_queue(section, "test") as queue:
            queue.store.create_tables()
            daemon.start()
            schedules.add("s1", "raise", cron="* * * * * *", next_time=1_600_000_000, next_run_time=0, max_attempts=1)
            schedules.add("s2", "nobody", cron="0 0 1 1 *", next_time=1_600_000_000, next_run_time=0, alert_after=1)
            queue.submit("t1", "quick")
            queue.submit("t2", "raise", max_attempts=1)
            daemon.wait_for(lambda: {"s1", "s2", "t1", "t2"} <= {event["key"] for event in events_in(receiver)})
            schedules["s1"].modify(type="quick")
            daemon.wait_for(lambda: any(event["event"] == "recovered" for event in events_in(receiver)))
        daemon.stop()
    found = {(event["event"], event["table"], event["key"], event.get("outcome")) for event in events_in(receiver)}
    assert found == {
        ("failed", "psched_schedules", "s1", None),
        ("recovered", "psched_schedules", "s1", None),
        ("late", "psched_schedules", "s2", None),
        ("task", "psched_queue", "t1", "finished"),
        ("task", "psched_queue", "t2", "failed"),
        ("failed", "psched_queue", "t2", None),
    }


@pytest.mark.parametrize("end", ["killed", "reloaded"])
def test_the_next_fetching_child_sends_the_events_at_once(make_daemon: Callable[..., Daemon], end: str) -> None:
    """It would wait for a minute if it took the previous fetching child for another node that is sending."""
    with Receiver() as receiver:
        events = {"url": f"{receiver.url}/events", "only": ["task"]}
        daemon = make_daemon(processors=2, events=events, schedules={}, queue={})
        section = daemon.settings().queue
        assert section is not None
        with open_queue(section, "test") as queue:
            queue.store.create_tables()
            daemon.start()
            for key in ("t1", "t2", "t3"):
                queue.submit(key, "quick")
                daemon.wait_for(lambda key=key: key in {event["key"] for event in events_in(receiver)})  # type: ignore[misc]
                (fetcher,) = daemon.wait_for(daemon.fetchers)
                if end == "killed":
                    fetcher.kill()
                else:
                    daemon.signal(signal.SIGUSR1)
                daemon.wait_until_gone([fetcher])
        daemon.stop()


def events_in(receiver: Receiver) -> list[dict[str, Any]]:
    return [json.loads(got.body) for got in receiver.got]


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ("http://h/", r"expected a mapping with url \(a webhook\), stream"),
        ({"url": "http://h/", "stream": "redis://h"}, "expected a mapping with url"),
        ({"url": "ftp://h/"}, r"expected a URL \(http"),
        ({"stream": "http://h"}, "stream: write a URL like redis://"),
        ({"stream": "redis://h", "max": 3}, "unknown key 'max'; expected stream, name, max_length"),
        ({"stream": "redis://h", "max_length": 0}, "max_length: write a whole number from 1"),
        ({"stream": "redis://h", "name": ""}, "name: write the key of the stream"),
        ({"channel": "psched_events"}, "channel needs PostgreSQL, which schedules does not use"),
        ({"channel": "é" * 32}, "channel: write a name of at most 63 bytes"),
        ({"url": "http://h/", "only": ["runs"]}, "only: write a list with one or more of run, late"),
        ({"url": "http://h/", "only": []}, "only: write a list"),
        ({"channel": "c", "name": "n"}, "unknown key 'name'; expected channel"),
    ],
)
def test_a_wrong_configuration_is_refused(value: object, fault: str) -> None:
    with pytest.raises(ConfigError, match=f"config: events: {fault}"):
        from_mapping({"type": "rdb", "url": "sqlite:///x.db", "events": value})
