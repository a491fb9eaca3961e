"""Finds the types to acquire among those that have rows. In children, one per section."""

from __future__ import annotations

import threading
from collections.abc import Collection

from psched.clock import Clock, monotonic
from psched.source.source import Source
from psched.store.type_filter import TypeFilter
from psched.store.wakeup import Wakeup
from psched.task import Task

_FRESH = 2.0
"""Seconds for which a busy worker uses the types it found last."""
_SHARE = 0.05
"""The largest share of its time that a busy worker spends on looking up types."""
_ALWAYS = 64
"""Up to so many exact names are passed to every acquire, so that a new row is found at once.

More names are passed only when they have rows: a name without rows costs an acquire as much as one with.
"""
_FOREIGN = 2
"""When more than so many times the accepted names have rows, the store is asked for the accepted names only."""


class ClaimableTypes:
    """Polls one source for the types that a filter accepts. Safe to use from several threads.

    A filter that accepts everything limits nothing, and costs nothing. For exact names only the store is asked for
    these, however many other types there are; for hundreds of them once there are far more other types. Otherwise the
    types are looked up among those that have rows. Either is done whenever the worker asks when something is due, so an
    idle one knows every new type; a busy one looks every few seconds.
    """

    def __init__(self, source: Source, wanted: TypeFilter, clock: Clock = monotonic) -> None:
        self.wanted = wanted
        self._source = source
        self._store = source.store
        self._clock = clock
        self._lock = threading.Lock()
        is_named = len(wanted.names) <= _ALWAYS
        self._always = wanted.names if is_named else frozenset()
        self._asks_by_name = wanted.is_exact and is_named
        self._present: Collection[str] = tuple(sorted(self._always))
        self._look_at: float | None = None
        """When a busy worker looks up types again; None: it was idle since the last look-up."""

    def prepare(self) -> None:
        """Prepare the store's statements, which would delay the first rows."""
        is_named = not self.wanted.is_everything and self._store.keeps_types
        self._store.prepare(self._present if is_named else None)

    def acquire(self, limit: int) -> list[Task]:
        """Acquire up to `limit` due rows ahead of their runs, earliest first; see `Source.poll_multi`."""
        if self.wanted.is_everything:
            return self._source.poll_multi(limit, ahead=True)
        if not self._store.keeps_types:
            return self._source.poll_multi(limit, ahead=True, accepts=self.wanted.accepts)
        return self._source.poll_multi(limit, self._named(), ahead=True)

    def next_due(self) -> float | None:
        """Return in how many seconds something is due, None when nothing is; see `LeaseStore.next_due`."""
        if self.wanted.is_everything:
            return self._store.next_due()
        if not self._store.keeps_types:
            return self._store.next_due(accepts=self.wanted.accepts)
        wait = self._look()
        with self._lock:
            self._look_at = None
        return wait

    def open_wakeup(self) -> Wakeup | None:
        """Return a new wake-up listener of one thread, for the accepted types."""
        return self._source.open_wakeup(None if self.wanted.is_everything else self.wanted.accepts)

    def _named(self) -> Collection[str]:
        """Return the types to acquire; after an idle time those found by the last `next_due`."""
        with self._lock:
            is_due = self._look_at is not None and self._clock() >= self._look_at
            if self._look_at is None:
                self._look_at = self._clock() + _FRESH
        if is_due:
            self._look()
        return self._present

    def _look(self) -> float | None:
        """Look up the accepted types that have rows, unless all are known; return in how many seconds one is due."""
        begun = self._clock()
        if self._asks_by_name:
            present, wait = self._present, self._store.next_due(self._present)
        else:
            found = self._store.due_by_type()
            heads = {type_: due for type_, due in found.items() if self.wanted.accepts(type_)}
            present, wait = tuple(sorted(self._always | heads.keys())), min(heads.values(), default=None)
            if self.wanted.is_exact and len(found) > _FOREIGN * len(self.wanted.names):
                present, self._asks_by_name = tuple(sorted(self.wanted.names)), True
        now = self._clock()
        with self._lock:
            self._present = present
            self._look_at = now + max(_FRESH, (now - begun) / _SHARE)
        return wait
