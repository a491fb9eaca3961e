"""Sends events to another program, at least once. Events are read from the database, so they are sent after the commit.

The ends of runs of schedules are read from the ledger. A watermark in the database stores up to which time the entries
of the ledger were sent. The times of entries are not in the order of their commits, so an entry may become visible
late. The watermark therefore stays `OVERLAP` seconds behind the current time. The sender remembers in memory what it
has sent since the watermark. A node that takes over sends the last `OVERLAP` seconds again.

All other events are in the outbox. They are deleted from the outbox after they were sent.

An event that cannot be read, or that the receiver refuses for `_REFUSED` seconds, is logged and passed over.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Sequence

from psched.clock import Clock, monotonic
from psched.config.events import EVENT_KINDS, EventKind
from psched.error_messages import one_line
from psched.execution.event_senders import Sender, event_sender
from psched.execution.opened_stores import OpenSection
from psched.execution.webhooks import message_id
from psched.http_client import RequestError
from psched.schedules.backfills import with_backfill
from psched.store import LeaseStore, ScheduleStore, holder_name
from psched.store.delivery_watermarks import Watermark
from psched.store.ledger import Ledger, LedgerFilter, LedgerRow
from psched.store.outbox import EventOutbox, PendingEvent

log = logging.getLogger(__name__)

OVERLAP = 60.0
"""Seconds by which the watermark stays behind the current time."""
_INTERVAL = 1.0
"""Seconds between two reads of the newest events."""
_FULL_INTERVAL = 10.0
"""Seconds between two reads of all entries since the watermark. After each such read the watermark is moved."""
_RECENT = 2.0
"""A read of the newest events begins this many seconds before the time of the previous read."""
_PAGE = 100
"""How many events are sent before they are deleted from the outbox, or before the watermark is moved past them."""
_TRIM_INTERVAL = 60.0
_TRIMMED = 500
"""The maximum number of old events that one statement deletes."""
_KEPT = 7 * 86400.0
"""Seconds after which an event of the outbox is dropped if no receiver has accepted it."""
_CLAIM = 60.0
"""Seconds after which another node may send, if the sending node does not renew its claim."""
_RENEWED = 20.0
"""Seconds of sending after which the sending node renews its claim."""
_LONGEST_PAUSE = 60.0
_REFUSED = 600.0
"""Seconds for which an event that the receiver refuses is sent again. Then the event is passed over.

A receiver with a wrong configuration refuses every event. Only one event is passed over in this time, so few events are
lost before somebody corrects the configuration.
"""

Send = Callable[[str, dict[str, object]], None]
"""Takes the id of an event and the event, and sends the event.

Raises InterruptedError if this node must stop sending, and the errors of the receiver.
"""


class EventThread(threading.Thread):
    """Sends the events of one table. Only one node sends the events of a table at a time."""

    def __init__(
        self,
        store: LeaseStore,
        sender: Sender,
        table: str,
        closing: threading.Event | None = None,
        clock: Clock = monotonic,
        kinds: Collection[EventKind] = EVENT_KINDS,
        claimer: str | None = None,
    ) -> None:
        """`closing`: a threading.Event that `close` sets. When it is set, the pauses of `sender` end.

        `claimer`: as for `AlertAndEventThreads` (default: a random name).
        """
        super().__init__(name="events", daemon=True)
        assert store.watermarks is not None
        self._store = store
        self._marks = store.watermarks
        self._sender = sender
        self._clock = clock
        self._claimer = holder_name("events") if claimer is None else claimer
        self._closing = threading.Event() if closing is None else closing
        self._claimed: Watermark | None = None
        """The mark that this thread has claimed. At the end of the thread the claim ends, for the next process."""
        self._renew_at = 0.0
        self._refused: tuple[str, float] | None = None
        """The id of the event that the receiver refused last, and when this node sent it first."""
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
                pause = min(2 * max(pause, _INTERVAL), _LONGEST_PAUSE)
                is_failing = not self._closing.is_set()
        if self._claimed is not None and not is_failing:
            try:
                self._marks.claim(self._claimed, self._claimer, 0.0)
            except Exception as error:  # noqa: BLE001 – whatever a driver raises, the claim ends by itself
                log.info("the claim of the events for %s was not ended: %s", self._sender.name, one_line(error))

    def close(self) -> None:
        """End the thread soon: after the receiver has answered the current event."""
        self._closing.set()

    def check(self) -> bool:
        """Send the events that were not sent yet. Does nothing while another node is sending.

        Return whether there may be more.

        Raises the errors of the receiver.
        """
        mark, now = self._mark(), self._store.now()
        if self._ledger is not None and now < mark.position:
            mark = self._set_back(mark, now)
        if not self._marks.claim(mark, self._claimer, _CLAIM):
            self._claimed = None
            if self._ledger is not None:
                self._ledger.forget()
            return False
        self._claimed = mark
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
            try:
                self._sender.send(id_, event)
            except RequestError as error:
                if not error.is_final or not self._is_refused_for_good(id_):
                    raise
                words = "event %s is not sent, because %s refuses the event: %s; event: %s"
                log.error(words, id_, self._sender.name, error, event)

        for position in () if self._ledger is None else self._ledger.send(mark.position, now, send):
            if position > mark.position:
                self._marks.raise_to("events", self._sender.name, position)
                self._claimed = mark = mark._replace(position=position)
        return self._outbox is not None and self._outbox.send(send)

    def _is_refused_for_good(self, id_: str) -> bool:
        """Note that the receiver refused an event. Return whether the event is to be passed over."""
        if self._refused is None or self._refused[0] != id_:
            self._refused = (id_, self._clock())
        return self._clock() - self._refused[1] >= _REFUSED

    def _mark(self) -> Watermark:
        """Return the watermark of the receiver.

        If the watermark is missing, create it with the current time, so that earlier runs are not sent.
        """
        while True:
            for mark in self._marks.page("events", "", 1000):
                if mark.name == self._sender.name:
                    return mark
            self._marks.raise_to("events", self._sender.name, self._store.now())

    def _set_back(self, mark: Watermark, now: float) -> Watermark:
        """Lower the watermark, because the database's clock was set back.

        Runs that end now have times before the old watermark, so they would not be sent otherwise. Runs with times
        after the new watermark may be sent again.
        """
        self._marks.remove(mark)
        self._marks.raise_to("events", self._sender.name, now - OVERLAP)
        return self._mark()


class LedgerEvents:
    def __init__(self, ledger: Ledger, table: str, clock: Clock) -> None:
        self._ledger = ledger
        self._table = table
        self._clock = clock
        self._sent: dict[tuple[str, int, int], float] = {}
        self._read_at: float | None = None
        self._full_at = 0.0

    def forget(self) -> None:
        """Forget which entries were sent, because another node sends now."""
        self._sent.clear()
        self._read_at = None

    def send(self, position: float, now: float, send: Send) -> Iterator[float]:
        """Send the entries since `position` that were not sent yet. Yield new positions of the watermark.

        In a long backlog, yields a position after each `_PAGE` entries. `now`: the database's time.
        """
        if self._read_at is not None and now < self._read_at:  # the database's clock was set back
            self._read_at = None
        is_full = self._read_at is None or self._clock() >= self._full_at
        since = position if is_full or self._read_at is None else max(position, self._read_at - _RECENT)
        for count, row in enumerate(self._ledger.rows(LedgerFilter(since=since)), 1):
            id_ = (row.key, row.scheduled_time, row.fence)
            if id_ not in self._sent:
                send(message_id("run", self._table, *id_), run_event(row, self._table))
                self._sent[id_] = row.ended
            if count % _PAGE == 0 and row.ended < now - OVERLAP:
                yield self._sent_until(row.ended)
        self._read_at = now
        if is_full:
            self._full_at = self._clock() + _FULL_INTERVAL
            yield self._sent_until(now - OVERLAP)

    def _sent_until(self, position: float) -> float:
        """Forget the sent entries from before `position`, because they are not read again. Return `position`."""
        self._sent = {id_: ended for id_, ended in self._sent.items() if ended >= position - 1}
        return position


class OutboxEvents:
    """Sends the events of an outbox, and deletes them."""

    def __init__(self, outbox: EventOutbox, table: str, kinds: Collection[EventKind], clock: Clock) -> None:
        self._outbox = outbox
        self._table = table
        self._kinds = frozenset(kinds)
        self._clock = clock
        self._trim_at = 0.0

    def trim(self) -> None:
        """From time to time, drop events that are too old."""
        if self._clock() < self._trim_at:
            return
        dropped = self._outbox.trim(_KEPT, _TRIMMED)
        if dropped:
            log.error("%d events of %s are dropped: no receiver has accepted them in 7 days", dropped, self._table)
        else:
            self._trim_at = self._clock() + _TRIM_INTERVAL

    def send(self, send: Send) -> bool:
        """Send the oldest events. Return whether more are left."""
        pending = self._outbox.page(_PAGE)
        sent = 0
        try:
            for event in pending:
                message = self._message(event)
                if message is not None:
                    send(*message)
                sent += 1
        finally:
            self._outbox.remove(pending[:sent])
        return len(pending) == _PAGE

    def _message(self, pending: PendingEvent) -> tuple[str, dict[str, object]] | None:
        """Return the id and the event to send.

        Return None if events of this kind are no longer configured, or if the event is damaged.
        """
        try:
            return outbox_event(pending, self._table) if pending.facts["event"] in self._kinds else None
        except (KeyError, TypeError):
            place, facts = pending.place, dict(pending.facts)
            log.error("event %s in the outbox of %s is damaged, and is dropped: %s", place, self._table, facts)
            return None


def open_event_threads(opened_sections: Sequence[OpenSection], claimer: str) -> list[EventThread]:
    """Return a thread for each section whose events are sent. `claimer`: as for `AlertAndEventThreads`."""
    threads: list[EventThread] = []
    for opened in opened_sections:
        store, receiver = opened.source.store, opened.section.events
        if receiver is not None and store.watermarks is not None:
            closing = threading.Event()
            sender = event_sender(receiver, store, closing)
            table, kinds = opened.section.table, receiver.only
            threads.append(EventThread(store, sender, table, closing, kinds=kinds, claimer=claimer))
    return threads


def run_event(row: LedgerRow, table: str) -> dict[str, object]:
    """Return the event for an entry of the ledger. The names and meanings of the event's fields are stable."""
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
    """Return the id and the event for an entry of the outbox."""
    event = {"event": pending.facts["event"], "table": table, **pending.facts}
    if event["event"] == "task":
        event["ended"] = pending.at
        return message_id("task", table, event["key"], event["fence"], pending.at), event
    moment = event.get("failed_at", event.get("reported_at"))
    return message_id(event["event"], table, event["key"], event["scheduled_time"], moment), event
