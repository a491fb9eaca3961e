"""Sends events to another program, at least once: they are read from the database, so after the commit.

The ends of schedules' runs are read from the ledger. A watermark in the database says up to when its entries were sent.
Entries become visible in the order of their commits, not of their times, so the watermark stays `OVERLAP` behind, and
what was sent since is remembered by the sender alone: an entry that is committed late is sent late, and a node that
takes over sends the last `OVERLAP` seconds again. All other events are in the outbox, from which they are deleted once
they are sent.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Sequence

from psched.clock import Clock, monotonic
from psched.config.events import EVENT_KINDS, EventKind
from psched.error_messages import one_line
from psched.execution.event_senders import Sender, event_sender
from psched.execution.open_sections import OpenSection
from psched.execution.webhooks import message_id
from psched.schedules.backfills import with_backfill
from psched.store import LeaseStore, ScheduleStore, holder_name
from psched.store.delivery_watermarks import Watermark
from psched.store.ledger import Ledger, LedgerFilter, LedgerRow
from psched.store.outbox import EventOutbox, PendingEvent

log = logging.getLogger(__name__)

OVERLAP = 60.0
"""Seconds by which the watermark stays behind."""
_INTERVAL = 1.0
"""Seconds between two reads of the newest events."""
_FULL_INTERVAL = 10.0
"""Seconds between two reads of all entries since the watermark. It is moved after each."""
_RECENT = 2.0
"""A read of the newest entries begins this many seconds before the last read."""
_PAGE = 100
"""Events of the outbox that are sent before they are deleted."""
_TRIM_INTERVAL = 60.0
_TRIMMED = 500
"""Old events that are deleted at once."""
_KEPT = 7 * 86400.0
"""Seconds after which an event of the outbox that no receiver has accepted is dropped."""
_CLAIM = 60.0
"""Seconds after which another node may continue, if the sending node does not renew its claim."""
_RENEWED = 20.0
"""Seconds of sending after which the claim is renewed."""
_LONGEST_PAUSE = 60.0

Send = Callable[[str, dict[str, object]], None]
"""Sends an event with this id.

Raises InterruptedError if this node is to send no more, and what the receiver raises.
"""


class EventThread(threading.Thread):
    """The sender of one node for one table. One node at a time sends."""

    def __init__(
        self,
        store: LeaseStore,
        sender: Sender,
        table: str,
        closing: threading.Event | None = None,
        clock: Clock = monotonic,
        kinds: Collection[EventKind] = EVENT_KINDS,
    ) -> None:
        """`closing` ends the pauses of `sender`; it is set at `close`."""
        super().__init__(name="events", daemon=True)
        assert store.watermarks is not None
        self._store = store
        self._marks = store.watermarks
        self._sender = sender
        self._clock = clock
        self._claimer = holder_name("events")
        self._closing = threading.Event() if closing is None else closing
        self._renew_at = 0.0
        ledger = store.ledger if isinstance(store, ScheduleStore) and "run" in kinds else None
        self._ledger = None if ledger is None else LedgerEvents(ledger, table, clock)
        self._outbox = None if store.outbox is None else OutboxEvents(store.outbox, table, kinds, clock)

    def run(self) -> None:
        pause, is_failing = _INTERVAL, False
        while not self._closing.wait(pause):
            try:
                pause, is_failing = (0.0 if self.check() else _INTERVAL), False
            except Exception as error:  # noqa: BLE001 – whatever a driver raises, a later attempt may succeed
                if not is_failing and not self._closing.is_set():
                    log.warning("sending events to %s failed: %s; retrying", self._sender.name, one_line(error))
                pause, is_failing = min(2 * max(pause, _INTERVAL), _LONGEST_PAUSE), True

    def close(self) -> None:
        """End the thread soon, when the event that is being sent was answered."""
        self._closing.set()

    def check(self) -> bool:
        """Send what was not sent yet, if no other node does. Return whether there may be more.

        Raises what the receiver raises.
        """
        mark = self._mark()
        if not self._marks.claim(mark, self._claimer, _CLAIM):
            if self._ledger is not None:
                self._ledger.forget()
            return False
        self._renew_at = self._clock() + _RENEWED
        if self._outbox is not None:
            self._outbox.trim()

        def send(id_: str, event: dict[str, object]) -> None:
            if self._closing.is_set():
                raise InterruptedError("stopping")
            if self._clock() >= self._renew_at:
                if not self._marks.claim(mark, self._claimer, _CLAIM):
                    raise InterruptedError("another node is sending the events now")
                self._renew_at = self._clock() + _RENEWED
            self._sender.send(id_, event)

        position = None if self._ledger is None else self._ledger.send(mark.position, self._store.now(), send)
        if position is not None and position > mark.position:
            self._marks.raise_to("events", self._sender.name, position)
            mark = mark._replace(position=position)
        return self._outbox is not None and self._outbox.send(send)

    def _mark(self) -> Watermark:
        """Return the watermark of the receiver, created at the present time if missing: earlier runs are not sent."""
        while True:
            for mark in self._marks.page("events", "", 1000):
                if mark.name == self._sender.name:
                    return mark
            self._marks.raise_to("events", self._sender.name, self._store.now())


class LedgerEvents:
    """Sends the entries of a ledger."""

    def __init__(self, ledger: Ledger, table: str, clock: Clock) -> None:
        self._ledger = ledger
        self._table = table
        self._clock = clock
        self._sent: dict[tuple[str, int, int], float] = {}
        self._read_at: float | None = None
        self._full_at = 0.0

    def forget(self) -> None:
        """Another node sends."""
        self._sent.clear()
        self._read_at = None

    def send(self, position: float, now: float, send: Send) -> float | None:
        """Send the entries since `position` that were not sent yet. Return the new position of the watermark, if any.

        `now`: the database's time.
        """
        is_full = self._read_at is None or self._clock() >= self._full_at
        since = position if is_full or self._read_at is None else max(position, self._read_at - _RECENT)
        for row in self._ledger.rows(LedgerFilter(since=since)):
            id_ = (row.key, row.scheduled_time, row.fence)
            if id_ not in self._sent:
                send(message_id("run", self._table, *id_), run_event(row, self._table))
                self._sent[id_] = row.ended
        self._read_at = now
        if not is_full:
            return None
        self._full_at = self._clock() + _FULL_INTERVAL
        self._sent = {id_: ended for id_, ended in self._sent.items() if ended >= now - OVERLAP - 1}
        return now - OVERLAP


class OutboxEvents:
    """Sends the events of an outbox, and deletes them."""

    def __init__(self, outbox: EventOutbox, table: str, kinds: Collection[EventKind], clock: Clock) -> None:
        self._outbox = outbox
        self._table = table
        self._kinds = frozenset(kinds)
        self._clock = clock
        self._trim_at = 0.0

    def trim(self) -> None:
        """Drop events that are too old, from time to time."""
        if self._clock() < self._trim_at:
            return
        dropped = self._outbox.trim(_KEPT, _TRIMMED)
        if dropped:
            log.error("%d events of %s are dropped: no receiver has accepted them in 7 days", dropped, self._table)
        else:
            self._trim_at = self._clock() + _TRIM_INTERVAL

    def send(self, send: Send) -> bool:
        """Send some events. Return whether there are more."""
        pending = self._outbox.page(_PAGE)
        sent = 0
        try:
            for event in pending:
                if event.facts.get("event") in self._kinds:  # else written before the configuration was changed
                    send(*outbox_event(event, self._table))
                sent += 1
        finally:
            self._outbox.remove(pending[:sent])
        return len(pending) == _PAGE


def open_event_threads(opened_sections: Sequence[OpenSection]) -> list[EventThread]:
    """Return a thread for each section whose events are sent."""
    threads: list[EventThread] = []
    for opened in opened_sections:
        store, receiver = opened.source.store, opened.section.events
        if receiver is not None and store.watermarks is not None:
            closing = threading.Event()
            sender = event_sender(receiver, store, closing)
            threads.append(EventThread(store, sender, opened.section.table, closing, kinds=receiver.only))
    return threads


def run_event(row: LedgerRow, table: str) -> dict[str, object]:
    """Return the event of an entry of the ledger. Names and meanings do not change."""
    row = with_backfill(row)
    return ({} if row.backfill is None else {"backfill": f"{row.key}:{row.backfill}"}) | {
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


def outbox_event(pending: PendingEvent, table: str) -> tuple[str, dict[str, object]]:
    """Return the id and the event of an entry of the outbox."""
    event = {"event": pending.facts["event"], "table": table, **pending.facts}
    if event["event"] == "task":
        event["ended"] = pending.at
        return message_id("task", table, event["key"], event["fence"], pending.at), event
    moment = event.get("failed_at", event.get("reported_at"))
    return message_id(event["event"], table, event["key"], event["scheduled_time"], moment), event
