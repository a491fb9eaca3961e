"""The outbox on Redis: the stream `outbox` of a table."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

from psched.backends.redis.ledger import Run
from psched.store.outbox import PendingEvent


class RedisOutbox:
    """Implements `EventOutbox`. Keeps about 100,000 events; the oldest are deleted."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def put(self, facts: Mapping[str, object]) -> None:
        self._run("put_event", json.dumps(facts))

    def page(self, limit: int) -> list[PendingEvent]:
        return [
            PendingEvent(place.decode(), int(fields[1]) / 1000, json.loads(fields[3]))
            for place, fields in self._run("events", limit)
        ]

    def remove(self, events: Sequence[PendingEvent]) -> None:
        if events:
            self._run("remove_events", *(event.place for event in events))

    def trim(self, age: float, limit: int) -> int:
        return int(self._run("trim_events", math.ceil(age * 1000), limit))
