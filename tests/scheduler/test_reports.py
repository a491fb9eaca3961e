"""Pings, hooks and events of an embedded scheduler are the same as a daemon's, but only of its own runs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from psched import ConfigError, create_scheduler
from tests.scheduler.site import Site
from tests.unit.http_receiver import Receiver


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as running:
        yield running


def paths(receiver: Receiver) -> set[str]:
    return {got.path.partition("?")[0] for got in receiver.got}


def bodies(receiver: Receiver, path: str) -> list[dict[str, Any]]:
    return [json.loads(got.body) for got in receiver.got if got.path == path]


def test_runs_are_pinged_and_sent_and_failures_reported(sqlite_and_redis: Site, receiver: Receiver) -> None:
    site = sqlite_and_redis
    scheduler = site.scheduler(
        healthchecks=f"{receiver.url}/{{slug}}",
        on_failure=f"{receiver.url}/hook",
        events={"url": f"{receiver.url}/events"},
        alert_interval=0.1,
    )
    idle = site.scheduler(prefix=f"{site.prefix}idle:", healthchecks=f"{receiver.url}/idle/{{slug}}")
    scheduler.bind("good", lambda data: None)
    scheduler.bind("bad", lambda data: False)
    scheduler.register("good", "* * * * * *")
    with scheduler, idle:
        site.wait_for(lambda: site.opened().schedules.store.watermarks.page("events", "", 1))  # type: ignore[union-attr]
        key = scheduler.push("bad")
        site.wait_for(lambda: {"/good/start", "/good", "/hook"} <= paths(receiver))
        wanted = {("run", "enqueued"), ("task", "finished"), ("task", "failed"), ("failed", None)}
        site.wait_for(lambda: wanted <= {(e["event"], e.get("outcome")) for e in bodies(receiver, "/events")})
    [failure] = bodies(receiver, "/hook")
    assert (failure["event"], failure["key"], failure["section"]) == ("failed", key, "queue")
    assert paths(receiver) == {"/good/start", "/good", "/hook", "/events"}


def test_a_receiver_that_hangs_delays_no_stop_for_long_and_the_scheduler_starts_again(
    site: Site, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("psched.scheduler.threads.STOPPING", 0.2)
    scheduler = site.scheduler(events={"url": f"{receiver.url}/events"})
    done: list[object] = []
    scheduler.bind("note", done.append)
    receiver.hold.clear()
    scheduler.start()
    scheduler.push("note", 1)
    receiver.wait_for(1)
    begun = time.monotonic()
    assert scheduler.stop()
    assert time.monotonic() - begun < 20  # less than the receiver hangs
    receiver.hold.set()
    with scheduler:
        scheduler.push("note", 2)
        site.wait_for(lambda: done == [1, 2])


def test_a_wrong_option_is_refused(site: Site) -> None:
    with pytest.raises(ConfigError, match="on_failure: expected a URL"):
        create_scheduler(site.url, on_failure="page me")
    with pytest.raises(ConfigError, match="events: channel needs PostgreSQL"):
        create_scheduler(site.url, events={"channel": "c"})
