"""Chooses the types of rows to acquire: the types that have both handlers and rows."""

from __future__ import annotations

import threading
from collections.abc import Collection

from psched.acquisition.task_source import TaskSource
from psched.clock import Clock, monotonic
from psched.store import Accepts, Wakeup
from psched.store.type_filter import TypeFilter

_FRESH = 2.0
"""Seconds after a look-up of types for which a busy worker uses its result."""
_SHARE = 0.05
"""The largest share of its time that a busy worker spends on looking up types."""
_ALWAYS = 64
"""The maximum number of exact type names that are all passed to every acquire, so that it finds a row of a new type
immediately.

If there are more names, acquires get only the types that have rows, because each name makes an acquire slower.
"""
_TOO_MANY_TYPES = 2
"""A look-up returns every type that has rows. If these are more than this many times the number of accepted names, the
look-ups end, and later queries name the accepted types."""


class TypesWithRows:
    """Chooses the types to acquire from one source, among those that a filter accepts.

    Safe to use from several threads.

    - A filter that accepts everything: no type is passed to the store.
    - A few exact names: they are passed to the store.
    - Any other filter: each query for the next due time also looks up which accepted types have rows. An idle worker
      therefore knows every new type. A busy worker looks up types every few seconds. The look-ups end if the filter has
      only exact names and more than twice as many types have rows: then all names are passed to the store.
    """

    def __init__(self, source: TaskSource, wanted: TypeFilter, clock: Clock = monotonic) -> None:
        self.wanted = wanted
        self._source = source
        self._store = source.store
        self._clock = clock
        self._lock = threading.Lock()
        self._accepts = None if wanted.is_everything else wanted.accepts
        self._selects_by_type = not wanted.is_everything and source.store.keeps_types
        is_named = len(wanted.names) <= _ALWAYS
        self._always = wanted.names if is_named else frozenset()
        self._asks_by_name = wanted.is_exact and is_named
        self._present: Collection[str] = tuple(sorted(self._always))
        self._look_at: float | None = None
        """When a busy worker looks up types again; None if it has been idle since the last look-up."""

    def prepare(self) -> None:
        """Prepare the store's statements, so that the first rows are not delayed."""
        self._store.prepare(self._present if self._selects_by_type else None)

    def to_acquire(self) -> tuple[Collection[str] | None, Accepts | None]:
        """Return the `types` and `accepts` for the next `TaskSource.poll_multi`.

        After an idle time these are the types that the last `next_due` found.
        """
        if not self._selects_by_type:
            return None, self._accepts
        with self._lock:
            is_due = self._look_at is not None and self._clock() >= self._look_at
            if self._look_at is None:
                self._look_at = self._clock() + _FRESH
        if is_due:
            self.next_due(is_busy=True)
        return self._present, None

    def open_wakeup(self) -> Wakeup | None:
        """Return a new wake-up listener for one thread and the accepted types."""
        return self._source.open_wakeup(self._accepts)

    def next_due(self, is_busy: bool = False) -> float | None:
        """Return the seconds until a row is due, or None without a row; see `LeaseStore.next_due`.

        Also look up which accepted types have rows, if the class needs this look-up (see above). `is_busy`: the worker
        is not idle, so `to_acquire` looks types up again after a few seconds, and does not wait for the next idle time.
        """
        if not self._selects_by_type:
            return self._store.next_due(accepts=self._accepts)
        begun = self._clock()
        if self._asks_by_name:
            present, wait = self._present, self._store.next_due(self._present)
        else:
            found = self._store.due_by_type()
            heads = {type_: due for type_, due in found.items() if self.wanted.accepts(type_)}
            present, wait = tuple(sorted(self._always | heads.keys())), min(heads.values(), default=None)
            if self.wanted.is_exact and len(found) > _TOO_MANY_TYPES * len(self.wanted.names):
                present, self._asks_by_name = tuple(sorted(self.wanted.names)), True
        now = self._clock()
        with self._lock:
            self._present = present
            self._look_at = now + max(_FRESH, (now - begun) / _SHARE) if is_busy else None
        return wait
