"""The outbox on Redis: the stream `outbox` of a table."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

from psched.backends.common.rows import read_event_facts
from psched.backends.redis.ledger import Run
from psched.store.outbox import PendingEvent


class RedisOutbox:
    """Implements `EventOutbox`. Keeps about 100,000 events; older events are deleted."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def put(self, facts: Mapping[str, object]) -> None:
        self._run("put_event", json.dumps(facts))

    def page(self, limit: int) -> list[PendingEvent]:
        return [_pending(place.decode(), fields) for place, fields in self._run("events", limit)]

    def remove(self, events: Sequence[PendingEvent]) -> None:
        if events:
            self._run("remove_events", *(event.place for event in events))

    def trim(self, age: float, limit: int) -> int:
        return int(self._run("trim_events", math.ceil(age * 1000), limit))


def _pending(place: str, words: Sequence[bytes]) -> PendingEvent:
    fields = dict(zip(words[::2], words[1::2], strict=True))
    try:
        at, facts = int(fields[b"at"]), read_event_facts(fields[b"facts"])
    except (KeyError, ValueError):  # another program wrote the entry
        at, facts = int(place.partition("-")[0]), {}
    return PendingEvent(place, at / 1000, facts)
