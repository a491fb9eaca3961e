"""The end of each run is sent at least once, even if it is committed late. Only one node sends at a time."""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any

import psycopg
import pytest
import redis
import sqlalchemy as sa

from psched.config.events import EventReceiver
from psched.execution.event_delivery import OVERLAP, EventThread
from psched.execution.event_senders import ChannelSender, StreamSender, notification
from psched.http_client import RequestError
from psched.store import ScheduleStore
from psched.store.ledger import Entry
from psched.store.outbox import EventOutbox
from tests.stores.bench import FAR_OFF, Bench, soon
from tests.stores.databases import KINDS
from tests.stores.rows import RedisRows


class Inbox:
    """A receiver of events, which records them."""

    name = "inbox"

    def __init__(self) -> None:
        self.got: list[tuple[str, str]] = []
        self.refused = 0
        self.never: set[str] = set()
        """Keys that the receiver always refuses."""
        self.fails_at = -1

    def send(self, id_: str, event: dict[str, object]) -> None:
        if len(self.got) == self.fails_at:
            self.fails_at = -1
            raise OSError("not now")
        if self.refused:
            self.refused -= 1
            raise OSError("not now")
        if event["key"] in self.never:
            raise RequestError("HTTP 400 Bad Request", is_final=True)
        self.got.append((str(event["key"]), id_))

    @property
    def keys(self) -> list[str]:
        return [key for key, _ in self.got]


@pytest.fixture
def inbox() -> Inbox:
    return Inbox()


def node(store: ScheduleStore, inbox: Inbox) -> EventThread:
    """Return the event thread of a node. Each of its checks reads all events since the watermark."""
    times = iter(range(0, 10**9, 11))
    return EventThread(store, inbox, "table", clock=lambda: next(times))


def end(bench: Bench, store: ScheduleStore, key: str, **entry: Any) -> None:
    bench.add(store, key)
    claim = bench.take(store, key)
    assert store.advance(claim, FAR_OFF, FAR_OFF, soon(), entry=Entry(**entry)) is None


def test_each_end_is_sent_once_by_one_node(
    bench: Bench, store: ScheduleStore, other: ScheduleStore, inbox: Inbox
) -> None:
    end(bench, store, "before")
    time.sleep(0.01)  # its end is in an earlier millisecond
    one, two = node(store, inbox), node(other, inbox)
    one.check()
    assert inbox.got == []
    end(bench, store, "a")
    end(bench, store, "b", outcome="failed")
    for each in (one, two, one):
        each.check()
    assert inbox.keys == ["a", "b"]


def test_a_refused_event_and_those_after_it_are_sent_later(bench: Bench, store: ScheduleStore, inbox: Inbox) -> None:
    one = node(store, inbox)
    one.check()
    for key in ("a", "b", "c"):
        end(bench, store, key)
    inbox.refused = 1
    with pytest.raises(OSError, match="not now"):
        one.check()
    one.check()
    assert inbox.keys == ["a", "b", "c"]


def test_a_node_that_takes_over_sends_the_last_minute_again_with_the_same_ids(
    bench: Bench, store: ScheduleStore, other: ScheduleStore, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("psched.execution.event_delivery._CLAIM", 0.0)
    one, two = node(store, inbox), node(other, inbox)
    one.check()
    end(bench, store, "a")
    one.check()
    two.check()
    assert inbox.keys == ["a", "a"]
    assert len({id_ for _, id_ in inbox.got}) == 1


@pytest.mark.parametrize("bare", KINDS, indirect=True)  # the others have one writer at a time
def test_an_end_that_is_committed_after_a_later_one_is_sent(bench: Bench, store: ScheduleStore, inbox: Inbox) -> None:
    one = node(store, inbox)
    one.check()
    end(bench, store, "template")
    engine = sa.create_engine(bench.url, poolclass=sa.pool.NullPool)
    table = sa.Table(f"{bench.table}_ledger", sa.MetaData(), autoload_with=engine)
    with engine.connect() as connection:
        row = dict(connection.execute(sa.select(table).where(table.c.key == "template")).mappings().one())
        connection.execute(sa.insert(table), {**row, "key": "slow"})  # its end is as early as the template's
        end(bench, store, "fast")
        one.check()
        one.check()
        assert inbox.keys == ["template", "fast"]
        connection.commit()
    one.check()
    assert inbox.keys == ["template", "fast", "slow"]
    engine.dispose()


def test_the_watermark_stays_behind_so_that_late_commits_are_seen(
    bench: Bench, store: ScheduleStore, inbox: Inbox
) -> None:
    one = node(store, inbox)
    one.check()
    one.check()
    assert store.watermarks is not None
    [mark] = store.watermarks.page("events", "", 10)
    assert mark.position >= store.now() - OVERLAP - 30
    store.watermarks.remove(mark)
    store.watermarks.raise_to("events", "inbox", store.now() - 3 * OVERLAP)
    one.check()
    [mark] = store.watermarks.page("events", "", 10)
    assert store.now() - OVERLAP - 30 <= mark.position <= store.now() - OVERLAP


def test_events_of_the_outbox_are_sent_in_their_order_and_again_when_refused(
    bench: Bench, store: ScheduleStore, other: ScheduleStore, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("psched.execution.event_delivery._CLAIM", 0.0)
    outbox = store.outbox
    assert outbox is not None
    for number in range(150):
        outbox.put({"event": "late", "key": f"k{number}", "scheduled_time": 1})
    end(bench, store, "run")
    time.sleep(0.01)  # its end is in an earlier millisecond than the first look
    inbox.fails_at = 50
    with pytest.raises(OSError, match="not now"):
        node(store, inbox).check()
    assert len(outbox.page(1000)) == 100
    one = node(other, inbox)
    assert one.check()
    assert not one.check()
    assert sorted(inbox.keys) == sorted(f"k{number}" for number in range(150))
    assert len({id_ for _, id_ in inbox.got}) == 150
    assert outbox.page(1) == []


def test_an_event_that_the_receiver_refuses_for_ten_minutes_is_logged_and_passed_over(
    bench: Bench, store: ScheduleStore, inbox: Inbox, caplog: pytest.LogCaptureFixture
) -> None:
    now = [0.0]
    one = EventThread(store, inbox, "table", clock=lambda: now[0])
    one.check()
    assert store.outbox is not None
    inbox.never = {"run", "late"}
    for key in ("run", "next"):
        end(bench, store, key)
    for key in ("late", "last"):
        store.outbox.put({"event": "late", "key": key, "scheduled_time": 1})
        time.sleep(0.002)  # so that their order is known
    for passed, got in ((0, []), (599, []), (2, ["next"]), (599, ["next"]), (2, ["next", "last"])):
        now[0] += passed
        with contextlib.suppress(RequestError):
            one.check()
        assert inbox.keys == got
    lost = [record for record in caplog.records if record.levelname == "ERROR"]
    assert len(lost) == 2
    assert all("psched_" in each.message and "HTTP 400 Bad Request" in each.message for each in lost)
    now[0] += 11  # all entries since the watermark are read again
    one.check()
    assert inbox.keys == ["next", "last"]


@pytest.mark.parametrize("text", ["{", "[1]", '{"event": "late"}', '{"event": []}', ""])
def test_an_event_that_cannot_be_read_is_logged_and_passed_over(
    bench: Bench, store: ScheduleStore, inbox: Inbox, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    outbox = store.outbox
    assert outbox is not None
    spoil_outbox(bench, outbox, text)
    time.sleep(0.002)  # so that their order is known
    outbox.put({"event": "late", "key": "a", "scheduled_time": 1})
    node(store, inbox).check()
    assert inbox.keys == ["a"]
    assert "is damaged, and is dropped" in caplog.text
    assert outbox.page(1) == []
    spoil_outbox(bench, outbox, text)
    time.sleep(0.01)
    assert outbox.trim(0.0, 10) == 1


def spoil_outbox(bench: Bench, outbox: EventOutbox, text: str) -> None:
    """Store an event whose text is `text`, which may be invalid."""
    if isinstance(bench.rows, RedisRows):
        stream = f"{bench.rows.prefix}outbox"
        bench.rows.client.xadd(stream, {"at": 1, "facts": text} if text else {"other": 1})
        return
    outbox.put({})
    with bench.sql.connect() as connection:
        connection.execute(sa.update(sa.table(f"{bench.table}_outbox", sa.column("facts"))).values(facts=text))


def test_events_that_are_not_wanted_any_more_are_dropped(store: ScheduleStore, inbox: Inbox) -> None:
    assert store.outbox is not None
    store.outbox.put({"event": "late", "key": "a", "scheduled_time": 1})
    store.outbox.put({"event": "failed", "key": "b", "scheduled_time": 1, "failed_at": 2.5})
    EventThread(store, inbox, "table", kinds=["run", "failed"]).check()
    assert inbox.keys == ["b"]
    assert store.outbox.page(1) == []


@pytest.mark.parametrize("bare", ["redis"], indirect=True)
def test_a_stream_gets_the_events_and_is_trimmed(bench: Bench, store: ScheduleStore) -> None:
    stream = f"events:{bench.table}"
    sender = StreamSender(EventReceiver(None, bench.url, stream, 1))
    for number in range(300):
        sender.send(f"id{number}", {"event": "run", "key": f"k{number}"})
    client = redis.Redis.from_url(bench.url)
    found: Any = client.xrevrange(stream, count=1)
    [(_, fields)] = found
    assert fields[b"id"] == b"id299"
    assert json.loads(fields[b"event"]) == {"event": "run", "key": "k299"}
    assert int(client.xlen(stream)) < 300  # type: ignore[arg-type]
    client.delete(stream)
    client.close()


@pytest.mark.parametrize("bare", ["postgresql"], indirect=True)
def test_a_listener_gets_each_end_by_notify(bench: Bench, store: ScheduleStore) -> None:
    one = EventThread(store, ChannelSender('psched "events"', store), "table")
    one.check()
    direct = sa.make_url(bench.plain_url).set(drivername="postgresql")
    with psycopg.connect(direct.render_as_string(hide_password=False), autocommit=True) as listener:
        listener.execute('LISTEN "psched ""events"""')
        end(bench, store, "\U0001f40c" * 255, detail="é" * 255)
        one.check()
        [got] = listener.notifies(timeout=30, stop_after=1)
    event = json.loads(got.payload)
    assert (event["key"], event["outcome"]) == ("\U0001f40c" * 255, "finished")
    assert event["id"].startswith("psched_")
    assert "left_out" not in event


def test_a_notification_that_is_too_long_says_what_is_left_out() -> None:
    event = {"id": "i", "event": "run", "key": "\U0001f40c" * 255, "detail": "é" * 255, "error": "\x01" * 2000}
    kept = {name: value for name, value in event.items() if name != "error"}
    assert json.loads(notification(event)) == {**kept, "left_out": ["error"]}
    assert json.loads(notification({**event, "node": "\U0001f40c" * 255, "detail": "\U0001f40c" * 256})) == {
        **{name: value for name, value in kept.items() if name != "detail"},
        "node": "\U0001f40c" * 255,
        "left_out": ["error", "detail"],
    }
    assert json.loads(notification(kept)) == kept
