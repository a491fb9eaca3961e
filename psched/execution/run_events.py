"""Sends the end of each run of a schedule to another program, at least once: from the ledger, so after the commit.

A watermark in the database says up to when entries were sent. Entries become visible in the order of their commits, not
of their times, so the watermark stays `OVERLAP` behind, and what was sent since is remembered by the sender alone:
an entry that is committed late is sent late, and a node that takes over sends the last `OVERLAP` seconds again.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Sequence
from typing import Any, Protocol, cast

from psched.clock import Clock, monotonic
from psched.config.events import EventReceiver
from psched.error_text import one_line
from psched.execution.section_sources import OpenSection
from psched.execution.webhooks import deliver, message_id
from psched.store import ScheduleStore, holder_name
from psched.store.ledger import LedgerFilter, LedgerRow
from psched.store.watermarks import Watermark

log = logging.getLogger(__name__)

OVERLAP = 60.0
"""Seconds by which the watermark stays behind."""
_INTERVAL = 1.0
"""Seconds between two reads of the newest entries."""
_FULL_INTERVAL = 10.0
"""Seconds between two reads of all entries since the watermark. It is moved after each."""
_RECENT = 2.0
"""Seconds before the last read at which a read of the newest entries begins."""
_CLAIM = 60.0
"""Seconds after which another node may go on, if the sending node does not renew its claim."""
_RENEWED = 20.0
"""Seconds of sending after which the claim is renewed."""
_LONGEST_PAUSE = 60.0
_CLOSE = 3.0

_Id = tuple[str, int, int]


class Sender(Protocol):
    """Sends events to one receiver."""

    name: str
    """Name of the receiver's watermark. Holds no secret."""

    def send(self, id_: str, event: dict[str, object]) -> None:
        """Deliver one event. Raises what the receiver's driver raises."""


class EventThread(threading.Thread):
    """The sender of one node. One node at a time sends."""

    def __init__(
        self,
        store: ScheduleStore,
        sender: Sender,
        table: str,
        closing: threading.Event | None = None,
        clock: Clock = monotonic,
    ) -> None:
        """`closing` ends the pauses of `sender`; it is set at `close`."""
        super().__init__(name="run events", daemon=True)
        assert store.watermarks is not None
        self._store = store
        self._marks = store.watermarks
        self._sender = sender
        self._table = table
        self._clock = clock
        self._claimer = holder_name("events")
        self._closing = threading.Event() if closing is None else closing
        self._sent: dict[_Id, float] = {}
        self._read_at: float | None = None
        self._full_at = 0.0

    def run(self) -> None:
        pause, is_failing = _INTERVAL, False
        while not self._closing.wait(pause):
            try:
                self.check()
                pause, is_failing = _INTERVAL, False
            except Exception as error:  # noqa: BLE001 – whatever a driver raises, a later attempt may succeed
                if not is_failing:
                    log.warning("sending run events to %s failed: %s; retrying", self._sender.name, one_line(error))
                pause, is_failing = min(2 * pause, _LONGEST_PAUSE), True

    def close(self) -> None:
        self._closing.set()
        if self.is_alive():
            self.join(_CLOSE)

    def check(self) -> None:
        """Send the entries that were not sent yet, if no other node does. Raises what the receiver raises."""
        mark = self._mark()
        if not self._marks.claim(mark, self._claimer, _CLAIM):
            self._sent.clear()
            self._read_at = None
            return
        now = self._store.now()
        is_full = self._read_at is None or self._clock() >= self._full_at
        since = mark.position if is_full or self._read_at is None else max(mark.position, self._read_at - _RECENT)
        self._send_since(since, mark)
        self._read_at = now
        if is_full:
            self._full_at = self._clock() + _FULL_INTERVAL
            self._move(now - OVERLAP)

    def _mark(self) -> Watermark:
        """Return the watermark of the receiver, created at the present time if missing: earlier runs are not sent."""
        while True:
            for mark in self._marks.page("events", "", 1000):
                if mark.name == self._sender.name:
                    return mark
            self._marks.raise_to("events", self._sender.name, self._store.now())

    def _send_since(self, since: float, mark: Watermark) -> None:
        assert self._store.ledger is not None
        renew_at = self._clock() + _RENEWED
        for row in self._store.ledger.rows(LedgerFilter(since=since)):
            id_ = (row.key, row.scheduled_time, row.fence)
            if id_ in self._sent:
                continue
            if self._closing.is_set():
                raise InterruptedError("stopping")
            if self._clock() >= renew_at:
                if not self._marks.claim(mark, self._claimer, _CLAIM):
                    raise InterruptedError("another node sends now")
                renew_at = self._clock() + _RENEWED
            self._sender.send(message_id("run", self._table, *id_), run_event(row, self._table))
            self._sent[id_] = row.ended

    def _move(self, position: float) -> None:
        self._marks.raise_to("events", self._sender.name, position)
        self._sent = {id_: ended for id_, ended in self._sent.items() if ended >= position - 1}


class WebhookSender:
    """Sends each event by POST."""

    def __init__(self, receiver: EventReceiver, closing: threading.Event) -> None:
        assert receiver.webhook is not None
        self.name = "webhook"
        self._hook = receiver.webhook
        self._closing = closing

    def send(self, id_: str, event: dict[str, object]) -> None:
        assert self._hook.url is not None
        deliver(self._hook.url, id_, event, self._closing, self._hook.secret, self._hook.timeout)


class StreamSender:
    """Appends each event to a Redis stream, with the fields `id` and `event`."""

    def __init__(self, receiver: EventReceiver) -> None:
        self.name = f"stream {receiver.name}"[:255]
        self._receiver = receiver
        self._client: Any = None

    def send(self, id_: str, event: dict[str, object]) -> None:
        import redis  # noqa: PLC0415 – an extra

        if self._client is None:
            options: dict[str, Any] = {"socket_timeout": 10, "socket_connect_timeout": 10}
            self._client = redis.Redis.from_url(str(self._receiver.stream), **options)
        fields = {"id": id_, "event": json.dumps(event)}
        self._client.xadd(self._receiver.name, fields, maxlen=self._receiver.max_length, approximate=True)


_MOST_BYTES = 7999
"""Bytes of ASCII that a notification of PostgreSQL may have."""
_KEPT = ("id", "event", "table", "key", "scheduled_time", "fence", "outcome", "left_out")
"""Members that are never left out. They have at most some 4,000 bytes."""


class ChannelSender:
    """Sends each event by NOTIFY on the database of the schedules, with its `id`."""

    def __init__(self, channel: str, store: ScheduleStore) -> None:
        self.name = f"channel {channel}"
        self._channel = channel
        self._store = store

    def send(self, id_: str, event: dict[str, object]) -> None:
        self._store.notify(self._channel, notification({"id": id_, **event}))


def notification(event: dict[str, object]) -> str:
    """Return the event as JSON that fits. If it does not, its longest members are left out, and `left_out` has them."""
    text = json.dumps(event)
    while len(text) > _MOST_BYTES:
        longest = max(event.keys() - set(_KEPT), key=lambda name: len(json.dumps(event[name])))
        event = {name: value for name, value in event.items() if name != longest}
        event["left_out"] = [*cast("list[str]", event.get("left_out", [])), longest]
        text = json.dumps(event)
    return text


def open_event_threads(opened_sections: Sequence[OpenSection]) -> list[EventThread]:
    """Return the thread for the schedules, if events are configured."""
    threads: list[EventThread] = []
    for opened in opened_sections:
        store, receiver = opened.source.store, opened.section.events
        if receiver is not None and isinstance(store, ScheduleStore) and store.watermarks is not None:
            closing = threading.Event()
            threads.append(EventThread(store, _sender(receiver, store, closing), opened.section.table, closing))
    return threads


def _sender(receiver: EventReceiver, store: ScheduleStore, closing: threading.Event) -> Sender:
    if receiver.webhook is not None:
        return WebhookSender(receiver, closing)
    if receiver.channel is not None:
        return ChannelSender(receiver.channel, store)
    return StreamSender(receiver)


def run_event(row: LedgerRow, table: str) -> dict[str, object]:
    """Return the event of an entry of the ledger. Names and meanings do not change."""
    return {
        "event": "run",
        "table": table,
        "key": row.key,
        "scheduled_time": row.scheduled_time,
        "last_time": row.end,
        "occurrences": row.count,
        "fence": row.fence,
        "outcome": row.outcome,
        "detail": row.detail,
        "extra": row.extra,
        "attempts": row.attempts,
        "error": row.error,
        "node": row.node,
        "started": row.started,
        "ended": row.ended,
    }
