"""The ends of runs reach a webhook and a Redis stream from a real daemon; a wrong configuration is refused."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from psched.config import from_mapping
from psched.errors import ConfigError
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
        ({"channel": "psched_events"}, "channel is of PostgreSQL, which schedules does not use"),
        ({"channel": "é" * 32}, "channel: write a name of at most 63 bytes"),
        ({"channel": "c", "name": "n"}, "unknown key 'name'; expected channel"),
    ],
)
def test_a_wrong_configuration_is_refused(value: object, fault: str) -> None:
    with pytest.raises(ConfigError, match=f"config: events: {fault}"):
        from_mapping({"type": "rdb", "url": "sqlite:///x.db", "events": value})
