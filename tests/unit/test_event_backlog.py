"""A backlog of events is sent in parts. After a failure, or on the next node, only the last part is sent again."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from psched.backends import open_stores
from psched.execution.event_delivery import OVERLAP, EventThread
from psched.store import StoreSettings
from psched.store.ledger import LedgerFilter, LedgerRow


class Inbox:
    """A receiver that refuses one event once."""

    name = "inbox"

    def __init__(self, refused: int = -1) -> None:
        self.got: list[object] = []
        self._refused: int | None = refused

    def send(self, id_: str, event: dict[str, object]) -> None:
        if event["fence"] == self._refused:
            self._refused = None
            raise OSError("not now")
        self.got.append(event["fence"])


def entry(number: int, ended: float) -> LedgerRow:
    known = {"version": 1, "previous": None, "attempts": 1, "error": None, "node": None, "reckoning": "vixie"}
    return LedgerRow(key="k", scheduled_time=number, fence=number, ended=ended, **known)  # type: ignore[arg-type]


def test_a_long_backlog_is_remembered_by_the_watermark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psched.execution.event_delivery._CLAIM", 0.0)
    store = open_stores("rdb", StoreSettings("sqlite://", "h/1/1", schedules="s")).schedules
    assert store is not None and store.watermarks is not None
    store.create_tables()
    since = store.now() - 5000
    rows = [entry(number, since + number) for number in range(1000)]

    def read(wanted: LedgerFilter) -> Iterator[LedgerRow]:
        return (row for row in rows if wanted.since is not None and row.ended >= wanted.since)

    monkeypatch.setattr(store, "ledger", SimpleNamespace(rows=read))
    store.watermarks.raise_to("events", "inbox", since)
    inbox = Inbox(refused=950)
    one = EventThread(store, inbox, "table")
    with pytest.raises(OSError, match="not now"):
        one.check()
    assert inbox.got == [*range(950)]
    one.check()
    assert inbox.got == [*range(1000)]  # nothing twice by the same node
    assert store.watermarks.page("events", "", 1)[0].position > since + 1000 + OVERLAP

    store.watermarks.remove(store.watermarks.page("events", "", 1)[0])
    store.watermarks.raise_to("events", "inbox", since)
    inbox = Inbox(refused=950)
    with pytest.raises(OSError, match="not now"):
        EventThread(store, inbox, "table").check()
    EventThread(store, inbox, "table").check()
    assert set(inbox.got) == {*range(1000)}
    assert len(inbox.got) < 1000 + 110  # the next node sends less than a part again
    store.close()


@pytest.mark.parametrize("seconds", [3, 200])
def test_runs_that_end_after_the_databases_clock_was_set_back_are_sent(
    monkeypatch: pytest.MonkeyPatch, seconds: int
) -> None:
    store = open_stores("rdb", StoreSettings("sqlite://", "h/1/1", schedules="s")).schedules
    assert store is not None
    store.create_tables()
    time, databases_time = 0.0, store.now()
    rows: list[LedgerRow] = []

    def read(wanted: LedgerFilter) -> Iterator[LedgerRow]:
        return (row for row in rows if wanted.since is not None and row.ended >= wanted.since)

    monkeypatch.setattr(store, "ledger", SimpleNamespace(rows=read))
    monkeypatch.setattr(store, "now", lambda: databases_time)
    inbox = Inbox()
    thread = EventThread(store, inbox, "table", clock=lambda: time)
    for number in range(100):
        rows.append(entry(number, databases_time))
        thread.check()
        assert inbox.got.count(number) == 1, "as soon as the run has ended"
        jump = seconds if number == 50 else 0
        time, databases_time = time + 5, databases_time + 5 - jump
    again = len(inbox.got) - len(rows)
    assert again <= (0 if seconds < OVERLAP else seconds / 5)
    store.close()
